"""Sums that run long without losing what is small (Neumaier, 1974: Kahan's summation, right also when a term exceeds
the running sum)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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

    def add(self, term: NDArray[np.float64]) -> None:
        """Add one term [size] to each sum."""
        total = self._sum + term
        larger = np.abs(self._sum) >= np.abs(term)
        self._compensation += np.where(larger, (self._sum - total) + term, (term - total) + self._sum)
        self._sum = total

    def value(self) -> NDArray[np.float64]:
        """The sums [size] so far (a copy)."""
        return self._sum + self._compensation

    def clear(self, where: NDArray[np.bool_]) -> None:
        """Start again at zero where the mask holds."""
        self._sum[where] = 0.0
        self._compensation[where] = 0.0

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Both words of each sum, for checkpoints."""
        return {"sum": self._sum.copy(), "compensation": self._compensation.copy()}

    def set_state(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Put back what `state` took."""
        self._sum = state["sum"].copy()
        self._compensation = state["compensation"].copy()
