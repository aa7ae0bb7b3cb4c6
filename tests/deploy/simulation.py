"""A run without processes: the conductor's commands are obeyed by hash chains, its events arrive in any order.

    commands ──► a queue per actor, one per rank, one for the disk ──a random generator picks one──► event

What an actor or a rank would compute is a digest of everything that went into it, so two runs that compute the
same have the same digests, and a digest that depends on the order of delivery shows. Every event is followed by checks
of what must always hold; a run in which nothing is left to happen fails at once and says what it waits for.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from actors.env.lanes import LaneFacts
from actors.evaluate import EvaluationResult
from common.fragment import FragmentSummary
from common.ledger import LedgerFragment, Script
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
    FragmentDropped,
    FragmentMade,
    LearnerStarted,
    Note,
    OfferWeights,
    RecordUpdate,
    RollBack,
    SnapshotActor,
    StartActor,
    StopActor,
    StopAsked,
    WeightsHeld,
    WriteCheckpoint,
)
from deploy.conductor.plan import Plan
from deploy.conductor.safe import extend_chain
from learner.reports import OrderStatus
from tests.deploy.simulated_ranks import (
    Frame,
    LearnerContent,
    RankFaults,
    RankProcess,
    SimulatedRanks,
    digest,
)

FACTS = LaneFacts(vectorised="sync", autoreset="NextStep", seeding="per_episode", restorable=True, reason="")
MAX_EVENTS = 20_000


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
        ranks: what goes wrong with learner ranks.
    """

    loss: float = 0.0
    hopeless: frozenset[int] = frozenset()
    late: float = 0.0
    refusal: float = 0.0
    skip: float = 0.0
    evaluation: float = 0.0
    checkpoint: float = 0.0
    restorable: bool = True
    ranks: RankFaults = field(default_factory=RankFaults)


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
    offers: deque[OfferWeights] = field(default_factory=deque)
    ready: Any = None


@dataclass(slots=True)
class _Ledger:
    """Where transitions went, counted apart from the conductor: fragments by the frame's digest."""

    in_flight: dict[str, int] = field(default_factory=dict)
    produced: int = 0
    trained: int = 0
    dropped: int = 0
    trained_in: dict[int, int] = field(default_factory=dict)

    def commit(self, update: int, frames: list[Frame], accepted: list[bool]) -> None:
        """An update is committed: its fragments are no longer in flight."""
        self.trained_in[update] = 0
        for frame, used in zip(frames, accepted, strict=True):
            number = self.in_flight.pop(frame.digest)
            if used:
                self.trained += number
                self.trained_in[update] += number
            else:
                self.dropped += number

    def roll_back(self, update: int) -> None:
        """What was trained from `update` on, and all that is in flight, is dropped."""
        undone = sum(self.trained_in.pop(each) for each in [u for u in self.trained_in if u >= update])
        self.trained -= undone
        self.dropped += undone + sum(self.in_flight.values())
        self.in_flight.clear()


