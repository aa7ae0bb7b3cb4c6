"""Every actor makes one fragment for every update, so timing cannot matter.

Collect(j)   is told once committed = j - lag, with the weights after max(floor, j - lag) updates
Update(j)    is made of the fragments of all live actors for j, in the order of actors
a cut after k updates lies behind Collect(k + lag - 1) of every actor and holds the fragments for k ... k + lag - 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deploy.conductor.accounts import Accounts
from deploy.conductor.cuts import CutInProgress
from deploy.conductor.messages import Collect, Cut, Held, StartActor
from deploy.conductor.policies.policy import Composition, FlowStatistics, Moment
from deploy.conductor.seats import Seat


class Synchronous:
    """Collects and learns in turn, or with a lag of one update.

    Args:
        lag: 0 or 1.
    """

    waits_for_target = True
    saves = True
    length: int | None = None

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._in_hand: dict[int, dict[int, Held]] = {}

    def begin(self, seats: Sequence[Seat]) -> None:
        """Every seat is taken."""

    def resume(self, cut: Cut, seats: Sequence[Seat]) -> None:
        for held in cut.frames:
            self.add(held)
        for seat in seats:
            seat.next_collect = cut.update + self._lag

    def tell(self, seat: Seat, seats: Sequence[Seat], moment: Moment) -> Collect | None:
        number = seat.next_collect
        published = moment.weights.get(max(moment.floor, number - self._lag))
        if number >= self._until(moment) or published is None:
            return None
        version, weights = published
        seat.tell(moment.term, version)
        return Collect(actor=seat.actor, update=number, term=moment.term, version=version, weights=weights)

    def _until(self, moment: Moment) -> int:
        """The first update for which no fragment may be begun yet."""
        frontier = moment.committed + self._lag
        if moment.final is not None:
            return min(frontier + 1, moment.final + self._lag)
        return frontier if moment.judging else frontier + 1

    def staff(self, seats: Sequence[Seat], moment: Moment) -> Iterator[StartActor]:
        yield from ()

    def commit(self, seats: Sequence[Seat], committed: int) -> None:
        """Nothing follows from it."""

    def snapshot_due(self, seat: Seat, update: int) -> bool:
        return seat.next_collect == update + self._lag

    def cut(self, update: int, seats: Sequence[Seat], accounts: Accounts) -> CutInProgress:
        later = range(update, update + self._lag)
        frames = [held for each in later for held in self._in_hand.get(each, {}).values()]
        return CutInProgress(
            update=update, accounts=accounts, frames={held.key: held for held in frames}, updates=later
        )

    def add(self, held: Held) -> None:
        self._in_hand.setdefault(held.summary.update, {})[held.summary.actor] = held

    def compose(self, update: int, seats: Sequence[Seat], *, idle: bool) -> Composition:
        group = self._in_hand.get(update, {})
        if not group or any(seat.live and seat.actor not in group for seat in seats):
            return Composition()
        del self._in_hand[update]
        return Composition(held=tuple(group[actor] for actor in sorted(group)))

    def take_back(self, update: int, held: tuple[Held, ...]) -> None:
        self._in_hand[update] = {each.summary.actor: each for each in held}

    def give_up(self, update: int, seats: Sequence[Seat]) -> list[Held]:
        given_up = [held for group in self._in_hand.values() for held in group.values()]
        self._in_hand.clear()
        for seat in seats:
            seat.next_collect = update
        return given_up

    def stop_at(self, issued: int, seats: Sequence[Seat]) -> int:
        """The first update whose cut no actor has been told to pass; one that was given up since counts too, so that
        no fragment lies beyond the cut."""
        return max(issued, max(seat.next_collect for seat in seats) - self._lag)

    def statistics(self, seats: Sequence[Seat]) -> FlowStatistics | None:
        return None

    def keeps(self, updates: int, committed: int) -> bool:
        return updates >= committed - self._lag

    def stands_in(self, committed: int, floor: int) -> range:
        return range(max(floor, committed - self._lag), committed)
