"""What environments may return, and what happens when they return something else."""

from __future__ import annotations

import itertools
import pickle
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from common.errors import ContractError, TruestepError
from common.fragment import End
from tests.actors.env_driving import Transition, lanes_of, transitions
from tests.envs.endings import EndingEnv
from tests.envs.faulty import OUTCOMES

SOUND = ("int_reward", "scalar_array_reward", "bool_reward", "numpy_flags", "narrow_obs")
BREACHES = {
    "float64_obs": ("obs", "float64"),
    "shape_obs": ("obs", "(3, 1)"),
    "none_obs": ("obs", "None"),
    "reward_of_shape_1": ("reward", "shape (1,)"),
    "text_reward": ("reward", "str"),
    "none_reward": ("reward", "None"),
    "int_flag": ("terminated", "int"),
    "none_info": ("info of step", "NoneType"),
    "four_values": ("step", "a tuple of 4"),
    "none": ("step", "NoneType"),
    "partial_reset": ("reset", "ndarray"),
}


@pytest.mark.parametrize("mode", SOUND)
def test_lossless_values_are_converted(mode: str) -> None:
    """Integer, bool and 0-d array rewards, numpy flags and a narrower float are what they stand for."""
    rows = transitions(lanes_of("WrongDtype", kwargs={"mode": mode}), 4, lambda lane, n: 0)[0]
    assert rows[1] == rows[0] == Transition({"obs": [1, 2, 3]}, 0, 1.0, End.CONTINUES, {"obs": [1, 2, 3]})


def breach(vectorise: str, mode: str) -> str:
    lanes = lanes_of("WrongDtype", 2, index=3, vectorise=vectorise, kwargs={"mode": mode})
    try:
        with pytest.raises(ContractError) as caught:
            transitions(lanes, 4, lambda lane, n: 0)
    finally:
        lanes.close()
    return str(caught.value)


@pytest.mark.parametrize("mode", BREACHES)
def test_a_broken_promise_names_environment_lane_tick_key_expected_and_got(mode: str) -> None:
    """Wrong dtype, shape, arity or type is an error that says all of it, before anything could cast or broadcast."""
    key, got = BREACHES[mode]
    message = breach("sync", mode)
    tick = 0 if mode == "partial_reset" else 2
    assert f"environment 'tests.envs:truestep-tests/WrongDtype-v0', actor 3, lane 0, tick {tick}: {key};" in message
    assert got in message
    assert "allowed: " in message


@pytest.mark.parametrize("mode", ["float64_obs", "reward_of_shape_1", "none", "partial_reset"])
def test_serial_and_parallel_lanes_break_alike(mode: str) -> None:
    """The message does not depend on which process the environment lives in."""
    assert breach("async", mode) == breach("sync", mode)


def test_every_outcome_is_tested() -> None:
    """No mode of WrongDtypeEnv is left out above."""
    assert {*SOUND, *BREACHES, "good"} == {*OUTCOMES, "partial_reset"}


class OneOffVector(gymnasium.vector.VectorEnv):
    """Two good lanes, but for one of the five values of step."""

    def __init__(self, position: int, value: Any) -> None:
        self.num_envs, self.metadata = 2, {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (3,), np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, 2)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, 2)
        self.outcome = [np.zeros((2, 3), np.uint8), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {}]
        self.outcome[position] = value

    def reset(self, **kwargs: Any) -> Any:
        return np.zeros((2, 3), np.uint8), {}

    def step(self, actions: Any) -> Any:
        return tuple(self.outcome)


@pytest.mark.parametrize(
    ("position", "value", "key"),
    [
        (0, np.full((2, 3), 300, np.int64), "obs"),
        (0, np.zeros((3,), np.uint8), "obs"),
        (1, np.zeros((2, 1)), "reward"),
        (1, [0.0, 0.0], "reward"),
        (2, np.zeros(2, np.int64), "terminated"),
        (3, np.zeros((2, 1), bool), "truncated"),
        (4, None, "infos of step"),
    ],
)
def test_vector_environments_keep_the_same_contract(position: int, value: Any, key: str) -> None:
    """300 for a uint8, a row for a batch, rewards of shape (2, 1), integer flags: refused, never cast or broadcast."""
    name = f"truestep-tests/OneOff{position}-v0"
    gymnasium.registry.pop(name, None)
    maker = partial(OneOffVector, position, value)
    gymnasium.register(name, vector_entry_point=lambda num_envs: maker())
    lanes = lanes_of(name, 2)
    lanes.start()
    with pytest.raises(ContractError, match="tick 1") as caught:
        lanes.step(np.zeros(2, np.int64))
    assert f": {key};" in str(caught.value)


def test_a_vector_environment_must_batch_its_own_spaces() -> None:
    """Batched spaces that do not follow from the single ones are refused before the first step."""

    def make(num_envs: int) -> OneOffVector:
        vector = OneOffVector(4, {})
        vector.action_space = gymnasium.spaces.MultiDiscrete([2, 3])
        return vector

    gymnasium.registry.pop("truestep-tests/OddBatch-v0", None)
    gymnasium.register("truestep-tests/OddBatch-v0", vector_entry_point=make)
    with pytest.raises(ContractError, match="action_space; got MultiDiscrete"):
        lanes_of("truestep-tests/OddBatch-v0", 2)


