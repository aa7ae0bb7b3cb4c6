"""Gathers facts of a run as its driver sees it: what processes are told, what they answer, what that cost them.

Waiting is measured here, on the driver's clock, from answer to order, so that a wait under way is known. Work is what
processes say of themselves, so that what a message takes is neither. Constant work an event.
"""

from __future__ import annotations

from collections.abc import Callable

from common.clock import NS_PER_S, Clock
from common.metrics import Stage
from common.stint import StintMeter
from deploy.attribution.actors import ActorTrack
from deploy.attribution.ranks import RankTracks
from deploy.attribution.snapshot import HostFacts, Snapshot, StageFacts
from deploy.attribution.tracks import Duty, Mark
from deploy.conductor.conductor import Conductor
from deploy.conductor.learners import UPDATES_AHEAD
from deploy.conductor.messages import (
    ActorLost,
    ActorStarted,
    CheckpointWritten,
    Collect,
    Command,
    Evaluate,
    EvaluationMade,
    Event,
    FragmentDropped,
    FragmentMade,
    JoinGroup,
    LearnerStarted,
    Note,
    RankLost,
    RankUpdated,
    RecordUpdate,
    RollBack,
    StopActor,
    Update,
    WriteCheckpoint,
)
from deploy.conductor.policies.policy import FlowStatistics

Share = Callable[[], float | None]


def _unknown() -> float | None:
    return None


