"""Metrics of a process: recorders for what happens, a registry that renders them, a server that Prometheus scrapes.

    summary ──► ActorMetrics ───┐
    report ───► LearnerMetrics ─┼─► Registry (plain numbers) ──► render ──► MetricsServer  /metrics /targets /healthz
    accounts ─► DriverMetrics ──┘

loop      consumes                         produces            waits for        unblocked by
record    one fragment, update or event    numbers             nothing          the caller
scrape    a request                        text of one moment  a recorder       it, within 0.1 ms

Recorders are called between fragments and updates, never inside. One registry per process (or several: nothing here is
global, so a second run in the same process starts from nothing). docs/metrics.md lists every metric.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from common import metric_catalogue as catalogue
from common.clock import NS_PER_S
from common.fragment import FragmentSummary
from common.metric_catalogue import CATALOGUE, Metric, markdown_table
from common.metric_labels import ActorState, ClosedLabels, DropReason, Phase, SaveResult, Statistic
from common.metric_values import Distribution, Sample, Values, set_totals
from common.metrics_server import MetricsServer, Target, serve
from common.ports import PortRange

__all__ = [
    "CATALOGUE",
    "ActorMetrics",
    "ActorState",
    "DriverMetrics",
    "DropReason",
    "LearnerMetrics",
    "MetricsServer",
    "PortRange",
    "Registry",
    "SaveResult",
    "Statistic",
    "Target",
    "markdown_table",
    "new_registry",
    "serve",
]


class Registry:
    """All series of one process: what the recorders wrote, and memory, CPU and open files of the process itself.

    Attributes:
        values: the numbers; recorders make their cells there.
    """

    def __init__(self) -> None:
        self.values = Values()
        self._exposed = CollectorRegistry(auto_describe=False)
        self._exposed.register(_Snapshots(self.values))
        ProcessCollector(registry=self._exposed)

    @property
    def cpu_seconds(self) -> float:
        """CPU time that recording and answering scrapes has cost so far, by all threads."""
        return self.values.cpu_seconds

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Every series as text, and its content type: Prometheus text, or OpenMetrics where `accept` asks for it."""
        encode, content_type = choose_encoder(accept)
        return encode(self._exposed), content_type

    def account(self, cpu_ns: int) -> None:
        """Add CPU time that metrics have cost elsewhere."""
        self.values.account(cpu_ns)


def new_registry() -> Registry:
    """A registry that shares nothing with any other."""
    return Registry()


class ActorMetrics:
    """What actors of this process do. Several in one process add to the same series."""

    def __init__(self, registry: Registry) -> None:
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
        self._gc_pause_seconds = values.histogram(catalogue.ACTOR_GC_PAUSE_SECONDS)
        self._version = values.gauge(catalogue.ACTOR_WEIGHTS_VERSION)
        self._evaluation_seconds = values.histogram(catalogue.ACTOR_EVALUATION_SECONDS)
        self._evaluation_episodes = values.counter(catalogue.ACTOR_EVALUATION_EPISODES)

    def observe(self, summary: FragmentSummary) -> None:
        """Take in one collected fragment."""
        with self._values.recording():
            self._fragments.add(1)
            self._env_steps.add(summary.num_valid)
            self._voided.add(summary.num_voided)
            self._bytes.add(summary.num_bytes)
            self._collect_seconds.observe((summary.end_ns - summary.start_ns) / NS_PER_S)
            self._policy_seconds.add(summary.policy_ns / NS_PER_S)
            self._environment_seconds.add(summary.env_ns / NS_PER_S)
            for pause_ns in summary.gc_pause_ns:
                self._gc_pause_seconds.observe(pause_ns / NS_PER_S)
            self._version.set(summary.version)
            self._observe_episodes(summary)

    def _observe_episodes(self, summary: FragmentSummary) -> None:
        returns = summary.episode_returns
        self._episodes.add(len(returns))
        if returns:
            self._return_mean.set(sum(returns) / len(returns))
        for episode_return in returns:
            self._return.observe(episode_return)
        for length in summary.episode_lengths:
            self._length.observe(length)

    def observe_evaluation(self, seconds: float, episodes: int) -> None:
        """Take in one greedy evaluation."""
        with self._values.recording():
            self._evaluation_seconds.observe(seconds)
            self._evaluation_episodes.add(episodes)


class LearnerMetrics:
    """What the learner rank of this process does."""

    def __init__(self, registry: Registry) -> None:
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
            for reason, fragments in self._labels.as_other(refused).items():
                self._refused[reason].add(fragments)


