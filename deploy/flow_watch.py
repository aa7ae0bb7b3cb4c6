"""What is seen of the flow from actors to the learner: how long fragments wait."""

from __future__ import annotations

from common.clock import NS_PER_S, Clock
from common.ledger import FragmentName


class Arrivals:
    """Fragments that have arrived in this driving and have no fate yet, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns: dict[FragmentName, int] = {}

    def arrive(self, name: FragmentName) -> None:
        """The driver has heard of it."""
        self._since_ns[name] = self._clock.now_ns()

    def decide(self, name: FragmentName) -> float | None:
        """Its fate is known; returns the seconds that took, None if it did not arrive in this driving."""
        since_ns = self._since_ns.pop(name, None)
        return None if since_ns is None else (self._clock.now_ns() - since_ns) / NS_PER_S

    def forget(self) -> None:
        """A rollback: whatever was in hand was dropped."""
        self._since_ns.clear()

    @property
    def oldest_s(self) -> float:
        """Age of the oldest; 0 if there is none."""
        since_ns = next(iter(self._since_ns.values()), None)
        return 0.0 if since_ns is None else (self._clock.now_ns() - since_ns) / NS_PER_S
