"""Cells of a process: readings asked by the scrape, and names that are taken."""

from __future__ import annotations

import logging

import pytest

from common.clock import ManualClock
from common.metric_kinds import Kind, Metric
from common.metric_values import Values
from common.metrics import DriverMetrics, SaveResult, new_registry

DEPTH = Metric(name="depth", kind=Kind.GAUGE, help="Depth.")
WIDTH = Metric(name="width", kind=Kind.GAUGE, help="Width.")


def readings(values: Values) -> dict[str, object]:
    return {metric.name: samples[0].reading for metric, samples in values.snapshot().items()}


def test_a_sampled_gauge_is_asked_by_each_snapshot() -> None:
    """Not before, and no value is kept from the one before."""
    values, asked = Values(), iter([1.0, 2.0, None])
    values.sample(values.gauge(DEPTH), lambda: next(asked))
    assert [readings(values).get("depth") for _ in range(3)] == [1.0, 2.0, None]


def test_a_reading_that_raises_costs_its_own_sample_and_one_log_record(caplog: pytest.LogCaptureFixture) -> None:
    """However often it is scraped; the other series are there, and it is back once it can be read again."""
    values, broken = Values(), [False, True, True, False]

    def read() -> float:
        if broken.pop(0):
            raise OSError("no such file")
        return 3.0

    values.gauge(WIDTH).set(5.0)
    values.sample(values.gauge(DEPTH), read)
    assert readings(values)["depth"] == 3.0
    for _ in range(2):
        seen = readings(values)
        assert seen["width"] == 5.0 and "depth" not in seen
    assert readings(values)["depth"] == 3.0
    (record,) = caplog.records
    assert "depth could not be read" in record.getMessage() and record.exc_info is not None


def test_a_name_that_is_taken_is_told_once_and_not_exported(caplog: pytest.LogCaptureFixture) -> None:
    """The first metric keeps the name, the second counts for nobody; two families of one name void a whole scrape."""
    values = Values()
    other = Metric(name="depth", kind=Kind.COUNTER, help="Another idea.")
    values.gauge(DEPTH).set(1.0)
    for _ in range(3):
        values.counter(other).add(7)
    assert readings(values)["depth"] == 1.0
    assert values.gauge(DEPTH) is values.gauge(DEPTH)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and "two metrics are named depth" in record.getMessage()


def test_ages_grow_while_the_driver_hangs() -> None:
    """They are those of the scrape, not of the driver's latest round: that is how a hang shows."""
    clock = ManualClock(start_ns=5_000_000_000)
    registry = new_registry()
    metrics = DriverMetrics(registry, clock)

    def ages() -> tuple[object, object]:
        seen = readings(registry.values)
        return seen["truestep_driver_last_commit_age_seconds"], seen["truestep_driver_last_checkpoint_age_seconds"]

    clock.advance(2.0)
    assert ages() == (2.0, 2.0)
    progress = {"env_steps": 8, "version": 1, "term": 0, "policy_lag": 0, "per_second": None}
    metrics.set_progress(updates=1, **progress)  # type: ignore[arg-type]
    metrics.observe_checkpoint(seconds=0.1, result=SaveResult.FAILED)
    clock.advance(3.0)
    metrics.set_progress(updates=1, **progress)  # type: ignore[arg-type]
    assert ages() == (3.0, 5.0)
    metrics.observe_checkpoint(seconds=0.1, result=SaveResult.OK)
    clock.advance(1.0)
    assert ages() == (4.0, 1.0)


def test_totals_that_are_carried_on_are_never_seen_at_nothing() -> None:
    """A resumed run's are withheld until they are what they were; what other recorders have is shown all along."""
    registry = new_registry()
    registry.values.gauge(DEPTH).set(1.0)
    metrics = DriverMetrics(registry, shown=False)
    assert not [name for name in readings(registry.values) if name.startswith("truestep_driver")]
    assert readings(registry.values)["depth"] == 1.0
    metrics.set_progress(updates=7, env_steps=56, version=1, term=0, policy_lag=0, per_second=None)
    assert "truestep_driver_updates_total" not in readings(registry.values)
    metrics.show()
    assert readings(registry.values)["truestep_driver_updates_total"] == 7
