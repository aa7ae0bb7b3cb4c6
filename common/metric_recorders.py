"""What actors and learner ranks do, in numbers: recorders called between fragments and updates, one lock a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from common import metric_catalogue as catalogue
from common.clock import NS_PER_S
from common.fragment import FragmentSummary
from common.metric_labels import ClosedLabels, DropReason, LayerGroup, Phase, Statistic, SyncPhase
from common.metric_values import HasValues
from common.timings import FragmentTimings


class SyncFigures(Protocol):
    """What verified sync of one order came to on one rank, as `learner.reports.SyncReport` has it."""

    @property
    def verified_steps(self) -> int:
        """Gradient steps on which all ranks agreed."""
        ...

    @property
    def audited(self) -> bool:
        """Whether a step was computed again."""
        ...

    @property
    def reduced_bytes(self) -> int:
        """Bytes that the rank put into reduces."""
        ...

    @property
    def gradient_norm(self) -> float:
        """Mean norm of the rank's own gradients."""
        ...

    @property
    def seconds(self) -> Mapping[str, float]:
        """By `SyncPhase`."""
        ...


class ActorMetrics:
    """What actors of this process do. Several in one process add to the same series."""

    def __init__(self, registry: HasValues) -> None:
        values = self._values = registry.values
        self._fragments = values.counter(catalogue.ACTOR_FRAGMENTS)
        self._env_steps = values.counter(catalogue.ACTOR_ENV_STEPS)
        self._voided = values.counter(catalogue.ACTOR_VOIDED)
        self._bytes = values.counter(catalogue.ACTOR_BYTES)
        self._episodes = values.counter(catalogue.ACTOR_EPISODES)
        self._return = values.histogram(catalogue.ACTOR_RETURN)
        self._return_mean = values.gauge(catalogue.ACTOR_RETURN_MEAN)
        self._length = values.histogram(catalogue.ACTOR_LENGTH)
        self._collect_seconds = values.histogram(catalogue.ACTOR_COLLECT_SECONDS)
        self._policy_seconds = values.counter(catalogue.ACTOR_POLICY_SECONDS)
        self._environment_seconds = values.counter(catalogue.ACTOR_ENVIRONMENT_SECONDS)
        self._env_step_seconds = values.histogram(catalogue.ACTOR_ENV_STEP_SECONDS)
        self._episode_seconds = values.histogram(catalogue.ACTOR_EPISODE_SECONDS)
        self._version = values.gauge(catalogue.ACTOR_WEIGHTS_VERSION)
        self._evaluation_seconds = values.histogram(catalogue.ACTOR_EVALUATION_SECONDS)
        self._evaluation_episodes = values.counter(catalogue.ACTOR_EVALUATION_EPISODES)

    def observe(self, summary: FragmentSummary, timings: FragmentTimings | None = None) -> None:
        """Take in one collected fragment, and how long its ticks and episodes took."""
        with self._values.recording():
            self._fragments.add(1)
            self._env_steps.add(summary.num_valid)
            self._voided.add(summary.num_voided)
            self._bytes.add(summary.num_bytes)
            self._collect_seconds.observe((summary.end_ns - summary.start_ns) / NS_PER_S)
            self._policy_seconds.add(summary.policy_ns / NS_PER_S)
            self._environment_seconds.add(summary.env_ns / NS_PER_S)
            self._version.set(summary.version)
            self._observe_episodes(summary)
            if timings is not None:
                self._env_step_seconds.observe_all(timings.step_ns / NS_PER_S)
                self._episode_seconds.observe_all(timings.episode_ns / NS_PER_S)

    def _observe_episodes(self, summary: FragmentSummary) -> None:
        returns = summary.episode_returns
        self._episodes.add(len(returns))
        if returns:
            self._return_mean.set(sum(returns) / len(returns))
            self._return.observe_all(np.array(returns))
            self._length.observe_all(np.array(summary.episode_lengths))

    def observe_evaluation(self, seconds: float, episodes: int) -> None:
        """Take in one greedy evaluation."""
        with self._values.recording():
            self._evaluation_seconds.observe(seconds)
            self._evaluation_episodes.add(episodes)


