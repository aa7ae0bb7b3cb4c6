"""Pauses of the cyclic garbage collector, whoever called it."""

from __future__ import annotations

import gc
from typing import Any

from common.clock import NS_PER_S, Clock
from common.metric_values import Histogram


class PauseWatch:
    """Counts each collection of this process into a histogram, from `start` to `close`.

    The histogram is written without the lock of its values: a collection can begin while this very thread holds it. No
    two collections run at once, so all that a snapshot may lack is the one under way.
    """

    def __init__(self, pauses: Histogram, clock: Clock) -> None:
        self._pauses = pauses
        self._clock = clock
        self._begun_ns = 0

    def start(self) -> None:
        """Be told of collections from now on."""
        gc.callbacks.append(self._told)

    def close(self) -> None:
        """Not any more. May be called again."""
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)

    def _told(self, phase: str, facts: dict[str, Any]) -> None:
        if phase == "start":
            self._begun_ns = self._clock.now_ns()
        elif self._begun_ns:  # else it had begun before we were told
            self._pauses.observe((self._clock.now_ns() - self._begun_ns) / NS_PER_S)
