"""Which lines of Python ask for memory and keep it, in a live process, over some seconds."""

from __future__ import annotations

import linecache
import threading
import tracemalloc
from dataclasses import dataclass

from common.profiling import Stack, short_name

FRAMES = 4  # of the stack of an allocation that are kept: its cost grows with each (1: 12 times, 4: 25, 12: 50)
PLACES = 25  # that are told


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Memory that one place in the source asked for and still holds.

    Attributes:
        stack: "file:line  source", outermost first.
        held_bytes, held_blocks: how much.
    """

    stack: Stack
    held_bytes: int
    held_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """What Python's allocator was asked for over some seconds. Tensors and memory of C libraries are not in it.

    Attributes:
        held_bytes: allocated since the beginning and still held.
        peak_bytes: the most that was.
        places: where, the largest first.
    """

    held_bytes: int
    peak_bytes: int
    places: tuple[Place, ...]


def allocations(seconds: float, *, stop: threading.Event) -> Allocations | None:
    """What is allocated over `seconds`, or until `stop` is set, and kept; None if somebody traces already.

    While it lasts an allocation takes Python about 25 times as long, so code that does little else is slowed down that
    much; summing up at the end holds the interpreter lock for some microseconds per block that is still held.
    """
    if tracemalloc.is_tracing():
        return None
    tracemalloc.start(FRAMES)
    try:
        stop.wait(seconds)
        held, peak = tracemalloc.get_traced_memory()
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    own = [tracemalloc.Filter(False, name) for name in (__file__, tracemalloc.__file__)]
    largest = snapshot.filter_traces(own).statistics("traceback")[:PLACES]
    return Allocations(held_bytes=held, peak_bytes=peak, places=tuple(map(_place, largest)))


def _place(statistic: tracemalloc.Statistic) -> Place:
    lines = [
        f"{short_name(frame.filename)}:{frame.lineno}  {linecache.getline(frame.filename, frame.lineno).strip()}"
        for frame in statistic.traceback
    ]
    return Place(stack=tuple(lines), held_bytes=statistic.size, held_blocks=statistic.count)
