"""The only room that reads time.

Whatever decides (deadline, pacing, rate, schedule of checkpoints) asks a `Clock`, which is monotonic raw
nanoseconds: no NTP slew, no wall-clock jump. Wall-clock time exists only as text for people (`wall_label`).
A reading is meaningful only beside readings of the same `clock_id`: never compare across hosts.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

NS_PER_S = 1_000_000_000
KERNEL_CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
PER_THREAD_SCHEDULED = 0b110  # CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED of the kernel's posix-timers.h


class Clock(Protocol):
    """Monotonic nanoseconds and a way to let them pass."""

    clock_id: str

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary origin; never decreases."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass on this clock."""
        ...


class MonotonicClock:
    """`CLOCK_MONOTONIC_RAW` of this host: hardware nanoseconds, neither stepped nor slewed."""

    def __init__(self) -> None:
        self.clock_id = _boot_id()

    def now_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


class ManualClock:
    """A clock that moves only when told (or slept on): tests move time, they never wait for it."""

    def __init__(self, start_ns: int = 0) -> None:
        self.clock_id = "manual"
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; a monotonic clock cannot move back."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back: got {seconds} s")
        self._now_ns += round(seconds * NS_PER_S)


class Deadline:
    """A point on a clock after which a wait is over.

    >>> clock = ManualClock(); deadline = Deadline(clock, 2.0); clock.advance(1.5); deadline.remaining_s()
    0.5
    """

    __slots__ = ("_clock", "_end_ns", "seconds")

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self._end_ns = clock.now_ns() + round(seconds * NS_PER_S)

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, (self._end_ns - self._clock.now_ns()) / NS_PER_S)

    def expired(self) -> bool:
        """True from the deadline on."""
        return self._clock.now_ns() >= self._end_ns


def wait_until(condition: Callable[[], bool], *, clock: Clock, seconds: float, poll_s: float = 0.02) -> bool:
    """Poll `condition` until it holds (True) or `seconds` have passed on `clock` (False).

    It is asked at once and once more when time is up; no sleep runs past the deadline.
    """
    deadline = Deadline(clock, seconds)
    while not condition():
        if deadline.expired():
            return False
        clock.sleep(min(poll_s, deadline.remaining_s()))
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSource:
    """What `MonotonicClock` reads on this machine.

    Attributes:
        name: of the clock.
        monotonic: whether it never goes back, as the system promises and two readings do not belie.
        resolution_s: its step.
        kernel: what the kernel counts with (tsc, kvm-clock ...); "" where it does not tell.
    """

    name: str
    monotonic: bool
    resolution_s: float
    kernel: str


def clock_source() -> ClockSource:
    """Of this machine."""
    first, second = (time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) for _ in range(2))
    try:
        kernel = KERNEL_CLOCK.read_text(encoding="ascii").strip()
    except OSError:
        kernel = ""
    return ClockSource(
        name="CLOCK_MONOTONIC_RAW",
        monotonic=time.get_clock_info("monotonic").monotonic and second >= first,
        resolution_s=time.clock_getres(time.CLOCK_MONOTONIC_RAW),
        kernel=kernel,
    )


def per_second(count: float, elapsed_ns: int) -> float | None:
    """`count` per second, or None when no time has passed: a rate is never infinite."""
    return None if elapsed_ns <= 0 else count * NS_PER_S / elapsed_ns


def thread_cpu_ns() -> int:
    """CPU nanoseconds that the calling thread has used: how features account for their own cost."""
    return time.thread_time_ns()


def process_cpu_ns() -> int:
    """CPU time of all threads of this process so far."""
    return time.process_time_ns()


def cpu_ns_of_thread(native_id: int) -> int | None:
    """CPU nanoseconds that another thread of this process has used, by its kernel id; None if it is gone.

    The kernel makes the id of a thread's CPU clock of its own number (pthread_getcpuclockid(3) does the same, but may
    crash for a thread that has ended). None on systems other than Linux.
    """
    if sys.platform != "linux":
        return None
    try:
        return time.clock_gettime_ns((~native_id << 3) | PER_THREAD_SCHEDULED)
    except OSError:
        return None


def as_timedelta(seconds: float) -> timedelta:
    """A duration as the type that some libraries take deadlines in."""
    return timedelta(seconds=seconds)


def wall_label() -> str:
    """Wall-clock time as text for people, UTC, ISO 8601. Never compared, never subtracted."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def epoch_offset_ns(clock: Clock) -> int:
    """Nanoseconds to add to a reading of `clock` to label it with wall-clock time: nanoseconds since 1970, UTC.

    For systems that show readings to people beside those of other hosts; nothing is decided by it. The two clocks drift
    apart by seconds a day, so ask again for each reading that is some time away from the one before.
    """
    _, offset_ns = min(_bracketed_offset(clock) for _ in range(3))  # whoever is interrupted between readings is wrong
    return offset_ns


def _bracketed_offset(clock: Clock) -> tuple[int, int]:
    """How long reading both clocks took, and the offset."""
    before_ns = clock.now_ns()
    wall_ns = time.time_ns()
    after_ns = clock.now_ns()
    return after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2


def _boot_id() -> str:
    """Of this boot of the kernel; without one (no Linux) of this process alone, so that no reading is compared."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"process-{os.getpid()}-{time.monotonic_ns()}"
