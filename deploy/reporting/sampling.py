"""Fewer points than there are updates, chosen so that nothing that matters is lost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from deploy.reporting.svg import Array

Indices = NDArray[np.intp]


def keep_extremes(y: Array, buckets: int) -> Indices:
    """Indices, ascending, of the points to draw: of each of `buckets` runs of points its first, lowest, highest and
    last. No spike is lost, and a gap (NaN) stays one where a whole run of points is NaN. All of them if they are few.
    """
    if len(y) <= 4 * buckets:
        return np.arange(len(y))
    kept: list[int] = []
    for run in chunks(len(y), buckets):
        values = y[run]
        finite = np.flatnonzero(np.isfinite(values))
        if not len(finite):
            kept.append(int(run[0]))
            continue
        inside = values[finite]
        marks = (finite[0], finite[inside.argmin()], finite[inside.argmax()], finite[-1])
        kept += sorted({int(run[mark]) for mark in marks})
    return np.asarray(kept, np.intp)


def chunks(length: int, most: int) -> Iterator[Indices]:
    """`range(length)` in at most `most` runs, as even as can be, none of them empty."""
    count = min(length, most)
    return iter(np.array_split(np.arange(length), count) if count else [])


def spread_out(length: int, most: int) -> list[int]:
    """At most `most` indices of `range(length)`, evenly apart, the first and the last among them."""
    if length == 0:
        return []
    return sorted({round(index) for index in np.linspace(0, length - 1, min(length, most)).tolist()})
