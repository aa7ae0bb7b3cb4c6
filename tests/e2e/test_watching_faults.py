"""Watching goes wrong in every way it can: each costs one log record, and no bit of the run (E1, C40)."""

from __future__ import annotations

import errno
import socket
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from common import metric_catalogue as catalogue
from common.checkpoints import CheckpointStore
from common.clock import MonotonicClock, wait_until
from common.driver_metrics import DriverMetrics
from common.metric_recorders import ActorMetrics, LearnerMetrics
from common.runs import RunRegistry
from deploy.config import parse_config
from deploy.display import Progress, Silent
from deploy.serving import SERVING
from deploy.session import Outcome, train

LIMIT_S = 60.0


class Onlooker(Silent):
    """Scrapes the driver each time that progress is shown, as long as there is one to scrape."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.scrapes: list[str] = []

    def show(self, progress: Progress) -> None:
        self.scrapes.append(get(self.port, "/metrics"))


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        text: str = response.read().decode()
    return text


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def run_with(out: Path, port: int, display: Silent | None = None) -> Outcome:
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "engine": "inline",
        "seed": 11,
        "steps": 768,
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 64, "epochs": 2},
        "checkpoint": {"every": 2},
        "evaluation": {"every": 0, "final_episodes": 2, "lanes": 2},
        "metrics": {"port": port},
    }
    outcome = train(parse_config(plain), out=out, run="r", display=display)
    assert outcome.status == "finished", outcome.verdict
    return outcome


def record_of(out: Path) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """Digest of the final parameters, and events by kind."""
    events: dict[str, list[dict[str, Any]]] = {}
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        for event in registry.events("r"):
            events.setdefault(event.kind, []).append(event.data)
        return registry.run("r").parameter_digest, events


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the run that nothing happens to."""
    out = tmp_path_factory.mktemp("quiet")
    run_with(out, 0)
    return record_of(out)[0]


def test_a_port_that_is_taken_is_told_and_another_one_serves(
    tmp_path: Path, digest: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By whom it is held, and in the record where the driver serves instead."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run_with(tmp_path, port)
    found, events = record_of(tmp_path)
    (serving,) = events[SERVING]
    assert found == digest
    assert not serving["address"].endswith(f":{port}")
    (record,) = caplog.records
    assert f"port {port} of 127.0.0.1 is taken; got held by process" in record.getMessage()
    assert record.getMessage().endswith(f"serving on port {serving['address'].rpartition(':')[2]} instead")


def test_scrapes_until_the_port_is_closed_and_beyond(
    tmp_path: Path, digest: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight that never stop asking, while the run ends around them: they are answered or cut, and nobody waits."""
    port, answered, refused = free_port(), threading.Event(), threading.Event()

    def scrape() -> None:
        while not refused.is_set():
            try:
                get(port, "/metrics")
                answered.set()
            except (OSError, HTTPException):  # cut in the middle of an answer, or nobody is there (any more)
                if answered.is_set():
                    refused.set()

    threads = [threading.Thread(target=scrape) for _ in range(8)]
    for thread in threads:
        thread.start()
    run_with(tmp_path, port, Onlooker(port))
    assert refused.wait(LIMIT_S)
    for thread in threads:
        thread.join(LIMIT_S)
    assert record_of(tmp_path)[0] == digest
    assert wait_until(
        lambda: not [each for each in threading.enumerate() if each.name.startswith("metrics of")],
        clock=MonotonicClock(),
        seconds=LIMIT_S,
    )
    assert not caplog.records


def test_a_reading_that_raises(
    tmp_path: Path, digest: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its series is left out of every scrape, and the log has one record however many scrapes there are."""

    def raising() -> float:
        raise PermissionError(errno.EACCES, "memory.max")

    monkeypatch.setattr("common.process_metrics._memory_ratio", raising)
    onlooker = Onlooker(free_port())
    run_with(tmp_path, onlooker.port, onlooker)
    assert len(onlooker.scrapes) >= 2
    assert not [text for text in onlooker.scrapes if "host_memory" in text]
    assert "truestep_driver_updates_total 7\n" in onlooker.scrapes[-1]
    assert record_of(tmp_path)[0] == digest
    (record,) = caplog.records
    assert "truestep_process_host_memory_used_ratio could not be read" in record.getMessage()


@pytest.mark.parametrize(
    ("recorder", "method"),
    [(ActorMetrics, "observe"), (LearnerMetrics, "observe"), (DriverMetrics, "set_accounts")],
    ids=["actor", "learner", "driver"],
)
def test_a_recorder_that_raises(
    tmp_path: Path,
    digest: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    recorder: type,
    method: str,
) -> None:
    """Each time it is called; the log has one record, and the other recorders go on."""

    def raising(*arguments: object, **named: object) -> None:
        raise ValueError("totals never go back")

    monkeypatch.setattr(recorder, method, raising)
    run_with(tmp_path, 0)
    assert record_of(tmp_path)[0] == digest
    (record,) = caplog.records
    assert f"{method} failed; the run goes on; told once" in record.getMessage()


def test_a_name_that_is_registered_twice(
    tmp_path: Path, digest: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first to have it keeps it; a scrape has no family twice."""
    twin = replace(catalogue.ACTOR_BYTES, name=catalogue.ACTOR_FRAGMENTS.name)
    monkeypatch.setattr(catalogue, "ACTOR_BYTES", twin)
    onlooker = Onlooker(free_port())
    run_with(tmp_path, onlooker.port, onlooker)
    assert onlooker.scrapes[-1].count("# TYPE truestep_actor_fragments_total ") == 1
    assert "truestep_actor_fragment_bytes_total" not in onlooker.scrapes[-1]
    assert record_of(tmp_path)[0] == digest
    (record,) = caplog.records
    assert "two metrics are named truestep_actor_fragments_total" in record.getMessage()


def test_output_that_cannot_be_written(
    tmp_path: Path, digest: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk in the middle of the run costs its checkpoints, one event each; the last one is written again."""
    save, last = CheckpointStore.save, 6

    def full(store: CheckpointStore, update: int, **parts: Any) -> Any:
        if update < last:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(store, update, **parts)

    monkeypatch.setattr(CheckpointStore, "save", full)
    onlooker = Onlooker(free_port())
    run_with(tmp_path, onlooker.port, onlooker)
    found, events = record_of(tmp_path)
    assert found == digest
    assert [event["update"] for event in events["CHECKPOINT_FAILED"]] == [2, 4]
    assert 'truestep_driver_checkpoints_total{result="failed"} 2' in onlooker.scrapes[-1]
    assert not caplog.records
