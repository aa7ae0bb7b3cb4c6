"""A run without processes: the conductor's commands are obeyed by hash chains, its events arrive in any order.

    commands ──► a queue per actor, one for the learner, one for the disk ──a random generator picks one──► event

What an actor or the learner would compute is a digest of everything that went into it, so two runs that compute the
same have the same digests, and a digest that depends on the order of delivery shows. Every event is followed by checks
of what must always hold; a run in which nothing is left to happen fails at once and says what it waits for.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from actors.env.lanes import LaneFacts
from actors.evaluate import EvaluationResult
from common.fragment import FragmentSummary
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import (
    ActorLost,
    ActorSnapshot,
    ActorStarted,
    CheckpointWritten,
    Collect,
    Command,
    Cut,
    Evaluate,
    EvaluationMade,
    Event,
    Finish,
    FragmentMade,
    LearnerSnapshot,
    LearnerStarted,
    Note,
    SnapshotActor,
    SnapshotLearner,
    StartActor,
    StopAsked,
    Update,
    UpdateMade,
    WriteCheckpoint,
)
from deploy.conductor.plan import Plan
from learner.reports import FragmentVerdict, UpdateReport

FACTS = LaneFacts(vectorised="sync", autoreset="NextStep", seeding="per_episode", restorable=True, reason="")
MAX_EVENTS = 20_000


def digest(*parts: object) -> str:
    """A digest of values, by their text."""
    return sha256(repr(parts).encode()).hexdigest()[:16]


def summary_of(**fields: Any) -> FragmentSummary:
    """A summary of which only some fields matter."""
    usual: dict[str, Any] = {
        "actor": 0,
        "lease": "lease",
        "incarnation": 0,
        "sequence": 0,
        "term": 0,
        "version": 0,
        "update": 0,
        "num_valid": 0,
        "num_voided": 0,
        "num_bytes": 100,
        "episode_returns": (),
        "episode_lengths": (),
        "start_ns": 0,
        "end_ns": 1,
        "policy_ns": 0,
        "env_ns": 0,
        "gc_pause_ns": (),
    }
    return FragmentSummary(**(usual | fields))


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
class Faults:
    """What goes wrong.

    Attributes:
        loss: probability, before each event, that some actor's process ends.
        hopeless: actors whose process ends whenever it should collect.
        late: probability that what a lost process was making arrives all the same, after the loss was told.
        refusal: probability that the learner refuses a fragment.
        skip: probability that an update commits no step.
        evaluation: probability that an evaluation fails.
        checkpoint: probability that a checkpoint cannot be written.
        restorable: whether actors can be snapshotted.
    """

    loss: float = 0.0
    hopeless: frozenset[int] = frozenset()
    late: float = 0.0
    refusal: float = 0.0
    skip: float = 0.0
    evaluation: float = 0.0
    checkpoint: float = 0.0
    restorable: bool = True


@dataclass(slots=True, kw_only=True)
class _Process:
    """An actor's process: `state` is the digest of everything its environments and streams went through."""

    actor: int
    incarnation: int
    lease: str
    state: str
    sequence: int = 0
    made: int = -1
    queue: deque[Command] = field(default_factory=deque)


@dataclass(slots=True)
class _Ledger:
    """Where transitions went, counted apart from the conductor: fragments by the frame's digest."""

    in_flight: dict[str, int] = field(default_factory=dict)
    produced: int = 0
    trained: int = 0
    dropped: int = 0


