"""The ledger of a run: every fragment made, by which weights, and what became of it.

An actor's streams are a function of its life (actor, incarnation) and of the weights that acted in each of its
fragments; an update is a function of the fragments in it, in order. So these rows, with the run's configuration and
seed, are enough to make the whole run again, bit for bit, whatever the timing was: dropped fragments are part of it,
since making them moved environments and streams.
"""

from __future__ import annotations

from dataclasses import dataclass

TRAINED = "trained"
FragmentName = tuple[int, int, int]  # actor, incarnation, sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFragment:
    """One fragment, once its fate is decided.

    Attributes:
        actor, incarnation, sequence: name it.
        term: of the learner whose weights acted.
        weights: updates contained in the weights that acted; -1 where that is not known (a cut of an older release).
        num_valid: its valid transitions.
        digest: of its arrays, 63 bits (not of its header, which bears times and leases); 0 where it is not known.
        decided_in: term of the update below.
        update: number of the update (from 1, as updates are recorded) that it was trained in, or of the last one that
            the learner had been told when it was dropped. A fragment may be dropped, and be decided on again after a
            resume from a cut that it is part of: the later decision holds.
        place: its index among the fragments of that update; -1 if it was dropped.
        fate: TRAINED, or the reason for which it was dropped.
    """

    actor: int
    incarnation: int
    sequence: int
    term: int
    weights: int
    num_valid: int
    digest: int
    decided_in: int
    update: int
    place: int
    fate: str

    @property
    def name(self) -> FragmentName:
        """Actor, incarnation and sequence."""
        return self.actor, self.incarnation, self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerUpdate:
    """An update that stands: committed, and not undone since.

    Attributes:
        update: its number, from 1.
        term: in which it was made.
        num_ranks: that made it; 0 if that was not recorded.
    """

    update: int
    term: int
    num_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a run remembers.

    Attributes:
        fragments: in the order in which their fates were decided, those of undone updates included.
        updates: those that stand, in order.
    """

    fragments: tuple[LedgerFragment, ...]
    updates: tuple[LedgerUpdate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTally:
    """A ledger in numbers.

    Attributes:
        made: fragments in it.
        trained: of them, trained in updates that stand.
        dropped: the others, by reason.
        num_bytes: that the ledger takes on disk, about.
    """

    made: int
    trained: int
    dropped: dict[str, int]
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedFragment:
    """A fragment to be made again.

    Attributes:
        actor, incarnation, sequence: name it.
        weights: updates contained in the weights that act.
    """

    actor: int
    incarnation: int
    sequence: int
    weights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a run is to do again.

    Attributes:
        lives: by actor, its lives in order of incarnation, from 0, each its fragments in order of sequence, without
            gaps, up to the last one that an update takes. A life that no update needs is empty.
        updates: for each update from the first, the names of its fragments in order.
        refused: fragments that the learner refused in their place, for what came of them on their way.
        cut_short: why the updates end before those of the run do; "" if they do not.
    """

    lives: dict[int, tuple[tuple[ScriptedFragment, ...], ...]]
    updates: tuple[tuple[FragmentName, ...], ...]
    refused: frozenset[FragmentName] = frozenset()
    cut_short: str = ""
