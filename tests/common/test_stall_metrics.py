"""What stall attribution exports, and what it reads of other gauges."""

from __future__ import annotations

import pytest

from common.clock import ManualClock
from common.driver_catalogue import DRIVER_STAGE_MARKS, DRIVER_STALL, DRIVER_STALL_SECONDS
from common.gpu_watch import GpuReading
from common.metrics import DriverMetrics, ObjectStoreMetrics, Registry, Stage, Stall
from common.process_metrics import ProcessMetrics


def read(registry: Registry, metric: object) -> dict[str, object]:
    """Its samples by label."""
    return {sample.label: sample.reading for sample in registry.values.snapshot().get(metric, [])}  # type: ignore[call-overload]


def test_one_verdict_is_in_force_and_time_passes_under_it() -> None:
    """None before the first; the one before goes to 0, and keeps its seconds."""
    registry = Registry()
    metrics = DriverMetrics(registry)
    assert read(registry, DRIVER_STALL) == {}
    metrics.set_stall(Stall.HEALTHY, seconds=2.0)
    metrics.set_stall(Stall.FLOW_BOUND, seconds=1.5)
    assert read(registry, DRIVER_STALL) == {stall.value: float(stall is Stall.FLOW_BOUND) for stall in Stall}
    seconds = read(registry, DRIVER_STALL_SECONDS)
    assert (seconds["healthy"], seconds["flow_bound"], sum(seconds.values())) == (2.0, 1.5, 3.5)  # type: ignore[arg-type]


def test_marks_never_go_back() -> None:
    """A total that would is refused, and the others with it."""
    registry = Registry()
    metrics = DriverMetrics(registry)
    metrics.set_stages(marks={Stage.TICKS: 64, Stage.BUILT: 2}, states={Stage.TICKS: 0, Stage.BUILT: 3})
    with pytest.raises(ValueError, match="never go back"):
        metrics.set_stages(marks={Stage.TICKS: 96, Stage.BUILT: 1}, states={})
    marks = read(registry, DRIVER_STAGE_MARKS)
    assert (marks["ticks"], marks["built"], marks["drawn"]) == (64, 2, 0)


def test_what_is_exported_of_store_and_gpu_can_be_read_back() -> None:
    """By whoever has the same registry; unknown as long as nobody knows."""
    registry = Registry()
    store = ObjectStoreMetrics(registry)
    assert store.ratio is None
    ObjectStoreMetrics(registry).set((3, 4))
    assert store.ratio == 0.75
    ObjectStoreMetrics(registry).set((0, 0))
    assert store.ratio is None
    process = ProcessMetrics(registry, ManualClock(), who="rank 0")
    assert process.gpu_utilization is None
    process.set_gpu(GpuReading(utilization=0.25))
    assert process.gpu_utilization == 0.25
