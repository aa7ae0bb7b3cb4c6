"""Learner ranks without processes or tensors: what a rank would compute is a digest of everything that went into it.

    commands ──► a queue per rank ──► meetings (orders, formations) that all must enter ──► answers, in order, per rank

A meeting ends when all have entered, or when one never will: it is gone, hangs, or did something else instead.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from deploy.conductor.messages import (
    AdoptState,
    Event,
    GroupJoined,
    HurryRank,
    JoinFailed,
    JoinGroup,
    LearnerSnapshot,
    LearnerStarted,
    Publish,
    RankCommand,
    RankLost,
    RankStarted,
    RankUpdated,
    SnapshotLearner,
    StartRank,
    StateAdopted,
    StopRank,
    Update,
)
from learner.reports import (
    Attribution,
    Dispute,
    Fault,
    FragmentVerdict,
    OrderStatus,
    Standing,
    SyncReport,
    UpdateReport,
    share_of,
)


def digest(*parts: object) -> str:
    """A digest of values, by their text."""
    return sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Weights:
    """A publication: its content is `parameters`, after `update` updates."""

    version: int
    update: int
    parameters: str


@dataclass(frozen=True, slots=True)
class Frame:
    """A fragment: its content is `digest`."""

    actor: int
    update: int
    incarnation: int
    sequence: int
    basis: int
    digest: str


@dataclass(frozen=True, slots=True)
class LearnerContent:
    """What a learner's snapshot holds."""

    updates: int
    parameters: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFaults:
    """What goes wrong with ranks: probabilities, but for the last two.

    Attributes:
        loss: before each event, that a rank's process ends.
        hang: that a rank never answers an order.
        dispute: that the ranks dispute an order; the first rank of the group turns out to have been wrong.
        local: that an order's local gradient is disputed, the last rank being at fault.
        failure: that a collective fails on every rank.
        partial: that an update is closed on some ranks only.
        diverge: that ranks close an update in different ways.
        meeting: that the ranks do not meet.
        recoverable: never more of it than what costs no update: a rank that holds the state is always left, and no
            fault comes as often in a row as would end in a rollback.
        stop_at: the update at which, on the last rank, somebody asked for the end.
    """

    loss: float = 0.0
    hang: float = 0.0
    dispute: float = 0.0
    local: float = 0.0
    failure: float = 0.0
    partial: float = 0.0
    diverge: float = 0.0
    meeting: float = 0.0
    recoverable: bool = False
    stop_at: int | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class RankProcess:
    """A rank's process.

    Attributes:
        entered: the meeting in which it waits for the others.
        useful: it holds the state of a group.
        hung: it will never answer again.
        given_up: the engine has been told to wait no longer.
    """

    rank: int
    lease: str
    content: LearnerContent
    queue: deque[RankCommand] = field(default_factory=deque)
    answers: deque[Event] = field(default_factory=deque)
    entered: Update | JoinGroup | None = None
    useful: bool = False
    hung: bool = False
    given_up: bool = False

    @property
    def standing(self) -> Standing:
        """Where it stands."""
        content = self.content
        state = digest(content.updates, content.parameters)
        return Standing(
            rank=self.rank, updates=content.updates, state_digest=state, parameter_digest=content.parameters
        )

    @property
    def can_act(self) -> bool:
        """Whether it has something to do or to say."""
        return bool(self.answers) or (bool(self.queue) and self.entered is None and not self.hung)


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What an order did: its frames in the order of actors, what was refused, and on whom it was made."""

    frames: tuple[Frame, ...]
    verdicts: tuple[FragmentVerdict, ...] = ()
    made_by: set[int] = field(default_factory=set)
    members: set[int] = field(default_factory=set)
    trained: bool = False


class SimulatedRanks:
    """Every rank's process.

    Args:
        rng: chooses faults; never what is computed.
        faults: of ranks.
        refusal, skip: probabilities that a fragment is refused, that an update commits no step.

    Attributes:
        attempts: by number, those that were made.
        losses: processes ended.
        next_fault: of the next order that all enter, whatever the probabilities are.
        cursed: an update that is disputed whenever it is tried.
    """

    def __init__(self, rng: random.Random, faults: RankFaults, *, refusal: float, skip: float) -> None:
        self.processes: dict[int, RankProcess] = {}
        self.attempts: dict[int, Attempt] = {}
        self.losses = 0
        self.next_fault = ""
        self.cursed = -1
        self._random = rng
        self._faults = faults
        self._refusal = refusal
        self._skip = skip
        self._dying: deque[RankProcess] = deque()
        self._leases = itertools.count()
        self._disputes: dict[int, Dispute] = {}
        self._faults_in_a_row: list[str] = []
        self._blamed: set[int] = set()

    # ---- commands --------------------------------------------------------------------------------------------------

    def carry_out(self, command: RankCommand) -> None:
        """Queue a command; one to a process that is gone is dropped, its loss is on the way to the conductor."""
        match command:
            case StartRank():
                assert command.rank not in self.processes
                lease = f"rank-{command.rank}-{next(self._leases)}"
                process = RankProcess(rank=command.rank, lease=lease, content=LearnerContent(0, "initial"))
                self.processes[command.rank] = process
                process.queue.append(command)
            case Update() | JoinGroup():
                for rank in members_of(command):
                    if rank in self.processes:
                        self.processes[rank].queue.append(command)
                self._check_ahead()
            case HurryRank():
                if command.rank in self.processes:
                    self.processes[command.rank].given_up = True
            case StopRank():
                self.processes.pop(command.rank, None)
            case AdoptState() | Publish() | SnapshotLearner():
                if command.rank in self.processes:
                    self.processes[command.rank].queue.append(command)
        self._settle()

    def _check_ahead(self) -> None:
        for process in self.processes.values():
            assert sum(isinstance(told, Update) for told in process.queue) <= 2, "more than one queued behind another"

    # ---- events ----------------------------------------------------------------------------------------------------

    def sources(self) -> list[RankProcess]:
        """Processes that have something to do or to say, the lost ones included."""
        acting = [process for _, process in sorted(self.processes.items()) if process.can_act]
        overdue = [process for _, process in sorted(self.processes.items()) if process.hung and process.given_up]
        return acting + overdue + list(self._dying)[:1]

    def overdue(self) -> RankProcess | None:
        """One that hangs, and that nobody has given up on: only the engine's own deadline ends it."""
        return next((process for _, process in sorted(self.processes.items()) if process.hung), None)

    def act(self, process: RankProcess) -> Event | None:
        """The next thing that `process` does; None if nobody hears of it yet."""
        if process.answers:
            return process.answers.popleft()
        if self.processes.get(process.rank) is not process:
            self._dying.remove(process)
            return RankLost(rank=process.rank, lease=process.lease, cause=f"{process.lease} ended", detail="traceback")
        if process.hung:
            self.kill(process.rank)
            return None
        self._obey(process, process.queue.popleft())
        self._settle()
        return process.answers.popleft() if process.answers else None

    def fail_at_random(self) -> None:
        """Perhaps end a process."""
        if self._random.random() >= self._faults.loss or not self.processes:
            return
        rank = self._random.choice(sorted(self.processes))
        others = [p for p in self.processes.values() if p.useful and not p.hung and p.rank != rank]
        if others or not self._faults.recoverable:
            self.kill(rank)

    def kill(self, rank: int) -> None:
        """End a process. What it has answered arrives before its loss does, but perhaps for the last answer."""
        process = self.processes.pop(rank)
        if process.answers and self._random.random() < 0.5:
            process.answers.pop()
        self._dying.append(process)
        self.losses += 1
        self._settle()

    # ---- what a rank does ------------------------------------------------------------------------------------------

    def _obey(self, process: RankProcess, command: RankCommand) -> None:
        rank, lease = process.rank, process.lease
        match command:
            case StartRank():
                process.answers.append(RankStarted(rank=rank, lease=lease, standing=process.standing))
            case AdoptState():
                process.content, process.useful = command.state, True
                process.answers.append(StateAdopted(rank=rank, lease=lease, standing=process.standing))
            case JoinGroup():
                process.entered = command
            case Publish():
                content = process.content
                weights = Weights(command.version, content.updates, content.parameters)
                process.answers.append(
                    LearnerStarted(
                        version=command.version,
                        updates=content.updates,
                        weights=weights,
                        parameter_digest=content.parameters,
                    )
                )
            case SnapshotLearner():
                content = process.content
                state = LearnerSnapshot(update=content.updates, state=content, rank=rank, lease=lease)
                process.answers.append(state)
            case Update():
                self._enter(process, command)
            case _:
                raise AssertionError(f"not for a rank's queue: {command}")

    def _enter(self, process: RankProcess, order: Update) -> None:
        if order.update != process.content.updates:
            self._answer(process, order, OrderStatus.OUT_OF_STEP)
        elif self._random.random() < self._faults.hang and (self._others(process) or not self._faults.recoverable):
            process.hung = True
        else:
            process.entered = order

    def _others(self, process: RankProcess) -> bool:
        return any(p.useful and not p.hung for p in self.processes.values() if p is not process)

    # ---- meetings --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """End every meeting that can end."""
        for meeting in self._meetings():
            members = [self.processes.get(rank) for rank in members_of(meeting)]
            entered = [member for member in members if member is not None and member.entered is meeting]
            if len(entered) == len(members):
                self._meet(meeting, entered)
            elif any(member is None or not may_come(member, meeting) for member in members):
                for member in entered:
                    self._fail(member, meeting)

    def _meetings(self) -> Iterator[Update | JoinGroup]:
        found = [process.entered for _, process in sorted(self.processes.items()) if process.entered is not None]
        for index, meeting in enumerate(found):
            if not any(meeting is earlier for earlier in found[:index]):
                yield meeting

    def _fail(self, process: RankProcess, meeting: Update | JoinGroup, cause: str = "no answer") -> None:
        process.entered = None
        if isinstance(meeting, JoinGroup):
            failed = JoinFailed(formation=meeting.formation, rank=process.rank, lease=process.lease, cause=cause)
            process.answers.append(failed)
        else:
            self._answer(process, meeting, OrderStatus.FAILED, SyncReport(failure=cause))

    def _meet(self, meeting: Update | JoinGroup, members: list[RankProcess]) -> None:
        if isinstance(meeting, JoinGroup):
            self._join(meeting, members)
            return
        self._check_order(meeting)
        if len({(member.content.updates, member.content.parameters) for member in members}) > 1:
            self._dispute(meeting, members, local=False)  # they have closed the update before in different ways
            return
        fault = "dispute" if meeting.update == self.cursed else self._draw_fault()
        match fault:
            case "failure":
                for member in members:
                    self._fail(member, meeting, "connection reset")
            case "dispute" | "local":
                self._dispute(meeting, members, local=fault == "local")
            case _:
                self._make(meeting, members, fault)

    def _draw_fault(self) -> str:
        if self.next_fault:
            name, self.next_fault = self.next_fault, ""
            return name
        for name in ("failure", "dispute", "local", "partial", "diverge"):
            if self._random.random() < getattr(self._faults, name) and self._bearable(name):
                self._faults_in_a_row.append(name)
                return name
        self._faults_in_a_row.clear()
        return ""

    def _bearable(self, name: str) -> bool:
        """Whether one more fault of this name, since the last update that all have made, is what recovery allows."""
        return not self._faults.recoverable or (len(self._faults_in_a_row) < 2 and name not in self._faults_in_a_row)

    def _join(self, meeting: JoinGroup, members: list[RankProcess]) -> None:
        failing = [member for member in members if self._random.random() < self._faults.meeting]
        if failing and not self._bearable("meeting"):
            failing = []
        elif failing:
            self._faults_in_a_row.append("meeting")
        for member in members:
            if member in failing:
                self._fail(member, meeting, "nobody came")
            else:
                member.entered, member.useful = None, True
                member.answers.append(
                    GroupJoined(
                        formation=meeting.formation, rank=member.rank, lease=member.lease, standing=member.standing
                    )
                )

    def _check_order(self, order: Update) -> None:
        """Each got its own share; an audit's fragments are those of the audited rank."""
        frames = tuple(frame for share in order.shares for frame in share.frames)
        assert [(key.actor, key.incarnation, key.sequence) for key in order.keys] == [
            (frame.actor, frame.incarnation, frame.sequence) for frame in frames
        ]
        for place, share in enumerate(order.shares):
            assert len(share.frames) == len(share_of(len(frames), place, len(order.shares)))
            audits = order.audit is not None and share.rank in order.audit.auditors
            audited = next((s.frames for s in order.shares if order.audit and s.rank == order.audit.audited), ())
            assert share.audited_frames == (audited if audits else ())

    # ---- orders ----------------------------------------------------------------------------------------------------

    def _make(self, order: Update, members: list[RankProcess], fault: str) -> None:
        frames = tuple(frame for share in order.shares for frame in share.frames)
        refused = [self._random.random() < self._refusal for _ in frames]
        skipped = self._random.random() < self._skip
        accepted = tuple(frame.digest for frame, no in zip(frames, refused, strict=True) if not no)
        trained = not skipped and bool(accepted)
        before = members[0].content
        parameters = digest(before.parameters, order.update, accepted) if trained else before.parameters
        verdicts = tuple(FragmentVerdict(refusal="stale" if no else "", detail="", num_valid=0) for no in refused)
        attempt = self.attempts[order.attempt] = Attempt(frames=frames, verdicts=verdicts, trained=trained)
        attempt.members = {member.rank for member in members}
        failing = set()
        if fault == "partial" and len(members) > 1:
            failing = set(self._random.sample(sorted(attempt.members), self._random.randrange(1, len(members))))
        sync = SyncReport(verified_steps=1, attribution=self._attribution(order, members))
        for member in members:
            if member.rank in failing:
                self._fail(member, order, "closing failed")
                continue
            wrong = fault == "diverge" and member is members[-1] and len(members) > 1
            member.content = LearnerContent(order.update + 1, parameters + "?" * wrong)
            member.entered = None
            attempt.made_by.add(member.rank)
            self._answer(member, order, OrderStatus.MADE, sync, skipped=skipped)

    def _attribution(self, order: Update, members: list[RankProcess]) -> Attribution | None:
        dispute = self._disputes.pop(order.update, None)
        if dispute is None:
            return None
        wrong = {members[0].rank} - (self._blamed if self._faults.recoverable else set())
        self._blamed |= wrong
        return Attribution(dispute=dispute, ranks=tuple(wrong), sha256={3: "right"})

    def _dispute(self, order: Update, members: list[RankProcess], *, local: bool) -> None:
        dispute = Dispute(
            fault=Fault.LOCAL_GRADIENT if local else Fault.DIGEST,
            step=1,
            bucket=0,
            chunks=(3,),
            parameters=("body.0.weight",),
            digests={member.rank: f"digest of {member.rank}" for member in members},
        )
        attribution = Attribution(dispute=dispute, ranks=(members[-1].rank,)) if local else None
        if not local:
            self._disputes[order.update] = dispute
        for member in members:
            member.entered = None
            sync = SyncReport(disputes=(dispute,), attribution=attribution)
            self._answer(member, order, OrderStatus.DISPUTED, sync)

    def _answer(
        self,
        process: RankProcess,
        order: Update,
        status: OrderStatus,
        sync: SyncReport | None = None,
        *,
        skipped: bool = False,
    ) -> None:
        made = status is OrderStatus.MADE
        ranks = members_of(order)
        attempt = self.attempts.get(order.attempt)
        share = share_of(len(order.keys), ranks.index(process.rank), len(ranks))
        stopped = self._faults.stop_at is not None and order.update >= self._faults.stop_at
        report = UpdateReport(
            rank=process.rank,
            status=status,
            attempt=order.attempt,
            update=order.update,
            term=order.term,
            version=order.version,
            updates=process.content.updates,
            state_digest=process.standing.state_digest,
            trained=made and attempt is not None and attempt.trained,
            verdicts=tuple(attempt.verdicts[index] for index in share) if made and attempt else (),
            steps=int(made and attempt is not None and attempt.trained),
            skipped_steps=int(skipped),
            skipped_at="body.0.weight" if skipped else "",
            lag=0,
            gaps=0,
            parameter_digest=process.content.parameters,
            learning_rate=0.1,
            sync=sync or SyncReport(),
            stop_asked="SIGTERM" if stopped and process.rank == max(ranks) else "",
        )
        weights = None
        if made and process.rank == ranks[0]:
            weights = Weights(order.version, process.content.updates, process.content.parameters)
        process.answers.append(RankUpdated(lease=process.lease, report=report, weights=weights))


def members_of(meeting: Update | JoinGroup) -> tuple[int, ...]:
    """Who must come, in the order of places."""
    return meeting.ranks if isinstance(meeting, JoinGroup) else tuple(share.rank for share in meeting.shares)


def may_come(process: RankProcess, meeting: Update | JoinGroup) -> bool:
    """Whether a process has entered a meeting, or still can."""
    return process.entered is meeting or (not process.hung and any(told is meeting for told in process.queue))
