"""An episode of an evaluation, played again by its number, is the one that was evaluated."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from actors.evaluate import evaluate
from actors.replay import PlayedEpisode, play_episode
from common.fragment import End
from tests.actors.test_evaluate import EchoPolicy, LanesOfLengths


class PaintedLanes(LanesOfLengths):
    """A picture's first pixel is the number of the step, the second the lane."""

    def render(self, lane: int) -> NDArray[np.uint8]:
        return np.array([[[self.step_number[lane], lane, 0]]], np.uint8)


class Album:
    """Keeps the first pixels."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.lanes: set[int] = set()

    def begin(self) -> None:
        self.steps.clear()

    def add(self, picture: NDArray[np.uint8]) -> None:
        self.steps.append(int(picture[0, 0, 0]))
        self.lanes.add(int(picture[0, 0, 1]))


def played(lanes: Any, episode: int, *, max_ticks: int = 10_000, album: Album | None = None) -> PlayedEpisode:
    policy: Any = EchoPolicy()
    return play_episode(lanes, policy, episode=episode, max_ticks=max_ticks, pictures=album)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    episodes=st.integers(1, 9),
    aligned=st.booleans(),
    broken=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    max_ticks=st.sampled_from([7, 1000]),
)
def test_the_episode_of_each_number_is_the_one_evaluated(
    lengths: list[int], episodes: int, aligned: bool, broken: list[int], max_ticks: int
) -> None:
    """Return and length, whatever the lanes: also the first of each lane where the ticks ran out."""
    lanes = min(episodes, len(lengths))

    def fresh() -> Any:
        return LanesOfLengths(lengths[:lanes], aligned=aligned, broken=tuple(broken[:lanes]))

    policy: Any = EchoPolicy()
    result = evaluate(fresh(), policy, episodes=episodes, max_ticks=max_ticks, beat=lambda tick: None)
    whole = len(result.returns) == episodes
    for episode in range(episodes if whole else lanes):
        again = played(fresh(), episode, max_ticks=max_ticks)
        assert (again.value, len(again.rows)) == (result.returns[episode], result.lengths[episode])
        assert again.lane == episode % lanes


def test_the_rows_of_an_episode_by_hand() -> None:
    """Lane 1's second episode: its two actions answer observations 0 and 1; it was truncated."""
    again = played(LanesOfLengths([5, 2]), 3)
    assert [(row.action, row.reward) for row in again.rows] == [(0.0, 1.0), (1.0, 1.0)]
    assert (again.lane, again.end, again.value) == (1, End.TRUNCATED, 2.0)
    first, second = (row.observation for row in again.rows)
    assert first != second
    assert first == played(LanesOfLengths([5, 2]), 0).rows[0].observation  # both are the observation 0


def test_nothing_is_played_beyond_the_episode() -> None:
    """Episode 0 of lane 0 is over after three ticks, whatever the others do."""
    lanes = LanesOfLengths([3, 500])
    played(lanes, 0)
    assert lanes.ticks == 3


def test_an_episode_that_the_ticks_cut_off_has_no_end() -> None:
    """It stands as it stood."""
    again = played(LanesOfLengths([9]), 0, max_ticks=4)
    assert (again.end, again.value, len(again.rows)) == (End.CONTINUES, 4.0, 4)


def test_a_cut_episode_has_no_final_picture() -> None:
    """One before each action, and no more."""
    album = Album()
    played(PaintedLanes([9]), 0, max_ticks=4, album=album)
    assert album.steps == [0, 1, 2, 3]


def test_there_is_a_picture_before_each_action_and_of_the_final_observation() -> None:
    """Of the episode alone: neither of the one before in its lane, nor of the reset tick, nor of other lanes."""
    album = Album()
    played(PaintedLanes([5, 3]), 3, album=album)
    assert (album.steps, album.lanes) == ([0, 1, 2, 3], {1})


def test_lanes_that_are_not_aligned_have_no_final_picture() -> None:
    """They have begun the next episode by then."""
    album = Album()
    played(PaintedLanes([5, 3], aligned=False), 1, album=album)
    assert album.steps == [0, 1, 2]


def test_pictures_of_an_episode_that_broke_are_forgotten() -> None:
    """It is played again, and only that counts."""
    for aligned in (True, False):
        album = Album()
        again = played(PaintedLanes([3], aligned=aligned, broken=(2,)), 0, album=album)
        assert len(again.rows) == 3 and album.steps[:3] == [0, 1, 2]


def test_a_broken_episode_takes_its_rows_with_it() -> None:
    """Those before the break."""
    lanes = LanesOfLengths([4])
    step, calls = lanes.step, []

    def breaks_late(action: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            lanes.to_break[:] = 1
        return step(action)

    lanes.step = breaks_late  # type: ignore[method-assign]
    album = Album()
    lanes.render = lambda lane: np.full((1, 1, 3), lanes.step_number[0], np.uint8)  # type: ignore[attr-defined]
    again = played(lanes, 0, album=album)
    assert (len(again.rows), again.value) == (4, 4.0)
    assert album.steps == [0, 1, 2, 3, 4]
