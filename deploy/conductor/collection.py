"""The actors' side of a run: who collects what by which weights, whose state is taken when, and who is lost."""

from __future__ import annotations

from collections.abc import Iterator

from common.errors import ContractError, EnvironmentFault
from deploy.conductor.accounts import OLD_LEASE, OLD_TERM, ROLLED_BACK, Accounts
from deploy.conductor.cuts import CutInProgress, Cuts
from deploy.conductor.fates import Fates
from deploy.conductor.messages import (
    ActorCommand,
    ActorLost,
    ActorSnapshot,
    ActorStarted,
    Cut,
    FragmentDropped,
    FragmentMade,
    Held,
    Note,
    SnapshotActor,
    StartActor,
    WeightsHeld,
)
from deploy.conductor.plan import Plan
from deploy.conductor.policies.policy import Moment, Policy
from deploy.conductor.progress import Progress, Publications
from deploy.conductor.seats import Seat, SeatStatus


class Collection:
    """Seats, and fragments between their actor and the commit of their update.

    Args:
        plan: what to do.
        policy: who collects what, and which fragments make an update.
        progress, accounts, cuts, weights, fates: of the run.

    Attributes:
        seats: every actor that there may be, by index.
        floor: the update at which the term began: no weights of an earlier one act.
    """

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        progress: Progress,
        accounts: Accounts,
        cuts: Cuts,
        weights: Publications,
        fates: Fates,
    ) -> None:
        self.seats = [Seat(actor=actor) for actor in range(plan.num_seats)]
        self.floor = 0
        self._plan = plan
        self._policy = policy
        self._progress = progress
        self._accounts = accounts
        self._cuts = cuts
        self._weights = weights
        self._fates = fates
        self._issued: dict[int, tuple[Held, ...]] = {}
        self._snapshots: dict[int, bytes | None] = {}
        self._breached: set[int] = set()

    def take_up(self, cut: Cut) -> None:
        """Go on from a cut: its fragments are in hand, its actors stand behind them."""
        for state in cut.seats[: len(self.seats)]:
            seat = self.seats[state.actor]
            seat.restarts = state.restarts
            seat.incarnation = state.incarnation + (state.snapshot is None)
            if state.quarantined:
                seat.status = SeatStatus.QUARANTINED
            self._snapshots[state.actor] = state.snapshot
        self._policy.resume(cut, self.seats)

    def begin(self) -> Iterator[StartActor | Note]:
        """Every actor starts that is wanted and not given up."""
        self._policy.begin(self.seats)
        for seat in self.seats:
            if not seat.live:
                continue
            snapshot = self._snapshots.get(seat.actor)
            yield StartActor(actor=seat.actor, incarnation=seat.incarnation, snapshot=snapshot)
            if seat.actor in self._snapshots and snapshot is None:
                yield Note(kind="ACTOR_NOT_RESTORED", data={"actor": seat.actor, "new": seat.incarnation})

    @property
    def steps_issued(self) -> int:
        """Valid transitions that are with the learner."""
        return sum(held.summary.num_valid for group in self._issued.values() for held in group)

    def stop_at(self) -> int:
        """The first update after which the run can end, once somebody asks."""
        return self._policy.stop_at(self._progress.issued, self.seats)

    def words(self) -> list[str]:
        """What is awaited of which actor."""
        starting = [f"actor {seat.actor} to start" for seat in self.seats if seat.status is SeatStatus.STARTING]
        collecting = [
            f"actor {seat.actor} to collect for update {seat.outstanding[0].update}"
            for seat in self.seats
            if seat.outstanding
        ]
        verifying = [f"actor {seat.actor} to take version {seat.offered}" for seat in self.seats if seat.offered >= 0]
        return starting + collecting + verifying

    def holds_lease(self, actor: int, lease: str) -> bool:
        """Whether `lease` can be that of the actor's present process."""
        return not lease or self.seats[actor].lease in ("", lease)

    # ---- events ----------------------------------------------------------------------------------------------------

    def take_started(self, event: ActorStarted) -> None:
        """A process has taken its seat."""
        self.seats[event.actor].begin(event.lease)

    def take_weights(self, event: WeightsHeld) -> None:
        """An actor holds a version."""
        seat = self.seats[event.actor]
        if event.lease == seat.lease:
            seat.holds, seat.offered = event.version, -1

    def take_fragment(self, event: FragmentMade) -> Iterator[Note]:
        """A fragment has arrived; only the one that is awaited of its actor in this term is kept."""
        summary, term = event.summary, self._progress.term
        seat = self.seats[summary.actor]
        held = Held(summary=summary, frame=event.frame, weights=self._weights.contained(summary.version))
        self._accounts.produce(summary)
        if summary.lease != seat.lease or not seat.awaits(summary.term, summary.update):
            yield self._refusal(held, OLD_LEASE)
            return
        seat.outstanding.pop(0)
        if summary.term != term:
            for cut in self._cuts.unwritten:
                cut.drop(held, OLD_TERM)
            yield self._refusal(held, OLD_TERM)
            return
        self._policy.add(held)
        for cut in self._cuts.unwritten:
            cut.receive(held)

    def _refusal(self, held: Held, reason: str) -> Note:
        self._drop(held, reason)
        actor, incarnation, sequence = held.key
        data = {"actor": actor, "incarnation": incarnation, "sequence": sequence, "reason": reason}
        return Note(kind="FRAGMENT_REFUSED", data=data)

    def _drop(self, held: Held, reason: str) -> None:
        self._accounts.drop(reason, held.summary.num_valid)
        behind = [cut.update for cut in self._cuts.unwritten if held.summary.actor not in cut.snapshots]
        self._fates.drop(held, reason, term=self._progress.term, issued=min([self._progress.issued, *behind]))

    def take_snapshot(self, event: ActorSnapshot) -> None:
        """An actor's state has arrived; it is part of its cut, unless the process or the cut was given up."""
        seat = self.seats[event.actor]
        if event.lease != seat.lease or not seat.wants_snapshot(event.update):
            return
        cut = self._cuts.get(event.update)
        if cut is not None:
            cut.snapshots[seat.actor] = (seat.incarnation, event.snapshot)
            seat.snapshot_told.discard(event.update)  # a slow disk keeps no weights from it

    def take_loss(self, event: ActorLost) -> Iterator[StartActor | Note]:
        """An actor's present process is gone: another one, or the seat is given up."""
        seat = self.seats[event.actor]
        seat.last_fault = event.cause if not event.detail else f"{event.cause}\n{event.detail}"
        lost = seat.lose(
            term=self._progress.term,
            max_restarts=self._plan.max_restarts,
            commits=self._progress.committed,
            window=self._plan.restart_window,
        )
        self._accounts.fragments_lost += lost
        for cut in self._cuts.unwritten:
            cut.lose(seat.actor, lost)
        data = {"actor": seat.actor, "cause": event.cause, "detail": event.detail, "fragments_lost": lost}
        yield Note(kind="ACTOR_LOST", data=data | {"new_incarnation": seat.incarnation})
        if seat.live:
            yield StartActor(actor=seat.actor, incarnation=seat.incarnation, snapshot=None)
        else:
            yield Note(kind="ACTOR_QUARANTINED", data={"actor": seat.actor, "restarts": seat.restarts})

    def verdict_on(self, event: ActorLost) -> ContractError | None:
        """What ends the run, if an environment broke its contract.

        With one actor alone, or once a second actor has seen it, the environment is like that: new processes do not
        mend it.
        """
        if event.breach is None:
            return None
        self._breached.add(event.actor)
        alone = sum(seat.live for seat in self.seats) <= 1
        return event.breach if alone or len(self._breached) > 1 else None

    def hopeless(self, last: int) -> EnvironmentFault | None:
        """What ends the run, once no actor is left after the loss of actor `last`."""
        if any(seat.live for seat in self.seats):
            return None
        cause, _, detail = self.seats[last].last_fault.partition("\n")
        return EnvironmentFault(
            f"no actor is left: each was lost {self._plan.max_restarts + 1} times; last, actor {last}: {cause}",
            fix="mend what it names, then resume the run",
            detail=detail,
        )

    # ---- decisions -------------------------------------------------------------------------------------------------

    def tell(self, moment: Moment) -> Iterator[ActorCommand]:
        """Everything that actors can be told now."""
        for seat in sorted(self.seats, key=lambda each: len(each.outstanding)):
            while seat.running:
                yield from self._tell_snapshots(seat)
                command = self._policy.tell(seat, self.seats, moment)
                if command is None:
                    break
                yield command
        yield from self._policy.staff(self.seats, moment)  # who has just left may be followed

    def _tell_snapshots(self, seat: Seat) -> Iterator[SnapshotActor]:
        for cut in self._cuts.unwritten:
            due = self._policy.snapshot_due(seat, cut.update) and cut.awaits(seat)
            if due and seat.actor not in cut.snapshots and cut.update not in seat.snapshot_told:
                seat.snapshot_told.add(cut.update)
                yield SnapshotActor(actor=seat.actor, update=cut.update)

    def compose(self, update: int, *, idle: bool) -> Iterator[FragmentDropped | tuple[Held, ...]]:
        """What is dropped, and, if there is enough, the fragments of `update`: they go to the learner."""
        composed = self._policy.compose(update, self.seats, idle=idle)
        for held, reason in composed.dropped:
            self._drop(held, reason)
            actor, incarnation, sequence = held.key
            yield FragmentDropped(actor=actor, incarnation=incarnation, sequence=sequence, reason=reason)
        if composed.held:
            self._issued[update] = composed.held
            yield composed.held

    def commit(self, update: int) -> None:
        """`update` is committed: nobody needs its fragments any more."""
        del self._issued[update]
        self._policy.commit(self.seats, update + 1)
        self._weights.forget_before(self._oldest_at_work())

    def _oldest_at_work(self) -> int:
        """The oldest version that a fragment may still bear."""
        told = [each.version for seat in self.seats for each in seat.outstanding]
        held = [each for seat in self.seats for each in (seat.holds, seat.offered) if each >= 0]
        return min((*told, *held, self._progress.version))

    def take_back(self, update: int) -> None:
        """`update` and what was issued behind it was not made: its fragments are in hand again."""
        for each in [each for each in self._issued if each >= update]:
            self._policy.take_back(each, self._issued.pop(each))

    # ---- cuts and rollback -----------------------------------------------------------------------------------------

    def open_cut(self, update: int) -> CutInProgress:
        """A cut right behind the order for the last of `update` updates."""
        cut = self._policy.cut(update, self.seats, self._accounts.copy())
        self._cuts.open(cut)
        return cut

    def give_up_cut(self, cut: CutInProgress) -> None:
        """A cut will never be complete; states of actors that were taken for it are still to come, and not wanted."""
        for seat in self.seats:
            seat.give_up_snapshot(cut.update, arrived=seat.actor in cut.snapshots)
        self._cuts.drop(cut.update)

    def roll_back(self, update: int) -> None:
        """Begin again at `update`: actors live on, what they have made and are making is dropped."""
        issued = [held for group in self._issued.values() for held in group]
        self._issued.clear()
        for held in (*issued, *self._policy.give_up(update, self.seats)):
            self._accounts.drop(ROLLED_BACK, held.summary.num_valid)
            self._fates.drop(held, ROLLED_BACK, term=self._progress.term, issued=update)
        self.floor = update
        for cut in self._cuts.unwritten:
            self.give_up_cut(cut)
