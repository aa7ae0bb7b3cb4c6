"""Greedy evaluation counts a fixed number of episodes per lane, whatever their lengths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from actors.env.lanes import Restart, Tick
from actors.evaluate import EvaluationConfig, EvaluationResult, evaluate
from common.errors import ConfigError
from common.fragment import End
from tests.actors.env_driving import lanes_of


class LanesOfLengths:
    """Lane b's episodes have lengths[b] steps of reward 1. Its first `broken[b]` episodes break at their first step."""

    def __init__(self, lengths: list[int], *, aligned: bool = True, broken: tuple[int, ...] = ()) -> None:
        self.num_lanes = len(lengths)
        self.aligned = aligned
        self.lengths = np.array(lengths)
        self.to_break = np.array(broken or (0,) * len(lengths))
        self.step_number = np.zeros(self.num_lanes, int)
        self.resets = np.zeros(self.num_lanes, bool)
        self.ticks = 0

    @property
    def current(self) -> dict[str, NDArray[Any]]:
        return {"obs": self.step_number[:, None].astype(np.float32)}

    def start(self) -> dict[str, NDArray[Any]]:
        return self.current

    def step(self, action: NDArray[Any]) -> Tick:
        assert (action == self.step_number).all(), "the action answers the current observation"
        self.ticks += 1
        valid = ~self.resets
        self.step_number = np.where(self.resets, 0, self.step_number + 1)
        broken = valid & (self.to_break > 0)
        ended = valid & ~broken & (self.step_number == self.lengths)
        end = np.where(broken, np.uint8(End.BROKEN), ended * np.uint8(End.TRUNCATED))
        self.to_break -= broken
        valid &= ~broken
        over = ended | broken
        restart = None
        if self.aligned:
            self.resets = over
        else:
            self.step_number[over] = 0
            restart = Restart(np.flatnonzero(over), {}) if over.any() else None
        return Tick({}, valid.astype(np.float64), end, valid, restart)


class EchoPolicy:
    """Its action is the observation."""

    def __init__(self) -> None:
        self.version = 12
        self.state_size = 0
        self.head = SimpleNamespace(to_environment=lambda action: action)

    def begin(self, num_lanes: int) -> None:
        pass

    def greedy(self, observation: dict[str, NDArray[Any]]) -> NDArray[Any]:
        return observation["obs"][:, 0]


def judged(lanes: Any, episodes: int, *, max_ticks: int = 10_000) -> EvaluationResult:
    policy: Any = EchoPolicy()
    return evaluate(lanes, policy, episodes=episodes, max_ticks=max_ticks, beat=lambda tick: None)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    episodes=st.integers(1, 13),
    aligned=st.booleans(),
)
def test_every_lane_plays_its_quota(lengths: list[int], episodes: int, aligned: bool) -> None:
    """Episode n is played by lane n mod B, exactly once, and counts whole."""
    result = judged(LanesOfLengths(lengths, aligned=aligned), episodes)
    expected = tuple(lengths[episode % len(lengths)] for episode in range(episodes))
    assert result == EvaluationResult(
        version=12, returns=tuple(float(length) for length in expected), lengths=expected, unfinished=0
    )


def test_short_episodes_are_not_favoured() -> None:
    """Half the lanes play episodes of 100 steps, half of 1: half the episodes that count are long."""
    result = judged(LanesOfLengths([100, 1, 100, 1]), 40)
    assert sorted(result.lengths) == [1] * 20 + [100] * 20
    assert result.mean == 50.5


def test_nothing_is_stepped_beyond_the_last_episode() -> None:
    """The evaluation ends with the tick that completes the last quota."""
    lanes = LanesOfLengths([3, 5])
    judged(lanes, 2)
    assert lanes.ticks == 5


@pytest.mark.parametrize("aligned", [True, False])
def test_broken_episodes_are_played_again_by_the_same_lane(aligned: bool) -> None:
    """They count nowhere: neither in the number of episodes nor in any return."""
    result = judged(LanesOfLengths([2, 4], aligned=aligned, broken=(3, 0)), 4)
    assert result.lengths == (2, 4, 2, 4)
    assert result.returns == (2.0, 4.0, 2.0, 4.0)


def test_what_does_not_end_in_time_is_counted_as_unfinished() -> None:
    """Golden: after 12 ticks lane 0 is in its second episode of four, lane 1 done with its three."""
    result = judged(LanesOfLengths([8, 2], aligned=False), 7, max_ticks=12)
    assert result.lengths == (8, 2, 4, 2, 2)  # episodes 0, 1, 2 (under way), 3, 5; 4 and 6 never began
    assert result.unfinished == 3


def test_a_real_environment_is_judged_the_same_in_every_mode() -> None:
    """Counting to 3 has return 6, whoever resets it."""
    for name, vectorise in [("Counting", "sync"), ("CountingSameStep", "own"), ("CountingDisabled", "own")]:
        lanes = lanes_of(name, 2, vectorise=vectorise)
        policy: Any = EchoPolicy()
        policy.greedy = lambda observation: np.zeros(2, np.int64)
        result = evaluate(lanes, policy, episodes=5, max_ticks=1000, beat=lambda tick: None)
        lanes.close()
        assert (result.returns, result.lengths) == ((6.0,) * 5, (3,) * 5)


def test_the_beat_comes_before_each_tick() -> None:
    """A hanging step is the tick that the watchdog was told of."""
    beats: list[int] = []
    policy: Any = EchoPolicy()
    evaluate(LanesOfLengths([3]), policy, episodes=1, max_ticks=9, beat=beats.append)  # type: ignore[arg-type]
    assert beats == [0, 1, 2]


@pytest.mark.parametrize(
    ("option", "value"), [("every", -1), ("episodes", 0), ("final_episodes", 0), ("lanes", 0), ("max_ticks", 0)]
)
def test_impossible_evaluations_are_refused(option: str, value: int) -> None:
    """The key is named by its full path."""
    with pytest.raises(ConfigError, match=rf"evaluation\.{option}") as caught:
        EvaluationConfig(**{option: value})
    assert caught.value.allowed
