"""What goes into a sum comes out of it: exact where it must be, never a false alarm, and blind in known places only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from learner.parallel.conservation import GROUP, Scale, conserved
from learner.parallel.faults import flip_bit


def judged(summands: Sequence[Tensor], reduced: Tensor) -> bool:
    """Whether the ranks' vectors and what came out are conserved."""
    put_in = [Scale(each).measure()() for each in summands]
    totals, tolerances = [each.total for each in put_in], [each.tolerance for each in put_in]
    return conserved(totals, tolerances, Scale(reduced).total()())


def added(summands: Sequence[Tensor], order: Sequence[int]) -> Tensor:
    """Their float32 sum, one after the other."""
    total = summands[order[0]].clone()
    for i in order[1:]:
        total += summands[i]
    return total


# ── weighing ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("length", [1, 255, 256, 257, 1000])
def test_the_sum_of_small_integers_is_exact(length: int) -> None:
    """Whole groups and the rest behind them; every partial sum is an integer below 2^24."""
    values = torch.arange(length, dtype=torch.float32) - 100.0
    measured = Scale(values).measure()()
    assert measured.total == sum(range(-100, length - 100))
    assert measured.square == pytest.approx(sum(i * i for i in range(-100, length - 100)), rel=1e-6)


def test_the_tolerance_by_hand() -> None:
    """512 ones: u (64 √512 + 16 · 512), u = 2^-24."""
    measured = Scale(torch.ones(512)).measure()()
    assert measured.tolerance == pytest.approx(2.0**-24 * (64 * math.sqrt(512) + 16 * 512), rel=1e-6)


def test_a_scale_is_used_again() -> None:
    """Nothing of the vector before is left in its scratch."""
    values = torch.ones(600)
    scale = Scale(values)
    first = scale.measure()()
    values.mul_(-1e20)
    assert scale.measure()().total == pytest.approx(-600e20)
    values.fill_(1.0)
    assert scale.measure()() == first


# ── no false alarm ───────────────────────────────────────────────────────────────────────────────────────────────


def _without_group_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    whole = len(values) - len(values) % GROUP
    groups = values[:whole].reshape(-1, GROUP)
    return np.concatenate([(groups - groups.mean(1, keepdims=True)).reshape(-1), values[whole:]])


Maker = Callable[[np.random.Generator, int], NDArray[np.float64]]
SHAPES: dict[str, Maker] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "constant": lambda rng, n: np.full(n, rng.standard_normal()),
    "alternating": lambda rng, n: rng.standard_normal() * (-1.0) ** np.arange(n),
    "groups of one sign": lambda rng, n: np.abs(rng.standard_normal(n)) * (-1.0) ** (np.arange(n) // GROUP),
    "groups that cancel": lambda rng, n: _without_group_means(rng.standard_normal(n)),
    "heavy tails": lambda rng, n: rng.standard_normal(n) ** 9,
    "mostly zero": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 0.01),
    "one large": lambda rng, n: np.where(np.arange(n) == n // 2, 1e6, 1.0) * rng.standard_normal(n),
    "zero": lambda rng, n: np.zeros(n),
}


