"""Where every actor is in its life, as people and Prometheus see it: created, running, blocked, dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from common.metrics import ActorState
from deploy.conductor.seats import Seat, SeatStatus


class ActorLives:
    """Tells a first process that is on its way from one that takes a lost one's place: a seat does not."""

    def __init__(self) -> None:
        self._lost: set[int] = set()

    def lose(self, actor: int) -> None:
        """Its process is gone, and not because it was told to."""
        self._lost.add(actor)

    def start(self, actor: int) -> None:
        """A process is there."""
        self._lost.discard(actor)

    def count(self, seats: Iterable[Seat]) -> Counter[ActorState]:
        """Actors by state; those that the pool does without are in none."""
        states = (self.state_of(seat) for seat in seats)
        return Counter(state for state in states if state is not None)

    def state_of(self, seat: Seat) -> ActorState | None:
        """Of one actor; None if nobody sits there, or should."""
        match seat.status:
            case SeatStatus.ABSENT:
                return None
            case SeatStatus.STARTING:
                return ActorState.DEAD if seat.actor in self._lost else ActorState.CREATED
            case SeatStatus.RUNNING:
                return ActorState.RUNNING if seat.outstanding else ActorState.BLOCKED
            case SeatStatus.QUARANTINED:
                return ActorState.DEAD
