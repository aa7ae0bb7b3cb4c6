"""Every actor always has work in flight; an update is made of what has arrived, in the order of arrival.

    weights     the newest are offered as soon as the actor has acknowledged those before; it swaps between fragments
    Collect     is told while fewer than IN_HAND_OF_AN_ACTOR of the actor's are outstanding, and credits last
    Update(j)   is made of the oldest `fragments` in the queue; what is more than `max_lag` updates behind is dropped
    a cut       holds what is in the queue, and what actors were told before they hand over their state

What an actor makes depends on timing; that is what the ledger is for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from deploy.conductor.accounts import STALE, Accounts
from deploy.conductor.cuts import CutInProgress
from deploy.conductor.messages import ActorCommand, Collect, Cut, Held, OfferWeights, StartActor, StopActor
from deploy.conductor.plan import Flow
from deploy.conductor.policies.credits import Credits
from deploy.conductor.policies.policy import Composition, FlowStatistics, Moment
from deploy.conductor.policies.pool import Pool
from deploy.conductor.seats import Seat, SeatStatus

IN_HAND_OF_AN_ACTOR = 2  # one being made, one queued behind it: the actor never waits for the driver


class Asynchronous:
    """Keeps actors and learner busy within bounds.

    Attributes:
        credits: what may be in flight.
        pool: how many actors there should be.
        starved: updates before which the learner had nothing to do.
    """

    waits_for_target = False
    saves = True
    length: int | None = None

    def __init__(self, flow: Flow, *, num_actors: int) -> None:
        self.credits = Credits(first=flow.first_capacity, most=flow.most_capacity)
        self.pool = Pool(first=num_actors, least=flow.least_actors, most=flow.most_actors)
        self.starved = 0
        self._flow = flow
        self._queue: deque[Held] = deque()
        self._returned: dict[int, tuple[Held, ...]] = {}
        self._with_learner: dict[int, int] = {}
        self._starves = False

    # ---- actors ----------------------------------------------------------------------------------------------------

    def begin(self, seats: Sequence[Seat]) -> None:
        for seat in seats[self.pool.target :]:
            if not seat.given_up:
                seat.status = SeatStatus.ABSENT

    def resume(self, cut: Cut, seats: Sequence[Seat]) -> None:
        self._queue.extend(cut.frames)

    def tell(self, seat: Seat, seats: Sequence[Seat], moment: Moment) -> ActorCommand | None:
        if seat.leaving:
            return self._dismiss(seat, moment)
        return self._offer(seat, moment) or self._collect(seat, seats, moment)

    @staticmethod
    def _dismiss(seat: Seat, moment: Moment) -> StopActor | None:
        if seat.outstanding or seat.snapshot_told or seat.actor in moment.evaluating:
            return None
        seat.stop()
        return StopActor(actor=seat.actor)

    @staticmethod
    def _offer(seat: Seat, moment: Moment) -> OfferWeights | None:
        """None while a cut waits for its state: a resume from there will never have made the weights behind it."""
        newest = moment.weights.newest
        if newest is None or seat.offered >= 0 or seat.holds >= newest[0] or seat.snapshot_told:
            return None
        seat.offered, weights = newest
        return OfferWeights(actor=seat.actor, version=seat.offered, weights=weights)

    def _collect(self, seat: Seat, seats: Sequence[Seat], moment: Moment) -> Collect | None:
        ready = seat.holds >= 0 and moment.weights.of_this_term(seat.holds) and moment.final is None
        if not ready or len(seat.outstanding) >= IN_HAND_OF_AN_ACTOR:
            return None
        others = sum(1 for other in seats if other.running and not other.outstanding and other is not seat)
        reserved = others if seat.outstanding else 0  # nobody has two while another has none
        if self.credits.left(self._in_flight(seats)) <= reserved:
            self.credits.refuse()
            return None
        number = seat.tell(moment.term, seat.holds)
        return Collect(actor=seat.actor, update=number, term=moment.term, version=None, weights=None)

    def _in_flight(self, seats: Sequence[Seat]) -> int:
        told = sum(len(seat.outstanding) for seat in seats)
        returned = sum(len(held) for held in self._returned.values())
        return told + len(self._queue) + returned + sum(self._with_learner.values())

    def commit(self, seats: Sequence[Seat], committed: int) -> None:
        self._with_learner = {j: number for j, number in self._with_learner.items() if j >= committed}
        self.credits.commit()
        self.starved += self._starves
        wanted = _wanted(seats)
        self.pool.commit(
            starved=self._starves,
            queued=len(self._queue),
            needed=self._flow.fragments,
            all_running=len(wanted) >= self.pool.target and all(seat.running for seat in wanted),
        )
        self._starves = False

    def staff(self, seats: Sequence[Seat], moment: Moment) -> Iterator[StartActor]:
        wanted = _wanted(seats)
        if moment.final is not None:
            return
        if len(wanted) > self.pool.target:
            wanted[-1].leaving = True
        elif len(wanted) < self.pool.target:
            absent = next((seat for seat in seats if seat.status is SeatStatus.ABSENT), None)
            if absent is not None:
                absent.status = SeatStatus.STARTING
                yield StartActor(actor=absent.actor, incarnation=absent.incarnation, snapshot=None)

    # ---- cuts ------------------------------------------------------------------------------------------------------

    def snapshot_due(self, seat: Seat, update: int) -> bool:
        return True

    def cut(self, update: int, seats: Sequence[Seat], accounts: Accounts) -> CutInProgress:
        returned = [held for each in sorted(self._returned) if each >= update for held in self._returned[each]]
        return CutInProgress(
            update=update,
            accounts=accounts,
            frames={held.key: held for held in (*returned, *self._queue)},
            members={seat.actor for seat in seats if seat.running},
        )

    # ---- fragments -------------------------------------------------------------------------------------------------

    def add(self, held: Held) -> None:
        self._queue.append(held)

    def compose(self, update: int, seats: Sequence[Seat], *, idle: bool) -> Composition:
        if update in self._returned:
            return self._issue(update, self._returned.pop(update))
        fresh = [held for held in self._queue if update - held.weights <= self._flow.max_lag]
        dropped = tuple((held, STALE) for held in self._queue if update - held.weights > self._flow.max_lag)
        if dropped:
            self._queue = deque(fresh)
        if len(fresh) < self._flow.fragments:
            if idle:
                self._starves = True
                self.credits.starve()
            return Composition(dropped=dropped)
        held = tuple(self._queue.popleft() for _ in range(self._flow.fragments))
        return self._issue(update, held, dropped)

    def _issue(self, update: int, held: tuple[Held, ...], dropped: tuple[tuple[Held, str], ...] = ()) -> Composition:
        self._with_learner[update] = len(held)
        return Composition(held=held, dropped=dropped)

    def take_back(self, update: int, held: tuple[Held, ...]) -> None:
        self._returned[update] = held
        self._with_learner.pop(update, None)

    def give_up(self, update: int, seats: Sequence[Seat]) -> list[Held]:
        given_up = [*(held for group in self._returned.values() for held in group), *self._queue]
        self._returned.clear()
        self._with_learner.clear()
        self._queue.clear()
        return given_up

    def stop_at(self, issued: int, seats: Sequence[Seat]) -> int:
        return issued

    def statistics(self, seats: Sequence[Seat]) -> FlowStatistics | None:
        return FlowStatistics(
            in_flight=self._in_flight(seats),
            capacity=self.credits.capacity,
            queued=len(self._queue),
            target=self.pool.target,
            starved=self.starved,
            starving=self._starves,
        )

    def keeps(self, updates: int, committed: int) -> bool:
        return updates >= committed

    def stands_in(self, committed: int, floor: int) -> range:
        return range(0)


def _wanted(seats: Sequence[Seat]) -> list[Seat]:
    """Those who are there to stay."""
    return [seat for seat in seats if seat.live and not seat.leaving]
