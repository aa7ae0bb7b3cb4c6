"""What a process sets about itself, seen from outside where it can be."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from common import process
from common.clock import ManualClock
from common.process import GarbageCollector, die_with_parent, intra_op_threads, keep_freed_memory, signals_deferred

ROOT = Path(__file__).parents[2]  # where a process of its own finds the packages
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")

CHILD = """
import os, signal, sys
from common.process import die_with_parent
signal.alarm(60)  # should the test fail, nobody is left behind
os.write(int(sys.argv[1]), b"1" if die_with_parent() else b"0")
signal.pause()
"""
PARENT = """
import signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], pass_fds=[int(sys.argv[1])])
signal.alarm(60)
signal.pause()
"""


def read_within(descriptor: int, seconds: float) -> bytes | None:
    """One byte, b"" when every writer is gone, None when nothing happened."""
    ready, _, _ = select.select([descriptor], [], [], seconds)
    return os.read(descriptor, 1) if ready else None


@linux_only
def test_a_child_dies_with_its_parent() -> None:
    """The parent is killed outright; the child, which waits for nothing, is gone too: its end of the pipe closes."""
    reader, writer = os.pipe()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(writer), CHILD], pass_fds=[writer], cwd=ROOT)
    os.close(writer)
    try:
        assert read_within(reader, 30.0) == b"1"
        parent.kill()
        assert read_within(reader, 30.0) == b""
    finally:
        parent.kill()
        parent.wait()
        os.close(reader)


def test_elsewhere_nothing_is_done_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel call that does not exist there."""
    monkeypatch.setattr(process.sys, "platform", "darwin")
    assert not die_with_parent()
    assert not keep_freed_memory()


@linux_only
def test_the_allocator_takes_our_settings() -> None:
    """glibc accepts all three (in a process of its own: they last)."""
    code = "from common.process import keep_freed_memory; print(keep_freed_memory())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "True"


@pytest.fixture
def collector_as_before() -> Iterator[None]:
    """Leaves the interpreter's collector as it was."""
    enabled = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if enabled else gc.disable)()


@pytest.mark.usefixtures("collector_as_before")
def test_collection_happens_by_appointment_only() -> None:
    """After freezing nothing collects by itself; releasing gives the process back."""
    collector = GarbageCollector(ManualClock())
    collector.freeze()
    assert not gc.isenabled()
    assert gc.get_freeze_count() > 0
    collector.release()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_every_nth_collection_is_a_full_one_and_each_pause_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Young generations, young, all, young ...; the pause is what passed on the clock, in nanoseconds."""
    clock, generations = ManualClock(), []

    def collect(generation: int) -> None:
        generations.append(generation)
        clock.advance(0.25 if generation == 2 else 0.125)

    monkeypatch.setattr(gc, "collect", collect)
    collector = GarbageCollector(clock, full_every=3)
    pauses = [collector.collect() for _ in range(4)]
    assert generations == [1, 1, 2, 1]
    assert pauses == [125_000_000, 125_000_000, 250_000_000, 125_000_000]


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """The SIGUSR1 that a handler of the caller's sees."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGUSR1, before)


def test_a_deferred_signal_arrives_once_at_the_end_of_the_block(seen: list[int]) -> None:
    """Not inside it and not lost, also when the block raises; afterwards signals arrive at once again."""
    with pytest.raises(RuntimeError, match="inside"), signals_deferred(signal.SIGUSR1):
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert seen == []
        raise RuntimeError("inside")
    assert seen == [signal.SIGUSR1]
    signal.raise_signal(signal.SIGUSR1)
    assert len(seen) == 2


def test_a_signal_that_another_thread_takes_is_deferred_too(seen: list[int]) -> None:
    """The kernel hands a process's signal to any thread; Python runs the handler in the main one all the same."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    outer = signal.set_wakeup_fd(writer)
    try:
        with signals_deferred(signal.SIGUSR1):
            assert thread.ident is not None
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
            assert read_within(reader, 30.0) == bytes([signal.SIGUSR1])  # it has been taken
            assert seen == []
        assert seen == [signal.SIGUSR1]
    finally:
        signal.set_wakeup_fd(outer)
        done.set()
        thread.join()
        os.close(reader)
        os.close(writer)


def test_threads_are_set_for_a_block_only() -> None:
    """Put back afterwards, also after an exception: the caller's own computations keep their bits."""
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="inside"), intra_op_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError("inside")
    assert torch.get_num_threads() == before