class DriverMetrics:
    """What the run has done: exact totals, carried on over resumes; the driver counts, this exports."""

    def __init__(self, registry: Registry) -> None:
        values = self._values = registry.values
        self._produced = values.counter(catalogue.DRIVER_PRODUCED)
        self._trained = values.counter(catalogue.DRIVER_TRAINED)
        self._dropped = {reason: values.counter(catalogue.DRIVER_DROPPED, reason) for reason in DropReason}
        self._in_flight = values.gauge(catalogue.DRIVER_IN_FLIGHT)
        self._voided = values.counter(catalogue.DRIVER_VOIDED)
        self._lost = values.counter(catalogue.DRIVER_LOST)
        self._episodes = values.counter(catalogue.DRIVER_EPISODES)
        self._env_steps = values.counter(catalogue.DRIVER_ENV_STEPS)
        self._updates = values.counter(catalogue.DRIVER_UPDATES)
        self._rate = values.gauge(catalogue.DRIVER_ENV_STEPS_RATE)
        self._version = values.gauge(catalogue.DRIVER_WEIGHTS_VERSION)
        self._term = values.gauge(catalogue.DRIVER_TERM)
        self._lag = values.gauge(catalogue.DRIVER_LAG)
        self._actors = {state: values.gauge(catalogue.DRIVER_ACTORS, state) for state in ActorState}
        self._restarts = values.counter(catalogue.DRIVER_RESTARTS)
        self._evaluation_return = values.gauge(catalogue.DRIVER_EVALUATION_RETURN)
        self._evaluation_episodes = values.gauge(catalogue.DRIVER_EVALUATION_EPISODES)
        self._checkpoint_seconds = values.histogram(catalogue.DRIVER_CHECKPOINT_SECONDS)
        self._checkpoints = {result: values.counter(catalogue.DRIVER_CHECKPOINTS, result) for result in SaveResult}
        self._run = values.info(catalogue.DRIVER_RUN)
        self._labels = ClosedLabels()

    def set_run(self, *, run: str, env: str, algo: str) -> None:
        """Say what is trained: one series, whatever the names."""
        with self._values.recording():
            self._run.set({"run": run, "env": env, "algo": algo})

    def set_accounts(
        self,
        *,
        produced: int,
        trained: int,
        in_flight: int,
        dropped: Mapping[str, int],
        fragments_lost: int,
        voided: int,
        episodes: int,
    ) -> None:
        """Export the accounts of the run as they stand, all in the same scrape.

        Args:
            dropped: transitions by `DropReason`; unknown reasons are logged once and summed up as "other".

        Raises:
            ValueError: a total would go back; then nothing is changed.
        """
        with self._values.recording():
            known = self._labels.as_other(dropped)
            set_totals(
                [
                    (self._produced, produced),
                    (self._trained, trained),
                    *((counter, known.get(reason, 0)) for reason, counter in self._dropped.items()),
                    (self._lost, fragments_lost),
                    (self._voided, voided),
                    (self._episodes, episodes),
                ]
            )
            self._in_flight.set(in_flight)

    def set_progress(
        self, *, updates: int, env_steps: int, version: int, term: int, policy_lag: int, per_second: float | None
    ) -> None:
        """Export how far the run is.

        Args:
            updates: committed, in all.
            env_steps: environment steps of committed updates, in all.
            version: of the newest weights.
            term: of the learner.
            policy_lag: of the latest update, in updates.
            per_second: environment steps per second; None (no time has passed) keeps the last value.

        Raises:
            ValueError: a total would go back; then nothing is changed.
        """
        with self._values.recording():
            set_totals([(self._updates, updates), (self._env_steps, env_steps)])
            self._version.set(version)
            self._term.set(term)
            self._lag.set(policy_lag)
            if per_second is not None:
                self._rate.set(per_second)

    def set_actors(self, *, states: Mapping[str, int], restarts: int) -> None:
        """Export actors by `ActorState` (a state that is missing has none) and restarts in all.

        Raises:
            ValueError: fewer restarts than before; then nothing is changed.
        """
        with self._values.recording():
            known = self._labels.known_only(ActorState, states)
            set_totals([(self._restarts, restarts)])
            for state, gauge in self._actors.items():
                gauge.set(known.get(state, 0))

    def set_evaluation(self, *, return_mean: float, episodes: int) -> None:
        """Export the latest evaluation."""
        with self._values.recording():
            self._evaluation_return.set(return_mean)
            self._evaluation_episodes.set(episodes)

    def observe_checkpoint(self, *, seconds: float, result: SaveResult) -> None:
        """Take in one attempt to write a checkpoint."""
        with self._values.recording():
            self._checkpoint_seconds.observe(seconds)
            self._checkpoints[result].add(1)


class _Snapshots(Collector):
    """What prometheus_client collects from: the families of one snapshot."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> list[Family]:
        return [_family(metric, samples) for metric, samples in self._values.snapshot().items()]


def _family(metric: Metric, samples: list[Sample]) -> Family:
    base = metric.name.removesuffix("_total").removesuffix("_info")
    family = Family(base, metric.help, metric.kind)
    for sample in samples:
        labels = {} if metric.label is None else {metric.label.name: sample.label}
        match sample.reading:
            case Distribution() as distribution:
                _add_distribution(family, metric, labels, distribution)
            case dict() as facts:
                family.add_sample(metric.name, facts, 1)
            case value:
                family.add_sample(metric.name, labels, value)
    return family


def _add_distribution(family: Family, metric: Metric, labels: dict[str, str], distribution: Distribution) -> None:
    bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
    for bound, count in zip(bounds, distribution.cumulative, strict=True):
        family.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    if metric.buckets[0] >= 0:  # OpenMetrics: no count and sum where observations may be negative
        family.add_sample(f"{metric.name}_count", labels, distribution.cumulative[-1])
        family.add_sample(f"{metric.name}_sum", labels, distribution.sum)


if __name__ == "__main__":
    print(markdown_table())
