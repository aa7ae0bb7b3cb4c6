"""What a policy of collection is, and what the conductor tells it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from deploy.conductor.accounts import Accounts
from deploy.conductor.cuts import CutInProgress
from deploy.conductor.messages import ActorCommand, Cut, Held, StartActor
from deploy.conductor.progress import Publications
from deploy.conductor.seats import Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """How the run stands when a policy is asked.

    Attributes:
        term: of the learner.
        committed, issued: updates.
        floor: the update at which the term began: no weights of an earlier one act.
        final: the update after which the run ends, once that is known.
        judging: an evaluation is under way whose result may end the run.
        evaluating: actors that play evaluations.
        weights: that may act.
    """

    term: int
    committed: int
    issued: int
    floor: int
    final: int | None
    judging: bool
    evaluating: frozenset[int]
    weights: Publications


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """What an update is to be made of.

    Attributes:
        held: its fragments in order; empty if there are not enough yet.
        dropped: fragments that no update will take any more, each with the reason.
    """

    held: tuple[Held, ...] = ()
    dropped: tuple[tuple[Held, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatistics:
    """How the flow from actors to the learner stands, where every actor makes fragments at its own pace.

    Attributes:
        in_flight: fragments told to actors whose update is not committed yet.
        capacity: how many these may be.
        queued: those of them that have arrived and wait for an update.
        target: actors that there should be.
        starved: updates in this driving before which the learner had nothing to do.
        starving: the learner has had nothing to do since the last commit.
    """

    in_flight: int
    capacity: int
    queued: int
    target: int
    starved: int
    starving: bool


class Policy(Protocol):
    """Decides for all actors. Its fragments are those in hand: behind an actor, before an order to the learner.

    Attributes:
        waits_for_target: no update is begun while an evaluation may end the run before it.
        saves: whether the run is cut and evaluated, so that it can be resumed and judged.
        length: updates after which the run ends, if that is known from the start.
    """

    waits_for_target: bool
    saves: bool
    length: int | None

    def begin(self, seats: Sequence[Seat]) -> None:
        """Say which seats are taken at the start, and by which incarnation."""
        ...

    def resume(self, cut: Cut, seats: Sequence[Seat]) -> None:
        """Go on from a cut: its fragments are in hand, its actors stand behind them."""
        ...

    def tell(self, seat: Seat, seats: Sequence[Seat], moment: Moment) -> ActorCommand | None:
        """The next thing that a running actor is to do, after any state that it is to hand over."""
        ...

    def staff(self, seats: Sequence[Seat], moment: Moment) -> Iterator[StartActor]:
        """Take seats that are to be taken; those that are to be left are marked so."""
        ...

    def commit(self, seats: Sequence[Seat], committed: int) -> None:
        """One more update was committed."""
        ...

    def snapshot_due(self, seat: Seat, update: int) -> bool:
        """Whether the actor stands where the cut after `update` updates has it."""
        ...

    def cut(self, update: int, seats: Sequence[Seat], accounts: Accounts) -> CutInProgress:
        """A cut after `update` updates, right behind their orders, with what it has of what is in hand."""
        ...

    def add(self, held: Held) -> None:
        """A fragment has arrived."""
        ...

    def compose(self, update: int, seats: Sequence[Seat], *, idle: bool) -> Composition:
        """What number `update` is made of. What is returned in `held` is no longer in hand.

        Args:
            idle: the learner has nothing else to do.
        """
        ...

    def take_back(self, update: int, held: tuple[Held, ...]) -> None:
        """`update` was not made: it is to be made of the same fragments."""
        ...

    def give_up(self, update: int, seats: Sequence[Seat]) -> list[Held]:
        """A rollback to `update`: forget all fragments in hand; returns them."""
        ...

    def stop_at(self, issued: int, seats: Sequence[Seat]) -> int:
        """The first update after which the run can end, once somebody asks."""
        ...

    def statistics(self, seats: Sequence[Seat]) -> FlowStatistics | None:
        """How the flow stands; None where an update is made of what was told for it, so that nothing has to give."""
        ...

    def keeps(self, updates: int, committed: int) -> bool:
        """Whether weights after `updates` updates may still act, once `committed` are committed."""
        ...

    def stands_in(self, committed: int, floor: int) -> range:
        """Earlier weights that those after `committed` updates stand in for, should they have been lost."""
        ...
