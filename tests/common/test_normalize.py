"""The stages between environment and algorithm: golden values, invariance to cuts, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.errors import ConfigError, WireError
from common.fragment import End
from common.input_stage import InputStage
from common.nets import NetConfig, make_actor_critic
from common.normalize import InputScale, ProcessingConfig, RunningReturns, discounted_returns, normalised_parts
from common.wire import pack_plain, unpack_plain
from tests.support import box, discrete, space

C, TERMINATED, TRUNCATED, BROKEN = (int(end) for end in End)


# Configuration


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("observation_clip", -1.0),
        ("observation_clip", float("inf")),
        ("reward_clip", float("nan")),
        ("reward_scale", 0.0),
        ("reward_scale", float("inf")),
        ("epsilon", 0.0),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: float) -> None:
    """With the full path of its key."""
    with pytest.raises(ConfigError, match=f"processing.{name}; got"):
        ProcessingConfig(**{name: value})


def test_nothing_to_normalise_is_an_error_that_shows_the_observation() -> None:
    """Images, integers and choices have no floating part; one floating part is enough."""
    config = ProcessingConfig(normalise_observations=True)
    image = box(8, 8, 3, dtype="uint8", low=0, high=255)
    with pytest.raises(ConfigError, match=r"nothing to normalise; got camera uint8\[8, 8, 3\], gear int64\[\]"):
        config.check(space(camera=image, gear=discrete(3)))
    config.check(space(camera=image, speed=box(2)))
    ProcessingConfig().check(space(camera=image))


def test_only_floating_parts_are_normalised() -> None:
    """In the order of the observation."""
    parts = {"b": box(2, dtype="float64"), "i": box(3, dtype="int32"), "c": discrete(2), "a": box(dtype="float16")}
    assert normalised_parts(space(**parts)) == [("b", (2,)), ("a", ())]


# Rewards


def test_rewards_are_scaled_and_then_clipped() -> None:
    """3, -0.5 and 40 by half and within ± 2."""
    config = ProcessingConfig(reward_scale=0.5, reward_clip=2.0)
    assert config.shaped(np.array([3.0, -0.5, 40.0], np.float32)).tolist() == [1.5, -0.25, 2.0]
    assert ProcessingConfig().shaped(np.array([40.0], np.float32)).tolist() == [40.0]


def lane(*rows: tuple[float, int, int]) -> tuple[NDArray[Any], NDArray[np.uint8], NDArray[np.uint8]]:
    """Reward, end and valid of one lane."""
    reward, end, valid = (np.array(each)[:, None] for each in zip(*rows, strict=True))
    return reward.astype(np.float64), end.astype(np.uint8), valid.astype(np.uint8)


def returns_of(*rows: tuple[float, int, int], before: float = 0.0, discount: float = 0.5) -> tuple[list[float], float]:
    """Discounted returns of one lane, and what the next row goes on from."""
    returns, after = discounted_returns(*lane(*rows), np.array([before]), discount)
    return returns[:, 0].tolist(), float(after[0])


def test_the_worked_example() -> None:
    """γ = 0.5, 4 before: 3, 3.5 and the end; nothing; 3 of a new episode."""
    assert returns_of((1, C, 1), (2, TERMINATED, 1), (0, C, 0), (3, C, 1), before=4.0) == ([3.0, 3.5, 0.0, 3.0], 3.0)


@pytest.mark.parametrize("end", [TERMINATED, TRUNCATED, BROKEN])
def test_every_end_cuts(end: int) -> None:
    """A broken row is never valid, and holds what was before it; nothing of it goes on."""
    valid = int(end != BROKEN)
    assert returns_of((8, C, 1), (1, end, valid), (1, C, 1))[0][2] == 1.0
    assert returns_of((8, C, 1), (1, end, valid))[1] == 0.0


def test_rows_for_which_a_lane_had_no_time_leave_its_return_alone() -> None:
    """Invalid rows without an end are padding: the episode goes on in the next fragment."""
    assert returns_of((8, C, 1), (0, C, 0), (0, C, 0))[1] == 8.0


def test_what_is_in_an_invalid_row_reaches_nothing() -> None:
    """NaN in a broken row."""
    assert returns_of((8, C, 1), (np.nan, BROKEN, 0), (1, C, 1)) == ([8.0, 8.0, 1.0], 1.0)


ROW = st.one_of(
    st.tuples(st.floats(-10, 10, width=32), st.sampled_from([C, C, C, TERMINATED, TRUNCATED]), st.just(1)),
    st.tuples(st.just(0.0), st.sampled_from([C, BROKEN]), st.just(0)),
)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(ROW, min_size=2, max_size=30), cut=st.integers(1, 29))
def test_a_border_between_fragments_changes_no_bit(rows: list[tuple[float, int, int]], cut: int) -> None:
    """Two fragments give the returns of one, and an actor that follows them stands where one call does."""
    cut = min(cut, len(rows) - 1)
    whole, after = returns_of(*rows, discount=0.9)
    first, between = returns_of(*rows[:cut], discount=0.9)
    second, end = returns_of(*rows[cut:], before=between, discount=0.9)
    assert (first + second, end) == (whole, after)
    running = RunningReturns(1, ProcessingConfig(), 0.9)
    for part in (rows[:cut], rows[cut:]):
        reward, ends, valid = lane(*part)
        running.follow(reward.astype(np.float32), ends, valid)
    assert running.before.tolist() == [after]


# Observations


OBSERVATION = space(speed=box(2), gear=discrete(3), depth=box(dtype="float64"))
SCALE = InputScale(mean=np.array([1.0, -2.0, 100.0]), factor=np.array([2.0, 0.5, 10.0]), clip=5.0)


def test_the_stage_by_hand() -> None:
    """(x - mean) factor within ± 5, float32; a choice passes."""
    seen = InputStage(OBSERVATION, SCALE)(
        {
            "speed": torch.tensor([[2.0, 2.0], [9.0, -2.0]]),
            "gear": torch.tensor([2, 0]),
            "depth": torch.tensor([100.1, 90.0], dtype=torch.float64),
        }
    )
    assert seen["speed"].tolist() == [[2.0, 2.0], [5.0, 0.0]]
    assert seen["gear"].tolist() == [2, 0] and seen["gear"].dtype == torch.int64
    assert seen["depth"].tolist() == [pytest.approx(1.0), -5.0]
    assert seen["speed"].dtype == seen["depth"].dtype == torch.float32


def test_without_a_clip_nothing_is_cut() -> None:
    """And what came in is not written to."""
    free = InputScale(mean=SCALE.mean, factor=SCALE.factor, clip=0.0)
    given = {"depth": torch.tensor([1e6], dtype=torch.float64), "speed": torch.ones(1, 2)}
    assert InputStage(OBSERVATION, free)(given)["depth"].item() == (1e6 - 100.0) * 10.0
    assert given["depth"].item() == 1e6 and given["speed"].tolist() == [[1.0, 1.0]]


def test_a_large_mean_costs_no_digits() -> None:
    """1e6 + 0.0625 is a float32; its difference from a mean of 1e6 + 0.01 is not one that float32 could form."""
    scale = InputScale(mean=np.array([1e6 + 0.01]), factor=np.array([1.0]), clip=0.0)
    seen = InputStage(space(obs=box(1)), scale)({"obs": torch.tensor([[1e6 + 0.0625]])})["obs"].item()
    assert seen == pytest.approx(0.0525, abs=1e-8)
    assert abs((np.float32(1e6 + 0.0625) - np.float32(1e6 + 0.01)) - 0.0525) > 1e-3


def test_a_row_gives_the_same_bits_alone_and_among_others() -> None:
    """What an actor sees in a tick is what a learner sees in a batch or an unroll."""
    stage, rows = InputStage(OBSERVATION, SCALE), torch.from_numpy(np.random.default_rng(0).normal(size=(6, 4, 2)))
    together = stage({"speed": rows.float()})["speed"]
    for t in range(6):
        for lane in range(4):
            alone = stage({"speed": rows[t, lane][None].float()})["speed"][0]
            assert torch.equal(alone, together[t, lane])


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_network_with_a_stage_is_one_without_that_is_shown_normalised_rows(core: Any) -> None:
    """In all three ways through it."""
    observation, net = space(obs=box(3)), NetConfig(hidden=(8,), core=core, core_size=4)
    model, plain = (make_actor_critic(observation, discrete(2), net, np.random.default_rng(0)) for _ in range(2))
    scale = InputScale(mean=np.array([1.0, 2.0, 3.0]), factor=np.array([0.5, 2.0, 3.0]), clip=1.0)
    model.input_stage = stage = InputStage(observation, scale)
    rows = {"obs": torch.from_numpy(np.random.default_rng(1).normal(size=(5, 2, 3)).astype(np.float32))}
    flat, state = {"obs": rows["obs"].flatten(0, 1)}, torch.zeros(2, net.state_size)
    ways = [
        (model.unroll(rows, state, torch.ones(5, 2)), plain.unroll(stage(rows), state, torch.ones(5, 2))),
        (model.step({"obs": rows["obs"][0]}, state), plain.step(stage({"obs": rows["obs"][0]}), state)),
    ]
    if core == "none":
        ways.append((model(flat), plain(stage(flat))))
    for seen, expected in ways:
        assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_a_scale_travels_as_plain_values() -> None:
    """Bit for bit; no statistics, no scale."""
    plain = unpack_plain(pack_plain(SCALE.to_plain()))
    again = InputScale.from_plain(plain, OBSERVATION)
    assert again is not None and again.clip == 5.0
    assert (again.mean.tobytes(), again.factor.tobytes()) == (SCALE.mean.tobytes(), SCALE.factor.tobytes())
    assert InputScale.from_plain({}, OBSERVATION) is None


@pytest.mark.parametrize(
    "broken",
    [
        {"mean": np.zeros(3), "factor": np.zeros(3)},
        {"mean": np.zeros(2), "factor": np.zeros(3), "clip": 1.0},
        {"mean": np.zeros(3), "factor": np.zeros(3, np.float32), "clip": 1.0},
        {"mean": [0.0, 0.0, 0.0], "factor": np.zeros(3), "clip": 1.0},
        None,
    ],
)
def test_statistics_that_do_not_fit_are_refused(broken: Any) -> None:
    """Missing, of another width or dtype, of another class."""
    with pytest.raises(WireError, match="statistics of weights"):
        InputScale.from_plain({"observation": broken}, OBSERVATION)
