"""Time: moved, not waited for; measured on a clock that nobody can set."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import NoReturn

import pytest

from common import clock as clock_module
from common.clock import NS_PER_S, Deadline, ManualClock, MonotonicClock, per_second, wait_until, wall_label


def test_a_manual_clock_moves_only_when_told() -> None:
    """Reading does not move it, sleeping does."""
    clock = ManualClock(start_ns=5)
    assert [clock.now_ns(), clock.now_ns()] == [5, 5]
    clock.advance(1.5)
    clock.sleep(0.25)
    assert clock.now_ns() == 5 + 1_750_000_000


def test_a_manual_clock_refuses_to_go_back() -> None:
    """Like the clock that it stands for."""
    with pytest.raises(ValueError, match="cannot go back: got -1"):
        ManualClock().advance(-1)


@pytest.mark.parametrize("clock", [ManualClock(), MonotonicClock()], ids=["manual", "monotonic"])
def test_sleeping_for_no_time_or_less_returns_at_once(clock: ManualClock | MonotonicClock) -> None:
    """A wait whose deadline has passed computes a negative rest; both clocks take it alike."""
    clock.sleep(0.0)
    clock.sleep(-1.0)


def test_a_deadline_counts_down_and_expires_on_the_dot() -> None:
    """Open until the last nanosecond, expired from the deadline on, never negative."""
    clock = ManualClock()
    deadline = Deadline(clock, 2.0)
    clock.advance(2.0 - 1e-9)
    assert (deadline.expired(), deadline.remaining_s()) == (False, 1e-9)
    clock.advance(1e-9)
    assert (deadline.expired(), deadline.remaining_s()) == (True, 0.0)
    clock.advance(5.0)
    assert deadline.remaining_s() == 0.0
    assert deadline.seconds == 2.0


def test_waiting_ends_when_the_condition_holds() -> None:
    """True, at the first poll that sees it."""
    clock = ManualClock()
    assert wait_until(lambda: clock.now_ns() >= NS_PER_S, clock=clock, seconds=5.0, poll_s=0.5)
    assert clock.now_ns() == NS_PER_S


def test_waiting_ends_exactly_at_its_deadline() -> None:
    """False, having asked once more at the end; the last sleep is cut so that it does not run past."""
    clock, asked = ManualClock(), []

    def never() -> bool:
        asked.append(clock.now_ns())
        return False

    assert not wait_until(never, clock=clock, seconds=1.0, poll_s=0.4)
    assert asked == [0, 400_000_000, 800_000_000, 1_000_000_000]


def test_a_condition_that_holds_is_not_waited_for() -> None:
    """Not even with no time at all."""
    assert wait_until(lambda: True, clock=ManualClock(), seconds=0.0)


@pytest.mark.parametrize("elapsed_ns", [0, -1])
def test_no_elapsed_time_gives_no_rate(elapsed_ns: int) -> None:
    """C49: a coarse or frozen clock gives None, not infinity and not a division by zero."""
    assert per_second(100, elapsed_ns) is None


def test_a_rate_is_per_second() -> None:
    """By hand: 3 in half a second; nothing in a second."""
    assert per_second(3, NS_PER_S // 2) == 6.0
    assert per_second(0, NS_PER_S) == 0.0


def test_the_monotonic_clock_never_asks_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """C49: a jump of the wall clock cannot reach a deadline, since nobody looks at it."""

    def jumped() -> NoReturn:
        raise AssertionError("the wall clock was read")

    monkeypatch.setattr(time, "time", jumped)
    monkeypatch.setattr(time, "time_ns", jumped)
    clock = MonotonicClock()
    deadline = Deadline(clock, 3600.0)
    readings = [clock.now_ns() for _ in range(100)]
    assert readings == sorted(readings)
    assert not deadline.expired()
    assert 0.0 < deadline.remaining_s() <= 3600.0


def test_clocks_of_one_host_share_an_identity() -> None:
    """Readings of two monotonic clocks may be compared exactly if their ids are equal."""
    assert MonotonicClock().clock_id == MonotonicClock().clock_id
    assert MonotonicClock().clock_id != ManualClock().clock_id


def test_without_a_boot_id_no_two_clocks_are_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel tells no boot id, readings of different clocks are never compared."""

    def missing(_: Path) -> NoReturn:
        raise OSError("no /proc here")

    monkeypatch.setattr(Path, "read_text", missing)
    ids = {MonotonicClock().clock_id, MonotonicClock().clock_id}
    assert len(ids) == 2
    assert all(identity.startswith("process-") for identity in ids)


def test_wall_time_is_text_for_people() -> None:
    """UTC, ISO 8601, seconds."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", wall_label())


def test_cpu_time_of_a_thread_never_decreases() -> None:
    """What features account for their own cost with."""
    first = clock_module.thread_cpu_ns()
    assert 0 <= first <= clock_module.thread_cpu_ns()
