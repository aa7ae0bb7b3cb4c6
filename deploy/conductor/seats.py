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

    STARTING = "starting"
    RUNNING = "running"
    QUARANTINED = "quarantined"


class ToldCollect(NamedTuple):
    """A collect that was told: after a rollback the updates of the new term have the numbers of the old one."""

    term: int
    update: int


@dataclass(slots=True, kw_only=True)
class Seat:
    """One actor.

    Attributes:
        actor: index, also its place in every update.
        status: of the current process.
        incarnation: life of its streams.
        lease: token of the current process; "" until it has started.
        restarts: processes that were lost.
        next_collect: first update whose collect has not been told yet.
        outstanding: collects told and not made yet, oldest first.
        snapshot_told: cuts whose snapshot the current process was told to take.
        snapshots_ignored: of those, cuts that a rollback has dropped: their answers are still to come.
        last_fault: why the last process was lost.
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

    @property
    def live(self) -> bool:
        """Whether updates wait for it."""
        return self.status is not SeatStatus.QUARANTINED

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
        return bool(self.outstanding) and self.outstanding[0] == (term, update)

    def lose(self, *, term: int, max_restarts: int) -> int:
        """The process is gone: step back to its oldest unmade collect of `term`. Returns the fragments lost, 0 or 1."""
        lost = 1 if self.outstanding else 0
        self.next_collect = min(
            (each.update for each in self.outstanding if each.term == term), default=self.next_collect
        )
        self.outstanding.clear()
        self.snapshot_told.clear()
        self.snapshots_ignored.clear()
        self.lease = ""
        self.restarts += 1
        self.incarnation += 1
        self.status = SeatStatus.STARTING if self.restarts <= max_restarts else SeatStatus.QUARANTINED
        return lost

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
