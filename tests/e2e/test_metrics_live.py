"""Metrics of a run that is going on, scraped as Prometheus would."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.clock import MonotonicClock, wait_until
from deploy.config import parse_config
from deploy.session import resume, train
from tests.e2e.command import processes_of, updates_made
from tests.e2e.in_process import beside, embedded_ray

pytest.importorskip("ray")
LIMIT_S = 90.0
LATE = ("truestep_driver_object_store", "truestep_driver_stall")  # gauges that appear a few seconds into a run
TOTALS = (
    "truestep_driver_produced_transitions_total",
    "truestep_driver_trained_transitions_total",
    "truestep_driver_undone_transitions_total",
    "truestep_driver_dropped_transitions_total",
    "truestep_driver_env_steps_total",
    "truestep_driver_updates_total",
    "truestep_driver_episodes_total",
    "truestep_driver_lost_fragments_total",
    "truestep_driver_actor_restarts_total",
    "truestep_driver_verified_updates_total",
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    yield from embedded_ray(4)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def config(port: int, **changes: Any) -> Any:
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "engine": "ray",
        "seed": 6,
        "steps": 10**9,
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 32},
        "evaluation": {"every": 0, "final_episodes": 2, "lanes": 2},
        "metrics": {"port": port},
    }
    return parse_config(plain | changes)


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as response:
        text: str = response.read().decode()
    return text


def scrape(address: str) -> dict[str, float]:
    """Sum of the series of each metric."""
    found: dict[str, float] = {}
    for line in get(address, "/metrics").splitlines():
        if (match := re.fullmatch(r"(\w+)(?:\{.*\})? (\S+)", line)) is not None:
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def series_of(address: str) -> set[str]:
    """Names and labels of every series."""
    return {line.rpartition(" ")[0] for line in get(address, "/metrics").splitlines() if line[0] != "#"}


def targets(address: str) -> dict[str, str]:
    """Address by instance."""
    entries = json.loads(get(address, "/targets"))
    return {entry["labels"]["instance"]: entry["targets"][0] for entry in entries}


class Watching:
    """Scrapes a driver; every scrape must be in balance, and no total may ever be less than in the one before."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.totals = dict.fromkeys(TOTALS, 0.0)

    def look(self) -> dict[str, float]:
        seen = scrape(self.address)
        produced = seen.get("truestep_driver_produced_transitions_total", 0.0)
        trained = seen.get("truestep_driver_trained_transitions_total", 0.0)
        dropped = seen.get("truestep_driver_dropped_transitions_total", 0.0)
        undone = seen.get("truestep_driver_undone_transitions_total", 0.0)
        assert produced + undone == trained + dropped + seen.get("truestep_driver_in_flight_transitions", 0.0)
        for name in TOTALS:
            if name in seen:
                assert seen[name] >= self.totals[name], name
                self.totals[name] = seen[name]
        return seen

    def until(self, condition: Callable[[dict[str, float]], bool]) -> None:
        """Look on until a scrape meets the condition."""
        assert wait_until(lambda: condition(self.look()), clock=MonotonicClock(), seconds=LIMIT_S)


def answers(address: str) -> bool:
    try:
        return bool(get(address, "/healthz"))
    except (urllib.error.URLError, ConnectionError):
        return False


