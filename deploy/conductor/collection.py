"""The actors' side of a run: who collects what by which weights, whose state is taken when, and who is lost."""

from __future__ import annotations

from collections.abc import Iterator

from common.errors import EnvironmentFault
from deploy.conductor.accounts import OLD_LEASE, OLD_TERM, ROLLED_BACK, Accounts
from deploy.conductor.cuts import CutInProgress, Cuts
from deploy.conductor.fragments import Fragments
from deploy.conductor.messages import (
    ActorCommand,
    ActorLost,
    ActorSnapshot,
    ActorStarted,
    Collect,
    Cut,
    FragmentMade,
    Held,
    Note,
    SnapshotActor,
    StartActor,
)
from deploy.conductor.plan import Plan
from deploy.conductor.progress import Publications
from deploy.conductor.seats import Seat, SeatStatus, ToldCollect


class Collection:
    """Seats, and the fragments that wait for their update.

    Args:
        plan: what to do.
        accounts: of the run, kept up here.
        cuts: of the run; told of every fragment and every loss.

    Attributes:
        seats: every actor, by index.
        fragments: in hand and issued.
        floor: the update at which the term began: no weights of an earlier one act.
    """

    def __init__(self, plan: Plan, accounts: Accounts, cuts: Cuts) -> None:
        self.seats = [Seat(actor=actor) for actor in range(plan.num_actors)]
        self.fragments = Fragments()
        self.floor = 0
        self._plan = plan
        self._accounts = accounts
        self._cuts = cuts
        self._snapshots: dict[int, bytes | None] = {}

    def take_up(self, cut: Cut) -> None:
        """Go on from a cut: its fragments are in hand, its actors stand behind them."""
        for frames in cut.frames.values():
            for held in frames:
                self.fragments.add(held)
        for state in cut.seats:
            seat = self.seats[state.actor]
            seat.restarts = state.restarts
            seat.next_collect = cut.update + self._plan.policy_lag
            seat.incarnation = state.incarnation + (state.snapshot is None)
            if state.quarantined:
                seat.status = SeatStatus.QUARANTINED
            self._snapshots[state.actor] = state.snapshot

    def begin(self) -> Iterator[StartActor | Note]:
        """Every actor starts that is not given up."""
        for seat in self.seats:
            if not seat.live:
                continue
            snapshot = self._snapshots.get(seat.actor)
            yield StartActor(actor=seat.actor, incarnation=seat.incarnation, snapshot=snapshot)
            if seat.actor in self._snapshots and snapshot is None:
                yield Note(kind="ACTOR_NOT_RESTORED", data={"actor": seat.actor, "new": seat.incarnation})

    @property
    def told(self) -> int:
        """How many collects have been told to the seat that was told most."""
        return max(seat.next_collect for seat in self.seats)

    def words(self) -> list[str]:
        """What is awaited of which actor."""
        starting = [f"actor {seat.actor} to start" for seat in self.seats if seat.status is SeatStatus.STARTING]
        collecting = [
            f"actor {seat.actor} to collect for update {seat.outstanding[0].update}"
            for seat in self.seats
            if seat.outstanding
        ]
        return starting + collecting

    def holds_lease(self, actor: int, lease: str) -> bool:
        """Whether `lease` can be that of the actor's present process."""
        return not lease or self.seats[actor].lease in ("", lease)

    # ---- events ----------------------------------------------------------------------------------------------------

    def take_started(self, event: ActorStarted) -> None:
        """A process has taken its seat."""
        self.seats[event.actor].begin(event.lease)

    def take_fragment(self, event: FragmentMade, *, term: int) -> Iterator[Note]:
        """A fragment has arrived; only the one that is awaited of its actor in this term is kept."""
        summary = event.summary
        seat = self.seats[summary.actor]
        held = Held(summary=summary, frame=event.frame)
        self._accounts.produce(summary)
        if summary.lease != seat.lease or not seat.awaits(summary.term, summary.update):
            yield self._refuse(held, OLD_LEASE)
            return
        seat.outstanding.pop(0)
        if summary.term != term:
            for cut in self._cuts.unwritten:
                cut.drop(held, OLD_TERM)
            yield self._refuse(held, OLD_TERM)
            return
        self.fragments.add(held)
        for cut in self._cuts.unwritten:
            cut.receive(held)

    def _refuse(self, held: Held, reason: str) -> Note:
        self._accounts.drop(reason, held.summary.num_valid)
        return Note(kind="FRAGMENT_REFUSED", data={"actor": held.summary.actor, "reason": reason})

    def take_snapshot(self, event: ActorSnapshot) -> None:
        """An actor's state has arrived; it is part of its cut, unless the process or the cut was given up."""
        seat = self.seats[event.actor]
        if event.lease != seat.lease or not seat.wants_snapshot(event.update):
            return
        cut = self._cuts.get(event.update)
        if cut is not None:
            cut.snapshots[seat.actor] = (seat.incarnation, event.snapshot)

    def take_loss(self, event: ActorLost, *, term: int) -> Iterator[StartActor | Note]:
        """An actor's present process is gone: another one, or the seat is given up."""
        seat = self.seats[event.actor]
        seat.last_fault = event.cause if not event.detail else f"{event.cause}\n{event.detail}"
        lost = seat.lose(term=term, max_restarts=self._plan.max_restarts)
        self._accounts.fragments_lost += lost
        for cut in self._cuts.unwritten:
            cut.lose(seat.actor, lost)
        data = {"actor": seat.actor, "cause": event.cause, "detail": event.detail, "fragments_lost": lost}
        yield Note(kind="ACTOR_LOST", data=data | {"new_incarnation": seat.incarnation})
        if seat.live:
            yield StartActor(actor=seat.actor, incarnation=seat.incarnation, snapshot=None)
        else:
            yield Note(kind="ACTOR_QUARANTINED", data={"actor": seat.actor, "restarts": seat.restarts})

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

    def tell(self, *, term: int, until: int, weights: Publications) -> Iterator[ActorCommand]:
        """The next steps of every seat's program, up to the collect before `until`, as far as there are weights."""
        for seat in self.seats:
            while seat.running:
                yield from self._tell_snapshots(seat)
                basis = max(self.floor, seat.next_collect - self._plan.policy_lag)
                published = weights.get(basis)
                if seat.next_collect >= until or published is None:
                    break
                version, handle = published
                update = seat.next_collect
                seat.outstanding.append(ToldCollect(term, update))
                yield Collect(actor=seat.actor, update=update, term=term, version=version, weights=handle)
                seat.next_collect += 1

    def _tell_snapshots(self, seat: Seat) -> Iterator[SnapshotActor]:
        for cut in self._cuts.unwritten:
            due = cut.update + self._plan.policy_lag == seat.next_collect and seat.actor not in cut.snapshots
            if due and cut.update not in seat.snapshot_told:
                seat.snapshot_told.add(cut.update)
                yield SnapshotActor(actor=seat.actor, update=cut.update)

    def roll_back(self, update: int) -> None:
        """Begin again at `update`: actors live on, what they have made and are making is dropped."""
        self._accounts.drop(ROLLED_BACK, self.fragments.give_up())
        self.floor = update
        for seat in self.seats:
            seat.next_collect = update
        for cut in self._cuts.unwritten:
            self.give_up_cut(cut)

    def give_up_cut(self, cut: CutInProgress) -> None:
        """A cut will never be complete; states of actors that were taken for it are still to come, and not wanted."""
        for seat in self.seats:
            seat.give_up_snapshot(cut.update, arrived=seat.actor in cut.snapshots)
        self._cuts.drop(cut.update)
