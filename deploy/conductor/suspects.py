"""Ranks that computed something wrong: blamed by attribution, shut out when it happens again."""

from __future__ import annotations

from collections.abc import Iterator

from common.errors import RunFailedError
from deploy.conductor import rank_notes as notes
from deploy.conductor.group import Group
from deploy.conductor.messages import Note, StopRank
from deploy.conductor.orders import Order
from deploy.conductor.outcomes import Ended
from learner.reports import Attribution, Fault

BLAMED_TOO_OFTEN = 2


class Suspects:
    """Who was to blame, and who is to be shut out.

    Attributes:
        outcasts: ranks that were wrong too often; they stay in the group until nothing is under way.
    """

    def __init__(self, group: Group) -> None:
        self.outcasts: set[int] = set()
        self._group = group

    def judge_made(self, order: Order) -> Iterator[Note | Ended]:
        """An update was made; if an attempt at it was disputed before, it is known now who was wrong."""
        attribution = _attribution(order)
        if attribution is not None:
            yield from self._blame(order, attribution)

    def judge_disputed(self, order: Order) -> Iterator[Note | Ended]:
        """A dispute. About a local gradient it says at once who was wrong, if that can be told; else the redo will."""
        reports = order.reports.values()
        if not any(each.fault is Fault.LOCAL_GRADIENT for report in reports for each in report.sync.disputes):
            return
        attribution = _attribution(order)
        if attribution is None or not attribution.ranks:
            yield Ended(error=_unattributed(order))
        else:
            yield from self._blame(order, attribution)

    def _blame(self, order: Order, attribution: Attribution) -> Iterator[Note | Ended]:
        yield notes.attributed(order, attribution)
        for rank in attribution.ranks:
            seat = self._group.seats[rank]
            seat.blamed += 1
            if seat.blamed >= BLAMED_TOO_OFTEN and seat.live:
                self.outcasts.add(rank)
        if self.outcasts and len(self.outcasts) == len(self._group.live):
            who = ", ".join(str(rank) for rank in sorted(self.outcasts))
            verdict = f"learner rank {who} was wrong {BLAMED_TOO_OFTEN} times, and no other is left"
            fix = "check the memory of its machine, then resume the run elsewhere"
            yield Ended(error=RunFailedError(f"{verdict} (update {order.update})", fix=fix))

    def expel(self) -> Iterator[Note | StopRank]:
        """Shut the outcasts out; nothing is under way."""
        for rank in sorted(self.outcasts):
            seat = self._group.seats[rank]
            seat.quarantine()
            yield notes.quarantined(seat)
            yield StopRank(rank=rank)
        self.outcasts.clear()


def _attribution(order: Order) -> Attribution | None:
    """All ranks tell the same."""
    return next((report.sync.attribution for report in order.reports.values() if report.sync.attribution), None)


def _unattributed(order: Order) -> RunFailedError:
    disputes = next(report.sync.disputes for report in order.reports.values() if report.sync.disputes)
    first = disputes[0]
    ranks = " and ".join(str(rank) for rank in sorted(first.digests))
    return RunFailedError(
        f"unattributed: learner ranks {ranks} contradict each other about a local gradient "
        f"(update {order.update}, step {first.step})",
        fix="check the memory of their machines, then resume the run",
    )
