"""Count, mean and spread of numbers that lie on several ranks, merged without a second pass (Chan et al., 1979)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of `count` numbers.

    Attributes:
        count: how many.
        mean: 0 of none.
        squares: sum of squared differences from the mean.
    """

    count: float
    mean: float
    squares: float

    @staticmethod
    def of(values: NDArray[np.floating]) -> Moments:
        """Equal numbers have exactly their value as mean and 0 as spread: the first is taken off before rounding."""
        if not len(values):
            return Moments(count=0.0, mean=0.0, squares=0.0)
        with np.errstate(invalid="ignore", over="ignore"):  # infinities become NaN: the step they spoil is skipped
            shifted = values.astype(np.float64) - np.float64(values[0])
            offset = shifted.mean()
            squares = np.square(shifted - offset).sum()
            return Moments(count=float(len(values)), mean=float(values[0] + offset), squares=float(squares))

    @staticmethod
    def merged(parts: Sequence[Moments]) -> Moments:
        """Of all numbers together."""
        used = [part for part in parts if part.count]
        if len(used) < 2:
            return used[0] if used else Moments(count=0.0, mean=0.0, squares=0.0)
        count, pivot = sum(part.count for part in used), used[0].mean
        mean = pivot + sum(part.count * (part.mean - pivot) for part in used) / count
        squares = sum(part.squares + part.count * (part.mean - mean) ** 2 for part in used)
        return Moments(count=count, mean=mean, squares=squares)

    @property
    def variance(self) -> float:
        """Of the population; 0 of none."""
        return self.squares / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        """Root of the variance."""
        return math.sqrt(self.variance) if self.squares >= 0.0 else math.nan

    def to_numbers(self) -> list[float]:
        """For an exchange."""
        return [self.count, self.mean, self.squares]

    @staticmethod
    def from_numbers(numbers: Sequence[float]) -> Moments:
        """The inverse of `to_numbers`."""
        count, mean, squares = (float(number) for number in numbers)
        return Moments(count=count, mean=mean, squares=squares)
