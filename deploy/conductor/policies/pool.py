"""How many actors there should be: a controller with hysteresis, a function of what it has seen.

the learner starved in most of the last updates, and the bound on what is in flight was not the reason    one more
it never starved for long, and fragments pile up                                                           one less
"""

from __future__ import annotations

from collections import deque

WINDOW = 16  # updates that are looked at
GROW_SHARE = 0.5  # of them in which the learner starved
SHRINK_AFTER = 128  # updates in a row without starving, each with a queue


class Pool:
    """Steps between `least` and `most`, one at a time, and lets each step show its effect before the next.

    Args:
        least, most: bounds, in actors.

    Attributes:
        target: actors that there should be.
    """

    def __init__(self, *, first: int, least: int, most: int) -> None:
        self.target = first
        self._least = least
        self._most = most
        self._starved: deque[bool] = deque(maxlen=WINDOW)
        self._calm = 0

    def commit(self, *, starved: bool, queued: int, needed: int, all_running: bool) -> None:
        """An update was committed.

        Args:
            starved: the learner had nothing to do since the update before.
            queued: fragments that wait for their update.
            needed: fragments of an update.
            all_running: every actor that there should be makes fragments: the step before has had its effect.
        """
        self._starved.append(starved)
        self._calm = self._calm + 1 if not starved and queued >= needed else 0
        if not all_running:
            self._starved.clear()
        elif len(self._starved) == WINDOW and sum(self._starved) >= GROW_SHARE * WINDOW:
            self._step(1)
        elif self._calm >= SHRINK_AFTER:
            self._step(-1)

    def _step(self, change: int) -> None:
        self.target = min(max(self.target + change, self._least), self._most)
        self._starved.clear()
        self._calm = 0