def test_lanes_of_one_actor_must_share_their_spaces() -> None:
    """An environment whose constructor draws its space is refused with both spaces."""
    lengths = itertools.count(3)

    class Growing(EndingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(0, 1, (next(lengths),), np.float32)

    gymnasium.registry.pop("truestep-tests/Growing-v0", None)
    gymnasium.register("truestep-tests/Growing-v0", entry_point=Growing)
    with pytest.raises(ContractError, match=r"observation_space differs.*\(4,\).*\(3,\)"):
        lanes_of("truestep-tests/Growing-v0", 2)


@pytest.mark.parametrize("field", ["reward", "obs"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("vectorise", ["sync", "own"])
def test_a_non_finite_value_stops_the_run_by_default(field: str, value: float, vectorise: str) -> None:
    """The error names the field, the value, the lane and the tick."""
    options = {"at": 3, "field": field, "value": value}
    with pytest.raises(ContractError, match=f"lane [01],? ?.*{field}") as caught:
        transitions(lanes_of("NaNReward", 2, vectorise=vectorise, kwargs=options), 6, lambda lane, n: 0)
    assert "tick 3" in caught.value.what
    assert repr(value) in (caught.value.got or "")


def test_a_reward_beyond_float32_counts_as_infinite() -> None:
    """1e39 would arrive at the learner as inf; 3e38 arrives as itself."""
    with pytest.raises(ContractError, match="reward; got 1e\\+39"):
        transitions(lanes_of("NaNReward", vectorise="sync", kwargs={"value": 1e39}), 4, lambda lane, n: 0)
    rows = transitions(lanes_of("NaNReward", vectorise="sync", kwargs={"value": 3e38}), 4, lambda lane, n: 0)[0]
    assert rows[2].reward == 3e38


def test_info_is_never_read() -> None:
    """A NaN in info harms nobody."""
    lanes = lanes_of("NaNReward", vectorise="sync", kwargs={"field": "info"})
    assert len(transitions(lanes, 6, lambda lane, n: 0)[0]) == 6


@pytest.mark.parametrize("field", ["reward", "obs"])
@pytest.mark.parametrize("policy", ["drop_episode", "end_episode"])
def test_a_broken_episode_ends_at_the_bad_tick_and_the_next_begins(field: str, policy: str) -> None:
    """The bad tick is BROKEN, invalid, worth 0, and shows the last good observation; the tick after it resets."""
    lanes = lanes_of("NaNReward", vectorise="sync", on_nonfinite=policy, kwargs={"field": field})
    lanes.start()
    ticks = []
    for _ in range(5):
        tick = lanes.step(np.zeros(1, np.int64))
        ticks.append((tick.observation["obs"][0, 0], tick.reward[0], int(tick.end[0]), bool(tick.valid[0])))
    assert ticks == [
        (1, 1, End.CONTINUES, True),
        (2, 1, End.CONTINUES, True),
        (2, 0, End.BROKEN, False),
        (0, 0, End.CONTINUES, False),
        (1, 1, End.CONTINUES, True),
    ]
    assert lanes.broken_episodes == 1
    assert f"actor 0, lane 0, tick 3: {field} is nan" in lanes.first_broken


@pytest.mark.parametrize("vectorise", ["sync", "async"])
def test_a_reset_that_is_not_finite_is_passed_over(vectorise: str) -> None:
    """An episode that begins non-finite is counted and the next one begun in the same tick: no row is made up."""
    options = {"field": "reset", "at": 2, "length": 2}
    lanes = lanes_of("NaNReward", 1, vectorise=vectorise, on_nonfinite="end_episode", kwargs=options)
    rows = transitions(lanes, 8, lambda lane, n: 0)[0]
    lanes.close()
    assert [row.observation["obs"][0] for row in rows] == [0, 1, 0, 1, 0, 1]
    assert lanes.broken_episodes == 1
    assert "tick 3: obs is nan" in lanes.first_broken


@pytest.mark.parametrize("name", ["NaNReward", "NaNRewardSameStep", "NaNRewardDisabled"])
@pytest.mark.parametrize("field", ["reward", "obs", "reset"])
def test_a_vector_environment_breaks_one_lane_once_and_leaves_the_others_alone(name: str, field: str) -> None:
    """One BROKEN tick, then invalid ticks with finite values until that lane's own episode ends; other lanes are bit
    for bit those of a run without the fault."""
    ticks = {}
    for bad in (field, "none"):
        options = {"field": bad, "at": 2 if field == "reset" else 3}
        lanes = lanes_of(name, 3, vectorise="own", on_nonfinite="drop_episode", kwargs=options)
        lanes.start()
        ticks[bad] = []
        for _ in range(20):
            tick = lanes.step(np.zeros(3, np.int64))
            assert np.isfinite(tick.observation["obs"]).all()
            assert not tick.reward[~tick.valid].any()
            ticks[bad].append([tick.observation["obs"].copy(), tick.reward, tick.end, tick.valid])
        assert lanes.broken_episodes == (bad == field)
    for mine, sound in zip(ticks[field], ticks["none"], strict=True):
        for one, other in zip(mine, sound, strict=True):
            assert one[[0, 2]].tobytes() == other[[0, 2]].tobytes()
    ends = [int(end[1]) for _, _, end, _ in ticks[field]]
    valid = [bool(row[1]) for _, _, _, row in ticks[field]]
    assert ends.count(End.BROKEN) == 1
    at = ends.index(End.BROKEN)
    assert End.TERMINATED in ends[at:]
    again = at + ends[at:].index(End.TERMINATED)
    length = 6 if field != "reset" else 12
    assert not any(valid[at : at + 3])
    assert valid[again - 5 : again + 1] == [True] * 6
    assert again > length - 2


def test_errors_pickle_whole() -> None:
    """An error from a child process arrives as the same exception with every field."""
    lanes = lanes_of("WrongDtype", kwargs={"mode": "none"})
    with pytest.raises(TruestepError) as caught:
        transitions(lanes, 4, lambda lane, n: 0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value)
    assert vars(again) == vars(caught.value)
