"""Durations of ticks and episodes, on the monotonic clock."""

from __future__ import annotations

import numpy as np

from actors.stopwatch import Stopwatch


def lanes(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_ticks_and_episodes_are_timed_by_hand() -> None:
    """Two lanes from 100: lane 0 ends at 130 and 170, lane 1 at 170; the second fragment begins later at 300."""
    watch = Stopwatch(3, 2)
    watch.begin_fragment(100)
    watch.tick(110, 130)
    watch.end_episodes(lanes(0))
    watch.tick(140, 170)
    watch.end_episodes(lanes(0, 1))
    timings = watch.timings()
    assert timings.step_ns.tolist() == [20, 30]
    assert timings.episode_ns.tolist() == [30, 40, 70]
    watch.begin_fragment(300)
    assert watch.timings().step_ns.tolist() == watch.timings().episode_ns.tolist() == []
    watch.tick(310, 315)
    watch.end_episodes(lanes(1))
    assert watch.timings().episode_ns.tolist() == [145]  # from 170 on: waiting between fragments counts


def test_a_broken_episode_has_no_duration() -> None:
    """The next one of its lane is timed from where it broke."""
    watch = Stopwatch(3, 1)
    watch.begin_fragment(0)
    watch.tick(0, 10)
    watch.drop_episode(0)
    watch.tick(10, 25)
    watch.end_episodes(lanes(0))
    assert watch.timings().episode_ns.tolist() == [15]


def test_episodes_of_another_process_have_no_duration() -> None:
    """Their beginning is a reading of a clock that may be another; the episodes after them are timed again."""
    watch = Stopwatch(3, 2)
    watch.forget_beginnings()
    watch.begin_fragment(1_000)
    watch.tick(1_000, 1_010)
    watch.end_episodes(lanes(0))
    watch.tick(1_010, 1_030)
    watch.end_episodes(lanes(0, 1))
    assert watch.timings().episode_ns.tolist() == [20]
