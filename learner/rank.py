"""One learner rank: fragments in, weights out. No Ray and no Gymnasium in it.

documents ──► intake ──► algorithm (returns, batch, loss, gradient steps) ──► close ──┬─ agreed ──► weights document
                                                                                    ├─ disputed ─► start restored
                              a collective fails ───────────────────────────────────┴─ failed ───► start restored

loop      consumes                     produces                       waits for         unblocked by
update    an order and its documents   a report, a weights document   the other ranks   them, or sync.collective_s
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from common.clock import Clock
from common.errors import CheckpointError, ConfigError, SyncError, WireError
from common.fragment import Fragment, FragmentLayout, decode_fragment
from common.nets import NetConfig, make_actor_critic
from common.parameters import FlatParameters
from common.rng import Purpose, Role, Streams
from common.weights import WeightsHeader, encode_weights, parameter_digest
from common.wire import pack_plain
from learner.algorithms.appo import AppoConfig
from learner.algorithms.impala import ImpalaConfig
from learner.algorithms.ppo import PPO, PPOConfig
from learner.audit import AuditPart
from learner.batches import BatchBuilder
from learner.gradient_step import GradientStep
from learner.intake import Accepted, Intake
from learner.optimiser import Optimiser, OptimiserConfig
from learner.parallel.config import SyncConfig
from learner.parallel.faults import RankFault, Saboteur, Tamper, Untouched
from learner.parallel.group import Group
from learner.parallel.joining import Membership, join_group, machine_facts
from learner.parallel.process_group import Meeting
from learner.replica import Replica
from learner.reporting import Attempt, report_made, report_not_made, sync_of
from learner.reports import (
    Formation,
    OrderStatus,
    Standing,
    SyncReport,
    UpdateOrder,
    UpdateReport,
)
from learner.state import InitialWeights, LearnerState

Algorithm = PPOConfig | ImpalaConfig | AppoConfig

MAX_RANKS = 1024
SHARED = 0  # index of streams that all ranks draw from alike


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """Where and how a rank computes.

    Attributes:
        ranks: processes that make each update together, each from its share of the fragments.
        device: auto = the first GPU if there is one, else the CPU.
        threads: intra-op threads; part of the fingerprint, since two threads round differently from one.
        max_restarts: rank processes that may be lost within 1,000 updates before the run is given up.
        sync: how ranks keep in step.
    """

    ranks: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 1
    max_restarts: int = 3
    sync: SyncConfig = field(default_factory=SyncConfig)

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MAX_RANKS:
            raise ConfigError("learner.ranks", got=self.ranks, allowed=f"1 to {MAX_RANKS}")
        if self.threads < 1:
            raise ConfigError("learner.threads", got=self.threads, allowed="1 or more")
        if self.max_restarts < 0:
            raise ConfigError("learner.max_restarts", got=self.max_restarts, allowed="0 or more")

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
    algorithm: Algorithm


class LearnerRank:
    """Holds the model, its optimiser and the intake; makes one update per order, with the other ranks of its group."""

    def __init__(self, config: RankConfig, clock: Clock, *, rank: int = 0, faults: tuple[RankFault, ...] = ()) -> None:
        self._config = config
        self._clock = clock
        self._rank = rank
        self._streams = Streams(config.seed)
        self._device = device = config.learner.torch_device()
        generator = self._streams.generator(Role.LEARNER, SHARED, purpose=Purpose.INITIALISE)
        model = make_actor_critic(config.layout.observation, config.layout.action, config.net, generator).to(device)
        self._model = model
        self._parameters = FlatParameters(model, trainable=True)
        self._optimiser = Optimiser(config.optimiser, self._parameters)
        self._replica = Replica(self._parameters, self._optimiser)
        self._tamper: Tamper = Saboteur(faults, clock) if faults else Untouched()
        self._batches = BatchBuilder(config.layout, device)
        self._others = BatchBuilder(config.layout, device)
        self._intake = Intake(config.run, config.layout, max_lag=config.max_lag)
        self._meeting: Meeting | None = None
        self._group: Group | None = None
        self._algorithm: PPO | None = None
        self._updates = 0
        self._version = 0
        self._term = 0

    # ---- between updates -------------------------------------------------------------------------------------------

    def standing(self) -> Standing:
        """Where this rank stands."""
        return Standing(
            rank=self._rank,
            updates=self._updates,
            state_digest=self._state_digest(),
            parameter_digest=parameter_digest(self._parameters.numpy()),
        )

    def adopt(self, state: LearnerState | InitialWeights) -> Standing:
        """Go on from `state`, or begin from another run's weights. Raises CheckpointError if the network is another."""
        match state:
            case InitialWeights():
                self._check_fingerprint(state.fingerprint)
                self._parameters.load(state.flat)
            case LearnerState():
                self._check_fingerprint(state.manifest_fingerprint)
                self._optimiser.load(state.optimiser)  # refuses what does not fit before anything has changed
                self._parameters.load(state.parameters)
                self._intake.set_state(state.intake)
                self._updates, self._version, self._term = state.updates, state.version, state.term
        return self.standing()

    def open_meeting(self, host: str = "127.0.0.1") -> str:
        """Open the place where the next formation meets, on a free port of `host`; returns host:port."""
        self._meeting = Meeting(host, deadline_s=self._config.learner.sync.collective_s)
        return self._meeting.address

    def join(self, formation: Formation) -> Standing:
        """Become part of a group; the one before is left.

        Raises:
            SyncError: the others did not come within `sync.collective_s`.
            RunFailedError: the ranks are not alike.
        """
        self.leave()
        leads = formation.ranks[0] == self._rank
        member = Membership(rank=self._rank, description=self._describe(), machine=machine_facts(self._device))
        group = join_group(
            formation,
            member,
            self._meeting if leads else None,
            self._parameters,
            self._config.learner.sync,
            self._clock,
            self._tamper,
        )
        self._take_group(group)
        return self.standing()

    def leave(self) -> None:
        """Give the group up: whoever waits for this rank fails at once."""
        if self._group is not None:
            self._group.leave()
        self._group = self._algorithm = None

    def publish(self, *, version: int, term: int) -> NDArray[np.uint8]:
        """The weights as they are, under `version`. Every rank of a group is told, so that all know the version."""
        self._version, self._term = version, term
        self._intake.published(version, self._updates)
        return self._document()

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

    # ---- an update -------------------------------------------------------------------------------------------------

    def update(
        self, order: UpdateOrder, documents: Sequence[Any], audited_documents: Sequence[Any] = ()
    ) -> tuple[UpdateReport, NDArray[np.uint8] | None]:
        """Make one update from this rank's share of the fragments, together with the other ranks.

        Returns:
            The report, and the weights document where the update was made and this rank has place 0. Unless the status
            is MADE everything is as it was before; a failed collective is a status, no exception. After any exception
            everything is as before too, and the group has been left, so that nobody waits for this rank.
        """
        if order.update != self._updates:
            return self._not_made(order, OrderStatus.OUT_OF_STEP, SyncReport()), None
        if self._group is None or self._algorithm is None:
            return self._not_made(order, OrderStatus.FAILED, SyncReport(failure="this rank is in no group")), None
        memory = self._intake.state()
        try:
            attempt = self._attempt_or_failure(order, documents, audited_documents)
        except BaseException:
            self._go_back(memory)
            self.leave()
            raise
        if isinstance(attempt, str):
            self._go_back(memory)
            self.leave()
            return self._not_made(order, OrderStatus.FAILED, SyncReport(failure=attempt)), None
        if attempt.closed.dispute is not None:
            self._go_back(memory)
            return self._not_made(order, OrderStatus.DISPUTED, sync_of(attempt)), None
        return self._commit(order, attempt)

    def _go_back(self, memory: dict[str, Any]) -> None:
        """To the start of the update."""
        self._replica.restore()
        self._intake.set_state(memory)

    def _attempt_or_failure(
        self, order: UpdateOrder, documents: Sequence[Any], audited_documents: Sequence[Any]
    ) -> Attempt | str:
        """The attempt, or what a collective failed of, in words: the error holds on to the connections to be closed."""
        start_ns = self._clock.now_ns()
        self._replica.back_up()
        backup_ns = self._clock.now_ns() - start_ns
        try:
            return self._attempt(order, documents, audited_documents, backup_ns)
        except SyncError as error:
            return str(error)

    def _attempt(
        self, order: UpdateOrder, documents: Sequence[Any], audited_documents: Sequence[Any], backup_ns: int
    ) -> Attempt:
        """Up to the shared verdict; nothing is final. Raises SyncError."""
        assert self._group is not None and self._algorithm is not None
        marks = [self._clock.now_ns()]
        self._group.begin_update(order.update)
        judged = [self._intake.accept(document, term=order.term, update=order.update) for document in documents]
        for key in order.keys:
            self._intake.note(key)
        marks.append(self._clock.now_ns())
        rate = self._optimiser.set_update(order.update, self._config.horizon_updates)
        fragments = [judgement.fragment for judgement in judged if isinstance(judgement, Accepted)]
        shuffle = self._streams.generator(Role.LEARNER, SHARED, purpose=Purpose.SHUFFLE, extra=(order.update,))
        outcome = self._algorithm.update(fragments, shuffle, self._audit_part(order, audited_documents))
        marks.append(self._clock.now_ns())
        replicated = self._replica.replicated(_counters(order.update + 1, order.term))
        closed = self._group.close_update(replicated, np.array(list(outcome.parts.values())))
        marks.append(self._clock.now_ns())
        return Attempt(
            judged=judged,
            outcome=outcome,
            closed=closed,
            effort=self._group.effort,
            backup_ns=backup_ns,
            state_digest=replicated.digest,
            rate=rate,
            marks=marks,
        )

    def _audit_part(self, order: UpdateOrder, documents: Sequence[Any]) -> AuditPart | None:
        """What this rank has to recompute; an auditor does so only from fragments that are in order."""
        assert self._group is not None
        audit = order.audit
        if audit is None or self._rank not in (audit.audited, *audit.auditors):
            return None
        place = self._group.ranks.index(audit.audited)
        fragments = tuple(_sound_fragments(documents, self._config.layout))
        return AuditPart(update=order.update, place=place, fragments=fragments)

    def _commit(self, order: UpdateOrder, attempt: Attempt) -> tuple[UpdateReport, NDArray[np.uint8] | None]:
        assert self._group is not None
        self._updates, self._version, self._term = order.update + 1, order.publish_as, order.term
        self._intake.published(self._version, self._updates)
        document = self._document() if self._group.place == 0 else None
        standing = Standing(
            rank=self._rank,
            updates=self._updates,
            state_digest=f"{attempt.state_digest:032x}",
            parameter_digest=parameter_digest(self._parameters.numpy()),
        )
        attempt.marks.append(self._clock.now_ns())
        return report_made(order, attempt, standing), document

    def _not_made(self, order: UpdateOrder, status: OrderStatus, sync: SyncReport) -> UpdateReport:
        return report_not_made(order, status, self.standing(), sync)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _take_group(self, group: Group) -> None:
        config = self._config
        self._group = group
        step = GradientStep(
            self._parameters,
            self._optimiser,
            group,
            self._tamper,
            max_gradient_norm=config.optimiser.max_gradient_norm,
        )
        if not isinstance(config.algorithm, PPOConfig):
            raise ConfigError("algorithm", got=type(config.algorithm).__name__, allowed="PPOConfig")
        self._algorithm = PPO(config.algorithm, self._model, step, group, self._batches, self._others)

    def _describe(self) -> dict[str, Any]:
        """What all ranks of a group must have alike."""
        return {
            "config": json.loads(json.dumps(asdict(self._config))),
            "device": self._device.type,  # "auto" may have found a GPU on one host and none on another
            "parameters": self._parameters.manifest.to_plain(),
            "updates": self._updates,
            "term": self._term,
            "values": self._replica.parameter_digests(),
            "state": self._state_digest(),
        }

    def _state_digest(self) -> str:
        return f"{self._replica.digest(_counters(self._updates, self._term)):032x}"

    def _document(self) -> NDArray[np.uint8]:
        manifest = self._parameters.manifest
        header = WeightsHeader(
            run=self._config.run,
            term=self._term,
            version=self._version,
            update=self._updates,
            fingerprint=manifest.fingerprint(),
        )
        return encode_weights(manifest, self._parameters.numpy(), header)

    def _check_fingerprint(self, fingerprint: str) -> None:
        ours = self._parameters.manifest.fingerprint()
        if fingerprint != ours:
            raise CheckpointError(
                "weights of another network",
                got=fingerprint[:16],
                allowed=ours[:16],
                fix="use the same environment and net configuration",
            )


def _sound_fragments(documents: Sequence[Any], layout: FragmentLayout) -> Iterator[Fragment]:
    for document in documents:
        try:
            yield decode_fragment(document, layout)
        except WireError:
            continue  # its own rank refuses it too, and reports it


def _counters(updates: int, term: int) -> bytes:
    """Numbers that are part of the replicated state."""
    return pack_plain([updates, term], what="counters")
