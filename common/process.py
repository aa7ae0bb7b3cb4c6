"""What a process of ours sets about itself: its parent, its allocator, its threads, its garbage collector.

Linux only where the kernel is asked; elsewhere the calls report that nothing was done rather than fail.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from common.clock import Clock

PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3
ARENA_BYTES = 256 * 1024 * 1024


def die_with_parent() -> bool:
    """Ask the kernel to kill this process when its parent dies; True if the kernel agreed.

    If the parent died before the call, this process ends at once: the signal would never come.
    """
    if sys.platform != "linux":
        return False
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return False
    if os.getppid() != parent:
        os._exit(1)
    return True


def keep_freed_memory() -> bool:
    """Make glibc keep freed blocks up to 256 MiB instead of returning them to the kernel; True if it agreed.

    Activations of a few hundred kB are freed after every operation; given back and faulted in again they cost a
    quarter of a small network's training step (4.7 ms against 3.3 ms, MLP 64x64, 2,048 rows, one core).
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    settings = ((M_MMAP_THRESHOLD, ARENA_BYTES), (M_TRIM_THRESHOLD, ARENA_BYTES), (M_TOP_PAD, ARENA_BYTES // 4))
    return all(libc.mallopt(option, value) == 1 for option, value in settings)


class GarbageCollector:
    """Cyclic collection by appointment only: never inside a fragment or an update.

    `freeze()` once after start-up moves everything alive out of the collector's sight; `collect()` runs between
    fragments, looks at the young generations only (every `full_every`th call at all) and returns the pause.
    """

    def __init__(self, clock: Clock, *, full_every: int = 256) -> None:
        self._clock = clock
        self._full_every = full_every
        self._calls = 0

    def freeze(self) -> None:
        """Collect what start-up left behind, freeze the rest, switch automatic collection off."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def collect(self) -> int:
        """Run one collection now; returns the pause in nanoseconds."""
        self._calls += 1
        start_ns = self._clock.now_ns()
        gc.collect(2 if self._calls % self._full_every == 0 else 1)
        return self._clock.now_ns() - start_ns

    def release(self) -> None:
        """Give the process back to automatic collection (engine `inline` shares it with the caller)."""
        gc.unfreeze()
        gc.enable()


@contextmanager
def signals_deferred(*numbers: signal.Signals) -> Iterator[None]:
    """Hold `numbers` back for the block; those that came arrive at its end, each once. Main thread only.

    Handlers are exchanged, not signals blocked: a mask holds for one thread, and a signal to the process would be
    taken by another (torch's pool, a server) and still interrupt this one.
    """
    came: list[int] = []
    before = {number: signal.signal(number, lambda which, _: came.append(which)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for which in dict.fromkeys(came):
            signal.raise_signal(which)


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """torch computes with `count` threads inside the block: results depend on it in the last bits.

    Processes of a run set theirs once; engine `inline` has to do it for each component in turn.
    """
    torch = sys.modules["torch"]
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
