"""An actor as the conductor knows it: who sits there, and how far its program has been told.

The program of every seat is the same sequence, so losing a process means moving a pointer back, nothing else:

    Collect(0) ... Collect(k + lag - 1), SnapshotActor(k), Collect(k + lag) ...     for every cut k
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class SeatStatus(StrEnum):
    """Where an actor is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    QUARANTINED = "quarantined"


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
        last_fault: why the last process was lost.
    """

    actor: int
    status: SeatStatus = SeatStatus.STARTING
    incarnation: int = 0
    lease: str = ""
    restarts: int = 0
    next_collect: int = 0
    outstanding: list[int] = field(default_factory=list)
    snapshot_told: set[int] = field(default_factory=set)
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

    def lose(self, *, max_restarts: int) -> int:
        """The process is gone: step back to its oldest unmade collect. Returns the number of fragments lost."""
        lost = 1 if self.outstanding else 0
        if self.outstanding:
            self.next_collect = self.outstanding[0]
        self.outstanding.clear()
        self.snapshot_told.clear()
        self.lease = ""
        self.restarts += 1
        self.incarnation += 1
        self.status = SeatStatus.STARTING if self.restarts <= max_restarts else SeatStatus.QUARANTINED
        return lost
