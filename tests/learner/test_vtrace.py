"""V-trace on canonical rows: numbers by hand, the paper's sums written out, and what becomes of it on-policy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.fragment import End
from learner.returns import VTrace, generalised_advantages, vtrace

CONTINUES, TERMINATED, TRUNCATED, BROKEN = End


def lane(values: list[float], dtype: Any = np.float64) -> NDArray[Any]:
    """One lane as a column [T, 1]."""
    return np.array(values, dtype=dtype).reshape(-1, 1)


def one(
    ratio: list[float],
    reward: list[float],
    value: list[float],
    end: list[int],
    valid: list[int] | None = None,
    **numbers: float,
) -> tuple[list[float], list[float]]:
    """Targets and advantages of one lane; γ 0.5 unless said otherwise."""
    columns = lane(end, np.uint8), lane(valid or [1] * len(end), np.uint8)
    trace = vtrace(lane(ratio), lane(reward), lane(value), *columns, **({"discount": 0.5} | numbers))
    return trace.target[:, 0].tolist(), trace.advantage[:, 0].tolist()


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_rows_by_hand() -> None:
    """V = 4, 2 and 8 after them. δ = (1 + 1 - 4, 0.5 (3 + 4 - 2)) = (-2, 2.5); vs = (4 - 2 + 0.5 · 2.5, 4.5).

    A = (1 + 0.5 · 4.5 - 4, 0.5 · 5): the next target where there is one, behind the last row its value.
    """
    target, advantage = one([2.0, 0.5], [1.0, 3.0], [4.0, 2.0, 8.0], [CONTINUES, CONTINUES])
    assert target == [3.25, 4.5]
    assert advantage == [-0.75, 2.5]


def test_each_bound_has_its_place() -> None:
    """Ratio 3: ρ̄ = 2 bounds the error, c̄ = 0.5 the trace, the third the gradient's weight; λ scales the trace too.

    Errors (1 + 1 - 4, 3 - 2) = (-2, 1): vs_1 = 2 + 2 · 1, vs_0 = 4 - 4 + ½ · ½ · ¼ · 2, A_0 = 3 (-2 + ½ · ¼ · 2).
    """
    bounds = {"rho_clip": 2.0, "c_clip": 0.5, "pg_rho_clip": 5.0, "lambda_": 0.25}
    target, advantage = one([3.0, 3.0], [1.0, 3.0], [4.0, 2.0, 8.0], [CONTINUES, TERMINATED], **bounds)
    assert target == [0.125, 4.0]
    assert advantage == [3.0 * (-2.0 + 0.25), 3.0]


def test_the_worked_example_of_the_docstring() -> None:
    """γ = 1, V = 0, rewards 1, 1 and termination, ratios 2 and 0.5."""
    got = one([2.0, 0.5], [1.0, 1.0], [0.0] * 3, [CONTINUES, TERMINATED], discount=1.0)
    assert got == ([1.5, 0.5], [1.5, 0.5])


@pytest.mark.parametrize(("end", "after"), [(TERMINATED, 0.0), (TRUNCATED, 50.0), (CONTINUES, 50.0)])
def test_only_a_termination_has_nothing_behind_it(end: End, after: float) -> None:
    """The last row: 1 + 0.5 V(o_1), or 1."""
    target, advantage = one([1.0], [1.0], [3.0, 50.0], [end])
    assert target == [1.0 + 0.5 * after]
    assert advantage == [1.0 + 0.5 * after - 3.0]


def test_a_broken_row_has_no_target_of_its_own() -> None:
    """It is invalid: vs = V, no advantage, and the row before it stands on its value."""
    target, advantage = one([1.0, 9.0], [1.0, 7.0], [3.0, 20.0, 50.0], [CONTINUES, BROKEN], [1, 0])
    assert target == [11.0, 20.0]
    assert advantage == [8.0, 0.0]


def test_a_truncated_row_is_worth_the_value_of_the_final_observation() -> None:
    """Rewards 1, critic 0 but 10 of the final observation, then a new episode that fares badly, γ 1.

    Read naively, as if row 2 were a step like any other, the truncated row would learn from the next episode: its
    advantage would be off by more than 4.
    """
    ratio, reward, value = [1.0] * 4, [1.0, 1.0, 0.0, -5.0], [0.0, 0.0, 10.0, 0.0, 0.0]
    end, valid = [CONTINUES, TRUNCATED, CONTINUES, TERMINATED], [1, 1, 0, 1]
    target, advantage = one(ratio, reward, value, end, valid, discount=1.0)
    assert target == [12.0, 11.0, 10.0, -5.0]
    assert advantage == [12.0, 11.0, 0.0, -5.0]
    naive = reward[1] + (reward[2] + reward[3])  # r_1 + vs_2, where vs_2 goes on into the next episode
    assert abs(naive - advantage[1]) > 4.0


# ── identities ───────────────────────────────────────────────────────────────────────────────────────────────────


def naive(
    ratio: list[float],
    reward: list[float],
    value: list[float],
    end: list[int],
    valid: list[int],
    numbers: dict[str, float],
) -> tuple[list[float], list[float]]:
    """Eq. 1 as it is printed, a sum over products for each row; an exactly rounded sum in float64."""
    discount, lambda_ = numbers["discount"], numbers["lambda_"]

    def error(t: int) -> float:
        ahead = value[t + 1] if end[t] in (CONTINUES, TRUNCATED) else 0.0
        return reward[t] + discount * ahead - value[t]

    def target(s: int) -> float:
        terms = [value[s]]
        for t in range(s, len(reward)):
            if not valid[t]:
                break
            traces = [lambda_ * min(numbers["c_clip"], ratio[i]) for i in range(s, t)]
            terms.append(discount ** (t - s) * math.prod(traces) * min(numbers["rho_clip"], ratio[t]) * error(t))
            if end[t] != CONTINUES:
                break
        return math.fsum(terms)

    def advantage(t: int) -> float:
        if not valid[t]:
            return 0.0
        inside = end[t] == CONTINUES and t + 1 < len(reward)
        ahead = lambda_ * (target(t + 1) - value[t + 1]) if inside else 0.0
        return min(numbers["pg_rho_clip"], ratio[t]) * (error(t) + discount * ahead)

    rows = range(len(reward))
    return [target(t) for t in rows], [advantage(t) for t in rows]


@st.composite
def lanes(draw: st.DrawFn) -> tuple[NDArray[Any], ...]:
    """T rows of B lanes: ratios from nearly 0 to 50, any pattern of ends and invalid rows (broken is never valid)."""
    rows, width = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    number = st.floats(-10, 10, width=32)
    cell = st.tuples(st.floats(-6, 4), number, number, st.sampled_from(list(End)), st.booleans())
    cells = draw(st.lists(cell, min_size=rows * width, max_size=rows * width))
    last = draw(st.lists(number, min_size=width, max_size=width))
    columns = [np.array([each[i] for each in cells]).reshape(rows, width) for i in range(5)]
    ratio, reward, value = np.exp(columns[0]), columns[1], np.concatenate([columns[2], [last]])
    end, valid = columns[3].astype(np.uint8), columns[4].astype(np.uint8)
    valid[end == BROKEN] = 0
    return ratio, reward, value, end, valid


@settings(deadline=None, max_examples=150)
@given(
    lanes(),
    st.fixed_dictionaries(
        {
            "discount": st.sampled_from([0.0, 0.9, 0.99, 1.0]),
            "lambda_": st.sampled_from([0.0, 0.95, 1.0]),
            "rho_clip": st.sampled_from([0.5, 1.0, 3.0]),
            "c_clip": st.sampled_from([0.5, 1.0, 1.5]),
            "pg_rho_clip": st.sampled_from([1.0, 2.0]),
        }
    ),
)
def test_the_recursion_equals_the_sum_over_products(rows: tuple[NDArray[Any], ...], numbers: dict[str, float]) -> None:
    """Lane by lane, ends anywhere, to 1e-6 of a million times as much."""
    got = vtrace(*rows, **numbers)
    assert (got.target.dtype, got.advantage.dtype) == (np.float64, np.float64)
    for b in range(rows[0].shape[1]):
        target, advantage = naive(*[array[:, b].tolist() for array in rows], numbers)
        np.testing.assert_allclose(got.target[:, b], target, rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(got.advantage[:, b], advantage, rtol=1e-9, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(lanes(), st.sampled_from([0.9, 1.0]), st.sampled_from([0.0, 0.95, 1.0]))
def test_on_policy_it_is_generalised_advantage_estimation(
    rows: tuple[NDArray[Any], ...], discount: float, lambda_: float
) -> None:
    """Ratio 1: advantages are GAE(λ), with λ = 1 n-step returns, and targets are V plus that."""
    _, reward, value, end, valid = rows
    got = vtrace(np.ones_like(reward), reward, value, end, valid, discount=discount, lambda_=lambda_)
    expected = generalised_advantages(reward, value, end, valid, discount=discount, lambda_=lambda_)
    np.testing.assert_allclose(got.advantage, expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(got.target, value[:-1] + expected, rtol=0, atol=1e-9)


def test_on_policy_targets_are_n_step_returns() -> None:
    """Rewards 1, 2, 4, γ 0.5, V 16 behind: 1 + 1 + 1 + 2, 2 + 2 + 4, 4 + 8."""
    target, _ = one([1.0] * 3, [1.0, 2.0, 4.0], [5.0, 6.0, 7.0, 16.0], [CONTINUES] * 3)
    assert target == [5.0, 8.0, 12.0]


# ── what is not finite ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e300])
def test_nothing_of_an_invalid_row_leaks(garbage: float) -> None:
    """Whatever its reward and ratio are, all rows are the same to the last bit."""

    def with_filler(reward: float, ratio: float) -> VTrace:
        columns = lane([1.0, 2.0, ratio, 0.5]), lane([1.0, 2.0, reward, 3.0]), lane([0.5, 0.25, 7.0, 1.0, 2.0])
        end, valid = lane([CONTINUES, TERMINATED, CONTINUES, CONTINUES], np.uint8), lane([1, 1, 0, 1], np.uint8)
        return vtrace(*columns, end, valid, discount=0.99)

    got, clean = with_filler(garbage, garbage), with_filler(0.0, 1.0)
    assert (got.target.tobytes(), got.advantage.tobytes()) == (clean.target.tobytes(), clean.advantage.tobytes())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("end", [TERMINATED, TRUNCATED])
def test_a_bad_reward_stays_in_its_episode(bad: float, end: End) -> None:
    """The episode before it, its invalid row included, is the same to the last bit: no multiplication by zero."""

    def first_episode(reward: float) -> list[list[float]]:
        ends = [CONTINUES, end, CONTINUES, CONTINUES]
        got = one([1.0] * 4, [1.0, 2.0, 0.0, reward], [0.5, 0.25, 7.0, 1.0, 2.0], ends, [1, 1, 0, 1])
        return [column[:3] for column in got]

    assert first_episode(bad) == first_episode(3.0)


def test_an_infinite_ratio_is_bounded_like_any_large_one() -> None:
    """exp of a large difference overflows; what is bounded does not care."""
    rows = [1.0, 3.0], [4.0, 2.0, 8.0], [CONTINUES, CONTINUES]
    assert one([math.inf, 0.5], *rows) == one([2.0, 0.5], *rows)
