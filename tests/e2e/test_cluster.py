"""A run on a cluster of three nodes: who is put where, what a lost node costs, and that it is made good again.

head      no CPU          the driver, without weight
steady    3 CPUs          learner ranks, and room for one actor
spot      1 CPU           room for one actor; taken away, and replaced by another
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import environment
from tests.net.accounts import check_accounts
from tests.net.cluster import ROOT, TRUESTEP, Driven, ThisMachine
from tests.net.paced import ENV, PACE

pytest.importorskip("ray")
from ray.cluster_utils import Cluster

RUN, LIMIT_S = "r", 120.0
STORE_BYTES = 100_000_000
SETTINGS = {
    "placement.learner": "tier=steady",  # a label
    "placement.actors": "collects",  # a custom resource
    "flow.fragments": 2,
    "net.hidden": "[16]",
    "evaluation.every": 0,
    "evaluation.final_episodes": 1,
    "checkpoint.every": 10,
}
TRAIN = ["train", ENV, "--algo", "impala", "--actors", "2", "--lanes", "4", "--rows", "8", "--steps", "3000"]


@dataclass(slots=True, kw_only=True)
class Stage:
    """The cluster, by the names of its nodes."""

    cluster: Any
    env: dict[str, str]
    nodes: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, *, cpus: int, labels: dict[str, str] | None = None, collects: int = 1) -> None:
        """A node joins."""
        resources = {"collects": float(collects)} if collects else {}
        self.nodes[name] = self.cluster.add_node(
            num_cpus=cpus, labels=labels, resources=resources, object_store_memory=STORE_BYTES
        )

    def remove(self, name: str) -> None:
        """A node is killed, and its processes with it."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)

    def drive(self, tmp_path: Path, run: str, *, learners: int, wait_s: float) -> Driven:
        """A run on it, at a walking pace."""
        out = tmp_path / "runs"
        words = [*TRAIN, "--learners", str(learners), "--run", run, "--out", str(out)]
        for key, value in {**SETTINGS, "placement.wait_s": wait_s}.items():
            words += ["--set", f"{key}={value}"]
        address = {"RAY_ADDRESS": self.cluster.address}
        return Driven(ThisMachine(), self.env | address, [*TRUESTEP, *words], out=out, run=run, log=tmp_path / run)

    def places(self, driven: Driven) -> dict[str, str]:
        """Node of each process of the run that says where it is: a process of Ray is a child of its node's raylet."""
        raylets = {_raylet(node): name for name, node in self.nodes.items()}
        return {f"{role} {index}": raylets.get(_parent(pid), "none") for role, index, pid in _targets(driven)}


def _raylet(node: Any) -> int:
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended since it was listed
        return 0


def _targets(driven: Driven) -> list[tuple[str, str, int]]:
    """Role, index and pid of every process that the driver lists but its own."""
    told = [line for line in driven.said().splitlines() if line.startswith("metrics ")]
    if not told:
        return []
    with urllib.request.urlopen(told[0].rpartition(" ")[2], timeout=10.0) as reply:
        groups = json.load(reply)
    labels = [group["labels"] for group in groups]
    return [
        (each["role"], each["index"], int(each["__meta_truestep_pid"])) for each in labels if each["role"] != "driver"
    ]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    pace = tmp_path / "pace"
    pace.touch()
    settings = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        PACE: str(pace),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        stage = Stage(cluster=cluster, env=environment(), nodes={"head": cluster.head_node})
        stage.add("steady", cpus=3, labels={"tier": "steady"})
        stage.add("spot", cpus=1)
        yield stage
    finally:
        cluster.shutdown()


def test_a_node_of_three_goes_and_another_comes(stage: Stage, tmp_path: Path) -> None:
    """Ranks lie together, actors on a node each, nothing on the head; with its node an actor is lost, which waits for a
    place and takes that of the next node; every transition has a fate.
    """
    run = stage.drive(tmp_path, RUN, learners=2, wait_s=60.0)
    try:
        run.until(lambda: run.updates() >= 2 and len(stage.places(run)) == 4, "everybody in training", LIMIT_S)
        places = stage.places(run)
        assert (places["learner 0"], places["learner 1"]) == ("steady", "steady")
        assert {places["actor 0"], places["actor 1"]} == {"steady", "spot"}
        lost = 0 if places["actor 0"] == "spot" else 1
        stage.remove("spot")
        run.until(lambda: run.events("ACTOR_LOST"), "its actor is known to be lost", LIMIT_S)
        made = run.updates()
        run.until(lambda: run.updates() >= made + 2, "training goes on", LIMIT_S)
        stage.add("spot again", cpus=1)
        run.until(lambda: (lost, 1) in run.lives(), "the actor is in updates again", LIMIT_S)
        assert stage.places(run)[f"actor {lost}"] == "spot again"
        (tmp_path / "pace").unlink()
        assert run.wait(LIMIT_S) == 0, run.said()
        assert [event["actor"] for event in run.events("ACTOR_LOST")] == [lost], "waiting for a place is no loss"
        check_accounts(tmp_path / "runs", RUN)
        refused(stage, tmp_path)
    finally:
        run.kill()


def refused(stage: Stage, tmp_path: Path) -> None:
    """A run that cannot be placed ends with exit code 2 and a table of what was asked and what there is."""
    run = stage.drive(tmp_path, "impossible", learners=4, wait_s=1.0)
    assert run.wait(LIMIT_S) == 2, run.said()
    said = run.said()
    assert "no places for this run within 1 s, and nothing was started" in said
    assert "4 x CPU 1, tier=steady, PACK" in said and "room for 3 on 3 nodes" in said
    assert "CPU 3, collects 1, tier=steady" in said
