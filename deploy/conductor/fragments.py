"""Fragments between their actor and the commit of their update: in hand, or issued with an order."""

from __future__ import annotations

from collections.abc import Iterable

from deploy.conductor.messages import Held
from deploy.conductor.seats import Seat


class Fragments:
    """By update, then by actor."""

    def __init__(self) -> None:
        self._in_hand: dict[int, dict[int, Held]] = {}
        self._issued: dict[int, dict[int, Held]] = {}

    @property
    def steps_issued(self) -> int:
        """Valid transitions that are with the learner."""
        return sum(held.summary.num_valid for group in self._issued.values() for held in group.values())

    def add(self, held: Held) -> None:
        """A fragment has arrived."""
        self._in_hand.setdefault(held.summary.update, {})[held.summary.actor] = held

    def of(self, update: int) -> dict[int, Held]:
        """Those in hand for `update`, by actor; a copy."""
        return dict(self._in_hand.get(update, {}))

    def complete(self, update: int, seats: Iterable[Seat]) -> bool:
        """Whether there is one for `update` from every live seat, and at least one at all."""
        group = self._in_hand.get(update, {})
        return bool(group) and all(seat.actor in group for seat in seats if seat.live)

    def issue(self, update: int) -> tuple[Held, ...]:
        """Those for `update` go to the learner, in the order of actors."""
        group = self._issued[update] = self._in_hand.pop(update)
        return tuple(group[actor] for actor in sorted(group))

    def settle(self, update: int) -> None:
        """`update` is committed: nobody needs its fragments any more."""
        del self._issued[update]

    def take_back(self, update: int) -> None:
        """`update` and what was issued behind it was not made: its fragments are in hand again."""
        for each in [each for each in self._issued if each >= update]:
            self._in_hand[each] = self._issued.pop(each)

    def give_up(self) -> int:
        """Forget all; returns their valid transitions."""
        groups = [*self._in_hand.values(), *self._issued.values()]
        self._in_hand.clear()
        self._issued.clear()
        return sum(held.summary.num_valid for group in groups for held in group.values())
