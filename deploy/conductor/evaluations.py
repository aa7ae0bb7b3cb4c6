"""Evaluations under way: which, on which actor, how often tried. An actor that dies passes its evaluation on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from actors.evaluate import EvaluationResult
from deploy.conductor.messages import Evaluate
from deploy.conductor.progress import Publication
from deploy.conductor.seats import Seat

MAX_TRIES = 3
Key = tuple[int, bool]  # update, final


@dataclass(slots=True, kw_only=True)
class _Pending:
    """An evaluation to come; without a publication it waits for one."""

    published: Publication | None
    episodes: int
    tries: int = 0
    actor: int | None = None


class Evaluations:
    """Evaluations asked for and not made yet."""

    def __init__(self) -> None:
        self._pending: dict[Key, _Pending] = {}

    @property
    def players(self) -> frozenset[int]:
        """Actors that play one."""
        return frozenset(pending.actor for pending in self._pending.values() if pending.actor is not None)

    @property
    def judging(self) -> bool:
        """Whether a periodic evaluation is under way, or waits for its weights."""
        return any(not final for _, final in self._pending)

    def ask(self, update: int, *, final: bool, published: Publication | None, episodes: int) -> None:
        """Have the weights after `update` updates evaluated; None: once they are published again."""
        self._pending.setdefault((update, final), _Pending(published=published, episodes=episodes))

    def supply(self, update: int, published: Publication) -> list[Key]:
        """The weights after `update` updates are there. Returns, given up, what waits for others: they never come."""
        waiting = [key for key, pending in self._pending.items() if pending.published is None]
        for key in waiting:
            if key[0] == update:
                self._pending[key].published = published
            else:
                del self._pending[key]
        return [key for key in waiting if key[0] != update]

    def tell(self, seats: list[Seat]) -> Iterator[Evaluate]:
        """Hand what nobody plays to the running seat of the lowest index; which one does not change the result."""
        seat = next((seat for seat in seats if seat.running and not seat.leaving), None)
        if seat is None:
            return
        for (update, final), pending in self._pending.items():
            if pending.actor is None and pending.published is not None:
                pending.actor = seat.actor
                yield Evaluate(
                    actor=seat.actor,
                    update=update,
                    episodes=pending.episodes,
                    final=final,
                    weights=pending.published[1],
                )

    def lose(self, actor: int) -> list[Key]:
        """Take back what `actor` was to play; returns what has been tried too often, now given up.

        Only the oldest was tried: an actor plays one at a time, in the order told.
        """
        told = [key for key, pending in self._pending.items() if pending.actor == actor]
        for key in told:
            self._pending[key].actor = None
        if not told:
            return []
        oldest = self._pending[told[0]]
        oldest.tries += 1
        if oldest.tries < MAX_TRIES:
            return []
        del self._pending[told[0]]
        return told[:1]

    def done(self, update: int, *, final: bool, result: EvaluationResult | None) -> bool:
        """An evaluation has been made, or given up. Returns False if it is of weights that a rollback has undone."""
        pending = self._pending.get((update, final))
        if pending is None or pending.published is None:
            return False
        if result is not None and result.version != pending.published[0]:
            return False
        del self._pending[update, final]
        return True

    def forget(self) -> None:
        """A rollback: nothing that was asked for is wanted any more. What is being played is played, in vain."""
        self._pending.clear()

    def words(self) -> list[str]:
        """What is awaited."""
        return [
            f"the evaluation of update {update} ({'its weights' if each.published is None else f'actor {each.actor}'})"
            for (update, _), each in self._pending.items()
        ]
