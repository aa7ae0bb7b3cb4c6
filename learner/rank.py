"""One learner rank: fragments in, weights out. No Ray and no Gymnasium in it.

documents ──► intake ──► algorithm (returns, batch, loss, gradient step) ──► commit ──► weights document

loop      consumes                     produces                       waits for      unblocked by
update    an order and its documents   a report, a weights document   nothing        the caller's next order
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from common.clock import Clock
from common.errors import CheckpointError, ConfigError
from common.fragment import Fragment, FragmentLayout
from common.nets import NetConfig, make_actor_critic
from common.parameters import FlatParameters
from common.rng import Purpose, Role, Streams
from common.weights import WeightsHeader, encode_weights, parameter_digest
from learner.algorithms.ppo import PPO, PPOConfig, UpdateOutcome
from learner.batches import BatchBuilder
from learner.gradient_step import GradientStep
from learner.intake import Accepted, Intake, Refused
from learner.optimiser import Optimiser, OptimiserConfig
from learner.parallel.reducer import OneRank
from learner.reports import FragmentVerdict, UpdateOrder, UpdateReport
from learner.state import LearnerState

RANK = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """Where and how a rank computes.

    Attributes:
        device: auto = the first GPU if there is one, else the CPU.
        threads: intra-op threads; part of the fingerprint, since two threads round differently from one.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 1

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError("learner.threads", got=self.threads, allowed="1 or more")

    def torch_device(self) -> torch.device:
        """The device meant by `device`. Raises ConfigError if it is not there."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("learner.device", got="cuda, but torch sees no GPU here", allowed="cpu or auto")
        use_gpu = self.device != "cpu" and torch.cuda.is_available()
        return torch.device("cuda" if use_gpu else "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConfig:
    """All that one rank is made from: plain configuration records, so it travels to another process."""

    run: str
    seed: int
    horizon_updates: int
    max_lag: int
    layout: FragmentLayout
    learner: LearnerConfig
    net: NetConfig
    optimiser: OptimiserConfig
    ppo: PPOConfig


class LearnerRank:
    """Holds the model, its optimiser and the intake; makes one update per order."""

    def __init__(self, config: RankConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._streams = Streams(config.seed)
        device = config.learner.torch_device()
        generator = self._streams.generator(Role.LEARNER, RANK, purpose=Purpose.INITIALISE)
        model = make_actor_critic(config.layout.observation, config.layout.action, config.net, generator).to(device)
        self._parameters = FlatParameters(model, trainable=True)
        self._optimiser = Optimiser(config.optimiser, self._parameters)
        step = GradientStep(
            self._parameters, self._optimiser, OneRank(), max_gradient_norm=config.optimiser.max_gradient_norm
        )
        self._algorithm = PPO(config.ppo, model, step, BatchBuilder(config.layout, device))
        self._intake = Intake(config.run, config.layout, max_lag=config.max_lag)
        self._updates = 0
        self._version = 0
        self._term = 0

    def start(self, *, version: int, term: int) -> NDArray[np.uint8]:
        """Publish the weights as they are under `version`; returns the weights document."""
        self._version, self._term = version, term
        return self._publish()

    def load_parameters(self, flat: NDArray[np.float32], fingerprint: str) -> None:
        """Begin from the weights of another run. Raises CheckpointError if the networks differ."""
        self._check_fingerprint(fingerprint)
        self._parameters.load(flat)

    def update(self, order: UpdateOrder, documents: Sequence[Any]) -> tuple[UpdateReport, NDArray[np.uint8]]:
        """Make one update from `documents` (one per actor, in actor order); returns report and weights document."""
        marks = [self._clock.now_ns()]
        judged = [self._intake.accept(document, term=order.term, update=order.update) for document in documents]
        marks.append(self._clock.now_ns())
        rate = self._optimiser.set_update(order.update, self._config.horizon_updates)
        accepted = [verdict for verdict in judged if isinstance(verdict, Accepted)]
        outcome = self._learn([verdict.fragment for verdict in accepted], order.update)
        marks.append(self._clock.now_ns())
        self._updates, self._version, self._term = order.update + 1, order.publish_as, order.term
        document = self._publish()
        marks.append(self._clock.now_ns())
        phases = ("intake", "learn", "publish")
        report = UpdateReport(
            update=order.update,
            term=order.term,
            version=order.publish_as,
            trained=outcome.committed > 0,
            verdicts=tuple(_verdict(judgement) for judgement in judged),
            steps=outcome.committed,
            skipped_steps=outcome.skipped,
            skipped_at=outcome.skipped_at,
            lag=max((verdict.lag for verdict in accepted), default=0),
            gaps=sum(judgement.gap for judgement in judged),
            parameter_digest=parameter_digest(self._parameters.numpy()),
            learning_rate=rate,
            statistics=outcome.statistics,
            seconds={name: (b - a) / 1e9 for name, a, b in zip(phases, marks, marks[1:], strict=False)},
        )
        return report, document

    def _learn(self, fragments: list[Fragment], update: int) -> UpdateOutcome:
        shuffle = self._streams.generator(Role.LEARNER, RANK, purpose=Purpose.SHUFFLE, extra=(update,))
        return self._algorithm.update(fragments, shuffle)

    def _publish(self) -> NDArray[np.uint8]:
        self._intake.published(self._version, self._updates)
        manifest = self._parameters.manifest
        header = WeightsHeader(
            run=self._config.run,
            term=self._term,
            version=self._version,
            update=self._updates,
            fingerprint=manifest.fingerprint(),
        )
        return encode_weights(manifest, self._parameters.numpy(), header)

    def state(self) -> LearnerState:
        """All that must survive, copied."""
        return LearnerState(
            updates=self._updates,
            version=self._version,
            term=self._term,
            parameters=self._parameters.numpy().copy(),
            optimiser=self._optimiser.arrays(),
            manifest_fingerprint=self._parameters.manifest.fingerprint(),
            intake=self._intake.state(),
        )

    def set_state(self, state: LearnerState) -> None:
        """Go on from `state`. Raises CheckpointError if it is of another network."""
        self._check_fingerprint(state.manifest_fingerprint)
        self._optimiser.load(state.optimiser)  # refuses what does not fit before anything has changed
        self._parameters.load(state.parameters)
        self._intake.set_state(state.intake)
        self._updates, self._version, self._term = state.updates, state.version, state.term

    def _check_fingerprint(self, fingerprint: str) -> None:
        ours = self._parameters.manifest.fingerprint()
        if fingerprint != ours:
            raise CheckpointError(
                "weights of another network",
                got=fingerprint[:16],
                allowed=ours[:16],
                fix="use the same environment and net configuration",
            )


def _verdict(judgement: Accepted | Refused) -> FragmentVerdict:
    if isinstance(judgement, Refused):
        return FragmentVerdict(refusal=judgement.reason.value, detail=judgement.detail, num_valid=0)
    return FragmentVerdict(refusal="", detail="", num_valid=judgement.fragment.header.num_valid)
