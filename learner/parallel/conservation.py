"""What goes into a sum must come out of it: Σ over ranks of the sum of a bucket = the sum of the reduced bucket.

Sums are taken over groups of 256 elements in float32, then over groups in float64: at 25 million elements 7 ms, where
a float64 sum takes 93. What rounding may explain is bounded by two terms, with u = 2^-24:

    2 u Σ_ranks (64 ‖x‖₂ + 16 Σ_groups |group sum|)

Groups of mixed signs err at random, by about 16 u ‖x‖₂ in all for groups of 256 (random walk within a group, then over
groups): four times that is allowed. Groups of one sign may err systematically, by at most about 12 u of their sum
(four additions per lane, then a tree of 64 lanes, then the sum over ranks). The factor 2 is for the weighing of the
reduced bucket, whose terms are at most the sums of those of the ranks; its own are not asked, for what is wrong with it
would excuse itself. Squares leave float32's range long before elements do; both terms are then bounded by n max |x|,
so that gradients of 1e-25 raise no false alarm and those of 1e25 do not pass unseen. Where what was put in is not
finite, the reduced gradient must not be finite either: the step is then skipped on every rank alike.
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
ONES = np.ones(GROUP, dtype=np.float32)
UNIT = 2.0**-24
RANDOM_FACTOR = 64.0
SYSTEMATIC_FACTOR = 16.0
OVERFLOWS = 2.0**120
RELIABLE_SQUARES = (
    2.0**-80,
    2.0**119,
)  # outside, squares may be subnormal, those of group sums infinite


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

    On a GPU weighing only queues work: figures are fetched when they are asked for, after the backward pass. On a CPU
    the fewest calls count: after a backward pass neither code nor data of a check is in any cache.
    """

    def __init__(self, num_elements: int, device: torch.device) -> None:
        self._num_elements = num_elements
        self._grouped = num_elements - num_elements % GROUP
        self._num_groups = self._grouped // GROUP
        self._sums = np.zeros(self._num_groups, dtype=np.float32)
        self._on_host = device.type == "cpu"

    def total(self, values: Tensor) -> Callable[[], float]:
        """The sum of `values` [num_elements], when it is asked for."""
        if not self._on_host:
            queued = self._queued_sums(values).sum()
            return lambda: float(queued)
        with np.errstate(over="ignore", invalid="ignore"):
            total = self._total(values.numpy())
        return lambda: total

    def measure(self, values: Tensor) -> Callable[[], Measured]:
        """What `values` [num_elements] weigh, when it is asked for."""
        if not self._on_host:
            sums, (low, high) = self._queued_sums(values), torch.aminmax(values)
            figures = [sums.sum(), sums.square().sum(), torch.dot(values, values).double()]
            queued = torch.stack([*figures, torch.maximum(-low, high).double()])
            return lambda: self._measured(*queued.tolist())
        host = values.numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            total, square_of_sums, square = self._total(host), float(self._sums @ self._sums), float(host @ host)
            peak = 0.0 if _is_reliable(square) else float(max(host.max(), -host.min()))
        measured = self._measured(total, square_of_sums, square, peak)
        return lambda: measured

    def _total(self, values: NDArray[np.float32]) -> float:
        """Group sums by one matrix-vector product with ones, the incomplete group by itself."""
        np.dot(values[: self._grouped].reshape(-1, GROUP), ONES, out=self._sums)
        rest = np.add.reduce(values[self._grouped :], dtype=np.float64)
        return float(np.add.reduce(self._sums, dtype=np.float64) + rest)

    def _queued_sums(self, values: Tensor) -> Tensor:
        """Group sums and the elements of the incomplete group, float64, on the device."""
        sums = values[: self._grouped].view(-1, GROUP).sum(1)
        return torch.cat([sums, values[self._grouped :]]).double()

    def _measured(self, total: float, square_of_sums: float, square: float, peak: float) -> Measured:
        """Σ |group sum| is at most the root of the number of groups times the root of the sum of their squares."""
        norm, magnitude = math.sqrt(square), math.sqrt(self._num_groups * square_of_sums)
        if not _is_reliable(square):
            norm = magnitude = self._num_elements * peak
        tolerance = UNIT * (RANDOM_FACTOR * norm + SYSTEMATIC_FACTOR * magnitude)
        return Measured(total, tolerance, square)


def _is_reliable(square: float) -> bool:
    """Whether a float32 sum of squares, and that of group sums, lost nothing that counts."""
    return RELIABLE_SQUARES[0] < square < RELIABLE_SQUARES[1]


def conserved(put_in: list[float], tolerances: list[float], came_out: float) -> bool:
    """Whether the sums of all ranks add up to the reduced one, as far as rounding allows."""
    if not all(map(math.isfinite, put_in)):
        return not math.isfinite(came_out)
    tolerance = 2.0 * sum(tolerances)
    if not math.isfinite(came_out):
        return tolerance > UNIT * OVERFLOWS  # finite summands that large may overflow when they are added
    return abs(math.fsum(put_in) - came_out) <= tolerance
