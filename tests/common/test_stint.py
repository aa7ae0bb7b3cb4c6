"""What a piece of work costs its thread."""

from __future__ import annotations

import sys

import pytest

from common import stint
from common.clock import NS_PER_S, ManualClock, MonotonicClock, thread_cpu_ns
from common.stint import Stint, StintMeter


def test_stints_and_waits_add_up_to_the_time() -> None:
    """Nothing lies between the end of one and the wait for the next; before the first nothing was waited for."""
    clock = ManualClock()
    meter = StintMeter(clock)
    clock.advance(5.0)
    stints = []
    for work_s, rest_s in ((1.0, 0.5), (2.0, 0.25), (0.0, 0.0)):
        meter.begin()
        clock.advance(work_s)
        stints.append(meter.end())
        clock.advance(rest_s)
    assert [each.wall_ns / NS_PER_S for each in stints] == [1.0, 2.0, 0.0]
    assert [each.waited_ns / NS_PER_S for each in stints] == [0.0, 0.5, 0.25]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_computing_is_told_from_waiting() -> None:
    """A thread that computes for 20 ms of CPU time has them in its stint; delays come on top and are never negative."""
    meter = StintMeter(MonotonicClock())
    meter.begin()
    until_ns = thread_cpu_ns() + 20_000_000
    while thread_cpu_ns() < until_ns:
        pass
    made = meter.end()
    if made.cpu_ns == 0:
        pytest.skip("this kernel keeps no scheduler statistics")
    assert made.cpu_ns >= 10_000_000  # the scheduler brings its count up to date at its ticks, 4 ms at most
    assert made.delay_ns >= 0 and made.major_faults >= 0


def test_where_the_kernel_does_not_tell_only_time_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No such file is no error."""
    monkeypatch.setattr(stint, "SCHEDULER", stint.SCHEDULER / "missing")
    clock = ManualClock()
    meter = StintMeter(clock)
    meter.begin()
    clock.advance(1.0)
    assert meter.end() == Stint(wall_ns=NS_PER_S)
