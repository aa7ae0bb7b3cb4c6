"""The way of a new user over two hosts: `ray up`, a job that learns CartPole, Prometheus, a host that dies, `ray down`.

Run by `make test-net`, which prints the times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common.clock import NS_PER_S, wait_until
from common.runs import RunRegistry
from tests.net import launcher
from tests.net.accounts import check_accounts
from tests.net.cluster import CLOCK, Driven
from tests.net.hosts import Host, Network, missing
from tests.net.launcher import Laptop
from tests.net.paced import ENV

WANTED = "TRUESTEP_TEST_NET"
pytestmark = [
    pytest.mark.net,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(WANTED not in os.environ, reason="makes network namespaces: run by make test-net"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.skipif(bool(launcher.missing()), reason=launcher.missing()),
]

LIMIT_S = 300.0
PROMETHEUS_PORT = 9090
RAY_PROCESSES = ("/raylet/raylet ", "gcs_server", "ray::", "ray/dashboard/", "ray/autoscaler/_private/monitor.py")
COMMON = ["--actors", "3"]
SETTINGS = {
    "placement.learner": "learns",
    "placement.actors": "collects",
    "placement.wait_s": 120,
    "metrics.host": "node",
    "metrics.port": 9100,
    "metrics.process_ports": "9101-9199",
}
LONG = {"flow.fragments": 2, "net.hidden": "[16]", "evaluation.every": 0, "evaluation.final_episodes": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Three hosts, on two of which a cluster is made."""

    network: Network
    laptop: Laptop
    keys: Path
    tmp: Path

    @property
    def out(self) -> Path:
        """Where runs are recorded; all hosts see it, only the head writes."""
        return self.tmp / "runs"

    def submit(self, name: str, words: list[str], settings: dict[str, Any]) -> Driven:
        """`ray job submit -- truestep train ...` on the head."""
        train = ["truestep", "train", *words, *COMMON, "--run", name, "--resume", "auto", "--out", str(self.out)]
        for key, value in {**SETTINGS, **settings}.items():
            train += ["--set", f"{key}={value}"]
        command = self.laptop.submission(name, train)
        return Driven(self.laptop.host, self.laptop.env, command, out=self.out, run=name, log=self.tmp / f"{name}.log")

    def away(self) -> list[int]:
        """Actors' processes on the worker host."""
        return self.network["worker"].processes("ray::ActorProcess")

    def left(self) -> list[tuple[str, str]]:
        """Processes of Ray on either host."""
        return [
            (name, words)
            for name in ("head", "worker")
            for words in RAY_PROCESSES
            if self.network[name].processes(words)
        ]

    def open(self, name: str) -> None:
        """A host is furnished, and lets the launcher in."""
        launcher.furnish(self.network[name], pace=self.tmp / "pace")
        launcher.open_door(self.network[name], self.keys)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    key = launcher.make_keys(tmp_path / "keys")
    with Network("head", "worker", "laptop") as network:
        file = tmp_path / "cluster.yaml"
        launcher.cluster_file(file, head=network["head"], worker=network["worker"], key=key)
        stage = Stage(network=network, laptop=Laptop(network["laptop"], file), keys=key.parent, tmp=tmp_path)
        for name in network.hosts:
            stage.open(name)
        yield stage


def tell(what: str, begun_ns: int) -> None:
    """A measured time, for whoever ran this."""
    print(f"{what:<60} {(CLOCK.now_ns() - begun_ns) / NS_PER_S:6.1f} s", flush=True)


def test_from_nothing_to_a_trained_policy_and_back(stage: Stage) -> None:
    """With the commands of deploy/ray/README.md; `ray down` leaves no process of Ray."""
    print()
    begun_ns = CLOCK.now_ns()
    stage.laptop.ray("get-auth-token", "--generate")
    stage.laptop.ray("up", "--yes", str(stage.laptop.file))
    tell("ray up: returned after", begun_ns)
    worker = stage.network["worker"]
    up = wait_until(lambda: bool(worker.processes("/raylet/raylet ")), clock=CLOCK, seconds=LIMIT_S, poll_s=0.5)
    assert up, stage.laptop.ray("exec", str(stage.laptop.file), "tail -n 50 /tmp/ray/session_latest/logs/monitor*")
    tell("ray up: the worker is a node after", begun_ns)
    learn_cartpole(stage)
    lose_a_host(stage)
    stage.laptop.ray("down", "--yes", str(stage.laptop.file))
    gone = wait_until(lambda: not stage.left(), clock=CLOCK, seconds=LIMIT_S, poll_s=0.5)
    assert gone, stage.left()


