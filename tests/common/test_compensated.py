"""Compensated sums against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from common.compensated import NeumaierSum

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
