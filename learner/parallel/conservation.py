"""What goes into a sum must come out of it: Σ over ranks of the sum of a bucket = the sum of the reduced bucket.

Sums are taken over groups of 256 elements in float32, then over groups in float64: at 25 million elements 7 ms, where
a float64 sum takes 93. What rounding may explain is bounded by two terms, with u = 2^-24:

    2 u Σ_ranks (64 ‖x‖₂ + 16 Σ_groups |group sum|)

Groups of mixed signs err at random, by about 16 u ‖x‖₂ in all for groups of 256 (random walk within a group, then over
groups): four times that is allowed. Groups of one sign may err systematically, by at most about 12 u of their sum
(four additions per lane, then a tree of 64 lanes, then the sum over ranks). The factor 2 is for the weighing of the
reduced bucket, whose terms are at most the sums of those of the ranks; its own are not asked, for what is wrong with it
would excuse itself. Where what was put in is not finite, the reduced gradient must not be finite either: the step is
then skipped on every rank alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GROUP = 256
UNIT = 2.0**-24
RANDOM_FACTOR = 64.0
SYSTEMATIC_FACTOR = 16.0
OVERFLOWS = 2.0**120


@dataclass(frozen=True, slots=True)
class Measured:
    """A bucket's sum, what rounding may have changed in it, and its squared norm.

    Attributes:
        total: sum of all elements.
        tolerance: absolute.
        square: sum of squares.
    """

    total: float
    tolerance: float
    square: float


class Scale:
    """Weighs one bucket again and again; its scratch is allocated once.

    On a GPU weighing only queues work: figures are fetched when they are asked for, after the backward pass.
    """

    def __init__(self, num_elements: int, device: torch.device) -> None:
        self._grouped = num_elements - num_elements % GROUP
        self._sums = torch.empty(self._grouped // GROUP, device=device)
        self._on_host = device.type == "cpu"

    def total(self, values: Tensor) -> Callable[[], float]:
        """The sum of `values` [num_elements], when it is asked for."""
        sums = self._group_sums(values)
        if isinstance(sums, Tensor):
            queued = sums.sum()
            return lambda: float(queued)
        total = float(sums.sum())
        return lambda: total

    def measure(self, values: Tensor) -> Callable[[], Measured]:
        """What `values` [num_elements] weigh, when it is asked for."""
        sums = self._group_sums(values)
        square = torch.dot(values, values)
        if isinstance(sums, Tensor):
            queued = torch.stack([sums.sum(), sums.abs().sum(), square.double()])
            return lambda: _measured(*queued.tolist())
        measured = _measured(float(sums.sum()), float(np.abs(sums).sum()), float(square))
        return lambda: measured

    def _group_sums(self, values: Tensor) -> Tensor | NDArray[np.float64]:
        """Sums of whole groups, then the elements of the last, incomplete one; float64."""
        torch.sum(values[: self._grouped].view(-1, GROUP), 1, out=self._sums)
        if not self._on_host:
            return torch.cat([self._sums, values[self._grouped :]]).double()
        return np.concatenate([self._sums.numpy(), values[self._grouped :].numpy()]).astype(np.float64)


def _measured(total: float, magnitude: float, square: float) -> Measured:
    tolerance = UNIT * (RANDOM_FACTOR * math.sqrt(square) + SYSTEMATIC_FACTOR * magnitude)
    return Measured(total, tolerance, square)


def conserved(put_in: list[float], tolerances: list[float], came_out: float) -> bool:
    """Whether the sums of all ranks add up to the reduced one, as far as rounding allows."""
    if not all(map(math.isfinite, put_in)):
        return not math.isfinite(came_out)
    tolerance = 2.0 * sum(tolerances)
    if not math.isfinite(came_out):
        return tolerance > UNIT * OVERFLOWS  # finite summands that large may overflow when they are added
    return abs(math.fsum(put_in) - came_out) <= tolerance
