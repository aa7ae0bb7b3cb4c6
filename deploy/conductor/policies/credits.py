"""How much may be in flight between actors and learner: bounded, and as little as keeps the learner busy.

A fragment is in flight from when it is told until its update is committed. The bound begins small, grows only where
that helps (it was full twice in a row, and the learner starved nevertheless), and shrinks when it is not used.
"""

from __future__ import annotations

FULLS_TO_GROW = 2
IDLE_TO_SHRINK = 64


class Credits:
    """Counts in fragments; one that may have as many in flight as `capacity` says.

    Args:
        first: capacity at the start, and the least.
        most: the largest: by configuration, by bytes, and by how stale fragments may be.

    Attributes:
        capacity: fragments that may be in flight.
        fulls: how often in all the bound was reached between two commits.
    """

    def __init__(self, *, first: int, most: int) -> None:
        self.capacity = min(first, most)
        self.fulls = 0
        self._least = self.capacity
        self._most = most
        self._full = False
        self._fulls_in_a_row = 0
        self._starved = False
        self._peak = 0
        self._unused = 0

    def left(self, in_flight: int) -> int:
        """How many more may be told."""
        self._peak = max(self._peak, in_flight)
        return max(0, self.capacity - in_flight)

    def refuse(self) -> None:
        """An actor could have been told more, were it not for the bound."""
        self._full = True

    def starve(self) -> None:
        """The learner had nothing to do."""
        self._starved = True

    def commit(self) -> None:
        """An update was committed: judge the time since the one before."""
        self.fulls += self._full
        self._fulls_in_a_row = self._fulls_in_a_row + 1 if self._full else 0
        if self._fulls_in_a_row >= FULLS_TO_GROW and self._starved:
            self._resize(2 * self.capacity)
        self._unused = self._unused + 1 if 4 * self._peak <= self.capacity else 0
        if self._unused >= IDLE_TO_SHRINK:
            self._resize(self.capacity // 2)
        self._full = False
        self._peak = 0

    def _resize(self, capacity: int) -> None:
        self.capacity = min(max(capacity, self._least), self._most)
        self._fulls_in_a_row = self._unused = 0
        self._starved = False
