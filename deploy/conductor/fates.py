"""What became of fragments, between two commits: the conductor's side of the ledger."""

from __future__ import annotations

from common.ledger import TRAINED, LedgerFragment
from deploy.conductor.messages import Held
from deploy.conductor.orders import Order
from learner.reports import FragmentVerdict


class Fates:
    """Gathers what the next commit will put on record."""

    def __init__(self) -> None:
        self._dropped: list[LedgerFragment] = []

    def drop(self, held: Held, reason: str, *, term: int, issued: int) -> None:
        """A fragment was dropped when `issued` updates had been told (or it lies before a cut behind so many).

        It is recorded with the last of these. What is part of a cut is decided on again after a resume from there.
        """
        self._dropped.append(_entry(held, fate=reason, decided_in=term, update=issued, place=-1))

    def take(self) -> tuple[LedgerFragment, ...]:
        """What was dropped since the last commit."""
        dropped = tuple(self._dropped)
        self._dropped.clear()
        return dropped

    def commit(self, order: Order, verdicts: tuple[FragmentVerdict, ...], *, term: int) -> tuple[LedgerFragment, ...]:
        """Everything decided since the commit before, with the fragments of `order` in their order.

        Refused fragments keep their place: whoever makes the update again has them refused again.
        """
        entries = [
            _entry(held, fate=verdict.refusal or TRAINED, decided_in=term, update=order.update + 1, place=place)
            for place, (held, verdict) in enumerate(zip(order.held, verdicts, strict=True))
        ]
        return (*self.take(), *entries)


def _entry(held: Held, *, fate: str, decided_in: int, update: int, place: int) -> LedgerFragment:
    summary = held.summary
    return LedgerFragment(
        actor=summary.actor,
        incarnation=summary.incarnation,
        sequence=summary.sequence,
        term=summary.term,
        weights=held.weights,
        num_valid=summary.num_valid,
        digest=summary.digest,
        decided_in=decided_in,
        update=update,
        place=place,
        fate=fate,
    )
