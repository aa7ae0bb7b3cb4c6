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
from torch import Tensor

GROUP = 256
ONES = torch.ones(GROUP)
UNIT = 2.0**-24
RANDOM_FACTOR = 64.0
SYSTEMATIC_FACTOR = 16.0
OVERFLOWS = 2.0**120
RELIABLE_SQUARES = (2.0**-80, 2.0**119)  # outside, squares may be subnormal, those of group sums infinite


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
    """Weighs one bucket again and again.

    On a GPU weighing only queues work: figures are fetched when they are asked for, after the backward pass. On a CPU
    the fewest calls count: after a backward pass neither code nor data of a check is in any cache, so each costs some
    10 µs. None of them looks for overflows, which are no news here, to warn of them.
    """

    def __init__(self, values: Tensor) -> None:
        """`values` [n], float32, contiguous; what they are when they are weighed counts."""
        whole = len(values) // GROUP
        self._values = values
        self._grouped = whole * GROUP
        self._num_groups = whole + (self._grouped < len(values))
        self._on_host = values.device.type == "cpu"
        if self._on_host:
            self._host = values.detach().numpy()
            self._whole, self._rest = values[: self._grouped].view(-1, GROUP), self._host[self._grouped :]
            self._sums = np.zeros(whole + 1, dtype=np.float32)
            self._whole_sums = torch.from_numpy(self._sums[:-1])
            self._sums64, self._ones64 = np.zeros(whole + 1), np.ones(whole + 1)
            self._rest_ones = np.ones(len(self._rest), dtype=np.float32)

    def total(self) -> Callable[[], float]:
        """The sum of the values as they are now, when it is asked for."""
        if not self._on_host:
            queued = self._queued_sums().sum()
            return lambda: float(queued)
        self._take_sums()
        total = float(np.vdot(self._sums64, self._ones64))
        return lambda: total

    def measure(self) -> Callable[[], Measured]:
        """What the values weigh as they are now, when it is asked for."""
        if not self._on_host:
            return self._queued_measure()
        self._take_sums()
        total, square_of_sums = np.vdot(self._sums64, self._ones64), np.vdot(self._sums64, self._sums64)
        square = np.vdot(self._host, self._host)
        peak = 0.0 if _is_reliable(square) else float(max(self._host.max(), -self._host.min()))
        return lambda: self._measured(float(total), float(square_of_sums), float(square), peak)

    def _take_sums(self) -> None:
        """Group sums by a matrix-vector product with ones, the incomplete group by a product of vectors."""
        torch.mv(self._whole, ONES, out=self._whole_sums)
        self._sums[-1] = np.vdot(self._rest, self._rest_ones)
        np.copyto(self._sums64, self._sums)

    def _queued_sums(self) -> Tensor:
        """Group sums, float64, on the device."""
        sums, rest = self._values[: self._grouped].view(-1, GROUP).sum(1), self._values[self._grouped :].sum()
        return torch.cat([sums, rest[None]]).double()

    def _queued_measure(self) -> Callable[[], Measured]:
        sums, (low, high) = self._queued_sums(), torch.aminmax(self._values)
        figures = [sums.sum(), sums.square().sum(), torch.dot(self._values, self._values).double()]
        queued = torch.stack([*figures, torch.maximum(-low, high).double()])
        return lambda: self._measured(*queued.tolist())

    def _measured(self, total: float, square_of_sums: float, square: float, peak: float) -> Measured:
        """Σ |group sum| is at most the root of the number of groups times the root of the sum of their squares."""
        norm, magnitude = math.sqrt(square), math.sqrt(self._num_groups * square_of_sums)
        if not _is_reliable(square):
            norm = magnitude = len(self._values) * peak
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
