"""Verification changes nothing: thousands of verified steps end with the bits of a twin that only adds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from learner.gradient_step import Committed, GradientStep, Skipped
from learner.parallel.group import OneRank
from tests.learner.steps import Gradient, StepRank, StepRanks

STEPS_PER_UPDATE = 4


class Twin(StepRank):
    """One process that adds the gradients of two ranks: a + b has the bits of b + a."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(sizes)
        self._alone = GradientStep(
            self.parameters, self.optimiser, OneRank(0, self.parameters), max_gradient_norm=self._max_norm
        )

    def step(self, first: Gradient, second: Gradient) -> Committed | Skipped:
        """One step along their sum."""
        with np.errstate(invalid="ignore", over="ignore"):
            return self._alone.make(self.loss(first + second))


def drawn(rng: np.random.Generator, num_elements: int) -> Gradient:
    """A gradient of any scale and shape that occurs, and some that should not: zeros, huge ones, NaN and infinities."""
    kind, scale = rng.integers(8), 10.0 ** rng.integers(-30, 20)
    values: NDArray[np.float64] = rng.standard_normal(num_elements)
    if kind == 0:
        values[:] = 0.0
    elif kind == 1:
        values[:] = values[0]
    elif kind == 2:
        values *= np.exp(6.0 * rng.standard_normal(num_elements))
    elif kind == 3:
        values *= rng.random(num_elements) < 0.01
    elif kind == 4 and rng.random() < 0.3:
        values[rng.integers(num_elements)] = rng.choice([np.nan, np.inf, -np.inf])
    with np.errstate(over="ignore", under="ignore"):
        return (scale * values).astype(np.float32)


def sizes_of(rng: np.random.Generator) -> list[int]:
    """One to five parameters, from a single element to more than a chunk."""
    return [int(rng.choice([1, 7, 255, 256, 257, 3_000, 20_000])) for _ in range(rng.integers(1, 6))]


@pytest.mark.parametrize(("num_networks", "steps_each"), [(6, 50), pytest.param(25, 400, marks=pytest.mark.slow)])
def test_verified_steps_raise_no_false_alarm_and_change_not_a_bit(num_networks: int, steps_each: int) -> None:
    """Random networks, mixed scales, gradients that are not finite: no dispute, and the twin's state, bit for bit."""
    rng = np.random.default_rng(num_networks)
    for network in range(num_networks):
        sizes = sizes_of(rng)
        ranks = StepRanks(sizes, 2, bucket_elements=int(rng.choice([1, 300, 5_000, 100_000])))

        def work(rank: StepRank, place: int, network: int = network) -> list[Committed | Skipped]:
            own, made = np.random.default_rng([network, place]), []
            for update in range(steps_each // STEPS_PER_UPDATE):
                gradients = [drawn(own, rank.parameters.num_elements) for _ in range(STEPS_PER_UPDATE)]
                closed, steps = rank.attempt(update, gradients)
                assert closed.dispute is None, (network, update, closed.dispute)
                made += steps
            return made

        made = ranks.each(work)
        twin, streams = Twin(sizes), [np.random.default_rng([network, place]) for place in range(2)]
        expected = [twin.step(*(drawn(stream, twin.parameters.num_elements) for stream in streams)) for _ in made[0]]
        assert made[0] == made[1] == expected
        assert len({type(step) for step in expected}) == 2 or steps_each < 50
        assert [rank.digest() for rank in ranks.ranks] == [twin.digest()] * 2


def test_another_step_would_show() -> None:
    """The comparison itself: a twin whose step was another has another digest."""
    one, other = Twin([300]), Twin([300])
    gradient = np.ones(300, np.float32)
    assert one.step(gradient, gradient) == other.step(gradient, gradient)
    assert one.digest() == other.digest()
    other.step(gradient, -gradient)
    assert one.digest() != other.digest()
