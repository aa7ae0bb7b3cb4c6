"""What lies inside a reading and what does not."""

from __future__ import annotations

import pytest

from benchmarks.rates import Meter, Rate, measure
from common.clock import ManualClock


def test_steady_state_by_hand() -> None:
    """A slow first update is warm-up: afterwards 100 steps every half second are 200 a second over 2 s."""
    clock = ManualClock()
    durations = iter([5.0] + [0.5] * 10)

    def update() -> int:
        clock.advance(next(durations))
        return 100

    rate = measure(update, clock, warmup_s=1.0, seconds=2.0)
    assert (rate.steps, rate.seconds, rate.steps_per_s) == (400, 2.0, 200.0)


def test_warm_up_is_left_out() -> None:
    """It runs from the end of the first update; what ends before it is over is in no reading: here two of five."""
    clock = ManualClock()
    meter = Meter(clock, warmup_s=1.5, seconds=2.0)
    for steps in (1000, 2000, 2001, 2002, 2003):
        clock.advance(1.0)
        meter.take(steps)
    assert meter.rate() == Rate(steps=2, seconds=2.0)
    assert meter.window == (2001, 2003)


def test_both_ends_lie_on_the_end_of_an_update() -> None:
    """An update longer than the reading is counted whole, over its whole time."""
    clock = ManualClock()
    meter = Meter(clock, warmup_s=0.0, seconds=1.0)
    assert not meter.take(10)
    clock.advance(3.0)
    assert meter.take(40)
    assert (meter.rate().steps, meter.rate().seconds) == (30, 3.0)


def test_what_comes_after_the_reading_changes_nothing() -> None:
    """A run that goes on until it is stopped adds nothing."""
    clock = ManualClock()
    meter = Meter(clock, warmup_s=0.0, seconds=1.0)
    for steps in (0, 5, 500):
        meter.take(steps)
        clock.advance(1.0)
    assert meter.rate(cpu=0.5) == Rate(steps=5, seconds=1.0, facts={"cpu": 0.5})


def test_an_unfinished_reading_is_no_reading() -> None:
    """A contender that ended early has no rate."""
    with pytest.raises(ValueError, match="before its reading was complete"):
        Meter(ManualClock(), warmup_s=0.0, seconds=1.0).rate()


def test_a_reading_survives_its_line() -> None:
    """The last line of the output is read; what a library printed before it is not."""
    rate = Rate(steps=10, seconds=0.1, facts={"metrics_cpu_s": 0.25})
    assert Rate.read(f"a banner\n{rate.line()}\n") == rate


@pytest.mark.parametrize("output", ["", "banner", "{}", "3"])
def test_output_without_a_reading_is_an_error(output: str) -> None:
    """It is named, not taken for zero."""
    with pytest.raises(ValueError, match="no reading on the last line"):
        Rate.read(output)
