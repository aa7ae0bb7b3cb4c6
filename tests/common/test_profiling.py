"""Looking at threads from inside: who works is seen where it works, and nothing is left behind."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from common import profiling
from common.clock import MonotonicClock, cpu_ns_of_thread, thread_cpu_ns, wait_until
from common.profiling import Samples, name_this_thread, sample, short_name, stacks


def planted_spin(stop: threading.Event) -> None:
    """Works in pure Python until it is told to stop."""
    while not stop.is_set():
        sum(number * number for number in range(200))


def planted_wait(stop: threading.Event) -> None:
    stop.wait()


@contextmanager
def thread_of(work: Callable[[threading.Event], None], name: str) -> Iterator[threading.Thread]:
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), name=name)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(30)


def sampled(seconds: float = 0.3, *, idle: bool = False, rate: float = 200) -> Samples:
    """By another thread than the test's, as in a live process."""
    found: list[Samples] = []

    def work(stop: threading.Event) -> None:
        found.append(sample(seconds, rate=rate, idle=idle, clock=MonotonicClock(), stop=stop))

    with thread_of(work, "sampler") as thread:
        thread.join(30)
    return found[0]


def share(samples: Samples, function: str) -> float:
    """Of all that was counted, under any stack that holds the function."""
    total = sum(samples.counts.values())
    return sum(count for stack, count in samples.counts.items() if any(function in frame for frame in stack)) / total


def test_a_thread_that_works_is_found_in_the_function_that_it_works_in() -> None:
    """Most CPU time of the process is in the planted function, under the name of its thread."""
    with thread_of(planted_spin, "worker"):
        samples = sampled()
    assert samples.unit == "us" and samples.taken > 0
    assert share(samples, "planted_spin (tests/common/test_profiling.py)") > 0.5
    assert any(stack[0] == "worker" for stack in samples.counts)


def test_who_only_waits_counts_nothing_unless_asked_for() -> None:
    """On the CPU it has no share; with `idle` it is there at every look."""
    with thread_of(planted_wait, "waiter"), thread_of(planted_spin, "worker"):
        busy, all_threads = sampled(), sampled(idle=True)
    assert not any(stack[0] == "waiter" for stack in busy.counts)
    assert all_threads.unit == "looks"
    assert sum(count for stack, count in all_threads.counts.items() if stack[0] == "waiter") == all_threads.taken


def test_the_thread_that_looks_does_not_see_itself() -> None:
    """Neither in samples nor in stacks."""
    assert not any(stack[0] == "sampler" for stack in sampled(idle=True).counts)
    own = threading.current_thread().name
    assert own not in {stack.thread for stack in stacks()}


def test_sampling_ends_as_soon_as_it_is_told_to() -> None:
    """A closing process does not wait for 300 s to pass."""
    with thread_of(
        lambda stop: void(sample(300, rate=100, idle=False, clock=MonotonicClock(), stop=stop)), "s"
    ) as thread:
        assert thread.is_alive()
    assert not thread.is_alive()


def void(_: object) -> None:
    """Take a value and do nothing with it."""


def test_the_interpreter_switches_threads_afterwards_as_it_did_before() -> None:
    """While it samples the lock is handed over sooner."""
    before, during = sys.getswitchinterval(), []
    with thread_of(lambda stop: void(sampled(0.2)), "beside"):
        assert wait_until(lambda: sys.getswitchinterval() < before, clock=MonotonicClock(), seconds=30, poll_s=0.001)
        during.append(sys.getswitchinterval())
    assert sys.getswitchinterval() == before > during[0]


def test_looks_that_would_cost_too_much_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no CPU time allowed nothing is looked at, and every look that was due counts as missed."""
    monkeypatch.setattr(profiling, "MAX_COST", 0.0)
    monkeypatch.setattr(profiling, "ALLOWANCE_NS", -1)
    samples = sampled(0.1)
    assert (samples.taken, samples.counts) == (0, {}) and samples.missed > 0


def test_more_stacks_than_can_be_told_apart_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is lost: the total is what it would have been."""
    monkeypatch.setattr(profiling, "MAX_STACKS", 0)
    with thread_of(planted_wait, "waiter"):
        samples = sampled(0.1, idle=True)
    assert set(samples.counts) == {profiling.OTHER}
    assert samples.counts[profiling.OTHER] >= 2 * samples.taken


def test_stacks_name_threads_functions_and_lines() -> None:
    """Outermost first, with the line that each frame is at."""
    with thread_of(planted_wait, "waiter"):
        assert wait_until(lambda: "planted_wait" in str(stacks()), clock=MonotonicClock(), seconds=30)
        found = {stack.thread: stack.frames for stack in stacks()}
    line = planted_wait.__code__.co_firstlineno + 1
    assert f"planted_wait (tests/common/test_profiling.py:{line})" in found["waiter"]
    assert found["waiter"][0].startswith("Thread._bootstrap (threading.py:")
    assert found["waiter"][-1].startswith("Condition.wait (threading.py:")


def test_a_deep_stack_keeps_its_inner_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cut are the frames that every stack begins with."""
    monkeypatch.setattr(profiling, "MAX_FRAMES", 2)
    with thread_of(planted_wait, "waiter"):
        assert wait_until(lambda: "Condition.wait" in str(stacks()), clock=MonotonicClock(), seconds=30)
        (waiter,) = [stack for stack in stacks() if stack.thread == "waiter"]
    assert [frame.split(" ")[0] for frame in waiter.frames] == ["Event.wait", "Condition.wait"]


def test_a_thread_can_be_given_a_name() -> None:
    """As threads have it that another language started."""
    before = threading.current_thread().name
    try:
        name_this_thread("actor 3")
        assert threading.current_thread().name == "actor 3"
    finally:
        name_this_thread(before)


def test_the_cpu_time_of_a_thread_is_told_by_its_kernel_id() -> None:
    """Of this one: at least what it says itself, and no more than a moment later."""
    before = thread_cpu_ns()
    told = cpu_ns_of_thread(threading.get_native_id())
    assert told is not None and before <= told <= thread_cpu_ns()


def test_a_thread_that_has_ended_has_no_cpu_time() -> None:
    """Asking for it is no error, and crashes nothing."""
    with thread_of(planted_wait, "waiter") as thread:
        native_id = thread.native_id
        assert native_id is not None and cpu_ns_of_thread(native_id) is not None
    gone = wait_until(lambda: cpu_ns_of_thread(native_id) is None, clock=MonotonicClock(), seconds=30)
    assert gone


def test_files_are_called_as_the_module_search_path_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the longest entry that holds them; a file outside of all by its own name."""
    monkeypatch.setattr(sys, "path", ["", "/a", "/a/lib"])
    assert short_name("/a/lib/torch/nn.py") == "torch/nn.py"
    assert short_name("/a/b.py") == "b.py"
    assert short_name("/elsewhere/x/y.py") == "y.py"
    assert short_name("<frozen runpy>") == "<frozen runpy>"
