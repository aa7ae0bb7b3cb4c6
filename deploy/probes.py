"""Whether a run lives: what the driver answers to probes, from the progress that its own thread has noted.

driver's loop ── observe, commit, look ──► RunHealth ── ask ──► a thread of the server for each request

Neither side waits for the other. Progress is what brings a run nearer to its end, or back on its feet: an update, a
fragment, an evaluation, a checkpoint, a process that has started. A loss is none, nor is a refusal: a run that only
loses things is stuck.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from common.clock import NS_PER_S, Clock
from common.probes import Probe, ProbeAnswer
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import (
    ActorSnapshot,
    ActorStarted,
    CheckpointWritten,
    EvaluationMade,
    Event,
    FragmentMade,
    GroupJoined,
    LearnerSnapshot,
    LearnerStarted,
    RankStarted,
    RecordUpdate,
    StateAdopted,
)
from deploy.conductor.seats import SeatStatus

LOOK_EVERY_S = 1.0
MOST_WORDS = 400  # of what is awaited: a crowd of actors would fill the screen of `kubectl describe`


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The last step forward.

    Attributes:
        what: in a few words.
        at_ns: when, by the run's clock.
    """

    what: str
    at_ns: int


class RunHealth:
    """The answers for one driving of a run.

    Fed by the thread that drives, asked by any other: every attribute is replaced as a whole.

    Args:
        clock: times progress.
        stall_s: without progress for longer than this, the run is not alive.
    """

    def __init__(self, clock: Clock, *, stall_s: float) -> None:
        self._clock = clock
        self._stall_s = stall_s
        self._progress = Progress(what="the driver was started", at_ns=clock.now_ns())
        self._begun = False
        self._published = False
        self._heard: frozenset[int] = frozenset()
        self._awaited = "the run's record, or the checkpoint to resume from"
        self._missing = "the learner's weights"
        self._looked_ns = 0

    # ---- from the driver's thread ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """The run is in its record, and its processes are started next."""
        self._advance("the run began")
        self._awaited = "its processes to start"
        self._begun = True

    def wait_for_places(self, seconds: float) -> None:
        """The cluster has yet to give places; that wait has a deadline of its own, and is not stuck before it."""
        self._advance("the run asked for places", in_s=seconds)
        self._awaited = "places in the cluster"

    def have_places(self) -> None:
        """Processes are started next."""
        self._advance("the run had its places")
        self._awaited = "its processes to start"

    def observe(self, event: Event) -> None:
        """Take an event that the conductor has taken in."""
        if isinstance(event, ActorStarted):
            self._heard |= {event.actor}
        if isinstance(event, LearnerStarted):
            self._published = True
        if what := _progress_in(event):
            self._advance(what)

    def commit(self, command: RecordUpdate) -> None:
        """An update is committed."""
        self._advance(f"update {command.report.update}")

    def look(self, conductor: Conductor) -> None:
        """Take note, once a second, of what is awaited and who is missing."""
        now_ns = self._clock.now_ns()
        if (now_ns - self._looked_ns) / NS_PER_S < LOOK_EVERY_S:
            return
        self._looked_ns = now_ns
        self._awaited = _shortened(conductor.waiting_for())
        if self._missing:
            self._missing = self._who_is_missing(conductor)

    def _advance(self, what: str, *, in_s: float = 0.0) -> None:
        """`in_s`: seconds from now until which nothing more is expected."""
        self._progress = Progress(what=what, at_ns=self._clock.now_ns() + round(in_s * NS_PER_S))

    def _who_is_missing(self, conductor: Conductor) -> str:
        wanted = {seat.actor for seat in conductor.seats if _wanted(seat.status) and not seat.leaving}
        missing = [] if self._published else ["the learner's weights"]
        return _shortened(", ".join(missing + [f"actor {actor}" for actor in sorted(wanted - self._heard)]))

    # ---- from any thread -------------------------------------------------------------------------------------------

    def ask(self, probe: Probe) -> ProbeAnswer:
        """As `Prober` has it.

        Begun: the run is in its record. Alive: there was progress within `stall_s`, the start included. Ready: weights
        were published and every actor that is wanted has started once; it stays so in this driving, whoever is lost.
        """
        match probe:
            case Probe.STARTUP:
                return ProbeAnswer(yes=self._begun, why="ok" if self._begun else f"waiting for {self._awaited}")
            case Probe.LIVE | Probe.HEALTH:
                return self._alive()
            case Probe.READY:
                return ProbeAnswer(yes=not self._missing, why=f"waiting for {self._missing}" if self._missing else "ok")
            case other:
                assert_never(other)

    def _alive(self) -> ProbeAnswer:
        last = self._progress
        age_s = (self._clock.now_ns() - last.at_ns) / NS_PER_S
        if age_s <= self._stall_s:
            return ProbeAnswer(yes=True, why=f"{last.what}, {max(0.0, age_s):.0f} s ago")
        why = f"no progress for {age_s:.0f} s ({self._stall_s:g} s are allowed) since {last.what}; waiting for "
        return ProbeAnswer(yes=False, why=why + self._awaited)


def _progress_in(event: Event) -> str:
    """What an event brings forward, in a few words; "" if nothing."""
    match event:
        case FragmentMade(summary=summary):
            return f"a fragment of actor {summary.actor}"
        case ActorStarted() | ActorSnapshot():
            return f"{'the start' if isinstance(event, ActorStarted) else 'a snapshot'} of actor {event.actor}"
        case RankStarted() | StateAdopted() | GroupJoined():
            return f"a step of rank {event.rank} towards the group"
        case LearnerStarted():
            return f"weights of version {event.version}"
        case LearnerSnapshot():
            return f"a snapshot of rank {event.rank}"
        case EvaluationMade(result=result) if result is not None:
            return f"the evaluation after update {event.update}"
        case CheckpointWritten(error=""):
            return f"the checkpoint of update {event.update}"
        case _:
            return ""


def _wanted(status: SeatStatus) -> bool:
    return status in (SeatStatus.STARTING, SeatStatus.RUNNING)


def _shortened(words: str) -> str:
    return words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]} ..."
