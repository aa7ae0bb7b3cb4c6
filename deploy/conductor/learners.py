"""The learner's side of a run: orders to the group of ranks, what the answers come to, and what follows from it.

    all MADE, alike   commit
    DISPUTED          the same update again; the second time in a row, astray
    FAILED            those who have not answered hurry; then the group is formed again, max_sync_failures times
    a rank is lost    it is started again, and adopts the state of one that is left

consumes   events of ranks
produces   commands to ranks, notes, and outcomes: what the conductor decides for the run as a whole
waits for  nothing; who is awaited for what stands in `words`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from common.errors import RunFailedError
from deploy.conductor import rank_notes as notes
from deploy.conductor.assembly import Assembly, Origin
from deploy.conductor.group import Group
from deploy.conductor.messages import (
    GroupJoined,
    Handle,
    Held,
    HurryRank,
    JoinFailed,
    LearnerSnapshot,
    LearnerStarted,
    Note,
    Publish,
    RankCommand,
    RankLost,
    RankStarted,
    RankUpdated,
    SnapshotLearner,
    StartRank,
    StateAdopted,
    Update,
)
from deploy.conductor.orders import Judgement, Order, compose_order
from deploy.conductor.outcomes import Astray, Ended, Made, Outcome, Voided
from deploy.conductor.plan import Plan
from deploy.conductor.ranks import RankSeat, Task
from deploy.conductor.suspects import Suspects
from learner.reports import OrderStatus, Standing

UPDATES_AHEAD = 2  # one running, one queued behind it
SLOW_AGAIN = 100  # commits between two notes about the same slow rank

RankEvent = (
    LearnerStarted | RankStarted | StateAdopted | GroupJoined | JoinFailed | RankUpdated | RankLost | LearnerSnapshot
)
Results = Iterator[RankCommand | Note | Outcome]


class Learners:
    """The ranks of a run as the conductor knows them.

    Args:
        plan: how many, and how much may go wrong.
        updates: committed before this driving.
        initial: what ranks adopt at the start; None = each makes its model by the seed.
    """

    def __init__(self, plan: Plan, *, updates: int, initial: Handle | None) -> None:
        self._plan = plan
        self._group = Group(seats=[RankSeat(rank=rank) for rank in range(plan.num_ranks)], updates=updates)
        self._initial = initial
        self._assembly: Assembly | None = Assembly(self._group, plan, origin=Origin.START, source=initial)
        self._updates_lost = 0
        self._orders: deque[Order] = deque()
        self._attempts = 0
        self._disputed = 0
        self._suspects = Suspects(self._group)
        self._asked: set[int] = set()
        self._called_slow: dict[int, int] = {}

    @property
    def seats(self) -> list[RankSeat]:
        """Every rank, by rank."""
        return self._group.seats

    @property
    def formation(self) -> int:
        """Number of the last forming of the group."""
        return self._group.formation

    @property
    def ready(self) -> bool:
        """Whether the group takes orders and hands over states."""
        return self._assembly is None and not self._suspects.outcasts

    @property
    def takes_update(self) -> bool:
        """Whether it takes one more update now."""
        return self.ready and len(self._orders) < UPDATES_AHEAD

    @property
    def idle(self) -> bool:
        """Whether it could make an update, and has none to make."""
        return self.ready and not self._orders

    def words(self) -> list[str]:
        """What is awaited of which rank."""
        return [word for seat in self._group.live for word in seat.words()]

    def holds_lease(self, rank: int, lease: str) -> bool:
        """Whether `lease` is that of the rank's present process."""
        return self._group.holds_lease(rank, lease)

    def awaits_state(self, update: int) -> bool:
        """Whether the state after `update` updates has been asked for, behind an order that may still be made."""
        return update in self._asked

    # ---- commands --------------------------------------------------------------------------------------------------

    def begin(self) -> Iterator[StartRank]:
        """Every rank starts."""
        for seat in self._group.live:
            yield self._start(seat)

    def _start(self, seat: RankSeat) -> StartRank:
        seat.tell(Task.START)
        return StartRank(rank=seat.rank)

    def order(self, held: tuple[Held, ...], *, update: int, term: int, version: int) -> Update:
        """Have the group make `update` of fragments `held`."""
        self._attempts += 1
        order = compose_order(
            held,
            self._group.ranks,
            update=update,
            attempt=self._attempts,
            term=term,
            version=version,
            audits=self._plan.audit_every,
        )
        self._orders.append(order)
        for seat in self._group.live:
            seat.tell(Task.UPDATE, update)
        return order.told

    def snapshot(self, update: int) -> SnapshotLearner | None:
        """Have place 0 hand over its state after the `update` updates told; None if it was told already."""
        if update in self._asked:
            return None
        self._asked.add(update)
        return self._group.snapshot(self._group.ranks[0], update)

    def publish(self, *, version: int, term: int) -> Publish:
        """Have the group that has just joined publish the weights as they are."""
        rank = self._group.ranks[0]
        self._group.seats[rank].tell(Task.PUBLISH)
        return Publish(rank=rank, version=version, term=term)

    def run(self) -> Iterator[Note]:
        """The group that has joined takes orders from now on."""
        assert self._assembly is not None
        if self._assembly.origin is not Origin.START:
            yield notes.formed(self.formation, self._group.ranks, lost_updates=self._updates_lost)
        self._assembly = None
        self._updates_lost = 0
        self._asked.clear()  # all were idle: what has not come will not

    def start_over(self) -> Results:
        """Nothing was committed and no state is left: as at the start."""
        self._assembly = Assembly(self._group, self._plan, origin=Origin.START, source=self._initial)
        yield from self._advance()

    def roll_back(self, state: Handle, *, updates: int) -> Results:
        """Every rank adopts `state`, which holds `updates` updates; what is under way comes to nothing."""
        self._void_orders()
        self._updates_lost += self._group.updates - updates
        self._group.updates = updates
        self._group.failures = self._disputed = 0
        self._assembly = Assembly(self._group, self._plan, origin=Origin.SAFE, source=state)
        yield from self._advance()

    # ---- events ----------------------------------------------------------------------------------------------------

    def take(self, event: RankEvent) -> Results:
        """Take one event in. Events of a process that was lost are ignored."""
        match event:
            case RankLost():
                yield from self._on_lost(event)
            case RankStarted():
                self._on_started(event)
            case LearnerStarted():
                yield from self._on_published()
            case RankUpdated():
                if self._group.holds_lease(event.report.rank, event.lease):
                    yield from self._on_updated(event)
            case StateAdopted() | GroupJoined() | JoinFailed() | LearnerSnapshot():
                if self._group.holds_lease(event.rank, event.lease):
                    yield from self._on_answer(event)
        yield from self._judge_orders()
        yield from self._advance()

    def _on_started(self, event: RankStarted) -> None:
        seat = self._group.seats[event.rank]
        if seat.awaits(Task.START):
            seat.begin(event.lease, event.standing)
            seat.current = self._assembly is not None and self._assembly.brings_its_own

    def _on_answer(self, event: StateAdopted | GroupJoined | JoinFailed | LearnerSnapshot) -> Results:
        seat = self._group.seats[event.rank]
        match event:
            case StateAdopted():
                seat.answer(Task.ADOPT)
                seat.hold(event.standing)
            case LearnerSnapshot():
                seat.answer(Task.SNAPSHOT)
                self._asked.discard(event.update)
                if self._assembly is not None:
                    yield from self._carry(self._assembly.take_state(event))
            case GroupJoined() if self._assembly is not None:
                self._assembly.take_joined(event)
            case JoinFailed() if self._assembly is not None:
                self._assembly.take_not_met(event)
            case _:
                raise AssertionError(f"no group is being formed, yet came {event}")

    def _on_published(self) -> Iterator[Note]:
        for seat in self._group.live:
            seat.answer(Task.PUBLISH)
        if self._assembly is not None and self._assembly.joined:
            yield from self.run()

    def _on_updated(self, event: RankUpdated) -> Iterator[HurryRank]:
        report = event.report
        seat = self._group.seats[report.rank]
        order = next((each for each in self._orders if each.told.attempt == report.attempt), None)
        if order is None or report.rank not in order.pending:
            return
        seat.answer(Task.UPDATE)
        seat.standing = Standing(
            rank=seat.rank,
            updates=report.updates,
            state_digest=report.state_digest,
            parameter_digest=report.parameter_digest,
        )
        order.reports[seat.rank] = report
        if event.weights is not None:
            order.weights = event.weights
        if report.status is OrderStatus.FAILED:
            yield from self._hurry(order, within_s=self._plan.straggler_s)

    def _on_lost(self, event: RankLost) -> Results:
        seat = self._group.seats[event.rank]
        if not seat.live or (event.lease and event.lease != seat.lease and not seat.awaits(Task.START)):
            return
        window = self._plan.rank_restart_window
        losses = seat.lose(commits=self._group.commits, window=window)
        yield notes.lost(seat, event)
        if losses > self._plan.max_rank_restarts:
            cause = f"{losses} times within {window} updates; last: {event.cause}"
            error = RunFailedError(
                f"learner rank {seat.rank} was lost {cause}",
                allowed=f"{self._plan.max_rank_restarts} restarts",
                fix="mend what it names, then resume the run",
                detail=event.detail,
            )
            yield Ended(error=error)
            return
        yield self._start(seat)
        self._recover()
        if self._assembly is not None:
            self._assembly.disturb()
        for order in self._orders:
            order.lost.add(seat.rank)
            yield from self._hurry(order, within_s=self._plan.collective_s + self._plan.straggler_s)

    def _hurry(self, order: Order, *, within_s: float) -> Iterator[HurryRank]:
        """Others have given up on this order, or wait for one that is gone: those must first come to notice it."""
        if not order.hurried:
            order.hurried = True
            for rank in order.pending:
                yield HurryRank(rank=rank, within_s=within_s)

    # ---- judgement -------------------------------------------------------------------------------------------------

    def _judge_orders(self) -> Results:
        """Orders are judged in the order told, each once everyone has answered or is lost."""
        while self._orders and not self._orders[0].pending:
            order = self._orders.popleft()
            if order.void:
                continue
            match order.judge():
                case Judgement.MADE:
                    yield from self._carry([Made(order=order)])
                case Judgement.DISPUTED:
                    yield from self._on_dispute(order)
                case Judgement.DIVERGED:
                    yield notes.mismatch(order)
                    yield self._void(order)
                    yield Astray(reason=f"ranks closed update {order.update} in different ways")
                case Judgement.PARTLY_MADE:
                    self._void_orders()
                    yield Voided(update=order.update + 1)
                    yield from self._on_failure(order, unsettled=order)
                case Judgement.FAILED:
                    yield self._void(order)
                    yield from self._on_failure(order)
                case Judgement.LOST:
                    yield self._void(order)

    def _carry(self, results: Iterable[RankCommand | Note | Outcome]) -> Results:
        """Pass on, and know of every commit before the conductor does."""
        for result in results:
            if not isinstance(result, Made):
                yield result
                continue
            self._group.updates = result.order.update + 1
            self._group.commits += 1
            self._group.failures = self._disputed = 0
            yield result
            yield from self._after_commit(result.order)

    def _after_commit(self, order: Order) -> Results:
        yield from self._suspects.judge_made(order)
        slow = notes.slowest(order, above_s=self._plan.slow_rank_s)
        if slow is None:
            return
        rank, now = slow.data["rank"], self._group.commits
        if now - self._called_slow.get(rank, -SLOW_AGAIN) >= SLOW_AGAIN:
            self._called_slow[rank] = now
            yield slow

    def _on_dispute(self, order: Order) -> Results:
        """All ranks have restored the update's start, so the same order can be told again."""
        yield notes.mismatch(order)
        yield self._void(order)
        yield from self._suspects.judge_disputed(order)
        self._disputed += 1
        if self._suspects.outcasts:  # who was wrong will not be asked again
            self._disputed = 0
        elif self._disputed >= 2:
            yield Astray(reason=f"update {order.update} was disputed {self._disputed} times in a row")

    def _on_failure(self, order: Order, unsettled: Order | None = None) -> Results:
        """A failure that a loss explains is not counted: the lost rank's restarts are."""
        yield notes.failed(order)
        if not order.lost:
            self._group.failures += 1
        if self._group.failures >= self._plan.max_sync_failures and unsettled is None:
            yield Astray(reason=f"{self._group.failures} attempts to sync in a row failed")
            return
        self._recover(unsettled)

    # ---- recovery --------------------------------------------------------------------------------------------------

    def _void(self, order: Order) -> Voided:
        """`order` was not made, nor will what was told behind it."""
        self._void_orders()
        self._asked = {update for update in self._asked if update <= order.update}
        return Voided(update=order.update)

    def _void_orders(self) -> None:
        for order in self._orders:
            order.void = True

    def _recover(self, unsettled: Order | None = None) -> None:
        """The group is to be formed again, from who is left."""
        if self._assembly is None:
            self._assembly = Assembly(self._group, self._plan, origin=Origin.SURVIVORS)
        if unsettled is not None:
            self._assembly.settle_first(unsettled)

    def _advance(self) -> Results:
        """Once every order is answered: expel, form the group."""
        if self._orders:
            return
        if self._suspects.outcasts:
            yield from self._suspects.expel()
            self._recover()
        if self._assembly is not None:
            yield from self._carry(self._assembly.advance())
