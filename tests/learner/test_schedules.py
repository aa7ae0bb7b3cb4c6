"""Schedules, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from common.errors import ConfigError
from learner.schedules import Schedule


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Schedule(), {0: 1.0, 5: 1.0, 99: 1.0}),
        (Schedule(kind="linear"), {0: 1.0, 1: 0.9, 5: 0.5, 9: 0.1, 10: 0.0, 99: 0.0}),
        (Schedule(kind="linear", final=0.5), {0: 1.0, 5: 0.75, 10: 0.5, 99: 0.5}),
        (Schedule(kind="cosine"), {0: 1.0, 5: 0.5, 10: 0.0, 99: 0.0}),
        (Schedule(kind="cosine", final=0.2), {0: 1.0, 5: 0.6, 10: 0.2}),
        (Schedule(warmup=4), {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0}),
        (Schedule(kind="linear", warmup=2), {0: 0.5, 1: 1.0, 2: 1.0, 6: 0.5, 10: 0.0}),
        (Schedule(kind="cosine_restarts", period=4), {0: 1.0, 2: 0.5, 4: 1.0, 6: 0.5, 8: 1.0, 14: 0.5}),
        (Schedule(kind="cosine_restarts", period=2, warmup=2), {0: 0.5, 2: 1.0, 3: 0.5, 4: 1.0}),
    ],
)
def test_factors_of_a_horizon_of_ten(schedule: Schedule, factors: dict[int, float]) -> None:
    """Functions of the update alone; linear and cosine stay at their end, restarts go on."""
    got = {update: schedule.factor(update, 10) for update in factors}
    assert got == pytest.approx(factors, abs=1e-15)


@pytest.mark.parametrize("horizon", [0, 1, 3])
@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_a_horizon_shorter_than_the_warmup_divides_by_nothing(kind: Any, horizon: int) -> None:
    """Every factor stays within 0 to 1."""
    schedule = Schedule(kind=kind, warmup=3)
    assert all(0.0 <= schedule.factor(update, horizon) <= 1.0 for update in range(6))


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"final": -0.1}, "schedule.final"),
        ({"final": 1.1}, "schedule.final"),
        ({"final": math.nan}, "schedule.final"),
        ({"warmup": -1}, "schedule.warmup"),
        ({"kind": "cosine_restarts"}, "schedule.period"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(fields: dict[str, Any], key: str) -> None:
    """Named by its key."""
    with pytest.raises(ConfigError, match=key):
        Schedule(**fields)
