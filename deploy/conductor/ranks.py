"""A learner rank as the conductor knows it: its process, what it was told and has not answered, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from learner.reports import Standing


class RankStatus(StrEnum):
    """Where a rank is in its life."""

    STARTING = "starting"  # its process was told to start
    READY = "ready"  # its process is there, and in no group
    JOINED = "joined"  # in the group of the present formation
    QUARANTINED = "quarantined"  # blamed for wrong values too often: stopped, and never started again


class Task(StrEnum):
    """What a rank can be asked for; the value continues "rank 0 to ..."."""

    START = "start"
    ADOPT = "adopt a state"
    JOIN = "join formation"
    PUBLISH = "publish"
    SNAPSHOT = "hand over the state after update"
    UPDATE = "make update"


@dataclass(frozen=True, slots=True)
class Awaited:
    """Something told and not answered.

    Attributes:
        task: what.
        number: which formation, update or state; 0 where there is only one.
    """

    task: Task
    number: int = 0


@dataclass(slots=True, kw_only=True)
class RankSeat:
    """One rank.

    Attributes:
        rank: index in the run.
        status: of the current process.
        lease: token of the current process; "" until it has started.
        restarts: processes that were lost.
        blamed: disputes that were attributed to it.
        standing: the updates and digests it last told; None until its process has started.
        fresh: it has neither joined a group nor adopted a state since it started, so it holds nothing that is needed.
        current: it holds the state from which the group is being formed.
        awaited: told and not answered, oldest first: a process answers in order.
        losses: at which commits of the run its processes were lost.
    """

    rank: int
    status: RankStatus = RankStatus.STARTING
    lease: str = ""
    restarts: int = 0
    blamed: int = 0
    standing: Standing | None = None
    fresh: bool = True
    current: bool = False
    awaited: list[Awaited] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)

    @property
    def live(self) -> bool:
        """Whether the group needs it."""
        return self.status is not RankStatus.QUARANTINED

    @property
    def started(self) -> bool:
        """Whether it can be told anything."""
        return self.status in (RankStatus.READY, RankStatus.JOINED)

    def awaits(self, task: Task) -> bool:
        """Whether `task` was told and not answered."""
        return any(each.task is task for each in self.awaited)

    def tell(self, task: Task, number: int = 0) -> None:
        """Something is being told."""
        self.awaited.append(Awaited(task, number))

    def answer(self, task: Task) -> None:
        """The oldest `task` was answered."""
        for index, each in enumerate(self.awaited):
            if each.task is task:
                del self.awaited[index]
                return

    def begin(self, lease: str, standing: Standing) -> None:
        """A process has taken the seat."""
        self.answer(Task.START)
        self.status, self.lease, self.standing, self.fresh = RankStatus.READY, lease, standing, True

    def hold(self, standing: Standing) -> None:
        """It holds the state of the group."""
        self.standing, self.fresh, self.current = standing, False, True

    def lose(self, *, commits: int, window: int) -> int:
        """The process is gone. Returns how many were lost within the last `window` commits."""
        self.status, self.lease, self.standing = RankStatus.STARTING, "", None
        self.fresh, self.current = True, False
        self.awaited.clear()
        self.restarts += 1
        self.losses = [at for at in self.losses if at > commits - window] + [commits]
        return len(self.losses)

    def quarantine(self) -> None:
        """It is stopped for good."""
        self.status, self.current = RankStatus.QUARANTINED, False
        self.awaited.clear()

    def words(self) -> list[str]:
        """What is awaited of it."""
        numbered = (Task.JOIN, Task.SNAPSHOT, Task.UPDATE)
        return [
            f"rank {self.rank} to {each.task}" + (f" {each.number}" if each.task in numbered else "")
            for each in self.awaited
        ]