class LearnerMetrics:
    """What the learner rank of this process does."""

    def __init__(self, registry: HasValues) -> None:
        values = self._values = registry.values
        self._updates = values.counter(catalogue.LEARNER_UPDATES)
        self._rows = values.counter(catalogue.LEARNER_ROWS)
        self._steps = values.counter(catalogue.LEARNER_STEPS)
        self._skipped_steps = values.counter(catalogue.LEARNER_SKIPPED_STEPS)
        self._gaps = values.counter(catalogue.LEARNER_GAPS)
        self._rate = values.gauge(catalogue.LEARNER_RATE)
        self._lag = values.gauge(catalogue.LEARNER_LAG)
        self._version = values.gauge(catalogue.LEARNER_WEIGHTS_VERSION)
        self._seconds = {phase: values.histogram(catalogue.LEARNER_PHASE_SECONDS, phase) for phase in Phase}
        self._statistics = {name: values.gauge(catalogue.LEARNER_STATISTIC, name) for name in Statistic}
        self._refused = {reason: values.counter(catalogue.LEARNER_REFUSED, reason) for reason in DropReason}
        self._sync_seconds = {phase: values.histogram(catalogue.LEARNER_SYNC_SECONDS, phase) for phase in SyncPhase}
        self._reduced_bytes = values.counter(catalogue.LEARNER_REDUCED_BYTES)
        self._verified_steps = values.counter(catalogue.LEARNER_VERIFIED_STEPS)
        self._audited_steps = values.counter(catalogue.LEARNER_AUDITED_STEPS)
        self._local_norm = values.gauge(catalogue.LEARNER_LOCAL_NORM)
        self._layer_norms = {group: values.gauge(catalogue.LEARNER_GRADIENT_NORM, group) for group in LayerGroup}
        self._labels = ClosedLabels()

    def observe(
        self,
        *,
        seconds: Mapping[str, float],
        statistics: Mapping[str, float],
        learning_rate: float,
        lag: int,
        version: int,
        rows: int,
        steps: int,
        skipped_steps: int,
        gaps: int,
        refused: Mapping[str, int],
        layer_norms: Mapping[str, float] | None = None,
        sync: SyncFigures | None = None,
    ) -> None:
        """Take in one update.

        Args:
            seconds: by `Phase`.
            statistics: by `Statistic`; one that is missing keeps its last value.
            learning_rate: of this update.
            lag: largest lag of the accepted fragments, in updates.
            version: published.
            rows: valid transitions accepted.
            steps: gradient steps committed.
            skipped_steps: gradient steps skipped.
            gaps: fragments that never arrived.
            refused: fragments by `DropReason`.
            layer_norms: of the first step's gradient, by `LayerGroup`; one that is missing keeps its last value.
            sync: what verified sync came to.

        A name that the closed sets lack is logged once; a refusal for it counts as "other".
        """
        with self._values.recording():
            self._updates.add(1)
            self._rows.add(rows)
            self._steps.add(steps)
            self._skipped_steps.add(skipped_steps)
            self._gaps.add(gaps)
            self._rate.set(learning_rate)
            self._lag.set(lag)
            self._version.set(version)
            for phase, duration in self._labels.known_only(Phase, seconds).items():
                self._seconds[phase].observe(duration)
            for statistic, value in self._labels.known_only(Statistic, statistics).items():
                self._statistics[statistic].set(value)
            for group, norm in self._labels.known_only(LayerGroup, layer_norms or {}).items():
                self._layer_norms[group].set(norm)
            for reason, fragments in self._labels.as_other(refused).items():
                self._refused[reason].add(fragments)
            if sync is not None:
                self._observe_sync(sync)

    def observe_voided(self, sync: SyncFigures) -> None:
        """Take in an order that changed nothing (disputed or failed): its sync has cost time and bytes all the same."""
        with self._values.recording():
            self._observe_sync(sync)

    def _observe_sync(self, sync: SyncFigures) -> None:
        self._reduced_bytes.add(sync.reduced_bytes)
        self._verified_steps.add(sync.verified_steps)
        self._audited_steps.add(int(sync.audited))
        self._local_norm.set(sync.gradient_norm)
        for phase, duration in self._labels.known_only(SyncPhase, sync.seconds).items():
            if duration > 0:  # most updates are not audited, and a rank alone waits for nobody
                self._sync_seconds[phase].observe(duration)