class Observer:
    """Takes every command and event in; says how the run stands.

    Args:
        clock: of the driver.
        in_turn: whether one process does everything.
        memory, store: how full they are, 0 to 1, asked once a snapshot.

    Attributes:
        ending: whether the run's last update is known to be behind it, or somebody has asked it to end: from then on
            nothing is to be waited for.
    """

    def __init__(self, clock: Clock, *, in_turn: bool, memory: Share = _unknown, store: Share = _unknown) -> None:
        self.ending = False
        self._clock = clock
        self._in_turn = in_turn
        self._memory, self._store = memory, store
        self._marks = {stage: Mark() for stage in Stage}
        self._actors: dict[int, ActorTrack] = {}
        self._ranks = RankTracks()
        self._evaluators: dict[tuple[int, bool], int] = {}
        self._in_hand = 0  # fragments accepted and neither drawn nor dropped
        self._refused = 0  # on arrival: made for a process or term that is no more
        self._unpublished = 0
        self._acted = 0
        self._cuts = 0
        self._writing, self._queueing = Duty(), Duty()
        self._own = StintMeter(clock)
        self._own.begin()
        self._own_cpu_ns = self._own_delay_ns = 0
        self._record_ns = 0

    # ---- what happens ----------------------------------------------------------------------------------------------

    def told(self, command: Command) -> None:
        """The driver carries a command out."""
        now_ns = self._clock.now_ns()
        match command:
            case Collect() | Evaluate():
                self._tell_actor(command, now_ns)
            case StopActor():
                self._actor(command.actor).leave(now_ns)
            case Update():
                self._ranks.tell([share.rank for share in command.shares], now_ns)
                self._marks[Stage.DRAWN].advance(now_ns, len(command.keys))
                self._in_hand = max(0, self._in_hand - len(command.keys))
            case JoinGroup():
                self._ranks.disband(now_ns)
            case RecordUpdate():
                self._marks[Stage.COMMITTED].advance(now_ns)
                self._unpublished += 1
            case FragmentDropped():
                self._in_hand = max(0, self._in_hand - 1)
            case RollBack():
                self._in_hand = self._unpublished = 0
            case WriteCheckpoint():
                self.ending = self.ending or command.cut.final
                self._write(self._cuts + 1, now_ns)
            case Note():
                self._noted(command, now_ns)
            case _:
                pass

    def _tell_actor(self, command: Collect | Evaluate, now_ns: int) -> None:
        self._actor(command.actor).tell(now_ns, fragment=isinstance(command, Collect))
        if isinstance(command, Evaluate):
            self._evaluators[command.update, command.final] = command.actor
            self.ending = self.ending or command.final

    def _noted(self, note: Note, now_ns: int) -> None:
        if note.kind == "STOP_ASKED":
            self.ending = True
        elif note.kind == "FRAGMENT_REFUSED" and "sequence" in note.data:  # by the conductor, as it arrived
            self._in_hand = max(0, self._in_hand - 1)
            self._refused += 1

    def happened(self, event: Event) -> None:
        """The conductor has taken an event in."""
        now_ns = self._clock.now_ns()
        match event:
            case ActorStarted():
                self._actor(event.actor).arrive(now_ns)
            case FragmentMade():
                self._made(event, now_ns)
            case ActorLost():
                self._actor(event.actor).leave(now_ns)
            case EvaluationMade():
                actor = self._evaluators.pop((event.update, event.final), None)
                if actor is not None:
                    self._actor(actor).answer(now_ns)
            case LearnerStarted():
                self._ranks.begin(now_ns)
                self._publish(now_ns)
            case RankUpdated():
                self._ranks.answer(event.report, now_ns)
                if event.weights is not None:
                    self._publish(now_ns)
            case RankLost():
                self._ranks.lose(event.rank, now_ns)
            case CheckpointWritten():
                self._write(max(0, self._cuts - 1), now_ns)
            case _:
                pass

    def _made(self, event: FragmentMade, now_ns: int) -> None:
        summary = event.summary
        self._actor(summary.actor).answer(now_ns, summary)
        self._marks[Stage.TICKS].advance(now_ns, summary.ticks)
        self._marks[Stage.BUILT].advance(now_ns)
        self._in_hand += 1
        if summary.version > self._acted:
            self._acted = summary.version
            self._marks[Stage.ADOPTED].advance(now_ns)

    def _publish(self, now_ns: int) -> None:
        self._marks[Stage.PUBLISHED].advance(now_ns)
        self._unpublished = 0

    def _write(self, cuts: int, now_ns: int) -> None:
        self._cuts = cuts
        self._writing.set(cuts > 0, now_ns)
        self._queueing.set(cuts > 1, now_ns)

    def recorded(self, elapsed_ns: int) -> None:
        """The driver has waited for the registry."""
        self._record_ns += elapsed_ns

    def _actor(self, actor: int) -> ActorTrack:
        return self._actors.setdefault(actor, ActorTrack(actor))

    # ---- how it stands ---------------------------------------------------------------------------------------------

    def snapshot(self, conductor: Conductor) -> Snapshot:
        """The run at this moment."""
        now_ns = self._clock.now_ns()
        self.ending = self.ending or conductor.env_steps >= conductor.plan.total_steps
        flow = conductor.policy.statistics(conductor.seats)
        return Snapshot(
            at_s=now_ns / NS_PER_S,
            asynchronous=flow is not None,
            in_turn=self._in_turn,
            in_flight=0 if flow is None else flow.in_flight,
            capacity=0 if flow is None else flow.capacity,
            ready_s=self._ranks.ready.seconds(now_ns),
            starved_s=self._ranks.starved.seconds(now_ns),
            stages=self._stages(conductor, flow, now_ns),
            actors=tuple(track.facts(now_ns) for _, track in sorted(self._actors.items())),
            ranks=self._ranks.facts(),
            host=self._host(now_ns),
        )

    def _stages(self, conductor: Conductor, flow: FlowStatistics | None, now_ns: int) -> dict[Stage, StageFacts]:
        accepted = self._marks[Stage.BUILT].count - self._refused - self._marks[Stage.ACCEPTED].count
        if accepted > 0:
            self._marks[Stage.ACCEPTED].advance(now_ns, accepted)
        orders = any(seat.outstanding for seat in conductor.seats)
        full = flow is not None and flow.in_flight >= flow.capacity
        queued, needed = self._in_hand, sum(seat.live for seat in conductor.seats)
        if flow is not None and conductor.plan.flow is not None:
            queued, needed = flow.queued, conductor.plan.flow.fragments
        ahead = conductor.issued - conductor.committed
        stands = {
            Stage.TICKS: (orders or full, orders),
            Stage.BUILT: (orders or full, orders),
            Stage.ACCEPTED: (self._marks[Stage.BUILT].count > self._marks[Stage.ACCEPTED].count, True),
            Stage.DRAWN: (queued >= needed > 0, ahead < UPDATES_AHEAD),
            Stage.COMMITTED: (ahead > 0, True),
            Stage.PUBLISHED: (self._unpublished > 0, True),
            Stage.ADOPTED: (conductor.version > self._acted, orders),
        }
        return {stage: self._marks[stage].look(now_ns, work=work, room=room) for stage, (work, room) in stands.items()}

    def _host(self, now_ns: int) -> HostFacts:
        stint = self._own.end()
        self._own.begin()
        self._own_cpu_ns += stint.cpu_ns
        self._own_delay_ns += stint.delay_ns
        return HostFacts(
            cpu_s=self._own_cpu_ns / NS_PER_S,
            delay_s=self._own_delay_ns / NS_PER_S,
            record_s=self._record_ns / NS_PER_S,
            writing_s=self._writing.seconds(now_ns),
            queueing_s=self._queueing.seconds(now_ns),
            memory=self._memory(),
            store=self._store(),
        )
