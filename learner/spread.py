"""What the rows of one rank are like before any step, as numbers that ranks exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learner.moments import Moments

NUMBERS = 9  # of a spread in an exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Moments of advantages, value targets and value errors (target - V)."""

    advantage: Moments
    target: Moments
    error: Moments

    @staticmethod
    def of(advantage: NDArray[np.floating], target: NDArray[np.floating], value: NDArray[np.floating]) -> Spread:
        """Of valid rows [N]; N may be 0."""
        return Spread(advantage=Moments.of(advantage), target=Moments.of(target), error=Moments.of(target - value))

    @staticmethod
    def merged(parts: Sequence[Spread]) -> Spread:
        """Of the rows of all parts."""
        return Spread(
            advantage=Moments.merged([part.advantage for part in parts]),
            target=Moments.merged([part.target for part in parts]),
            error=Moments.merged([part.error for part in parts]),
        )

    @property
    def explained_variance(self) -> float:
        """1 - Var(target - V) / Var(target); 0 where the targets do not vary."""
        spread = self.target.variance
        return 0.0 if spread == 0.0 else 1.0 - self.error.variance / spread

    def to_numbers(self) -> NDArray[np.float64]:
        """For an exchange: [NUMBERS]."""
        return np.array([x for each in (self.advantage, self.target, self.error) for x in each.to_numbers()])

    @staticmethod
    def from_numbers(numbers: NDArray[np.float64]) -> Spread:
        """The inverse of `to_numbers`."""
        advantage, target, error = (Moments.from_numbers(part) for part in numbers.reshape(3, 3).tolist())
        return Spread(advantage=advantage, target=target, error=error)


NOTHING = Spread.of(np.zeros(0), np.zeros(0), np.zeros(0))
