"""What is allocated and kept is told by the line that asked for it."""

from __future__ import annotations

import threading
import tracemalloc

from common.allocations import allocations
from common.clock import MonotonicClock, wait_until


def planted_hoard(kept: list[bytes]) -> None:
    kept.extend(bytes(1000) for _ in range(500))


def test_the_line_that_hoards_memory_comes_first() -> None:
    """With what it holds: 500 blocks of 1,000 bytes and what Python adds to each."""
    assert not tracemalloc.is_tracing(), "a test before this one left its tracing on"
    kept: list[bytes] = []
    stop, found = threading.Event(), []
    thread = threading.Thread(target=lambda: found.append(allocations(30, stop=stop)))
    thread.start()
    assert wait_until(tracemalloc.is_tracing, clock=MonotonicClock(), seconds=30)
    planted_hoard(kept)
    stop.set()
    thread.join(30)
    held = found[0]
    assert held is not None and held.peak_bytes >= held.held_bytes >= 500_000
    first = held.places[0]
    assert first.held_blocks >= 500 and first.held_bytes >= 500_000
    assert any("planted_hoard" not in line and "bytes(1000)" in line for line in first.stack)
    assert not tracemalloc.is_tracing()


def test_what_traces_already_is_left_alone() -> None:
    """Somebody else's tracing goes on, and none of ours is begun."""
    tracemalloc.start()
    try:
        assert allocations(0.01, stop=threading.Event()) is None
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
