"""The ranks of a run together: what forming the group and ordering it both read and change."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.conductor.messages import SnapshotLearner
from deploy.conductor.ranks import RankSeat, Task


@dataclass(slots=True, kw_only=True)
class Group:
    """The ranks, and how far they have come.

    Attributes:
        seats: every rank of the run, by rank.
        updates: committed: what a rank must hold to go on.
        formation: number of the last forming.
        commits: updates committed in this driving, those included that a rollback has undone since.
        failures: attempts that failed since the last commit though every rank lived.
    """

    seats: list[RankSeat]
    updates: int
    formation: int = 0
    commits: int = 0
    failures: int = 0

    @property
    def live(self) -> list[RankSeat]:
        """Those that the group needs."""
        return [seat for seat in self.seats if seat.live]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Live ranks; a rank's index here is its place."""
        return tuple(seat.rank for seat in self.live)

    @property
    def started(self) -> list[RankSeat]:
        """Live ones whose process is there."""
        return [seat for seat in self.seats if seat.started]

    @property
    def idle(self) -> bool:
        """Whether every process that is there has answered everything."""
        return not any(seat.awaited for seat in self.started)

    def holds_lease(self, rank: int, lease: str) -> bool:
        """Whether `lease` is that of the rank's present process."""
        return self.seats[rank].started and self.seats[rank].lease == lease

    def snapshot(self, rank: int, update: int) -> SnapshotLearner:
        """Have `rank` hand over its state, which will be that after `update` updates."""
        self.seats[rank].tell(Task.SNAPSHOT, update)
        return SnapshotLearner(update=update, rank=rank)