def test_every_process_is_found_and_totals_hold_over_a_killed_actor_and_a_resume(cluster: None, tmp_path: Path) -> None:
    """Discovery lists driver, learner and both actors; a killed actor's target goes, its successor's comes."""
    port = free_port()
    watching = Watching(f"127.0.0.1:{port}")

    def script() -> None:
        assert wait_until(lambda: answers(watching.address), clock=MonotonicClock(), seconds=LIMIT_S)
        watching.until(lambda seen: seen.get("truestep_driver_updates_total", 0) > 3)
        found = targets(watching.address)
        roles = sorted(instance.rpartition("-")[0] for instance in found)
        assert roles == ["actor-0", "actor-1", "driver-0", "learner-0"]
        known = {instance: series_of(address) for instance, address in found.items()}
        for instance, address in found.items():
            seen = scrape(address)
            assert 0.0 < seen["truestep_process_host_memory_used_ratio"] < 1.0
            assert seen["truestep_process_gc_pause_seconds_count"] > 0
            assert not [name for name in seen if name.endswith("_created")]
            role = instance.partition("-")[0]
            assert seen[{"actor": "truestep_actor_env_steps_total"}.get(role, f"truestep_{role}_updates_total")] > 0
            if role == "learner":
                assert seen["truestep_learner_verified_steps_total"] > 0
                assert seen["truestep_learner_gradient_norm"] > 0
            if role == "actor":
                assert seen["truestep_actor_env_step_seconds_count"] * 4 >= seen["truestep_actor_env_steps_total"]
        watching.until(lambda seen: "truestep_driver_object_store_used_bytes" in seen)
        seen = watching.look()  # fragments as small as these travel within Ray's messages
        assert seen["truestep_driver_object_store_used_bytes"] < seen["truestep_driver_object_store_capacity_bytes"]
        assert 0.0 <= seen["truestep_driver_last_commit_age_seconds"] < LIMIT_S
        updates = watching.totals["truestep_driver_updates_total"]
        watching.until(lambda seen: seen["truestep_driver_updates_total"] > updates + 20)
        for instance, address in found.items():
            grown = series_of(address) - known[instance]
            assert {name for name in grown if not name.startswith(LATE)} == set(), instance
        os.kill(processes_of(os.getpid(), "ray::ActorProcess")[0], signal.SIGKILL)
        watching.until(lambda seen: seen.get("truestep_driver_actor_restarts_total", 0) == 1)
        updates = watching.totals["truestep_driver_updates_total"]
        watching.until(lambda seen: seen["truestep_driver_updates_total"] > updates + 2)
        successor = targets(watching.address)
        assert sorted(instance.rpartition("-")[0] for instance in successor) == roles
        assert len(set(found) - set(successor)) == 1 and len(set(successor) - set(found)) == 1
        (new,) = set(successor) - set(found)
        assert scrape(successor[new])["truestep_actor_env_steps_total"] > 0

    outcome = beside(lambda stop: train(config(port), out=tmp_path, run="r", stop=stop), script)
    assert outcome.status == "interrupted", outcome.verdict
    assert not answers(watching.address)

    def again() -> None:
        updates = watching.totals["truestep_driver_updates_total"]
        assert wait_until(lambda: answers(watching.address), clock=MonotonicClock(), seconds=LIMIT_S)
        watching.until(lambda seen: seen.get("truestep_driver_updates_total", 0) > updates + 3)

    outcome = beside(lambda stop: resume("r", out=tmp_path, stop=stop), again)
    assert outcome.status == "interrupted", outcome.verdict
    assert watching.totals["truestep_driver_actor_restarts_total"] == 1
    assert watching.totals["truestep_driver_verified_updates_total"] > 0


def test_a_run_that_is_to_serve_nothing_listens_nowhere(tmp_path: Path) -> None:
    """metrics.enabled = false: the port stays free while the run goes on."""
    port = free_port()

    def script() -> None:
        assert wait_until(lambda: updates_made(tmp_path, "r") > 0, clock=MonotonicClock(), seconds=LIMIT_S)
        assert not answers(f"127.0.0.1:{port}")

    changes = {"engine": "inline", "metrics": {"enabled": False, "port": port}}
    outcome = beside(lambda stop: train(config(port, **changes), out=tmp_path, run="r", stop=stop), script)
    assert outcome.status == "interrupted", outcome.verdict


def test_three_runs_in_one_process_serve_on_the_same_port_one_after_the_other(tmp_path: Path) -> None:
    """Nothing of a run is left behind: neither its port nor its series."""
    port = free_port()
    for number in range(3):
        watching = Watching(f"127.0.0.1:{port}")

        def script(watching: Watching = watching, number: int = number) -> None:
            assert wait_until(lambda: answers(watching.address), clock=MonotonicClock(), seconds=LIMIT_S)
            watching.until(lambda seen: seen.get("truestep_driver_updates_total", 0) > 2)
            assert f'run="run-{number}"' in get(watching.address, "/metrics")
            assert f'run="run-{number - 1}"' not in get(watching.address, "/metrics")
            assert [name.partition("-")[0] for name in targets(watching.address)] == ["driver"]

        inline = config(port, engine="inline")
        outcome = beside(lambda stop: train(inline, out=tmp_path, run=f"run-{number}", stop=stop), script)  # noqa: B023
        assert outcome.status == "interrupted", outcome.verdict
