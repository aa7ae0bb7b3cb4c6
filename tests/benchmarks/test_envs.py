"""The benchmark's environments: valid, far from solved by chance, solved by whoever uses all they show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from benchmarks.envs import DELAYED_CUE, DICT_GOAL, PIXEL_CATCH
from benchmarks.envs.delayed_cue import LENGTH, DelayedCueEnv
from benchmarks.envs.dict_goal import DictGoalEnv
from benchmarks.envs.pixel_catch import CELL, SIDE, PixelCatchEnv
from benchmarks.learning import TASKS

EPISODES = 200
Policy = Callable[[Any], int]


def mean_return(env: gymnasium.Env[Any, Any], policy: Policy) -> float:
    """Over EPISODES episodes, seeded once."""
    total = 0.0
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=7 if episode == 0 else None)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(np.int64(policy(observation)))
            total += float(reward)
            over = terminated or truncated
    return total / EPISODES


def under_the_ball(image: np.ndarray) -> int:
    """Read both columns off the pixels and move towards the ball."""
    ball = int(np.flatnonzero(image[: SIDE - CELL, :, 0].any(axis=0))[0]) // CELL
    paddle = int(np.flatnonzero(image[SIDE - CELL :, :, 0].any(axis=0))[0]) // CELL
    return 1 if paddle <= ball <= paddle + 1 else 2 if ball > paddle else 0


def decode(observation: dict[str, Any], *, without: str = "") -> int:
    """Walk towards the coded goal; `without` leaves one part of the observation unread."""
    position = 0 if without == "position" else round((float(observation["position"][0]) + 1.0) * 3.5)
    goal = 0 if without == "goal" else int("".join(map(str, observation["goal"])), 2)
    reversed_ = without != "wiring" and bool(observation["wiring"])
    side = int(np.sign(goal - position))
    return 1 + (-side if reversed_ else side)


def random_policy(num_actions: int) -> Policy:
    generator = np.random.default_rng(3)
    return lambda observation: int(generator.integers(num_actions))


@pytest.mark.parametrize("make", [PixelCatchEnv, DictGoalEnv, DelayedCueEnv])
def test_keeps_gymnasiums_contract(make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
    """Gymnasium's own checker finds nothing wrong."""
    check_env(make(), skip_render_check=True)


@pytest.mark.parametrize("env_id", [PIXEL_CATCH, DICT_GOAL, DELAYED_CUE])
def test_is_registered(env_id: str) -> None:
    """The id that names its module can be made."""
    env = gymnasium.make(env_id)
    assert env.spec is not None and env_id.endswith(env.spec.id)
    env.close()


def test_pixel_catch_is_solved_by_following_the_ball() -> None:
    """Every ball can be caught in time, by the image alone."""
    assert mean_return(PixelCatchEnv(), under_the_ball) == 1.0


def test_pixel_catch_is_not_solved_by_chance() -> None:
    """A random paddle misses most balls: 2 of 12 columns are covered, an expectation of about -0.67."""
    assert mean_return(PixelCatchEnv(), random_policy(3)) < -0.4


def test_pixel_catch_falls_eleven_steps() -> None:
    """The reward comes with the last of 11 steps and with no other."""
    env = PixelCatchEnv()
    env.reset(seed=0)
    steps = [env.step(np.int64(1))[1:3] for _ in range(11)]
    assert [over for _, over in steps] == [False] * 10 + [True]
    assert [abs(reward) for reward, _ in steps] == [0.0] * 10 + [1.0]


def test_pixel_catch_shows_the_whole_paddle() -> None:
    """It is drawn inside the image wherever an episode begins and however long it is pushed against a wall."""
    env = PixelCatchEnv()
    for seed in range(50):
        images = [env.reset(seed=seed)[0]] + [env.step(np.int64(2 * (seed % 2)))[0] for _ in range(10)]
        assert {int((image[-1] == 255).sum()) for image in images} == {2 * CELL}


def test_dict_goal_is_solved_by_decoding_all_parts() -> None:
    """A policy that reads every part wastes no step."""
    assert mean_return(DictGoalEnv(), decode) == 1.0


@pytest.mark.parametrize("part", ["position", "goal", "wiring"])
def test_dict_goal_needs_each_part(part: str) -> None:
    """Whoever leaves one part of the observation unread stays below the line."""
    assert mean_return(DictGoalEnv(), lambda seen: decode(seen, without=part)) < TASKS["DictGoal-v0"].at_least - 0.5


def test_dict_goal_is_not_solved_by_chance() -> None:
    """A random walk stays far below the line."""
    assert mean_return(DictGoalEnv(), random_policy(3)) < TASKS["DictGoal-v0"].at_least - 1.0


def test_dict_goal_by_hand() -> None:
    """From cell 0 to goal 1 with reversed controls: into the wall, a stop on the way, there, and stop."""
    env = DictGoalEnv()
    env.reset(seed=0)
    env.position, env.goal, env.wiring = 0, 1, 1
    steps = [env.step(np.int64(action))[1:4] for action in (2, 1, 0, 1)]
    assert steps == [(-0.2, False, False), (-0.2, False, False), (0.0, False, False), (1.0, True, False)]


def test_dict_goal_is_truncated() -> None:
    """Twelve wasted steps and it is over, without having ended by itself."""
    env = DictGoalEnv()
    env.reset(seed=0)
    env.position, env.goal = 0, 5
    ends = [env.step(np.int64(1))[2:4] for _ in range(12)]
    assert ends == [(False, False)] * 11 + [(False, True)]


def test_dict_goal_ends_once() -> None:
    """A stop on the goal in the twelfth step is a termination and no truncation."""
    env = DictGoalEnv()
    env.reset(seed=0)
    env.position = env.goal = 0
    env.steps = 11
    assert env.step(np.int64(1))[1:4] == (1.0, True, False)


class Remembering:
    """Keeps the cue of the first observation."""

    def __init__(self) -> None:
        self.cue = 0

    def __call__(self, observation: Any) -> int:
        if observation[0]:
            self.cue = int(observation[0] > 0)
        return self.cue


def test_delayed_cue_is_solved_by_memory() -> None:
    """Of the first observation."""
    assert mean_return(DelayedCueEnv(), Remembering()) == 1.0


def test_delayed_cue_shows_the_cue_once_and_no_time() -> None:
    """Observations 1 to 22 are all alike, and so is the last one of every episode, whatever the cue was."""
    env, seen = DelayedCueEnv(), set()
    for seed in range(8):
        first, _ = env.reset(seed=seed)
        later = [env.step(np.int64(0))[0] for _ in range(LENGTH - 1)]
        assert first.tolist() == [2 * env.cue - 1, 0]
        assert [each.tolist() for each in later] == [[0, 0]] * (LENGTH - 2) + [[0, 1]]
        seen.add(env.cue)
    assert seen == {0, 1}


@pytest.mark.parametrize("action", [0, 1])
def test_delayed_cue_pays_for_the_last_action_alone(action: int) -> None:
    """23 steps earn nothing, whatever is done."""
    env = DelayedCueEnv()
    env.reset(seed=1)
    steps = [env.step(np.int64(step % 2)) for step in range(LENGTH - 1)]
    assert [(reward, over) for _, reward, over, _, _ in steps] == [(0.0, False)] * (LENGTH - 1)
    _, reward, terminated, truncated, _ = env.step(np.int64(action))
    assert (reward, terminated, truncated) == (1.0 if action == env.cue else -1.0, True, False)
