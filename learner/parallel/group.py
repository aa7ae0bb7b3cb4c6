"""The seam between an algorithm and the ranks that make an update together, and the group of one.

    begin_update ─► exchange ─► (begin_step ─► backward ─► finish_step ─► optimiser) × steps ─► close_update

Every rank of a group makes the same calls in the same order; which ones follows from values that all have alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.parameters import FlatParameters
from learner.parallel.digests import chunk_bounds, combined, digest_chunks
from learner.parallel.faults import Tamper, Untouched
from learner.parallel.verdict import Recomputed, judge_audit
from learner.reports import Attribution, Dispute, Fault

NO_STEP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """What every rank must hold alike after an update.

    Attributes:
        digest: of all of it, 128 bits.
        chunk_digests: of its vectors by chunk; asked for only where digests differ.
        names: parameters in the chunks of the numbers given.
    """

    digest: int
    chunk_digests: Callable[[], NDArray[np.uint64]]
    names: Callable[[list[int]], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The shared verdict on an attempt: the same on every rank.

    Attributes:
        extra: what each rank brought along [num_ranks, k].
        dispute: what was found; None if every step and the state after them were agreed on.
        attribution: of this dispute, if it is known at once, else of an earlier attempt's, now that this one agreed.
        verified_steps: gradient steps whose verdict is good.
        audited: whether a step was recomputed.
    """

    extra: NDArray[np.float64]
    dispute: Dispute | None = None
    attribution: Attribution | None = None
    verified_steps: int = 0
    audited: bool = False


@dataclass(slots=True, kw_only=True)
class Effort:
    """What an attempt cost this rank, and its own gradients.

    Attributes:
        reduce_ns: waiting for other ranks in reduces, monotonic.
        exchange_ns: likewise in the exchanges before and after the steps.
        verify_ns: CPU time of this thread for weighing, digests and verdicts.
        audit_ns: CPU time for recomputations.
        reduced_bytes: put into reduces.
        norms: Euclidean norm of each step's local gradient.
    """

    reduce_ns: int = 0
    exchange_ns: int = 0
    verify_ns: int = 0
    audit_ns: int = 0
    reduced_bytes: int = 0
    norms: list[float] = field(default_factory=list)


class Group(Protocol):
    """The ranks that make updates together, seen from one of them.

    Attributes:
        ranks: in the order of places.
        place: of this rank.
        effort: of the attempt under way.
        compares: whether ranks compute alike to the bit, so that a local gradient can be recomputed elsewhere.
    """

    ranks: tuple[int, ...]
    place: int
    effort: Effort
    compares: bool

    def begin_update(self, update: int) -> None:
        """An attempt at `update` begins."""
        ...

    def exchange(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """`numbers` [k] of every rank, bit for bit: [num_ranks, k]. Raises SyncError."""
        ...

    def begin_step(self, *, watched: bool = False) -> None:
        """The flat gradient is zero, and a backward pass follows; `watched`: digest what it comes to, for an audit."""
        ...

    def finish_step(self) -> None:
        """Make the flat gradient the sum over ranks, the same bits on each. Raises SyncError."""
        ...

    def local_digest(self) -> int:
        """Of the local gradient: of the last watched step, before the reduce."""
        ...

    def digest_gradient(self) -> int:
        """Of what the flat gradient holds now, comparable with `local_digest`."""
        ...

    def recomputed(self, step: int, result: Recomputed) -> None:
        """Bring this rank's part of the audit of a step into the verdict."""
        ...

    def close_update(self, replicated: Replicated, extra: NDArray[np.float64]) -> Closed:
        """All steps are made: the verdict of all ranks on all of them. Raises SyncError."""
        ...

    def leave(self) -> None:
        """Give the group up: whoever waits for this rank fails at once."""
        ...


class OneRank:
    """A group of one: the gradient is already the global one, and the only witness is a second computation."""

    compares = True
    place = 0

    def __init__(self, rank: int, parameters: FlatParameters, tamper: Tamper | None = None) -> None:
        self.ranks: tuple[int, ...] = (rank,)
        self.effort = Effort()
        self._parameters = parameters
        self._tamper = tamper or Untouched()
        self._bounds = chunk_bounds(0, parameters.num_elements)
        self._recomputed: tuple[int, Recomputed] | None = None
        self._watched = False
        self._local = 0
        self._steps = 0

    def begin_update(self, update: int) -> None:
        """A new account."""
        self.effort = Effort()
        self._recomputed = None
        self._steps = 0
        self._tamper.began(update)

    def exchange(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Its own, as one row."""
        return numbers[None]

    def begin_step(self, *, watched: bool = False) -> None:
        """Nothing but the watch."""
        self._watched = watched

    def finish_step(self) -> None:
        """The gradient is what it is."""
        self._tamper.computed(self._steps, 0, self._parameters.gradient)
        self._steps += 1
        if self._watched:
            self._local = self.digest_gradient()

    def local_digest(self) -> int:
        """Of the last watched step."""
        return self._local

    def digest_gradient(self) -> int:
        """Of what the flat gradient holds now."""
        return combined(digest_chunks(self._parameters.gradient, self._bounds), 0)

    def recomputed(self, step: int, result: Recomputed) -> None:
        """Kept for the verdict."""
        self._recomputed = (step, result)

    def close_update(self, replicated: Replicated, extra: NDArray[np.float64]) -> Closed:
        """Good, unless this rank contradicts itself."""
        step, own = self._recomputed or (NO_STEP, None)
        audits = {} if own is None else {self.ranks[0]: own}
        dispute, attribution = audit_dispute(step, audits)
        return Closed(
            extra=extra[None],
            dispute=dispute,
            attribution=attribution,
            verified_steps=self._steps,
            audited=bool(audits),
        )

    def leave(self) -> None:
        """Nobody waits."""


def audit_dispute(step: int, audits: Mapping[int, Recomputed]) -> tuple[Dispute | None, Attribution | None]:
    """What the audit of a step adds to the verdict: nothing if all agree."""
    verdict = judge_audit(audits)
    if verdict.agreed:
        return None, None
    digests = {rank: f"{each.first:016x} {each.second:016x}" for rank, each in audits.items()}
    dispute = Dispute(fault=Fault.LOCAL_GRADIENT, step=step, bucket=-1, chunks=(), parameters=(), digests=digests)
    return dispute, Attribution(dispute=dispute, ranks=verdict.ranks)