class Simulation:
    """One run, or the rest of one.

    Args:
        plan: what the conductor is to do.
        seed: of the order of delivery and of the faults; never of what is computed.
        faults: what goes wrong.
        stop_at: the number of events after which a stop is asked for; None never asks.
        resumed: the cut to go on from.
        script: what is made again.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        seed: int = 0,
        faults: Faults | None = None,
        stop_at: int | None = None,
        resumed: Cut | None = None,
        script: Script | None = None,
    ) -> None:
        first = 0 if resumed is None else resumed.version + 10
        self._numbers = itertools.count(first)
        self.versions: list[int] = []
        initial = None if resumed is None else resumed.learner
        versions = self._count_versions()
        self.conductor = Conductor(plan, versions=versions, initial=initial, resumed=resumed, script=script)
        self.plan = plan
        self.in_turn = plan.flow is None and script is None
        self.scripted = script
        self.ledger: list[LedgerFragment] = []
        self.frames: dict[tuple[int, int, int], Frame] = {}
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
        self.ranks = SimulatedRanks(self._random, self.faults.ranks, refusal=self.faults.refusal, skip=self.faults.skip)
        self.floor = 0
        self.rolled_back: list[RollBack] = []
        self.committed_in: list[tuple[int, int]] = []
        self.digest_chain = "" if resumed is None else resumed.chain
        self._chains = {self.started_at: self.digest_chain}
        self._agreed: set[int] = set()
        self._processes: dict[int, _Process] = {}
        self._dying: deque[_Process] = deque()
        self._late: deque[Event] = deque()
        self._disk: deque[Cut] = deque()
        self._leases = itertools.count()
        self._ledger = _Ledger()
        if resumed is not None:
            self._take_up(resumed)

    def _take_up(self, cut: Cut) -> None:
        self._ledger.in_flight = {held.frame.digest: held.summary.num_valid for held in cut.frames}
        self.frames = {held.key: held.frame for held in cut.frames}
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
        return self.run_on()

    def run_on(self) -> Finish:
        """Deliver events until the run, which has begun, is over."""
        while self.conductor.finish is None:
            self.step()
        return self.conductor.finish

    def begin(self) -> None:
        """Start ranks and actors."""
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
        before = self._progress()
        commands = self.conductor.handle(event)
        self._count(event, commands)
        self._carry_out(commands)
        self._check_accounts()
        self._check_flow()
        assert self._progress() >= before, "a total has gone back"
        if self.conductor.finish is None:
            assert self.conductor.waiting_for() != "nothing"

    def _progress(self) -> tuple[int, ...]:
        """Totals that only grow, rollbacks or not."""
        conductor, accounts = self.conductor, self.conductor.accounts
        updates = conductor.committed + accounts.updates_undone
        return (updates, conductor.env_steps + accounts.steps_undone, accounts.trained + accounts.undone)

    def _next_event(self) -> Event | None:
        if self._random.random() < self.faults.loss and self._processes:
            self.kill(self._random.choice(sorted(self._processes)))
        self.ranks.fail_at_random()
        event = None
        while event is None:
            sources: list[object] = [process for _, process in sorted(self._processes.items()) if process.queue]
            sources += [process.offers for _, process in sorted(self._processes.items()) if process.offers]
            sources += [s for s in (self._dying, self._late, self._disk) if s]
            sources += self.ranks.sources()
            if not sources:
                sources = [process for process in [self.ranks.overdue()] if process is not None]
            if not sources:
                return None
            event = self._act(self._random.choice(sources))
        return event

    def _act(self, source: object) -> Event | None:
        if isinstance(source, RankProcess):
            return self.ranks.act(source)
        if source is self._dying:
            return self._report_loss(self._dying.popleft())
        if source is self._late:
            return self._late.popleft()
        if source is self._disk:
            return self._write(self._disk.popleft())
        if isinstance(source, deque):
            return self._take_offer(source.popleft())
        return self._as_actor(source)  # type: ignore[arg-type]

    def _take_offer(self, command: OfferWeights) -> WeightsHeld:
        process = self._processes[command.actor]
        process.ready = command.weights
        return WeightsHeld(actor=command.actor, lease=process.lease, version=command.version)

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case StartActor():
                    self._start(command)
                case StopActor():
                    process = self._processes.pop(command.actor)
                    assert not process.queue, "an actor is stopped once it has made what it was told"
                case OfferWeights():
                    assert command.version in self._agreed
                    if command.actor in self._processes:
                        self._processes[command.actor].offers.append(command)
                case Collect() | SnapshotActor() | Evaluate():
                    if isinstance(command, Collect) and self.in_turn:
                        self._check_weights(command)
                    if command.actor in self._processes:  # else its loss is on the way to the conductor
                        self._processes[command.actor].queue.append(command)
                case WriteCheckpoint():
                    self.ledger += command.ledger
                    self._check_cut(command.cut)
                    self.cuts.append(command.cut)
                    self._disk.append(command.cut)
                case Note():
                    self.notes.append(command)
                case RecordUpdate():
                    self._commit(command)
                case RollBack():
                    self._roll_back(command)
                case FragmentDropped():
                    pass
                case Finish():
                    assert command is self.conductor.finish
                case _:
                    self.ranks.carry_out(command)

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
        weights = process.ready if command.version is None else command.weights
        process.state = digest(process.state, weights.parameters)
        frame = Frame(
            actor=process.actor,
            update=command.update,
            incarnation=process.incarnation,
            sequence=process.sequence,
            basis=weights.update,
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
            version=weights.version,
            update=command.update,
            digest=int(frame.digest, 16) % 2**32,
            num_valid=6 + number % 5,
            num_voided=number % 3,
            episode_returns=(1.0,) * (number % 4),
            episode_lengths=(1,) * (number % 4),
        )
        self.frames[frame.actor, frame.incarnation, frame.sequence] = frame
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

    # ---- records and disk ------------------------------------------------------------------------------------------

    def _commit(self, command: RecordUpdate) -> None:
        """What is committed was made by every rank that could still say so, once in a term, on what went before."""
        report = command.report
        attempt = self.ranks.attempts[report.attempt]
        frames = list(attempt.frames)
        assert report.status is OrderStatus.MADE
        assert report.verdicts == attempt.verdicts or self.ranks.losses or self.faults.ranks.partial
        assert report.update == (max(self.chain, default=self.started_at - 1) + 1)
        self.ledger += command.ledger
        if self.in_turn:
            self._check_frames(report.update, frames)
        else:
            assert len(frames) == len({(f.actor, f.incarnation, f.sequence) for f in frames})
        if self.plan.flow is not None:
            assert len(frames) == self.plan.flow.fragments
            assert all(0 <= report.update - frame.basis <= self.plan.flow.max_lag for frame in frames)
        self.committed_in.append((report.term, report.update))
        self.trained.append(report.trained)
        self.chain[report.update] = (report.parameter_digest, tuple(frame.digest for frame in frames))
        self.collects_of_updates[report.update] = frames
        self._agreed.add(report.version)
        self._ledger.commit(report.update, frames, [report.trained and not v.refusal for v in report.verdicts])
        self.digest_chain = self._chains[report.update + 1] = extend_chain(
            self.digest_chain,
            update=report.update,
            parameter_digest=report.parameter_digest,
            state_digest=report.state_digest,
        )
        assert command.chain == self.digest_chain

    def _check_frames(self, update: int, frames: list[Frame]) -> None:
        """One of each actor, made for this update by the weights before it."""
        assert all(frame.update == update for frame in frames)
        basis = {max(self.floor, update - self.plan.policy_lag)}
        if update < self.started_at + self.plan.policy_lag and not self.rolled_back:
            basis.add(self.started_at)  # held by the cut of a run that had just been rolled back
        assert {frame.basis for frame in frames} <= basis
        assert [frame.actor for frame in frames] == sorted({frame.actor for frame in frames})

    def _roll_back(self, command: RollBack) -> None:
        assert command.term == self.conductor.term
        self.rolled_back.append(command)
        self.floor = command.update
        self.chain = {update: made for update, made in self.chain.items() if update < command.update}
        self.digest_chain = self._chains[command.update]
        self._ledger.roll_back(command.update)
        self._agreed.clear()

    def hang_while_writing(self) -> None:
        """Go on to the next checkpoint that is told to be written; it never will be."""
        while not self._disk:
            self.step()
        self._disk.clear()

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
            ledger.in_flight[event.frame.digest] = number
        for command in commands:
            if (name := _dropped(command)) is not None:
                ledger.dropped += ledger.in_flight.pop(self.frames[name].digest)
        if isinstance(event, LearnerStarted):
            self._agreed.add(event.version)

    def _check_weights(self, command: Collect) -> None:
        """Only weights act that every rank agreed on, in this term, and of the right update."""
        assert command.weights.update == max(self.floor, command.update - self.plan.policy_lag)
        assert command.weights.version == command.version
        assert command.version in self._agreed
        assert command.term == self.conductor.term

    def _check_accounts(self) -> None:
        accounts, ledger = self.conductor.accounts, self._ledger
        assert accounts.produced == accounts.trained + accounts.dropped_total + accounts.in_flight
        counted = (accounts.produced, accounts.trained, accounts.dropped_total, accounts.in_flight)
        assert counted == (ledger.produced, ledger.trained, ledger.dropped, sum(ledger.in_flight.values()))

    def _check_flow(self) -> None:
        """What is told, in hand and with the learner is never more than the plan allows: memory is bounded."""
        if self.plan.flow is not None and self.scripted is None:
            told = sum(len(seat.outstanding) for seat in self.conductor.seats)
            assert told + len(self._ledger.in_flight) <= self.plan.flow.most_capacity

    def _check_cut(self, cut: Cut) -> None:
        """A cut is of one moment: learner, actors and fragments all stand right behind update `update`."""
        floor = self.rolled_back[-1].update if self.rolled_back else 0
        assert all(earlier.update <= max(cut.update, floor) for earlier in self.cuts), "cuts are written in order"
        assert (cut.chain, cut.term) == (self._chains[cut.update], self.conductor.term)
        assert cut.learner == LearnerContent(cut.update, cut.parameter_digest)
        assert cut.accounts.in_flight == sum(held.summary.num_valid for held in cut.frames)
        if self.in_turn:
            self._check_frames_of_cut(cut)
        for seat in cut.seats:
            if seat.snapshot is not None:
                incarnation, made = (int(word) for word in seat.snapshot.decode().split()[2:])
                assert incarnation == seat.incarnation
                if not self.in_turn:
                    continue
                assert made in (-1, cut.update + self.plan.policy_lag - 1) or self.rolled_back

    def _check_frames_of_cut(self, cut: Cut) -> None:
        """For each of the updates behind the cut one of each actor, in order."""
        later = range(cut.update, cut.update + self.plan.policy_lag)
        assert sorted({held.summary.update for held in cut.frames}) == list(later)
        for update in later:
            actors = [held.summary.actor for held in cut.frames if held.summary.update == update]
            assert actors == sorted(set(actors))
            assert {seat.actor for seat in cut.seats if not seat.quarantined} <= set(actors)


def _dropped(command: Command) -> tuple[int, int, int] | None:
    """Which fragment a command says was dropped on arrival, or in composing an update."""
    match command:
        case FragmentDropped():
            return command.actor, command.incarnation, command.sequence
        case Note(kind="FRAGMENT_REFUSED", data={"sequence": int(sequence), **data}):
            return data["actor"], data["incarnation"], sequence
        case _:
            return None
