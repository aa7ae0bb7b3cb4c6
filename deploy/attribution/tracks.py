"""What the observer adds up: how long something has been so, and how a stage moves."""

from __future__ import annotations

from common.clock import NS_PER_S
from deploy.attribution.snapshot import StageFacts

SMOOTHING = 0.2  # of the usual interval: an average over about the last ten


class Duty:
    """Time during which something is so, added up."""

    def __init__(self) -> None:
        self._total_ns = 0
        self._since_ns: int | None = None

    def set(self, on: bool, now_ns: int) -> None:
        """It is so from now on, or not."""
        if on and self._since_ns is None:
            self._since_ns = now_ns
        elif not on and self._since_ns is not None:
            self._total_ns += now_ns - self._since_ns
            self._since_ns = None

    def seconds(self, now_ns: int) -> float:
        """Until now."""
        running_ns = 0 if self._since_ns is None else now_ns - self._since_ns
        return (self._total_ns + running_ns) / NS_PER_S

    def lasting_s(self, now_ns: int) -> float:
        """Since when it is so without a break; 0 if it is not."""
        return 0.0 if self._since_ns is None else (now_ns - self._since_ns) / NS_PER_S


class Mark:
    """How often a stage has done its work, how long it usually takes, and since when it should have."""

    def __init__(self) -> None:
        self.count = 0
        self._moved_ns: int | None = None
        self._usual_ns = 0.0
        self._due_ns: int | None = None

    def advance(self, now_ns: int, times: int = 1) -> None:
        """It has done something."""
        self.count += times
        if self._moved_ns is not None and now_ns > self._moved_ns:
            gap_ns = now_ns - self._moved_ns
            self._usual_ns = SMOOTHING * gap_ns + (1 - SMOOTHING) * self._usual_ns if self._usual_ns else gap_ns
        self._moved_ns = now_ns
        self._due_ns = now_ns

    def look(self, now_ns: int, *, work: bool, room: bool) -> StageFacts:
        """How it stands."""
        if not (work and room):
            self._due_ns = None
        elif self._due_ns is None:
            self._due_ns = now_ns
        still_ns = 0 if self._due_ns is None else now_ns - self._due_ns
        return StageFacts(
            mark=self.count,
            work=work,
            room=room,
            still_s=still_ns / NS_PER_S,
            usual_s=self._usual_ns / NS_PER_S,
        )
