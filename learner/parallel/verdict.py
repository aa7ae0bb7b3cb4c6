"""Pure judgements over what the ranks told one another: each rank computes them from the same bits, and so the same.

Legend: n ranks, s steps, b buckets, c chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learner.parallel.conservation import conserved


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """What conservation needs of one step.

    Attributes:
        totals: what each rank put in, by rank and bucket [n, b] float64.
        tolerances: likewise, what rounding may have changed.
        reduced: what came out, by bucket.
    """

    totals: NDArray[np.float64]
    tolerances: NDArray[np.float64]
    reduced: Sequence[float]


def unconserved_bucket(weighed: Weighed) -> int | None:
    """The first bucket out of which comes something else than was put in."""
    for bucket, came_out in enumerate(weighed.reduced):
        if not conserved(weighed.totals[:, bucket].tolist(), weighed.tolerances[:, bucket].tolist(), came_out):
            return bucket
    return None


def alike(digests: NDArray[np.uint64]) -> bool:
    """Whether all rows [n, ...] are equal."""
    return bool((digests == digests[:1]).all())


def first_unlike(digests: NDArray[np.uint64]) -> int | None:
    """The first column of [n, s] in which ranks differ."""
    unlike = np.flatnonzero((digests != digests[:1]).any(0))
    return int(unlike[0]) if len(unlike) else None


def unlike_columns(digests: NDArray[np.uint64]) -> list[int]:
    """All columns of [n, c] in which ranks differ."""
    return [int(column) for column in np.flatnonzero((digests != digests[:1]).any(0))]


def wrong_rows(first: NDArray[np.uint64], agreed: NDArray[np.uint64], columns: Sequence[int]) -> list[int]:
    """Places whose digests of the first attempt [n, c] differ from those agreed on later [c], in `columns`."""
    chosen = list(columns)
    return [int(place) for place in np.flatnonzero((first[:, chosen] != agreed[chosen]).any(1))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """One rank's share in an audit: digests of the same local gradient, computed twice."""

    first: int
    second: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict:
    """What recomputing came to.

    Attributes:
        agreed: everybody computed the same.
        ranks: who contradicted itself or the majority; empty if that cannot be told.
    """

    agreed: bool
    ranks: tuple[int, ...] = ()


def judge_audit(recomputed: Mapping[int, Recomputed]) -> AuditVerdict:
    """Who was wrong: whoever contradicts itself, else whoever contradicts more than half of at least three."""
    doubtful = tuple(rank for rank, each in recomputed.items() if each.first != each.second)
    if doubtful:
        return AuditVerdict(agreed=False, ranks=doubtful)
    votes = Counter(each.first for each in recomputed.values())
    if len(votes) <= 1:
        return AuditVerdict(agreed=True)
    value, count = votes.most_common(1)[0]
    if 2 * count <= len(recomputed):
        return AuditVerdict(agreed=False)
    return AuditVerdict(agreed=False, ranks=tuple(rank for rank, each in recomputed.items() if each.first != value))
