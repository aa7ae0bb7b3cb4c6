"""Moments of numbers on several ranks: merged they are those of all numbers together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.moments import Moments

NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), max_size=40)


def test_moments_by_hand() -> None:
    """(1, 2, 6): mean 3, squares 4 + 1 + 9, variance 14/3."""
    moments = Moments.of(np.array([1.0, 2.0, 6.0]))
    assert (moments.count, moments.mean, moments.squares) == (3.0, 3.0, 14.0)
    assert moments.variance == pytest.approx(14 / 3)
    assert moments.deviation == pytest.approx(math.sqrt(14 / 3))


def test_merging_by_hand() -> None:
    """(1, 3) and (8): mean 4, squares 9 + 1 + 16; neither part alone has them, nor has their mean."""
    merged = Moments.merged([Moments.of(np.array([1.0, 3.0])), Moments.of(np.array([8.0]))])
    assert (merged.count, merged.mean, merged.squares) == (3.0, 4.0, 26.0)


@settings(deadline=None, max_examples=100)
@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_merged_moments_are_those_of_all_numbers(parts: list[list[float]]) -> None:
    """Against exactly rounded sums, whatever the split, empty parts included."""
    merged = Moments.merged([Moments.of(np.array(part, np.float32)) for part in parts])
    numbers = [number for part in parts for number in part]
    mean = math.fsum(numbers) / len(numbers) if numbers else 0.0
    squares = math.fsum((number - mean) ** 2 for number in numbers)
    largest = max(map(abs, numbers), default=0.0)
    assert merged.count == len(numbers)
    assert merged.mean == pytest.approx(mean, abs=1e-13 * largest)
    assert merged.squares == pytest.approx(squares, abs=1e-12 * largest**2 * len(numbers))


@settings(deadline=None, max_examples=60)
@given(st.floats(-1e30, 1e30), st.lists(st.integers(0, 300), min_size=1, max_size=4))
def test_equal_numbers_have_no_spread_however_they_are_split(value: float, counts: list[int]) -> None:
    """Their mean is their value exactly: no rounding is blown up to an advantage."""
    merged = Moments.merged([Moments.of(np.full(count, value)) for count in counts])
    assert merged.squares == 0.0
    assert merged.mean == (value if sum(counts) else 0.0)


def test_no_numbers_have_moments_of_zero() -> None:
    """Nothing is divided by their count."""
    nothing = Moments.merged([Moments.of(np.zeros(0)), Moments.of(np.zeros(0))])
    assert (nothing.count, nothing.mean, nothing.variance, nothing.deviation) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_spoils_the_moments_of_all(bad: float) -> None:
    """And warns nobody: the gradient step that it spoils is skipped on every rank."""
    merged = Moments.merged([Moments.of(np.array([1.0, 2.0])), Moments.of(np.array([3.0, bad]))])
    assert not math.isfinite(merged.mean) and math.isnan(merged.deviation)


def test_numbers_for_an_exchange_come_back() -> None:
    """Count, mean, squares, in this order."""
    moments = Moments(count=3.0, mean=-0.1, squares=14.0)
    assert moments.to_numbers() == [3.0, -0.1, 14.0]
    assert Moments.from_numbers(moments.to_numbers()) == moments