def learn_cartpole(stage: Stage) -> None:
    """To 475 and more, over fresh greedy episodes, with actors on the second host."""
    begun_ns = CLOCK.now_ns()
    run = stage.submit("first", ["CartPole-v1"], {})
    run.until(stage.away, "actors on the second host", LIMIT_S)
    assert run.wait(LIMIT_S) == 0, run.said()
    tell("CartPole-v1: the job ended after", begun_ns)
    with RunRegistry.open(stage.out / "runs.sqlite", read_only=True) as registry:
        final = registry.evaluations("first")[-1]
        assert registry.run("first").status == "finished"
    assert final.mean >= 475, run.said()
    print(f"CartPole-v1: mean return {final.mean} over {final.episodes} fresh episodes")


def lose_a_host(stage: Stage) -> None:
    """Prometheus finds everybody; a host dies, the others train on; it is booted and joined, and its actors return."""
    pace = stage.tmp / "pace"
    pace.touch()
    words = [ENV, "--algo", "impala", "--lanes", "4", "--rows", "16", "--steps", "30000"]
    run = stage.submit("second", words, LONG)
    prometheus = start_prometheus(stage.network["head"], stage.tmp)
    try:
        run.until(lambda: run.updates() >= 2 and len(stage.away()) == 2, "actors on both hosts", LIMIT_S)
        run.until(lambda: len(up_on(stage.network["head"])) == 5, "Prometheus to find five processes", LIMIT_S)
        assert up_on(stage.network["head"]) == ["10.77.0.1"] * 3 + ["10.77.0.2"] * 2
        begun_ns = CLOCK.now_ns()
        stage.network.kill("worker")
        run.until(lambda: len(run.events("ACTOR_LOST")) == 2, "both actors known to be lost", LIMIT_S)
        tell("host killed: both actors known to be lost after", begun_ns)
        made = run.updates()
        run.until(lambda: run.updates() >= made + 3, "training goes on", LIMIT_S)
        rejoin(stage)
        lost = {(event["actor"], 1) for event in run.events("ACTOR_LOST")}
        run.until(lambda: lost <= run.lives(), "both actors in updates again", LIMIT_S)
        tell("host killed: both actors in updates again after", begun_ns)
        pace.unlink()
        assert run.wait(LIMIT_S) == 0, run.said()
        check_accounts(stage.out, "second")
    finally:
        run.kill()
        prometheus.kill()
        prometheus.wait(LIMIT_S)


def rejoin(stage: Stage) -> None:
    """The host boots, with its disk as it was. Whoever watches the cluster on the head logs in, and `ray start`s it."""
    stage.network.boot("worker")
    launcher.furnish(stage.network["worker"], pace=stage.tmp / "pace")
    launcher.restore(stage.network["worker"], token=stage.laptop.token)
    launcher.open_door(stage.network["worker"], stage.keys)


def start_prometheus(host: Host, tmp: Path) -> subprocess.Popen[bytes]:
    """On the host, told of nothing but the driver's address."""
    discovery = {"url": f"http://{host.address}:9100/targets", "refresh_interval": "1s"}
    scrape = {"job_name": "truestep", "scrape_interval": "1s", "http_sd_configs": [discovery]}
    (tmp / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))
    words = [str(launcher.find("prometheus")), f"--config.file={tmp / 'prometheus.yml'}"]
    words += [f"--storage.tsdb.path={tmp / 'tsdb'}", f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}"]
    with (tmp / "prometheus.log").open("wb") as log:
        return subprocess.Popen(host.command(words), stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def up_on(host: Host) -> list[str]:
    """Host of each process that Prometheus scrapes with success."""
    url = f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/targets?state=active"
    source = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"
    told = json.loads(host.run([sys.executable, "-c", source, url]))
    scraped = [target for target in told["data"]["activeTargets"] if target["health"] == "up"]
    return sorted(target["discoveredLabels"]["__address__"].rpartition(":")[0] for target in scraped)