class Simulation:
    """One run, or the rest of one.

    Args:
        plan: what the conductor is to do.
        seed: of the order of delivery and of the faults; never of what is computed.
        faults: what goes wrong.
        stop_at: the number of events after which a stop is asked for; None never asks.
        resumed: the cut to go on from.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        seed: int = 0,
        faults: Faults | None = None,
        stop_at: int | None = None,
        resumed: Cut | None = None,
    ) -> None:
        first = 0 if resumed is None else resumed.version + 10
        self._numbers = itertools.count(first)
        self.versions: list[int] = []
        self.conductor = Conductor(plan, versions=self._count_versions(), resumed=resumed)
        self.plan = plan
        self.faults = faults or Faults()
        self.stop_at = stop_at
        self.resumed = resumed
        self.started_at = 0 if resumed is None else resumed.update
        self.chain: dict[int, tuple[str, tuple[str, ...]]] = {}
        self.cuts: list[Cut] = []
        self.notes: list[Note] = []
        self.collects_of_updates: dict[int, list[Frame]] = {}
        self.evaluations: list[tuple[int, bool]] = []
        self.losses = 0
        self.trained: list[bool] = []
        self.num_events = 0
        self._random = random.Random(seed)
        self._parameters = "initial" if resumed is None else resumed.learner.parameters
        self._updates = self.started_at
        self._processes: dict[int, _Process] = {}
        self._dying: deque[_Process] = deque()
        self._late: deque[Event] = deque()
        self._learner: deque[Command] = deque()
        self._disk: deque[Cut] = deque()
        self._leases = itertools.count()
        self._learner_started = False
        self._ledger = _Ledger()
        if resumed is not None:
            self._take_up(resumed)

    def _take_up(self, cut: Cut) -> None:
        frames = [held for group in cut.frames.values() for held in group]
        self._ledger.in_flight = {held.frame.digest: held.summary.num_valid for held in frames}
        self._ledger.produced = cut.accounts.produced
        self._ledger.trained = cut.accounts.trained
        self._ledger.dropped = cut.accounts.dropped_total

    def _count_versions(self) -> Iterator[int]:
        for number in self._numbers:
            self.versions.append(number)
            yield number

    # ---- running ---------------------------------------------------------------------------------------------------

    def run(self) -> Finish:
        """Deliver events until the run is over."""
        self.begin()
        while self.conductor.finish is None:
            self.step()
        return self.conductor.finish

    def begin(self) -> None:
        """Start the learner and the actors."""
        self._first_version = next(self._numbers)
        self.versions.append(self._first_version)
        self._carry_out(self.conductor.begin())

    def step(self) -> None:
        """Deliver one event."""
        assert self.num_events < MAX_EVENTS, f"no end in sight, waiting for {self.conductor.waiting_for()}"
        if self.num_events == self.stop_at:
            self.deliver(StopAsked(reason="SIGTERM"))
            return
        event = self._next_event()
        assert event is not None, f"nothing is left to happen, waiting for {self.conductor.waiting_for()}"
        self.deliver(event)

    def deliver(self, event: Event) -> None:
        """Have the conductor take in `event`, obey it, and check what must always hold."""
        self.num_events += 1
        commands = self.conductor.handle(event)
        self._count(event, commands)
        self._carry_out(commands)
        self._check_accounts()
        if self.conductor.finish is None:
            assert self.conductor.waiting_for() != "nothing"

    def _next_event(self) -> Event | None:
        if self._random.random() < self.faults.loss and self._processes:
            self.kill(self._random.choice(sorted(self._processes)))
        sources: list[object] = [process for _, process in sorted(self._processes.items()) if process.queue]
        sources += [s for s in (self._dying, self._late, self._disk) if s]
        if not self._learner_started or self._learner:
            sources.append(self._learner)
        if not sources:
            return None
        source = self._random.choice(sources)
        if source is self._dying:
            return self._report_loss(self._dying.popleft())
        if source is self._late:
            return self._late.popleft()
        if source is self._disk:
            return self._write(self._disk.popleft())
        return self._as_learner() if source is self._learner else self._as_actor(source)  # type: ignore[arg-type]

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case StartActor():
                    self._start(command)
                case Collect() | SnapshotActor() | Evaluate():
                    if isinstance(command, Collect):
                        assert command.weights.update == max(0, command.update - self.plan.policy_lag)
                        assert command.weights.version == command.version
                    if command.actor in self._processes:  # else its loss is on the way to the conductor
                        self._processes[command.actor].queue.append(command)
                case Update() | SnapshotLearner():
                    self._learner.append(command)
                    ahead = [queued for queued in self._learner if isinstance(queued, Update)]
                    assert len(ahead) <= 2, "more than one update behind the one that runs"
                case WriteCheckpoint():
                    self._check_cut(command.cut)
                    self.cuts.append(command.cut)
                    self._disk.append(command.cut)
                case Note():
                    self.notes.append(command)
                case Finish():
                    assert command is self.conductor.finish

    # ---- actors ----------------------------------------------------------------------------------------------------

    def _start(self, command: StartActor) -> None:
        assert command.actor not in self._processes
        lease = f"lease-{next(self._leases)}"
        fresh = digest("actor", command.actor, command.incarnation)
        process = _Process(actor=command.actor, incarnation=command.incarnation, lease=lease, state=fresh)
        if command.snapshot is not None:
            state, sequence, incarnation, made = command.snapshot.decode().split()
            assert int(incarnation) == command.incarnation
            process.state, process.sequence, process.made = state, int(sequence), int(made)
        process.queue.append(command)
        self._processes[command.actor] = process

    def _as_actor(self, process: _Process) -> Event:
        command = process.queue.popleft()
        match command:
            case StartActor():
                return ActorStarted(
                    actor=process.actor, incarnation=process.incarnation, lease=process.lease, facts=FACTS
                )
            case Collect():
                if process.actor in self.faults.hopeless:
                    process.queue.appendleft(command)
                    self.kill(process.actor)
                    return self._report_loss(self._dying.pop())
                return self._collect(process, command)
            case SnapshotActor():
                plain = f"{process.state} {process.sequence} {process.incarnation} {process.made}".encode()
                snapshot = plain if self.faults.restorable else None
                return ActorSnapshot(actor=process.actor, lease=process.lease, update=command.update, snapshot=snapshot)
            case Evaluate():
                return self._evaluate(command)
        raise AssertionError(f"not for an actor: {command}")

    def _collect(self, process: _Process, command: Collect) -> FragmentMade:
        process.state = digest(process.state, command.weights.parameters)
        frame = Frame(
            actor=process.actor,
            update=command.update,
            incarnation=process.incarnation,
            sequence=process.sequence,
            basis=command.weights.update,
            digest=digest(process.state, process.sequence),
        )
        process.sequence += 1
        process.made = command.update
        number = int(frame.digest, 16)
        summary = summary_of(
            actor=process.actor,
            lease=process.lease,
            incarnation=process.incarnation,
            sequence=frame.sequence,
            term=command.term,
            version=command.version,
            update=command.update,
            num_valid=6 + number % 5,
            num_voided=number % 3,
            episode_returns=(1.0,) * (number % 4),
            episode_lengths=(1,) * (number % 4),
        )
        return FragmentMade(summary=summary, frame=frame)

    def _evaluate(self, command: Evaluate) -> EvaluationMade:
        self.evaluations.append((command.update, command.final))
        assert command.weights.update == command.update
        result = None
        if self._random.random() >= self.faults.evaluation:
            mean = float(command.update + int(digest(command.weights.parameters), 16) % 3)
            result = EvaluationResult(
                version=command.weights.version,
                returns=(mean,) * command.episodes,
                lengths=(1,) * command.episodes,
                unfinished=0,
            )
        return EvaluationMade(update=command.update, final=command.final, result=result)

    def head(self, actor: int) -> Command | None:
        """What an actor's process is at, if there is one."""
        process = self._processes.get(actor)
        return process.queue[0] if process is not None and process.queue else None

    def lose(self, actor: int) -> None:
        """End an actor's process; the conductor hears of it at once."""
        self.kill(actor)
        self.deliver(self._report_loss(self._dying.pop()))

    def kill(self, actor: int) -> None:
        """End an actor's process; the conductor hears of it later."""
        self._dying.append(self._processes.pop(actor))
        self.losses += 1

    def _report_loss(self, process: _Process) -> ActorLost:
        head = process.queue[0] if process.queue else None
        if isinstance(head, Collect | SnapshotActor) and self._random.random() < self.faults.late:
            self._late.append(self._as_actor(process))
        cause = f"actor {process.actor} ({process.lease}) ended"
        return ActorLost(actor=process.actor, lease=process.lease, cause=cause, detail=f"traceback of {process.lease}")

    # ---- learner and disk ------------------------------------------------------------------------------------------

    def _as_learner(self) -> Event:
        if not self._learner_started:
            self._learner_started = True
            first = Weights(self._first_version, self._updates, self._parameters)
            return LearnerStarted(
                version=first.version, updates=first.update, weights=first, parameter_digest=first.parameters
            )
        command = self._learner.popleft()
        if isinstance(command, SnapshotLearner):
            assert command.update == self._updates
            return LearnerSnapshot(update=command.update, state=LearnerContent(self._updates, self._parameters))
        assert isinstance(command, Update)
        return self._update(command)

    def _update(self, command: Update) -> UpdateMade:
        frames: tuple[Frame, ...] = command.frames
        assert command.update == self._updates
        assert all(frame.update == command.update for frame in frames)
        assert all(frame.basis == max(0, command.update - self.plan.policy_lag) for frame in frames)
        assert [frame.actor for frame in frames] == sorted({frame.actor for frame in frames})
        refused = [self._random.random() < self.faults.refusal for _ in frames]
        skipped = self._random.random() < self.faults.skip
        trained = not skipped and not all(refused)
        accepted = tuple(frame.digest for frame, no in zip(frames, refused, strict=True) if not no)
        if trained:
            self._parameters = digest(self._parameters, command.update, accepted)
        self._updates += 1
        self.trained.append(trained)
        self.chain[command.update] = (self._parameters, tuple(frame.digest for frame in frames))
        self.collects_of_updates[command.update] = list(frames)
        report = UpdateReport(
            update=command.update,
            term=command.term,
            version=command.version,
            trained=trained,
            verdicts=tuple(FragmentVerdict(refusal="stale" if no else "", detail="", num_valid=0) for no in refused),
            steps=int(trained),
            skipped_steps=int(skipped),
            skipped_at="body.0.weight" if skipped else "",
            lag=0,
            gaps=0,
            parameter_digest=self._parameters,
            learning_rate=0.1,
            statistics={},
            seconds={},
        )
        return UpdateMade(report=report, weights=Weights(command.version, self._updates, self._parameters))

    def _write(self, cut: Cut) -> CheckpointWritten:
        if self._random.random() < self.faults.checkpoint:
            return CheckpointWritten(update=cut.update, name="", digest="", error="the disk is full")
        return CheckpointWritten(update=cut.update, name=f"c{cut.update}", digest="d")

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _count(self, event: Event, commands: list[Command]) -> None:
        ledger = self._ledger
        if isinstance(event, FragmentMade):
            number = event.summary.num_valid
            ledger.produced += number
            if any(isinstance(c, Note) and c.kind == "FRAGMENT_REFUSED" for c in commands):
                ledger.dropped += number
            else:
                assert event.summary.lease == self.conductor.seats[event.summary.actor].lease
                ledger.in_flight[event.frame.digest] = number
        elif isinstance(event, UpdateMade):
            frames = self.collects_of_updates[event.report.update]
            for frame, verdict in zip(frames, event.report.verdicts, strict=True):
                number = ledger.in_flight.pop(frame.digest)
                if event.report.trained and not verdict.refusal:
                    ledger.trained += number
                else:
                    ledger.dropped += number

    def _check_accounts(self) -> None:
        accounts, ledger = self.conductor.accounts, self._ledger
        assert accounts.produced == accounts.trained + accounts.dropped_total + accounts.in_flight
        counted = (accounts.produced, accounts.trained, accounts.dropped_total, accounts.in_flight)
        assert counted == (ledger.produced, ledger.trained, ledger.dropped, sum(ledger.in_flight.values()))

    def _check_cut(self, cut: Cut) -> None:
        """A cut is of one moment: learner, actors and fragments all stand right behind update `update`."""
        assert all(earlier.update <= cut.update for earlier in self.cuts), "cuts are written in order"
        assert cut.learner == LearnerContent(cut.update, cut.parameter_digest)
        held = [fragment for frames in cut.frames.values() for fragment in frames]
        assert sorted(cut.frames) == list(range(cut.update, cut.update + self.plan.policy_lag))
        assert cut.accounts.in_flight == sum(fragment.summary.num_valid for fragment in held)
        for frames in cut.frames.values():
            actors = [fragment.summary.actor for fragment in frames]
            assert actors == sorted(set(actors))
            assert {seat.actor for seat in cut.seats if not seat.quarantined} <= set(actors)
        for seat in cut.seats:
            if seat.snapshot is not None:
                incarnation, made = (int(word) for word in seat.snapshot.decode().split()[2:])
                assert incarnation == seat.incarnation
                assert made in (-1, cut.update + self.plan.policy_lag - 1)
