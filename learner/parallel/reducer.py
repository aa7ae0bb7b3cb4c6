"""The seam between a gradient and its commit: whatever makes one gradient out of those of all ranks."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Reducer(Protocol):
    """Turns this rank's gradient into the group's, in place."""

    num_ranks: int

    def reduce(self, gradient: Tensor) -> None:
        """Replace `gradient` [num_elements] by the gradient of the global minibatch, the same bits on every rank."""
        ...


class OneRank:
    """A group of one: the gradient is already the global one."""

    num_ranks = 1

    def reduce(self, gradient: Tensor) -> None:
        """Nothing to do."""
