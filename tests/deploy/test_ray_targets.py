"""Discovery of processes of engine ray: who lives, under which name, and nobody else (E1, C41)."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.clock import MonotonicClock
from common.metrics import PortRange
from common.process_identity import ProcessIdentity
from deploy.compose import compose
from deploy.config import parse_config

pytest.importorskip("ray")
from deploy.ray_calls import Process
from deploy.ray_engine import RayEngine
from deploy.ray_placement import Placement
from deploy.ray_processes import Presence, ProcessSetup

SLEEPING = "import os, sys\nprint(os.getpid(), flush=True)\nsys.stdin.read()"


@contextmanager
def living() -> Iterator[tuple[subprocess.Popen[str], ProcessIdentity]]:
    """A process, and its identity."""
    child = subprocess.Popen([sys.executable, "-c", SLEEPING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    with child:
        child.stdout.readline()
        stat = Path(f"/proc/{child.pid}/stat").read_text()
        ticks = int(stat[stat.rindex(")") + 2 :].split()[19])
        yield child, dataclasses.replace(ProcessIdentity.current(), pid=child.pid, start_ticks=ticks)
        child.kill()


@pytest.fixture
def engine() -> RayEngine:
    setup = ProcessSetup(
        driver=ProcessIdentity.current(),
        sources={},
        python_path=(),
        metrics_host="",
        metrics_ports=PortRange.parse("0"),
    )
    composition = compose("r", parse_config({"env": {"id": "CartPole-v1"}}))
    return RayEngine(composition, setup, MonotonicClock(), Placement())


def started(engine: RayEngine, identity: ProcessIdentity, *, lease: str, port: int = 9100, **changes: Any) -> None:
    fields: dict[str, Any] = {"role": "actor", "index": 3, "lease": lease, "who": "actor 3", "handle": None} | changes
    process = Process(**fields, presence=Presence(identity=identity, metrics_host="10.0.0.7", metrics_port=port))
    engine._processes[process.role].add(process)


def test_a_target_says_all_that_is_needed_to_find_its_process(engine: RayEngine) -> None:
    """Address, role, index, lease, run, host and process id."""
    identity = ProcessIdentity.current()
    started(engine, identity, lease="a1")
    started(engine, identity, lease="b2", role="learner", index=0, port=9101)
    actor, learner = (target.to_json() for target in engine.targets())
    assert actor == {
        "targets": ["10.0.0.7:9100"],
        "labels": {
            "instance": "actor-3-a1",
            "role": "actor",
            "index": "3",
            "run": "r",
            "__meta_truestep_host": identity.host,
            "__meta_truestep_pid": str(identity.pid),
        },
    }
    assert (learner["targets"], learner["labels"]["instance"]) == (["10.0.0.7:9101"], "learner-0-b2")


def test_a_process_that_dies_is_gone_with_the_next_request(engine: RayEngine) -> None:
    """Also one of which nothing is asked, so that no failed call tells of it; its successor is another instance."""
    with living() as (child, identity):
        started(engine, identity, lease="a1")
        assert [target.lease for target in engine.targets()] == ["a1"]
        child.kill()
        child.wait(timeout=30)
        assert engine.targets() == []
    started(engine, ProcessIdentity.current(), lease="a2")
    assert [target.to_json()["labels"]["instance"] for target in engine.targets()] == ["actor-3-a2"]


def test_who_has_not_started_or_serves_nothing_is_no_target(engine: RayEngine) -> None:
    """Prometheus would count it as down."""
    engine._processes["actor"].add(Process(role="actor", index=0, lease="a", who="actor 0", handle=None))
    started(engine, ProcessIdentity.current(), lease="b", index=1, port=0)
    assert engine.targets() == []


def test_a_process_of_another_host_stays_until_ray_tells_of_its_death(engine: RayEngine) -> None:
    """Nobody can look at it from here."""
    elsewhere = dataclasses.replace(ProcessIdentity.current(), host="elsewhere", pid=1, start_ticks=1)
    started(engine, elsewhere, lease="a1")
    assert [target.host for target in engine.targets()] == ["elsewhere"]