@settings(deadline=None, max_examples=250)
@given(
    shape=st.sampled_from(list(SHAPES)),
    length=st.sampled_from([1, 3, 255, 256, 300, 5_000, 20_000]),
    powers=st.lists(st.integers(-44, 30), min_size=2, max_size=4),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_rounding_alone_never_raises_an_alarm(
    shape: str, length: int, powers: list[int], seed: int, data: st.DataObject
) -> None:
    """Two to four summands of any scale from subnormal to 1e30, added in any order.

    20,000 elements of one magnitude and alternating signs are left out: their errors of rounding all point the same
    way, though their groups' sums are 0. The documents name this limit.
    """
    assume(shape != "alternating" or length <= 5_000)
    rng = np.random.default_rng(seed)
    with np.errstate(under="ignore"):
        vectors = [SHAPES[shape](rng, length) * 10.0**power for power in powers]
        summands = [torch.from_numpy(vector.astype(np.float32)) for vector in vectors]
    order = data.draw(st.permutations(range(len(summands))))
    assert judged(summands, added(summands, order))


@pytest.mark.parametrize("power", [-45, -40, -30, -20, 18, 25, 35])
def test_summands_that_cancel_raise_no_alarm(power: int) -> None:
    """x + (-x) = 0 exactly, also where squares or partial sums leave float32's range."""
    values = torch.full((1000,), 10.0).pow(power) * torch.linspace(1.0, 2.0, 1000)
    assert judged([values, -values], torch.zeros(1000))


def test_a_large_sum_of_one_sign_raises_no_alarm() -> None:
    """A million elements whose errors of rounding all point the same way."""
    values = torch.full((1_000_000,), 0.1)
    assert judged([values, values * 3.0, values * 7.0], added([values, values * 3.0, values * 7.0], (0, 1, 2)))


# ── what is not finite ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [3, 290])
def test_what_was_put_in_and_is_not_finite_must_come_out_so(bad: float, at: int) -> None:
    """In a whole group or behind them: the step is then skipped on all ranks; a finite sum would be wrong."""
    one, other = torch.ones(300), torch.ones(300)
    one[at] = bad
    assert judged([one, other], one + other)
    assert not judged([one, other], torch.full((300,), 2.0))


def test_infinities_that_cancel_come_out_as_nan() -> None:
    """Not finite went in, not finite came out."""
    one, other = torch.ones(300), torch.ones(300)
    one[0], other[0] = math.inf, -math.inf
    assert judged([one, other], one + other)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_finite_summands_do_not_come_out_as_something_else(bad: float) -> None:
    """An infinity of ordinary gradients is damage."""
    reduced = torch.full((300,), 2.0)
    reduced[7] = bad
    assert not judged([torch.ones(300), torch.ones(300)], reduced)


def test_finite_summands_near_the_largest_number_may_overflow() -> None:
    """2e38 + 2e38 is an infinity and nobody's fault: the step is skipped."""
    values = torch.full((300,), 2e38)
    assert judged([values, values], values + values)


# ── what is seen ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("length", [200, 5_000, 100_000])
def test_a_huge_flipped_element_does_not_excuse_itself(length: int) -> None:
    """The highest bit of an exponent in what came out: its own size is not asked for the tolerance."""
    rng = np.random.default_rng(length)
    summands = [torch.from_numpy(rng.standard_normal(length, dtype=np.float32)) for _ in range(2)]
    for element in range(0, length, length // 10):
        reduced = added(summands, (0, 1))
        flip_bit(reduced, element, 30)
        assert not judged(summands, reduced)


def test_a_lost_or_doubled_part_is_seen() -> None:
    """256 elements of which the ranks' sum is not zero: left out, or added twice."""
    rng = np.random.default_rng(0)
    summands = [torch.from_numpy(rng.standard_normal(10_000, dtype=np.float32)) + 0.1 for _ in range(3)]
    reduced = added(summands, (0, 1, 2))
    lost, doubled = reduced.clone(), reduced.clone()
    lost[512:768] = 0.0
    doubled[512:768] *= 2.0
    assert judged(summands, reduced)
    assert not judged(summands, lost) and not judged(summands, doubled)


def test_a_summand_that_never_arrived_is_seen() -> None:
    """The whole vector of one rank."""
    rng = np.random.default_rng(0)
    summands = [torch.from_numpy(rng.standard_normal(10_000, dtype=np.float32)) for _ in range(3)]
    assert not judged(summands, added(summands, (0, 2)))


@pytest.mark.parametrize("power", [-30, -22, -5, 18, 25, 31])
def test_a_huge_flipped_element_is_seen_at_any_scale(power: int) -> None:
    """Also where squares leave float32's range: an overflow of the tolerance would let everything pass."""
    rng = np.random.default_rng(0)
    summands = [torch.from_numpy((rng.standard_normal(5_000) * 10.0**power).astype(np.float32)) for _ in range(2)]
    reduced = added(summands, (0, 1))
    assert judged(summands, reduced)
    reduced[2_345] = 1e5 * summands[0].abs().max()
    assert not judged(summands, reduced)
