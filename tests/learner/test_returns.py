"""GAE on canonical rows: golden numbers of the cases, and a naive reference that knows only whole episodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.fragment import End
from learner.moments import Moments
from learner.returns import generalised_advantages, normalised

CONTINUES, TERMINATED, TRUNCATED, BROKEN = End


def lane(values: list[float], dtype: Any = np.float32) -> NDArray[Any]:
    """One lane as a column [T, 1]."""
    return np.array(values, dtype=dtype).reshape(-1, 1)


def advantages(
    reward: list[float],
    value: list[float],
    end: list[int],
    valid: list[int],
    *,
    discount: float = 0.99,
    lambda_: float = 1.0,
) -> NDArray[np.float64]:
    """Of one lane, as [T]."""
    columns = lane(reward), lane(value), lane(end, np.uint8), lane(valid, np.uint8)
    return generalised_advantages(*columns, discount=discount, lambda_=lambda_)[:, 0]


# ── C01 ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
def test_a_time_limit_bootstraps_from_the_final_observation(lambda_: float) -> None:
    """C01: reward 1, γ 0.99, critic 100 everywhere, cut after 5 steps: the return is 100 on every row."""
    end = [CONTINUES] * 4 + [TRUNCATED, CONTINUES]
    got = advantages([1.0] * 5 + [0.0], [100.0] * 7, end, [1] * 5 + [0], lambda_=lambda_)
    assert (got[:5] + 100.0).tolist() == pytest.approx([100.0] * 5, abs=1e-12)


def test_a_termination_is_worth_nothing_afterwards() -> None:
    """C01: the same rewards, terminated: 1 + 0.99 + ... + 0.99⁴ = 4.90099501 on the first row, 1 on the last."""
    got = advantages([1.0] * 5 + [0.0], [100.0] * 7, [CONTINUES] * 4 + [TERMINATED, CONTINUES], [1] * 5 + [0])
    assert (got[0] + 100.0, got[4] + 100.0) == pytest.approx((4.90099501, 1.0), abs=1e-12)


def test_the_bootstrap_is_the_value_of_the_final_observation_and_of_no_other() -> None:
    """C01: markers: V is 1, 2 before the two actions, 50 of the final observation, 900 of the reset after it."""
    got = advantages(
        [0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 50.0, 900.0, 900.0], [CONTINUES, TRUNCATED, CONTINUES, CONTINUES], [1, 1, 0, 1]
    )
    assert got[1] == pytest.approx(0.99 * 50.0 - 2.0)
    assert got[0] == pytest.approx(0.99 * 0.99 * 50.0 - 1.0)


def test_a_fragment_that_ends_inside_an_episode_bootstraps_from_its_last_value() -> None:
    """Row T-1 continues: V(obs[T]) stands for all that follows."""
    got = advantages([1.0, 2.0], [10.0, 20.0, 30.0], [CONTINUES, CONTINUES], [1, 1], discount=0.5)
    assert got.tolist() == pytest.approx([1.0 + 0.5 * 2.0 + 0.25 * 30.0 - 10.0, 2.0 + 0.5 * 30.0 - 20.0])


def test_lambda_weighs_one_step_errors() -> None:
    """By hand: γ 0.5, λ 0.5, δ = (1 + 0.5·2 - 4, 3 + 0 - 2) = (-2, 1); A = (-2 + 0.25, 1)."""
    got = advantages([1.0, 3.0], [4.0, 2.0, 7.0], [CONTINUES, TERMINATED], [1, 1], discount=0.5, lambda_=0.5)
    assert got.tolist() == [-1.75, 1.0]


def test_a_broken_episode_is_cut_without_a_bootstrap() -> None:
    """Its rows are invalid and zero; the rows of the next episode do not reach back through them."""
    got = advantages(
        [5.0, 5.0, 1.0], [1.0, 2.0, 3.0, 4.0], [CONTINUES, BROKEN, TERMINATED], [0, 0, 1], discount=1.0, lambda_=1.0
    )
    assert got.tolist() == [0.0, 0.0, -2.0]


# ── C02, C16 ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e38])
def test_nothing_of_an_invalid_row_leaks(garbage: float) -> None:
    """C02: whatever its reward is, every valid row is the same to the last bit, and its own advantage is 0."""

    def with_reward(filler: float) -> NDArray[np.float64]:
        end = [CONTINUES, TERMINATED, CONTINUES, CONTINUES]
        return advantages([1.0, 2.0, filler, 3.0], [0.5, 0.25, 7.0, 1.0, 2.0], end, [1, 1, 0, 1])

    got = with_reward(garbage)
    assert got.tobytes() == with_reward(0.0).tobytes()
    assert got[2] == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("end", [TERMINATED, TRUNCATED])
def test_a_bad_reward_stays_in_its_episode(bad: float, end: End) -> None:
    """C16: the episode before the bad one is the same to the last bit: a cut is no multiplication by zero."""

    def first_episode(reward: float) -> bytes:
        ends = [CONTINUES, end, CONTINUES, CONTINUES]
        return advantages([1.0, 2.0, 0.0, reward], [0.5, 0.25, 7.0, 1.0, 2.0], ends, [1, 1, 0, 1])[:2].tobytes()

    assert first_episode(bad) == first_episode(3.0)


# ── the naive reference ──────────────────────────────────────────────────────────────────────────────────────────


def naive(
    reward: list[float], value: list[float], end: list[int], valid: list[int], discount: float, lambda_: float
) -> list[float]:
    """Episode by episode, each advantage an exactly rounded sum of its one-step errors (math.fsum)."""
    result = [0.0] * len(reward)
    for t in range(len(reward)):
        if not valid[t]:
            continue
        terms, weight = [], 1.0
        for k in range(t, len(reward)):
            if not valid[k]:
                break
            ahead = value[k + 1] if end[k] in (CONTINUES, TRUNCATED) else 0.0
            terms += [weight * reward[k], weight * discount * ahead, -weight * value[k]]
            weight *= discount * lambda_
            if end[k] != CONTINUES:
                break
        result[t] = math.fsum(terms)
    return result


@st.composite
def lanes(draw: st.DrawFn) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """T rows of B lanes with any pattern of ends and invalid rows (a broken row is never valid)."""
    rows, width = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    number = st.floats(-100, 100, width=32)
    shape = st.lists(st.tuples(number, number, st.sampled_from(list(End)), st.booleans()), min_size=rows * width)
    cells = draw(shape)[: rows * width]
    reward = np.array([cell[0] for cell in cells], np.float32).reshape(rows, width)
    last = draw(st.lists(number, min_size=width, max_size=width))
    value = np.array([*(cell[1] for cell in cells), *last], np.float32).reshape(rows + 1, width)
    end = np.array([cell[2] for cell in cells], np.uint8).reshape(rows, width)
    valid = np.array([cell[3] for cell in cells], np.uint8).reshape(rows, width)
    valid[end == BROKEN] = 0
    return reward, value, end, valid


@settings(deadline=None, max_examples=120)
@given(lanes(), st.sampled_from([0.0, 0.5, 0.99, 1.0]), st.sampled_from([0.0, 0.95, 1.0]))
def test_the_recursion_equals_the_sum_over_each_episode(
    rows: tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]], discount: float, lambda_: float
) -> None:
    """Against math.fsum in float64, lane by lane, to 1e-12 of the largest number that can occur."""
    reward, value, end, valid = rows
    got = generalised_advantages(reward, value, end, valid, discount=discount, lambda_=lambda_)
    assert got.dtype == np.float64
    for b in range(reward.shape[1]):
        columns = [array[:, b].tolist() for array in (reward, value, end, valid)]
        expected = naive(*columns, discount, lambda_)
        np.testing.assert_allclose(got[:, b], expected, rtol=0, atol=1e-12 * 300 * len(expected))


# ── normalisation ────────────────────────────────────────────────────────────────────────────────────────────────


def normalised_alone(advantage: NDArray[np.float64]) -> NDArray[np.float64]:
    """By the moments of these rows and no others."""
    return normalised(advantage, Moments.of(advantage))


def test_advantages_become_mean_zero_and_deviation_one() -> None:
    """Population deviation, by hand: (1, 2, 3) has √(2/3)."""
    got = normalised_alone(np.array([1.0, 2.0, 3.0]))
    assert got.tolist() == pytest.approx([-math.sqrt(1.5), 0.0, math.sqrt(1.5)], rel=1e-7)


@pytest.mark.parametrize("advantage", [[], [7.0]])
def test_fewer_than_two_rows_are_returned_unchanged(advantage: list[float]) -> None:
    """C14: one row has no deviation to divide by."""
    assert normalised_alone(np.array(advantage)).tolist() == advantage


@settings(deadline=None, max_examples=60)
@given(st.floats(-1e30, 1e30), st.integers(2, 500))
def test_equal_rows_become_zero_whatever_their_size(value: float, count: int) -> None:
    """C14: the rounding of a mean is not blown up to an advantage."""
    assert not normalised_alone(np.full(count, value)).any()


def test_rows_of_one_rank_are_normalised_by_the_moments_of_all() -> None:
    """By hand: mean 2, deviation 2 of some other rows: 4 becomes 1, and a row alone is normalised too."""
    moments = Moments(count=4.0, mean=2.0, squares=16.0)
    assert normalised(np.array([4.0]), moments, epsilon=0.0).tolist() == [1.0]
