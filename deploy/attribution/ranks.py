"""The group of learner ranks as the driver sees it: whole or not, with an update to make or without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from common.clock import NS_PER_S
from deploy.attribution.snapshot import RankFacts
from deploy.attribution.tracks import Duty
from learner.reports import UpdateReport

WAITS = ("reduce", "exchange")  # phases of sync in which a rank waits for the others
CHECKS = ("verify", "backup", "audit")


class RankTracks:
    """All ranks.

    Attributes:
        ready: time in which the group could make updates.
        starved: of that, time in which no rank had one to make.
    """

    def __init__(self) -> None:
        self.ready, self.starved = Duty(), Duty()
        self._whole = False
        self._orders: Counter[int] = Counter()
        self._facts: dict[int, RankFacts] = {}

    def begin(self, now_ns: int) -> None:
        """The group has published."""
        self._whole = True
        self._settle(now_ns)

    def disband(self, now_ns: int) -> None:
        """The group is being formed (again)."""
        self._whole = False
        self._settle(now_ns)

    def lose(self, rank: int, now_ns: int) -> None:
        """A rank is gone, and with it what it was told."""
        del self._orders[rank]
        self.disband(now_ns)

    def tell(self, ranks: Iterable[int], now_ns: int) -> None:
        """An order goes to all of them, so the group is whole."""
        self._orders.update(ranks)
        self.begin(now_ns)

    def answer(self, report: UpdateReport, now_ns: int) -> None:
        """A rank has answered its oldest order."""
        self._orders[report.rank] = max(0, self._orders[report.rank] - 1)
        self._settle(now_ns)
        before = self._facts.get(report.rank) or _nothing(report.rank)
        stint, seconds = report.stint, report.sync.seconds
        self._facts[report.rank] = RankFacts(
            rank=report.rank,
            orders=before.orders + 1,
            work_s=before.work_s + stint.wall_ns / NS_PER_S,
            wait_s=before.wait_s + sum(seconds.get(phase, 0.0) for phase in WAITS),
            verify_s=before.verify_s + sum(seconds.get(phase, 0.0) for phase in CHECKS),
            cpu_s=before.cpu_s + stint.cpu_ns / NS_PER_S,
            delay_s=before.delay_s + stint.delay_ns / NS_PER_S,
            major_faults=before.major_faults + stint.major_faults,
            gpu=report.gpu_utilization,
        )

    def _settle(self, now_ns: int) -> None:
        self.ready.set(self._whole, now_ns)
        self.starved.set(self._whole and not any(self._orders.values()), now_ns)

    def facts(self) -> tuple[RankFacts, ...]:
        """How they stand."""
        return tuple(facts for _, facts in sorted(self._facts.items()))


def _nothing(rank: int) -> RankFacts:
    return RankFacts(rank=rank, orders=0, work_s=0.0, wait_s=0.0, verify_s=0.0, cpu_s=0.0, delay_s=0.0, major_faults=0)
