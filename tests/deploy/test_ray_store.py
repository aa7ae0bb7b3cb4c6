"""How full the object stores are: read beside the run, and missing without harm."""

from __future__ import annotations

import threading

import pytest

from common.clock import MonotonicClock, wait_until
from common.metrics import ObjectStoreMetrics, new_registry

pytest.importorskip("ray")
from deploy import ray_store
from deploy.ray_store import StoreWatch


def test_stores_are_asked_again_and_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An answer is exported, a failure takes the series away and is told once, the next answer brings it back."""
    monkeypatch.setattr(ray_store, "POLL_S", 0.0)
    registry, answers, steps = new_registry(), [(3, 8), None, None, (4, 8)], threading.Semaphore(0)
    seen: list[dict[str, float]] = []

    def ask() -> tuple[int, int]:
        seen.append(exported())
        assert steps.acquire(timeout=30)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            raise OSError("no node answers")
        return answer

    def exported() -> dict[str, float]:
        snapshot = registry.values.snapshot()
        return {metric.name: samples[0].reading for metric, samples in snapshot.items() if "store" in metric.name}  # type: ignore[misc]

    watch = StoreWatch(ObjectStoreMetrics(registry), ask)
    watch.start()
    for _ in range(5):
        steps.release()
    assert wait_until(lambda: len(seen) >= 6, clock=MonotonicClock(), seconds=30)
    steps.release(100_000)
    watch.close()
    used, held = "truestep_driver_object_store_used_bytes", "truestep_driver_object_store_capacity_bytes"
    assert seen[:6] == [{}, {used: 3, held: 8}, {}, {}, {used: 4, held: 8}, {used: 4, held: 8}]
    assert [record.getMessage() for record in caplog.records] == [
        "the object stores do not say how full they are: no node answers; told once"
    ]
    assert "object-store" not in {thread.name for thread in threading.enumerate()}
