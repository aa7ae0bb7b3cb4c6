"""What the threads of this process are doing: their stacks now, and samples of them over some seconds.

    stacks()       every thread, once
    sample(...)    every thread, many times a second: what a flame graph is drawn of

Made for a thread of its own inside a live process. Nothing here stops another thread, raises into one, or changes what
it computes; the interpreter lock is all that is shared. A look is taken when that lock is had, so a C extension that
keeps it for long is seen after it, not in it: py-spy sees more, where it may look.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Literal

from common.clock import NS_PER_S, Clock, cpu_ns_of_thread, thread_cpu_ns

MAX_FRAMES = 200  # of a stack, innermost first: deeper ones lose their outer frames
MAX_STACKS = 20_000  # that are told apart; the rest is counted as OTHER
MAX_COST = 0.05  # share of the seconds that sampling may take of one core: above it samples are left out
ALLOWANCE_NS = 10_000_000  # that it may always take, so that it begins at all
SWITCH_S = 0.00005  # with the usual 5 ms a look would come when others give the lock away by themselves, in torch
OTHER = ("other stacks",)

Stack = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStack:
    """A thread at one moment.

    Attributes:
        thread: its name; threads that Python did not start are called by the kernel's number, if that is known.
        frames: "function (file:line)", outermost first.
    """

    thread: str
    frames: Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What threads were seen doing.

    Attributes:
        seconds: from the first sample to the last.
        rate: samples a second that were asked for.
        taken: looks at all threads.
        missed: looks that were left out, because the process was too busy or looking would have cost too much.
        cpu_seconds: of the thread that looked.
        unit: what is counted: microseconds of CPU of the threads seen, or looks.
        counts: that, by stack: the thread's name, then "function (file)", outermost first.
    """

    seconds: float
    rate: float
    taken: int
    missed: int
    cpu_seconds: float
    unit: Literal["us", "looks"]
    counts: Mapping[Stack, int]


def name_this_thread(name: str) -> None:
    """Call the calling thread `name` in stacks and samples: one that C++ started (Ray's) has no name of its own."""
    threading.current_thread().name = name


def stacks() -> list[ThreadStack]:
    """Every thread but the calling one, by name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    found = [
        ThreadStack(thread=names.get(ident) or f"thread {ident:#x}", frames=_lines(frame))
        for ident, frame in sys._current_frames().items()
        if ident != own
    ]
    return sorted(found, key=lambda stack: stack.thread)


def sample(seconds: float, *, rate: float, idle: bool, clock: Clock, stop: threading.Event) -> Samples:
    """Look at every thread but the calling one, `rate` times a second, for `seconds` or until `stop` is set.

    Args:
        idle: count each thread at each look, whether it works or waits; else a stack counts the CPU time that its
            thread has used since the look before, so that who waits counts nothing.
    """
    with _prompt_switching():
        return _sample(seconds, rate=rate, idle=idle, clock=clock, stop=stop)


def _sample(seconds: float, *, rate: float, idle: bool, clock: Clock, stop: threading.Event) -> Samples:
    looker = _Looker(idle=idle)
    start_ns, period_ns = clock.now_ns(), round(NS_PER_S / rate)
    cpu_start_ns = thread_cpu_ns()
    due_ns = start_ns + period_ns
    taken = missed = 0
    while not stop.wait(max(0, due_ns - clock.now_ns()) / NS_PER_S):
        now_ns = clock.now_ns()
        if now_ns - start_ns > seconds * NS_PER_S:
            break
        if thread_cpu_ns() - cpu_start_ns > MAX_COST * (now_ns - start_ns) + ALLOWANCE_NS:
            missed += 1
        else:
            looker.look()
            taken += 1
        late = max(0, now_ns - due_ns) // period_ns
        missed += late
        due_ns += (1 + late) * period_ns
    return Samples(
        seconds=(clock.now_ns() - start_ns) / NS_PER_S,
        rate=rate,
        taken=taken,
        missed=missed,
        cpu_seconds=(thread_cpu_ns() - cpu_start_ns) / NS_PER_S,
        unit="looks" if idle else "us",
        counts=dict(looker.counts),
    )


@contextmanager
def _prompt_switching() -> Iterator[None]:
    """The interpreter lock is handed over soon after it is asked for, wherever its holder then is."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class _Looker:
    """Looks at all threads and counts what it sees."""

    def __init__(self, *, idle: bool) -> None:
        self.counts: Counter[Stack] = Counter()
        self._idle = idle
        self._own = threading.get_ident()
        self._labels: dict[CodeType, str] = {}
        self._cpu_ns: dict[int, int] = {}

    def look(self) -> None:
        """Count every thread that counts now."""
        threads = {thread.ident: thread for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            thread = threads.get(ident)
            weight = 1 if self._idle else self._cpu_us(thread)
            if ident == self._own or not weight:
                continue
            name = f"thread {ident:#x}" if thread is None else thread.name
            stack = (name, *(self._label(each.f_code) for each in _outermost_first(frame)))
            if stack in self.counts or len(self.counts) < MAX_STACKS:
                self.counts[stack] += weight
            else:
                self.counts[OTHER] += weight

    def _cpu_us(self, thread: threading.Thread | None) -> int:
        """What it used since it was looked at the last time; 0 for one that the kernel tells nothing of."""
        if thread is None or thread.native_id is None:
            return 0
        now_ns = cpu_ns_of_thread(thread.native_id)
        before_ns = self._cpu_ns.get(thread.native_id)
        if now_ns is None:
            return 0
        if before_ns is None:
            self._cpu_ns[thread.native_id] = now_ns
            return 0
        used_us = (now_ns - before_ns) // 1000
        self._cpu_ns[thread.native_id] = before_ns + 1000 * used_us
        return used_us

    def _label(self, code: CodeType) -> str:
        if (label := self._labels.get(code)) is None:
            label = self._labels[code] = f"{code.co_qualname} ({short_name(code.co_filename)})"
        return label


def _lines(frame: FrameType) -> Stack:
    return tuple(
        f"{each.f_code.co_qualname} ({short_name(each.f_code.co_filename)}:{each.f_lineno})"
        for each in _outermost_first(frame)
    )


def _outermost_first(frame: FrameType) -> list[FrameType]:
    frames: list[FrameType] = []
    at: FrameType | None = frame
    while at is not None and len(frames) < MAX_FRAMES:
        frames.append(at)
        at = at.f_back
    return frames[::-1]


def short_name(filename: str) -> str:
    """A file as its module search path has it: `actors/rollout.py`; the file's own name where no entry holds it."""
    path = Path(filename)
    holders = [entry for entry in sys.path if entry and path.is_relative_to(entry)]
    return str(path.relative_to(max(holders, key=len))) if holders else path.name
