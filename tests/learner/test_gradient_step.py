"""The gradient step: committed or skipped, never half."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from common.parameters import FlatParameters
from learner.gradient_step import Committed, GradientStep, Skipped
from learner.optimiser import Optimiser, OptimiserConfig
from learner.parallel.group import OneRank


class Lab:
    """Two parameters `first` [1] and `second` [1] whose gradient is what the test says."""

    def __init__(self, *, max_norm: float = 0.0, group: type[OneRank] = OneRank) -> None:
        self.model = nn.ParameterDict({"first": nn.Parameter(torch.ones(1)), "second": nn.Parameter(torch.ones(1))})
        self.parameters = FlatParameters(self.model, trainable=True)
        config = OptimiserConfig(learning_rate=0.1, epsilon=1e-8)
        self.optimiser = Optimiser(config, self.parameters)
        self.group = group(0, self.parameters)
        self._step = GradientStep(self.parameters, self.optimiser, self.group, max_gradient_norm=max_norm)

    def make(self, *gradient: float, watched: bool = False) -> Committed | Skipped:
        """One step along `gradient`."""
        return self._step.make(self._loss(*gradient), watched=watched)

    def make_nothing(self) -> Committed | Skipped:
        """One step of a rank that has no rows."""
        return self._step.make(None)

    def recompute(self, *gradient: float) -> int:
        """The digest of `gradient`."""
        return self._step.recompute(self._loss(*gradient))

    def _loss(self, *gradient: float) -> Tensor:
        first, second = self.model["first"], self.model["second"]
        return (first * gradient[0] + second * gradient[1]).sum()

    def bits(self) -> list[bytes]:
        """Parameters and both moments, and the step count."""
        arrays = self.optimiser.arrays()
        return [self.parameters.numpy().tobytes(), *(arrays[name].tobytes() for name in sorted(arrays))]


def test_a_finite_gradient_is_committed() -> None:
    """Adam's first step moves each parameter by the learning rate, against its gradient's sign."""
    lab = Lab()
    assert lab.make(3.0, -4.0) == Committed(gradient_norm=5.0, clipped=False)
    assert lab.parameters.numpy().tolist() == pytest.approx([0.9, 1.1], abs=1e-6)
    assert lab.optimiser.arrays()["adam_first"].tolist() == pytest.approx([0.3, -0.4])


def test_each_step_begins_with_a_gradient_of_zero() -> None:
    """Nothing of the step before is added."""
    lab = Lab()
    lab.make(3.0, -4.0)
    assert lab.make(3.0, -4.0) == Committed(gradient_norm=5.0, clipped=False)


@pytest.mark.parametrize("max_norm", [5.0, 6.0, 0.0])
def test_a_gradient_at_the_limit_is_left_as_it_is(max_norm: float) -> None:
    """The norm is 5: exactly the limit is within it, and 0 means no limit."""
    lab = Lab(max_norm=max_norm)
    assert lab.make(3.0, 4.0) == Committed(gradient_norm=5.0, clipped=False)
    assert lab.parameters.gradient.tolist() == [3.0, 4.0]


def test_a_gradient_above_the_limit_is_scaled_down_to_it() -> None:
    """Direction kept; the norm reported is that before clipping."""
    lab = Lab(max_norm=0.5)
    assert lab.make(3.0, 4.0) == Committed(gradient_norm=5.0, clipped=True)
    assert lab.parameters.gradient.tolist() == pytest.approx([0.3, 0.4], rel=1e-6)


@pytest.mark.parametrize("max_norm", [0.5, 1e-7])
def test_a_finite_gradient_whose_squares_overflow_is_clipped_not_skipped(max_norm: float) -> None:
    """(3e38, 1e38): float32 cannot hold the norm, nor the factor that scales it down to 1e-7."""
    lab = Lab(max_norm=max_norm)
    step = lab.make(3e38, 1e38)
    assert isinstance(step, Committed) and step.clipped
    assert step.gradient_norm == pytest.approx(math.hypot(3e38, 1e38), rel=1e-6)
    expected = [max_norm * 3 / math.sqrt(10), max_norm / math.sqrt(10)]
    assert lab.parameters.gradient.tolist() == pytest.approx(expected, rel=1e-5)


def test_an_unclipped_gradient_whose_square_overflows_is_skipped() -> None:
    """It would leave an infinity in Adam's second moment, and the parameter would never move again."""
    lab = Lab(max_norm=0.0)
    before = lab.bits()
    assert lab.make(1.0, 1e20) == Skipped(parameter="second")
    assert lab.bits() == before


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("where", "name"), [(0, "first"), (1, "second")])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_non_finite_gradient_changes_not_a_bit(bad: float, where: int, name: str, steps_before: int) -> None:
    """C16: parameters, both moments and the step count are as before; the parameter is named; the next step works."""
    lab, twin = Lab(max_norm=0.5), Lab(max_norm=0.5)
    for _ in range(steps_before):
        assert lab.make(3.0, 4.0) == twin.make(3.0, 4.0)
    before = lab.bits()
    gradient = [1.0, 1.0]
    gradient[where] = bad
    assert lab.make(*gradient) == Skipped(parameter=name)
    assert lab.bits() == before
    assert lab.make(1.0, 2.0) == twin.make(1.0, 2.0)
    assert lab.bits() == twin.bits()


class Spoiled(OneRank):
    """A group whose peers sent a NaN."""

    def finish_step(self) -> None:
        self._parameters.gradient[1] = math.nan


def test_the_decision_is_made_on_the_reduced_gradient() -> None:
    """A gradient that is finite here is skipped if the group's is not: every rank decides alike."""
    lab = Lab(group=Spoiled)
    before = lab.bits()
    assert lab.make(1.0, 1.0) == Skipped(parameter="second")
    assert lab.bits() == before


def test_a_rank_without_rows_makes_the_step_with_a_gradient_of_zero() -> None:
    """It has no loss; moments and the step count move as they do on all ranks."""
    lab = Lab()
    lab.make(3.0, 4.0)
    assert lab.make_nothing() == Committed(gradient_norm=0.0, clipped=False)
    assert lab.parameters.gradient.tolist() == [0.0, 0.0]
    assert lab.optimiser.arrays()["adam_steps"].tolist() == [2.0]


def test_what_is_recomputed_changes_not_a_bit_and_has_the_digest_of_what_was_used() -> None:
    """The audit of a step: the digest of the watched step is that of the same loss again, and of no other."""
    lab = Lab(max_norm=0.0)
    before = lab.bits()
    same, other = lab.recompute(3.0, 4.0), lab.recompute(3.0, 4.5)
    assert lab.bits() == before
    lab.make(3.0, 4.0, watched=True)
    assert lab.group.local_digest() == same != other
