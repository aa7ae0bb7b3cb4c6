"""What a piece of work cost the thread that did it, as the kernel counts it: whether it computed, waited or queued.

    begin() ──► work ──► end() = Stint        waited: since the end() before, so stints and waits add up to the time

Plain numbers beside a result. They decide nothing, are in no digest and no ledger; `deploy.attribution` reads them.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

from common.clock import Clock

SCHEDULER = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stint:
    """One piece of work; zeros where the kernel does not tell.

    Attributes:
        wall_ns: from its beginning to its end.
        waited_ns: since the piece of work before it ended; 0 for the first.
        cpu_ns: in which the thread ran.
        delay_ns: in which it could have run and got no core.
        major_faults: pages that had to be read from disk.
    """

    wall_ns: int = 0
    waited_ns: int = 0
    cpu_ns: int = 0
    delay_ns: int = 0
    major_faults: int = 0


class StintMeter:
    """Measures one piece of work after the other, each on one thread; costs 25 µs of CPU time a stint."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun_ns = self._ended_ns = 0
        self._worked = False
        self._before = (0, 0, 0)

    def begin(self) -> None:
        """Work begins."""
        self._begun_ns = self._clock.now_ns()
        self._before = _counts()

    def end(self) -> Stint:
        """Work has ended."""
        cpu_ns, delay_ns, faults = (max(0, now - before) for now, before in zip(_counts(), self._before, strict=True))
        now_ns = self._clock.now_ns()
        waited_ns = self._begun_ns - self._ended_ns if self._worked else 0
        self._worked, self._ended_ns = True, now_ns
        return Stint(
            wall_ns=now_ns - self._begun_ns,
            waited_ns=waited_ns,
            cpu_ns=cpu_ns,
            delay_ns=delay_ns,
            major_faults=faults,
        )

    def interval_ns(self) -> tuple[int, int]:
        """Readings of the clock at the latest `begin` and at the latest `end`."""
        return self._begun_ns, self._ended_ns


def _counts() -> tuple[int, int, int]:
    """Nanoseconds on a core, nanoseconds in a queue for one, major faults: of the calling thread, since it began."""
    try:
        cpu_ns, delay_ns, _ = SCHEDULER.read_text().split()
        return int(cpu_ns), int(delay_ns), resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    except (OSError, ValueError):  # not Linux, or a kernel without scheduler statistics
        return 0, 0, 0
