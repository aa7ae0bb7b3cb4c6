"""What every process says of itself: pauses of the collector, memory, its GPU (A14, E3, C15)."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from common.clock import ManualClock, MonotonicClock, wait_until
from common.gc_watch import PauseWatch
from common.gpu_watch import Binding, GpuReader, GpuReading, GpuWatch, visible_gpus
from common.metric_catalogue import PROCESS_GC_PAUSE_SECONDS
from common.metric_values import Histogram, Values
from common.metrics import Registry, new_registry
from common.process_metrics import ProcessMetrics

UUIDS = ("GPU-aa11", "GPU-bb22", "GPU-cc33")


class FakeNvml:
    """Three GPUs as `pynvml` shows them: the first has no load of its own to tell, the second one is ours."""

    class NVMLError(Exception):
        pass

    def __init__(self, pids: dict[str, list[int]] | None = None) -> None:
        self.pids = pids or {}
        self.asked = 0

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return UUIDS[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        self.asked += 1
        if handle == UUIDS[0]:
            raise self.NVMLError("not supported")
        return SimpleNamespace(gpu=73, memory=41)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(total=16 << 30, used=4 << 30, free=12 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Sequence[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids.get(handle, [])]


def series(registry: Registry) -> dict[str, Any]:
    return {metric.name: samples[0].reading for metric, samples in registry.values.snapshot().items()}


# ---- pauses ----------------------------------------------------------------------------------------------------------


def test_each_collection_is_one_pause_whoever_asks_for_it() -> None:
    """From start to close; as long as the clock says."""
    clock, pauses = ManualClock(1), Histogram("pauses", (0.001, 0.1))
    watch = PauseWatch(pauses, clock)
    slow = [lambda phase, _: clock.advance(0.05) if phase == "start" else None]
    gc.collect()
    watch.start()
    gc.callbacks.extend(slow)
    gc.disable()
    try:
        gc.collect()
        gc.collect(0)
    finally:
        gc.enable()
        watch.close()
        gc.callbacks.remove(slow[0])
    gc.collect()
    watch.close()
    assert pauses.counts == [0, 2, 0]
    assert pauses.sum == pytest.approx(0.1)


def test_a_collection_while_values_are_locked_waits_for_nothing() -> None:
    """It can begin in the middle of a recorder, in the thread that holds the lock."""
    values = Values()
    watch = PauseWatch(values.histogram(PROCESS_GC_PAUSE_SECONDS), MonotonicClock())
    watch.start()
    with values.recording():
        gc.collect()
    watch.close()
    assert values.histogram(PROCESS_GC_PAUSE_SECONDS).read().cumulative[-1] >= 1


def test_a_process_says_how_full_its_memory_is_and_is_silent_about_a_gpu_it_has_not() -> None:
    """The ratio is of the moment of the scrape; nothing of a GPU is exported where there is none."""
    registry, before = new_registry(), len(gc.callbacks)
    with ProcessMetrics(registry, MonotonicClock(), who="actor 3"):
        assert len(gc.callbacks) == before + 1
        assert 0.0 < series(registry)["truestep_process_host_memory_used_ratio"] < 1.0
    assert len(gc.callbacks) == before
    assert not [name for name in series(registry) if "gpu" in name]


# ---- GPU -------------------------------------------------------------------------------------------------------------


def test_a_reading_is_of_the_gpu_that_the_process_computes_on() -> None:
    """Found by the UUID that CUDA tells, which lacks NVML's first letters."""
    reading = GpuReader(FakeNvml(), Binding(computes_on="bb22", assigned=("1",))).read()
    assert reading == GpuReading(utilization=0.73, used_bytes=4 << 30, total_bytes=16 << 30, misplaced=False)


def test_what_nvml_does_not_tell_has_no_number() -> None:
    """A slice of a GPU has no load of its own: that alone is missing. A GPU that NVML does not list has nothing."""
    reading = GpuReader(FakeNvml(), Binding(computes_on="aa11")).read()
    assert reading == GpuReading(utilization=None, used_bytes=4 << 30, total_bytes=16 << 30, misplaced=None)
    assert GpuReader(FakeNvml(), Binding(computes_on="zz99")).read() == GpuReading()


@pytest.mark.parametrize(
    ("assigned", "misplaced"),
    [
        (("1",), False),
        (("0", "1"), False),
        (("0",), True),
        ((), True),
        (("GPU-bb22",), False),
        (("GPU-bb",), False),  # CUDA takes the beginning of a name
        (("GPU-aa11",), True),
        (("7",), True),  # there is no such GPU
        (("MIG-1234",), None),
        (None, None),
    ],
)
def test_a_wrong_binding_is_seen(assigned: tuple[str, ...] | None, misplaced: bool | None) -> None:
    """By numbers in NVML's order, by UUIDs, by their beginnings; where anything is allowed there is nothing to see."""
    reader = GpuReader(FakeNvml(), Binding(computes_on="bb22", assigned=assigned))
    assert reader.read().misplaced is misplaced


def test_a_second_gpu_that_a_process_has_come_to_use_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its pid among those that compute there; in a container pids are others' and say nothing."""
    nvml = FakeNvml({"GPU-bb22": [os.getpid()], "GPU-cc33": [1, os.getpid()]})
    binding = Binding(computes_on="bb22", assigned=("1",))
    monkeypatch.setattr("common.gpu_watch._pid_namespace", lambda: "pid:[4026531836]")
    reader = GpuReader(nvml, binding)
    assert reader.read().misplaced is True
    assert f"process {os.getpid()} computes on a GPU that it was not given; got bb22, cc33; allowed: bb22" in str(
        reader.mistake()
    )
    monkeypatch.setattr("common.gpu_watch._pid_namespace", lambda: "pid:[4026532999]")
    assert GpuReader(nvml, binding).read().misplaced is False


def test_a_wrong_binding_is_exported_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gauges come from a thread of their own, which is gone after closing."""
    monkeypatch.setattr("common.gpu_watch.POLL_S", 0.001)
    registry, nvml = new_registry(), FakeNvml()
    with ProcessMetrics(registry, MonotonicClock(), who="learner rank 1") as metrics:
        metrics.watch_gpu(Binding(computes_on="bb22", assigned=("0",)), nvml)
        assert wait_until(lambda: nvml.asked > 3, clock=MonotonicClock(), seconds=30)
    seen = {name: value for name, value in series(registry).items() if "gpu" in name}
    assert seen == {
        "truestep_process_gpu_utilization_ratio": 0.73,
        "truestep_process_gpu_memory_used_bytes": 4 << 30,
        "truestep_process_gpu_memory_total_bytes": 16 << 30,
        "truestep_process_gpu_misplaced": 1,
    }
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("learner rank 1: process ")
    assert "gpu of learner rank 1" not in {thread.name for thread in threading.enumerate()}


def test_a_library_that_breaks_ends_its_series_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """One log record; numbers of a moment that is past are not shown as if they were of now."""
    told: list[GpuReading] = []

    def reader() -> GpuReader:
        raise FakeNvml.NVMLError("driver not loaded")

    watch = GpuWatch(reader, told.append, who="learner rank 0")
    watch.start()
    assert wait_until(lambda: bool(told), clock=MonotonicClock(), seconds=30)
    watch.close()
    assert told == [GpuReading()]
    (record,) = caplog.records
    assert record.getMessage() == "GPU of learner rank 0: cannot be read any more; the run goes on"


def test_what_the_environment_gives() -> None:
    """As CUDA reads it: unset is any GPU, empty is none."""
    assert visible_gpus({}) is None
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3, GPU-ab"}) == ("3", "GPU-ab")
