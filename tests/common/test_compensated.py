"""Compensated sums and moments against exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.compensated import Block, NeumaierSum, RunningMoments

UNIT = Fraction(1, 2**53)
TERMS = st.lists(st.floats(-1e12, 1e12, allow_nan=False), min_size=1, max_size=50)


def total(terms: list[float]) -> float:
    """The compensated sum of `terms`."""
    running = NeumaierSum(1)
    for term in terms:
        running.add(np.array([term]))
    return float(running.value()[0])


def test_a_term_larger_than_the_sum_loses_nothing() -> None:
    """Neumaier's example: Kahan's summation gives 0, this one 2."""
    assert total([1.0, 1e100, 1.0, -1e100]) == 2.0


def test_small_rewards_add_up_beside_a_large_sum() -> None:
    """0.1 added to 1e9 a thousand times: correctly rounded, where a plain float64 sum is not."""
    terms = [1e9] + [0.1] * 1000
    exact = float(sum(map(Fraction, terms)))
    assert total(terms) == exact
    plain = 0.0
    for term in terms:
        plain += term
    assert plain != exact


@settings(deadline=None, max_examples=100)
@given(TERMS)
def test_the_error_stays_below_the_stated_bound(terms: list[float]) -> None:
    """u |sum| + (n u)² Σ|term| of Ogita, Rump & Oishi, against fractions."""
    exact = sum(map(Fraction, terms), Fraction(0))
    bound = UNIT * abs(exact) + (len(terms) * UNIT) ** 2 * sum(abs(Fraction(term)) for term in terms)
    assert abs(Fraction(total(terms)) - exact) <= bound * (1 + 4 * UNIT)


def test_sums_of_one_object_do_not_touch_each_other() -> None:
    """Each lane has its own; clearing one leaves the other."""
    running = NeumaierSum(2)
    running.add(np.array([1.0, 1e100]))
    running.add(np.array([2.0, 1.0]))
    running.clear(np.array([True, False]))
    running.add(np.array([0.5, -1e100]))
    assert running.value().tolist() == [0.5, 1.0]


def test_a_sum_goes_on_where_its_state_was_taken() -> None:
    """Both words are saved: without the compensation the small terms would be lost."""
    first = NeumaierSum(1)
    for term in (1e16, 1.0, 1.0):
        first.add(np.array([term]))
    second = NeumaierSum(1)
    second.set_state(first.state())
    second.add(np.array([-1e16]))
    assert second.value().tolist() == [2.0]


def test_what_is_handed_out_is_a_copy() -> None:
    """Neither value nor state alias the running sum, in either direction."""
    running = NeumaierSum(1)
    running.add(np.array([1.0]))
    state = running.state()
    value = running.value()
    running.add(np.array([1.0]))
    assert (value.tolist(), state["sum"].tolist()) == ([1.0], [1.0])
    running.set_state(state)
    state["sum"][:] = 99.0
    assert running.value().tolist() == [1.0]


# ── moments ──────────────────────────────────────────────────────────────────────────────────────────────────────


def column(*values: float) -> NDArray[np.float64]:
    """Rows of one quantity."""
    return np.array(values, np.float64)[:, None]


def merged(blocks: Sequence[NDArray[np.float64]]) -> RunningMoments:
    """Of blocks of rows [N, W], in this order."""
    moments = RunningMoments(blocks[0].shape[1])
    for rows in blocks:
        assert moments.merge(Block.of([rows]))
    return moments


def exact(rows: NDArray[np.floating]) -> tuple[Fraction, Fraction]:
    """Mean and population variance of one quantity, without any rounding."""
    values = [Fraction(float(value)) for value in rows.reshape(-1)]
    mean = sum(values, Fraction()) / len(values)
    return mean, sum(((value - mean) ** 2 for value in values), Fraction()) / len(values)


def test_moments_of_two_blocks_by_hand() -> None:
    """1, 2, 3 and then 5: mean 11 / 4; squared differences 3.0625 + 0.5625 + 0.0625 + 5.0625 = 8.75 over 4 rows."""
    moments = merged([column(1, 2, 3), column(5)])
    assert (moments.count, moments.mean().tolist(), moments.variance().tolist()) == (4.0, [2.75], [2.1875])


def test_of_no_rows_everything_is_zero_and_a_block_of_none_adds_nothing() -> None:
    """An empty block is merged, first, between and last."""
    moments = RunningMoments(1)
    assert (moments.count, moments.mean().tolist(), moments.variance().tolist()) == (0.0, [0.0], [0.0])
    empty = np.zeros((0, 1))
    one, other = merged([empty, column(1, 4), empty, column(7), empty]), merged([column(1, 4), column(7)])
    assert one.numbers.tobytes() == other.numbers.tobytes()


ROWS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60)


@settings(deadline=None, max_examples=60)
@given(rows=ROWS, cuts=st.lists(st.integers(0, 60), max_size=6), offset=st.sampled_from([0.0, 1e3, -1e6]))
def test_however_rows_are_cut_the_moments_are_those_of_exact_arithmetic(
    rows: list[float], cuts: list[int], offset: float
) -> None:
    """To 1e-12, relative; of the variance relative to what rounding of the rows themselves can come to."""
    values = column(*rows) + offset
    blocks = np.split(values, sorted(min(cut, len(rows)) for cut in cuts))
    moments, (mean, variance) = merged(blocks), exact(values)
    largest = float(np.abs(values).max())
    assert abs(Fraction(moments.mean().item()) - mean) <= Fraction(1e-12) * Fraction(max(largest, 1e-300))
    assert abs(Fraction(moments.variance().item()) - variance) <= Fraction(1e-12) * variance + Fraction(1e-300)


def test_what_varies_little_around_a_large_mean_keeps_its_digits() -> None:
    """Deviation 1e-3 around 1e6, 200 blocks: sums of squares would have lost the variance altogether."""
    rows = 1e6 + 1e-3 * np.random.default_rng(0).standard_normal((10_000, 1))
    moments, (mean, variance) = merged(np.split(rows, 200)), exact(rows)
    assert abs(float(Fraction(moments.variance().item()) / variance) - 1.0) < 1e-12
    assert abs(Fraction(moments.mean().item()) - mean) <= Fraction(1, 2**33)  # half a unit in the last place of 1e6
    naive = float(np.square(rows).mean() - rows.mean() ** 2)
    assert abs(naive / float(variance) - 1.0) > 1e-3


def test_the_count_is_exact_where_a_float32_would_stop() -> None:
    """2^24 rows and one more; and after 2^40 a single row still moves the mean."""
    moments = RunningMoments(1)
    block = Block(count=2**24, pivot=np.ones(1), offset=np.zeros(1), squares=np.zeros(1))
    one = Block.of([column(2)])
    assert moments.merge(block) and moments.merge(one)
    assert moments.count == 2**24 + 1 != float(np.float32(2**24) + np.float32(1))
    assert moments.mean().item() == pytest.approx(1.0 + 1.0 / (2**24 + 1), rel=1e-15)
    moments.merge(replace(block, count=2**40))
    before = moments.count, moments.mean().item()
    moments.merge(Block.of([column(1e9)]))
    assert moments.count == before[0] + 1 and moments.mean().item() > before[1]


def test_many_small_merges_lose_nothing() -> None:
    """20,000 blocks of a row each against one block of all of them."""
    rows = np.random.default_rng(1).standard_normal((20_000, 1)) + 3.0
    one, many = merged([rows]), RunningMoments(1)
    for row in rows:
        many.merge(Block(count=1, pivot=row, offset=np.zeros(1), squares=np.zeros(1)))
    assert many.mean().item() == pytest.approx(one.mean().item(), rel=1e-14)
    assert many.variance().item() == pytest.approx(one.variance().item(), rel=1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_what_is_not_finite_is_refused_and_leaves_no_trace(bad: float) -> None:
    """Nor is what would make the statistics so: the square of 1e200 is infinite."""
    moments = merged([column(1, 2), column(4)])
    before = moments.numbers.tobytes()
    assert not moments.merge(Block.of([column(3, bad, 5)]))
    assert moments.numbers.tobytes() == before
    assert moments.merge(Block.of([column(3, 5)]))


def test_quantities_stand_side_by_side_and_do_not_touch_one_another() -> None:
    """Two together give the bits of each alone, in float32 as in float64."""
    rng = np.random.default_rng(2)
    left, right = rng.standard_normal((50, 2)).astype(np.float32), rng.standard_normal((50, 1)) * 1e6
    both, first, second = RunningMoments(3), RunningMoments(2), RunningMoments(1)
    for part in (slice(0, 20), slice(20, 50)):
        both.merge(Block.of([left[part], right[part]]))
        first.merge(Block.of([left[part]]))
        second.merge(Block.of([right[part]]))
    assert both.mean().tolist() == [*first.mean(), *second.mean()]
    assert both.variance().tolist() == [*first.variance(), *second.variance()]


def test_a_block_crosses_an_exchange_unchanged() -> None:
    """Numbers and back: the same merge, bit for bit."""
    block = Block.of([np.random.default_rng(3).standard_normal((7, 2))])
    again = Block.from_numbers(block.to_numbers())
    assert again.count == 7 and again.to_numbers().tobytes() == block.to_numbers().tobytes()


def test_equal_rows_have_their_value_as_mean_and_no_spread() -> None:
    """Also where the sum of them rounds: 0.1 three times, in three blocks of three."""
    moments = merged([column(0.1, 0.1, 0.1)] * 3)
    assert (moments.mean().tolist(), moments.variance().tolist()) == ([0.1], [0.0])
