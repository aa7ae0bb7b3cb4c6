"""Sums and moments that run long without losing what is small (Neumaier, 1974: Kahan's summation, right also when a
term exceeds the running sum)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class NeumaierSum:
    """One running float64 sum per element, as exact as if summed in twice the precision and rounded once.

    The error of n terms is at most u |sum| + (n u)² Σ|term|, u = 2^-53 (Ogita, Rump & Oishi, 2005, proposition 4.5).

    >>> total = NeumaierSum(1)
    >>> for term in (1.0, 1e100, 1.0, -1e100): total.add(np.array([term]))
    >>> total.value().item()
    2.0
    """

    __slots__ = ("_compensation", "_sum")

    def __init__(self, size: int) -> None:
        self._sum = np.zeros(size)
        self._compensation = np.zeros(size)

    def add(self, term: Vector) -> None:
        """Add one term [size] to each sum."""
        self._sum, self._compensation = _added(self._sum, self._compensation, term)

    def value(self) -> Vector:
        """The sums [size] so far (a copy)."""
        return self._sum + self._compensation

    def clear(self, where: NDArray[np.bool_]) -> None:
        """Start again at zero where the mask holds."""
        self._sum[where] = 0.0
        self._compensation[where] = 0.0

    def state(self) -> dict[str, Vector]:
        """Both words of each sum, for checkpoints."""
        return {"sum": self._sum.copy(), "compensation": self._compensation.copy()}

    def set_state(self, state: dict[str, Vector]) -> None:
        """Put back what `state` took."""
        self._sum = state["sum"].copy()
        self._compensation = state["compensation"].copy()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Moments of the rows of one fragment: what is merged, once.

    The mean is kept in two words, `pivot + offset`: where numbers are large and vary little, one word would round away
    what they vary by.

    Attributes:
        count: rows.
        pivot: the first row [W].
        offset: mean difference from it [W].
        squares: sums of squared differences from the mean [W].
    """

    count: int
    pivot: Vector
    offset: Vector
    squares: Vector

    @staticmethod
    def of(columns: Sequence[NDArray[np.floating]]) -> Block:
        """Of several quantities over the same N rows, each [N, w], side by side: W is the sum of their widths.

        Equal rows have exactly their value as mean and 0 as spread.
        """
        parts = [_block(column) for column in columns]
        pivot, offset, squares = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Block(count=len(columns[0]), pivot=pivot, offset=offset, squares=squares)

    def to_numbers(self) -> Vector:
        """For an exchange: [1 + 3 W]."""
        return np.concatenate([[float(self.count)], self.pivot, self.offset, self.squares])

    @staticmethod
    def from_numbers(numbers: Vector) -> Block:
        """The inverse of `to_numbers`."""
        pivot, offset, squares = numbers[1:].reshape(3, -1)
        return Block(count=int(numbers[0]), pivot=pivot, offset=offset, squares=squares)


class RunningMoments:
    """Count, mean and spread of W quantities, merged block by block (Chan et al., 1979), compensated.

    Merging blocks in the same order gives the same bits; in any order, and cut in any way, what one pass over all rows
    gives, to about 1e-15 of the deviation. The count is exact to 2^53.

    Attributes:
        numbers: all of it, float64 [1 + 4 W]: the count, then two words each of mean and squares. Changed in place, so
            that whoever copies, compares or restores state needs to know no more.
    """

    def __init__(self, width: int) -> None:
        self.numbers = np.zeros(1 + 4 * width)

    @property
    def count(self) -> float:
        """Rows."""
        return float(self.numbers[0])

    def mean(self) -> Vector:
        """[W]; 0 of none."""
        high, low = self._words[:2]
        mean: Vector = high + low
        return mean

    def variance(self) -> Vector:
        """Of the population [W]; 0 of none."""
        high, low = self._words[2:]
        variance: Vector = (high + low) / max(1.0, self.count)
        return variance

    @property
    def _words(self) -> Vector:
        return self.numbers[1:].reshape(4, -1)

    def merge(self, block: Block) -> bool:
        """Add the rows of a block, unless that would leave anything that is not finite; whether they were added."""
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            words = self._merged(block)
        if not np.isfinite(words).all():
            return False
        self.numbers[0] += block.count
        self._words[...] = words
        return True

    def _merged(self, block: Block) -> Vector:
        if not block.count:
            return self._words.copy()
        if not self.count:
            return np.stack([block.pivot, block.offset, block.squares, np.zeros_like(block.squares)])
        high, low, squares, small = self._words
        total = self.count + block.count
        apart, error = _two_sum(block.pivot, -high)
        difference = apart + (error + (block.offset - low))
        grown = block.squares + difference * difference * (self.count * block.count / total)
        mean = _added(high, low, difference * (block.count / total))
        return np.stack([*mean, *_added(squares, small, grown)])


def _block(column: NDArray[np.floating]) -> tuple[Vector, Vector, Vector]:
    """Pivot, offset and squares [w] of [N, w]. Each quantity's rows lie side by side, so numpy sums them pairwise."""
    if not len(column):
        nothing = np.zeros(column.shape[1])
        return nothing, nothing, nothing
    pivot = column[0].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # a block that is not finite is not merged
        shifted = np.ascontiguousarray(column.T, dtype=np.float64) - pivot[:, None]
        offset = shifted.mean(1)
        return pivot, offset, np.square(shifted - offset[:, None]).sum(1)


def _two_sum(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """The rounded sum, and what rounding took away (Knuth, 1969)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _added(high: Vector, low: Vector, term: Vector) -> tuple[Vector, Vector]:
    """Both words of a running sum after one more term."""
    total = high + term
    larger = np.abs(high) >= np.abs(term)
    return total, low + np.where(larger, (high - total) + term, (term - total) + high)
