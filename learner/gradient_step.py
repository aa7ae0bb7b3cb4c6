"""One gradient step as a transaction: backward, reduce, look, then commit or skip. A skip is a value, not an exception.

    loss ──► zero ──► backward, reduced meanwhile ──► finite? ──no──► Skipped(where)
                                                        │yes
                                                        └──► clip ──► optimiser step ──► Committed(norm)

Nothing of the parameters or the optimiser changes before the decision, and the decision reads only the *reduced*
gradient: a non-finite one of any rank makes it non-finite on all alike, and ranks that hold the same bits decide the
same. What is committed is provisional until the ranks have closed the update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from common.parameters import FlatParameters
from learner.layer_norms import LayerNorms
from learner.optimiser import Optimiser
from learner.parallel.faults import Tamper, Untouched
from learner.parallel.group import Group

SMALLEST_FACTOR = 2.0**-64


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The step was made.

    Attributes:
        gradient_norm: Euclidean norm before clipping.
        clipped: whether it was scaled down.
    """

    gradient_norm: float
    clipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """The gradient was of no use; parameters and optimiser are as before.

    Attributes:
        parameter: first parameter whose gradient holds an element that is not finite (or, where nothing is clipped,
            whose square overflows and would stay in the second moment for ever).
    """

    parameter: str


class GradientStep:
    """Makes steps on one set of flat parameters.

    Attributes:
        layer_norms: of the reduced gradient of the first step of the latest update, before clipping, by layer group.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        optimiser: Optimiser,
        group: Group,
        tamper: Tamper | None = None,
        *,
        max_gradient_norm: float,
    ) -> None:
        self._parameters = parameters
        self._optimiser = optimiser
        self._group = group
        self._tamper = tamper or Untouched()
        self._max_norm = max_gradient_norm
        self._layer_norms = LayerNorms(parameters.manifest)
        self.layer_norms: dict[str, float] = {}

    def make(self, loss: Tensor | None, number: int = 0, *, watched: bool = False) -> Committed | Skipped:
        """Differentiate `loss` and commit or skip one step, together with all ranks of the group.

        Args:
            loss: this rank's part, a scalar; the parts of all ranks add up. None where it has no rows.
            number: of the step in its update, from 0.
            watched: the local gradient is digested, for an audit.

        Raises:
            SyncError: the gradient could not be reduced; parameters and optimiser are as before.
        """
        self._tamper.stepping(number)
        gradient = self._parameters.gradient
        gradient.zero_()
        self._group.begin_step(watched=watched)
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        self._group.finish_step()
        norm = torch.linalg.vector_norm(gradient).item()
        if number == 0:  # once an update: a few norms more cost 20 µs
            self.layer_norms = self._layer_norms.of(gradient)
        made = self._commit(gradient, norm) if math.isfinite(norm) else self._skip_or_rescue(gradient)
        self._tamper.stepped(number, self._parameters.vector)
        return made

    def recompute(self, loss: Tensor | None) -> int:
        """Digest of the gradient of `loss`, which goes nowhere."""
        self._parameters.gradient.zero_()
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        return self._group.digest_gradient()

    def _commit(self, gradient: Tensor, norm: float) -> Committed:
        clipped = 0.0 < self._max_norm < norm
        if clipped:
            _scale_down(gradient, self._max_norm / norm)
        self._optimiser.step()
        return Committed(gradient_norm=norm, clipped=clipped)

    def _skip_or_rescue(self, gradient: Tensor) -> Committed | Skipped:
        """A finite gradient whose norm overflows float32 is clipped by its float64 norm; anything else is skipped."""
        if name := self._parameters.first_non_finite(gradient if self._max_norm > 0.0 else gradient.square()):
            return Skipped(parameter=name)
        return self._commit(gradient, torch.linalg.vector_norm(gradient, dtype=torch.float64).item())


def _scale_down(gradient: Tensor, factor: float) -> None:
    if factor < SMALLEST_FACTOR:  # float32 would round it to a subnormal number or to zero
        gradient.mul_(SMALLEST_FACTOR)
        factor /= SMALLEST_FACTOR
    gradient.mul_(factor)
