"""Times the ticks and episodes of a stepping loop in plain numbers: two stores a tick, looked at between fragments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.timings import FragmentTimings

UNKNOWN_NS = -1  # begun in another process, whose clock says nothing here


class Stopwatch:
    """Of one rollout.

    Args:
        num_ticks: of a fragment, at most.
        num_lanes: of the rollout; their episodes begin with the first fragment.
    """

    def __init__(self, num_ticks: int, num_lanes: int) -> None:
        self._step_ns = np.zeros(num_ticks, dtype=np.int64)
        self._begun_ns = np.zeros(num_lanes, dtype=np.int64)
        self._begins = True
        self._ticks = 0
        self._now_ns = 0
        self._episode_ns: list[int] = []

    def begin_fragment(self, now_ns: int) -> None:
        """What was timed before is forgotten; episodes under way are not."""
        if self._begins:
            self._begun_ns[:] = now_ns
            self._begins = False
        self._ticks = 0
        self._episode_ns = []

    def tick(self, start_ns: int, end_ns: int) -> None:
        """All lanes were stepped."""
        self._step_ns[self._ticks] = end_ns - start_ns
        self._ticks += 1
        self._now_ns = end_ns

    def end_episodes(self, lanes: NDArray[np.int64]) -> None:
        """Those of `lanes` ended with the latest tick; the next ones have begun."""
        begun_ns = self._begun_ns[lanes]
        self._episode_ns += (self._now_ns - begun_ns[begun_ns != UNKNOWN_NS]).tolist()
        self._begun_ns[lanes] = self._now_ns

    def drop_episode(self, lane: int) -> None:
        """That of `lane` broke; the next one has begun."""
        self._begun_ns[lane] = self._now_ns

    def forget_beginnings(self) -> None:
        """The episodes under way were begun by another process: their durations are not known."""
        self._begun_ns[:] = UNKNOWN_NS
        self._begins = False

    def timings(self) -> FragmentTimings:
        """Of the fragment so far."""
        return FragmentTimings(
            step_ns=self._step_ns[: self._ticks], episode_ns=np.array(self._episode_ns, dtype=np.int64)
        )
