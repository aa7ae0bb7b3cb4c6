"""From the ledger of a run to the script by which it is made again.

An update can be made again if all before it can, and if each of its fragments can: that is, if the fragments of the
same life up to it are all in the ledger, once, each made by weights of updates that stand. Dropped fragments count like
trained ones, since making them moved environments and streams.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.ledger import TRAINED, FragmentName, Ledger, LedgerFragment, LedgerUpdate, Script, ScriptedFragment

SOUND = (TRAINED, "skipped", "rolled_back")  # it came in and was in order, whatever became of its update
Life = tuple[int, int]  # actor, incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """The first fragment of a life that cannot be made again, and why."""

    sequence: int
    why: str


def script_of(ledger: Ledger, *, through: int | None = None) -> Script:
    """What is to be done to make a run again, as far as its ledger reaches.

    The first update that cannot be made again ends the script, and `cut_short` says why.

    Args:
        through: last update wanted; None = all of them.

    >>> one = LedgerFragment(actor=0, incarnation=0, sequence=0, term=0, weights=0, num_valid=8, digest=0,
    ...                      decided_in=0, update=1, place=0, fate="trained")
    >>> update = LedgerUpdate(update=1, term=0, num_ranks=1)
    >>> script_of(Ledger(fragments=(one,), updates=(update,))).updates
    (((0, 0, 0),),)
    """
    lives = _by_life(ledger.fragments)
    flaws = {life: flaw for life, fragments in lives.items() if (flaw := _flaw(fragments, ledger.updates))}
    members = _by_update(ledger.fragments)
    updates: list[tuple[FragmentName, ...]] = []
    cut_short = ""
    for number, update in enumerate(ledger.updates[:through], start=1):
        fragments = members.get((update.term, update.update), [])
        cut_short = _wrong_update(update, number, ledger.updates[0].num_ranks) or _wrong_fragments(fragments, flaws)
        if cut_short:
            cut_short = f"update {number} cannot be made again: {cut_short}"
            break
        updates.append(tuple(fragment.name for fragment in fragments))
    refused = frozenset(f.name for f in ledger.fragments if f.place >= 0 and f.fate not in SOUND)
    return Script(lives=_scripted(lives, updates), updates=tuple(updates), refused=refused, cut_short=cut_short)


def _by_life(fragments: Iterable[LedgerFragment]) -> dict[Life, list[LedgerFragment]]:
    """In order of sequence."""
    lives: dict[Life, list[LedgerFragment]] = defaultdict(list)
    for fragment in sorted(fragments, key=lambda fragment: fragment.name):
        lives[fragment.actor, fragment.incarnation].append(fragment)
    return lives


def _by_update(fragments: Iterable[LedgerFragment]) -> dict[tuple[int, int], list[LedgerFragment]]:
    """Those that are in an update, by its term and number, in order of place."""
    members: dict[tuple[int, int], list[LedgerFragment]] = defaultdict(list)
    for fragment in sorted(fragments, key=lambda fragment: fragment.place):
        if fragment.place >= 0:
            members[fragment.decided_in, fragment.update].append(fragment)
    return members


def _flaw(fragments: Sequence[LedgerFragment], updates: Sequence[LedgerUpdate]) -> Flaw | None:
    """Where a life, given in order of sequence, can be followed no further; None if it can to its end."""
    for sequence, fragment in enumerate(fragments):
        if fragment.sequence > sequence:
            return _flaw_at(fragment, sequence, "is missing from the ledger")
        if fragment.sequence < sequence:
            return _flaw_at(fragment, fragment.sequence, "is in the ledger twice")
        if fragment.weights < 0:
            return _flaw_at(fragment, sequence, "was made by weights that are not recorded")
        if fragment.weights > len(updates):
            return _flaw_at(fragment, sequence, f"was made by weights of update {fragment.weights}, not recorded")
        if fragment.weights and updates[fragment.weights - 1].term > fragment.term:
            return _flaw_at(
                fragment, sequence, f"was made by weights of update {fragment.weights} that a rollback has undone"
            )
    return None


def _flaw_at(fragment: LedgerFragment, sequence: int, why: str) -> Flaw:
    place = f"fragment {sequence} of actor {fragment.actor}, incarnation {fragment.incarnation}"
    return Flaw(sequence=sequence, why=f"{place}, {why}")


def _wrong_update(update: LedgerUpdate, number: int, num_ranks: int) -> str:
    """Why an update does not follow on those before it; "" if it does."""
    if update.update != number:
        return "it is not recorded"
    if update.num_ranks != num_ranks:
        return f"{update.num_ranks} learner ranks made it, and {num_ranks} the first one"
    return ""


def _wrong_fragments(fragments: Sequence[LedgerFragment], flaws: Mapping[Life, Flaw]) -> str:
    """Why the fragments of an update cannot be made again; "" if they can."""
    if not fragments:
        return "its fragments are not recorded"
    places = [fragment.place for fragment in fragments]
    if places != list(range(len(places))):
        return f"its fragments are not whole: places {places}"
    for fragment in fragments:
        flaw = flaws.get((fragment.actor, fragment.incarnation))
        if flaw is not None and flaw.sequence <= fragment.sequence:
            return flaw.why
    return ""


def _scripted(
    lives: Mapping[Life, Sequence[LedgerFragment]], updates: Iterable[Iterable[FragmentName]]
) -> dict[int, tuple[tuple[ScriptedFragment, ...], ...]]:
    """By actor, its lives up to the last fragment that an update takes."""
    lengths: dict[Life, int] = defaultdict(int)
    for names in updates:
        for actor, incarnation, sequence in names:
            lengths[actor, incarnation] = max(lengths[actor, incarnation], sequence + 1)
    scripted: dict[int, tuple[tuple[ScriptedFragment, ...], ...]] = {actor: () for actor, _ in sorted(lives)}
    for actor, incarnation in sorted(lengths):
        life = tuple(_again(fragment) for fragment in lives[actor, incarnation][: lengths[actor, incarnation]])
        unneeded = ((),) * (incarnation - len(scripted[actor]))
        scripted[actor] = (*scripted[actor], *unneeded, life)
    return scripted


def _again(fragment: LedgerFragment) -> ScriptedFragment:
    return ScriptedFragment(
        actor=fragment.actor,
        incarnation=fragment.incarnation,
        sequence=fragment.sequence,
        weights=fragment.weights,
    )
