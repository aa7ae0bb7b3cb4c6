"""What one rank remembers of the steps of an attempt, and the words by which ranks compare it.

A step's words, in the slot of each rank:   [digest of all chunks | per bucket: total put in, tolerance]
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from learner.parallel.conservation import Measured
from learner.parallel.digests import combined
from learner.parallel.verdict import Weighed, alike, unconserved_bucket


def words_of_step(num_buckets: int) -> int:
    """Words of one rank for one step."""
    return 1 + 2 * num_buckets


@dataclass(slots=True, kw_only=True)
class Step:
    """One gradient step as this rank saw it.

    Attributes:
        number: in the update, from 0.
        put_in: this rank's own gradient, by bucket.
        came_out: sum of the reduced one, by bucket.
        chunk_digests: of the reduced one [c].
        heard: the words of all ranks for this step [n, k]; None until they have arrived, or where they were damaged.
        sha256: over the watched chunks of the reduced one; empty if none were watched.
    """

    number: int
    put_in: list[Measured] = field(default_factory=list)
    came_out: list[float] = field(default_factory=list)
    chunk_digests: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    heard: NDArray[np.uint64] | None = None
    sha256: dict[int, str] = field(default_factory=dict)

    def packed(self) -> bytes:
        """What this rank tells the others about it: its words, little-endian."""
        numbers = [value for each in self.put_in for value in (each.total, each.tolerance)]
        return struct.pack(f"<Q{len(numbers)}d", combined(self.chunk_digests, self.number), *numbers)

    def words(self) -> NDArray[np.uint64]:
        """The same as numbers."""
        return np.frombuffer(self.packed(), dtype="<u8").astype(np.uint64, copy=False)

    def weighed(self) -> Weighed:
        """What all ranks put in, against what came out here."""
        assert self.heard is not None
        numbers = np.ascontiguousarray(self.heard[:, 1:]).view(np.float64)
        return Weighed(totals=numbers[:, 0::2], tolerances=numbers[:, 1::2], reduced=self.came_out)

    def is_good(self) -> bool:
        """Whether all ranks hold the same sum, and it is the sum of what they put in."""
        if self.heard is None or not alike(self.heard[:, :1]):
            return False
        return unconserved_bucket(self.weighed()) is None


def all_good(heard: NDArray[np.uint64], came_out: NDArray[np.float64]) -> bool:
    """Whether each of s steps is good, by the words of all ranks [s, n, k] and what came out by bucket [s, b].

    The same judgement as `Step.is_good`, at once where every number is finite.
    """
    if not (heard[:, :, 0] == heard[:, :1, 0]).all():
        return False
    numbers = np.ascontiguousarray(heard[:, :, 1:]).view(np.float64)
    totals, tolerances = numbers[:, :, 0::2], numbers[:, :, 1::2]
    with np.errstate(invalid="ignore", over="ignore"):
        within = (np.abs(totals.sum(1) - came_out) <= 2.0 * tolerances.sum(1)).all()
        if within and np.isfinite(totals).all() and np.isfinite(came_out).all():
            return True
    weighed = [
        Weighed(totals=a, tolerances=b, reduced=c)
        for a, b, c in zip(totals, tolerances, came_out.tolist(), strict=True)
    ]
    return all(unconserved_bucket(each) is None for each in weighed)
