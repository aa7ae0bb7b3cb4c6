"""One learner rank: fragments in, weights out. No Ray and no Gymnasium in it.

documents ──► intake ──► normaliser ──► algorithm (returns, batch, loss, gradient steps) ──► close
    close ──┬─ agreed ──────────────► weights document
            ├─ disputed ────────────► start restored
    a collective fails ── failed ───► start restored

loop      consumes                     produces                       waits for         unblocked by
update    an order and its documents   a report, a weights document   the other ranks   them, or sync.collective_s
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.clock import Clock
from common.errors import CheckpointError, SyncError
from common.fragment import FragmentHeader
from common.input_stage import InputStage
from common.nets import ActorCritic, make_actor_critic
from common.parameters import FlatParameters
from common.rng import Purpose, Role, Streams
from common.stint import StintMeter
from common.weights import WeightsHeader, encode_weights, parameter_digest
from common.wire import pack_plain
from learner.algorithms.making import Algorithm, make_algorithm, target_interval
from learner.audit import AuditPart
from learner.config import LearnerConfig, RankConfig
from learner.gradient_step import GradientStep
from learner.intake import Accepted, Intake, Refused
from learner.normaliser import Normaliser
from learner.optimiser import Optimiser
from learner.parallel.faults import RankFault, Saboteur, Tamper, Untouched
from learner.parallel.group import Group
from learner.parallel.joining import Membership, join_group, machine_facts
from learner.parallel.process_group import Meeting
from learner.replica import Replica
from learner.reporting import Attempt, Timeline, report_made, report_not_made, sync_of
from learner.reports import (
    Formation,
    FragmentKey,
    OrderStatus,
    Standing,
    SyncReport,
    UpdateOrder,
    UpdateReport,
    share_of,
)
from learner.state import InitialWeights, LearnerState
from learner.target import TargetNetwork

__all__ = ["LearnerConfig", "LearnerRank", "RankConfig"]

SHARED = 0  # index of streams that all ranks draw from alike


class LearnerRank:
    """Holds the model, its optimiser and the intake; makes one update per order, with the other ranks of its group."""

    def __init__(self, config: RankConfig, clock: Clock, *, rank: int = 0, faults: tuple[RankFault, ...] = ()) -> None:
        self._config = config
        self._clock = clock
        self._rank = rank
        self._streams = Streams(config.seed)
        self._device = config.learner.torch_device()
        self._model = self._make_model()
        self._parameters = FlatParameters(self._model, trainable=True)
        self._optimiser = Optimiser(config.optimiser, self._parameters)
        every = target_interval(config.algorithm)
        self._target = TargetNetwork(self._make_model(), self._parameters, every=every) if every else None
        self._normaliser = Normaliser(config.processing, config.layout, config.algorithm.discount)
        statistics = self._normaliser.moments.numbers if self._normaliser.width else None
        self._replica = Replica(self._parameters, self._optimiser, self._target, statistics)
        self._tamper: Tamper = Saboteur(faults, clock) if faults else Untouched()
        self._intake = Intake(config.run, config.layout, max_lag=config.max_lag)
        self._stints = StintMeter(clock)
        self._marks_ns: tuple[int, ...] = ()
        self._taken: tuple[FragmentHeader, ...] = ()
        self._meeting: Meeting | None = None
        self._group: Group | None = None
        self._algorithm: Algorithm | None = None
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
        """Go on from `state`, or begin from another run's weights.

        Raises:
            CheckpointError: the network is another, or sees observations in another way; nothing has changed.
        """
        match state:
            case InitialWeights():
                self._check_fingerprint(state.fingerprint)
                self._normaliser.load(state.statistics)
                self._parameters.load(state.flat)
                if self._target is not None:
                    self._target.load(state.flat)
            case LearnerState():
                self._check_fingerprint(state.manifest_fingerprint)
                self._normaliser.check(state.statistics)
                self._optimiser.load(state.optimiser)  # refuses what does not fit before anything has changed
                self._parameters.load(state.parameters)
                if self._target is not None:  # in states of algorithms without one it begins as the parameters are
                    self._target.load(state.parameters if state.target is None else state.target)
                self._normaliser.load(state.statistics)
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
            target=None if self._target is None else self._target.array(),
            statistics=self._normaliser.array(),
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
        self._stints.begin()
        self._marks_ns, self._taken = (), ()
        report, document = self._update(order, documents, audited_documents)
        return replace(report, stint=self._stints.end()), document

    def timeline(self) -> Timeline:
        """When the latest order was carried out, and of which fragments."""
        begun_ns, ended_ns = self._stints.interval_ns()
        return Timeline(begun_ns=begun_ns, ended_ns=ended_ns, marks_ns=self._marks_ns, fragments=self._taken)

    def _update(
        self, order: UpdateOrder, documents: Sequence[Any], audited_documents: Sequence[Any]
    ) -> tuple[UpdateReport, NDArray[np.uint8] | None]:
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
        judged = self._judge(order, documents)
        for key in order.keys:
            self._intake.note(key)
        marks.append(self._clock.now_ns())
        rate = self._optimiser.set_update(order.update, self._config.horizon_updates)
        accepted = [judgement for judgement in judged if isinstance(judgement, Accepted)]
        self._see_as_now()
        self._normaliser.merge(order.keys, accepted, self._group)
        shuffle = self._streams.generator(Role.LEARNER, SHARED, purpose=Purpose.SHUFFLE, extra=(order.update,))
        outcome = self._algorithm.update(
            [self._normaliser.processed(each) for each in accepted],
            shuffle,
            self._audit_part(order, audited_documents),
        )
        if self._target is not None:
            self._target.follow(order.update + 1)
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
            processing=self._normaliser.statistics(),
            marks=marks,
        )

    def _see_as_now(self) -> None:
        """All networks see observations by the statistics that the update begins with."""
        scale = self._normaliser.input_scale()
        stage = None if scale is None else InputStage(self._config.layout.observation, scale, self._device)
        for model in (self._model, *([] if self._target is None else [self._target.model])):
            model.input_stage = stage

    def _judge(self, order: UpdateOrder, documents: Sequence[Any]) -> list[Accepted | Refused]:
        """Each document of this rank's share must be the fragment that the order has in its place."""
        assert self._group is not None
        keys: Sequence[FragmentKey | None] = [None] * len(documents)
        if order.keys:
            share = share_of(len(order.keys), self._group.place, len(self._group.ranks))
            keys = [order.keys[index] for index in share]
        return [
            self._intake.accept(document, term=order.term, update=order.update, key=key)
            for document, key in zip(documents, keys, strict=True)
        ]

    def _audit_part(self, order: UpdateOrder, documents: Sequence[Any]) -> AuditPart | None:
        """What this rank has to recompute; an auditor does so only from fragments that are in order."""
        assert self._group is not None
        audit = order.audit
        if audit is None or self._rank not in (audit.audited, *audit.auditors):
            return None
        place = self._group.ranks.index(audit.audited)
        seen = (self._intake.view(document, update=order.update) for document in documents)
        processed = tuple(self._normaliser.processed(each) for each in seen if each is not None)
        return AuditPart(update=order.update, place=place, accepted=processed)

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
        self._marks_ns = tuple(attempt.marks)
        self._taken = tuple(each.fragment.header for each in attempt.judged if isinstance(each, Accepted))
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
        self._algorithm = make_algorithm(
            config.algorithm, self._model, self._target, step, group, config.layout, self._device
        )

    def _make_model(self) -> ActorCritic:
        """With the initial weights of the run."""
        layout = self._config.layout
        generator = self._streams.generator(Role.LEARNER, SHARED, purpose=Purpose.INITIALISE)
        model = make_actor_critic(layout.observation, layout.action, self._config.net, generator).to(self._device)
        model.compute_in(self._config.learner.precision)
        return model

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
            extra=self._normaliser.extra(),
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


def _counters(updates: int, term: int) -> bytes:
    """Numbers that are part of the replicated state."""
    return pack_plain([updates, term], what="counters")
