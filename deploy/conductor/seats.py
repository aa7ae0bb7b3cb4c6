"""An actor as the conductor knows it: who sits there, and how far its program has been told.

The program of every seat is the same sequence, so losing a process means moving a pointer back, nothing else:

    Collect(0) ... Collect(k + lag - 1), SnapshotActor(k), Collect(k + lag) ...     for every cut k
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class SeatStatus(StrEnum):
    """Where an actor is in its life."""

    ABSENT = "absent"
    STARTING = "starting"
    RUNNING = "running"
    QUARANTINED = "quarantined"


class ToldCollect(NamedTuple):
    """A collect that was told: after a rollback the updates of the new term have the numbers of the old one.

    Attributes:
        version: weights that act at least: the actor holds these or newer ones.
    """

    term: int
    update: int
    version: int


@dataclass(slots=True, kw_only=True)
class Seat:
    """One actor.

    Attributes:
        actor: index, also its place in every update.
        status: of the current process.
        incarnation: life of its streams.
        lease: token of the current process; "" until it has started.
        restarts: processes that were lost.
        losses: commits of the run at the latest of these losses.
        next_collect: first update whose collect has not been told yet.
        outstanding: collects told and not made yet, oldest first.
        snapshot_told: cuts whose snapshot the current process was told to take.
        snapshots_ignored: of those, cuts that a rollback has dropped: their answers are still to come.
        last_fault: why the last process was lost.
        holds: version of the newest weights that the process has acknowledged; -1 = none.
        offered: version on its way to it; -1 = none.
        leaving: it is told nothing any more, and stops once it has made what it was told.
    """

    actor: int
    status: SeatStatus = SeatStatus.STARTING
    incarnation: int = 0
    lease: str = ""
    restarts: int = 0
    next_collect: int = 0
    outstanding: list[ToldCollect] = field(default_factory=list)
    snapshot_told: set[int] = field(default_factory=set)
    snapshots_ignored: list[int] = field(default_factory=list)
    last_fault: str = ""
    losses: list[int] = field(default_factory=list)
    holds: int = -1
    offered: int = -1
    leaving: bool = False

    @property
    def live(self) -> bool:
        """Whether a process is there, or on its way."""
        return self.status in (SeatStatus.STARTING, SeatStatus.RUNNING)

    @property
    def given_up(self) -> bool:
        """Whether no process will take this seat again."""
        return self.status is SeatStatus.QUARANTINED

    @property
    def running(self) -> bool:
        """Whether it can be told anything."""
        return self.status is SeatStatus.RUNNING

    def begin(self, lease: str) -> None:
        """A process has taken the seat."""
        self.status = SeatStatus.RUNNING
        self.lease = lease

    def awaits(self, term: int, update: int) -> bool:
        """Whether its next fragment is the one for `update` of `term`."""
        return bool(self.outstanding) and self.outstanding[0][:2] == (term, update)

    def tell(self, term: int, version: int) -> int:
        """The next collect is told; returns its number."""
        number = self.next_collect
        self.outstanding.append(ToldCollect(term, number, version))
        self.next_collect += 1
        return number

    def lose(self, *, term: int, max_restarts: int, commits: int, window: int) -> int:
        """The process is gone: step back to its oldest unmade collect of `term`. Returns the fragments lost, 0 or 1.

        The seat is given up once more than `max_restarts` losses lie within `window` commits.
        """
        lost = 1 if self.outstanding else 0
        self.next_collect = min(
            (each.update for each in self.outstanding if each.term == term), default=self.next_collect
        )
        self.restarts += 1
        self.losses = [at for at in self.losses if commits - at < window] + [commits]
        self._leave(SeatStatus.STARTING if len(self.losses) <= max_restarts else SeatStatus.QUARANTINED)
        return lost

    def stop(self) -> None:
        """The process was ended on purpose."""
        self._leave(SeatStatus.ABSENT)

    def _leave(self, status: SeatStatus) -> None:
        self.outstanding.clear()
        self.snapshot_told.clear()
        self.snapshots_ignored.clear()
        self.lease = ""
        self.holds = self.offered = -1
        self.leaving = False
        self.incarnation += 1
        self.status = status

    def give_up_snapshot(self, update: int, *, arrived: bool) -> None:
        """A cut is given up; if its snapshot was told and has not `arrived`, the answer is still to come."""
        if update in self.snapshot_told and not arrived:
            self.snapshots_ignored.append(update)
        self.snapshot_told.discard(update)

    def wants_snapshot(self, update: int) -> bool:
        """Whether an answer to SnapshotActor(update) is of this term."""
        if update in self.snapshots_ignored:
            self.snapshots_ignored.remove(update)
            return False
        return update in self.snapshot_told
