"""A run of four actors and two learner ranks under a real Prometheus, and what dies meanwhile (`make watch`)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from common.clock import MonotonicClock, wait_until
from common.errors import EXIT_RESUMABLE
from common.metric_catalogue import CATALOGUE as METRICS
from common.metric_kinds import Kind
from common.runs import RunRegistry
from deploy.config import parse_config
from deploy.prometheus.queries import When, stability
from tests.e2e.command import Started, processes_of, updates_made
from tests.watching.prometheus_server import PrometheusServer, free_port, needs_prometheus
from tests.watching.walk import LOAD, answered_without_cause, holding, unanswered, wrong_alerts

pytest.importorskip("ray")
LIMIT_S = 180.0
RUN = "watched"
NUM_ACTORS, NUM_RANKS = 4, 2
TOTALS_OF_THE_RUN = [
    metric
    for metric in METRICS
    if metric.kind is Kind.COUNTER
    and metric.name.startswith("truestep_driver_")
    and "since this driver began" not in metric.help
]


class Watched:
    """The run, by its command, and the Prometheus beside it."""

    def __init__(self, directory: Path, *, port: int) -> None:
        self.out = directory
        self.prometheus = PrometheusServer(directory, driver=f"127.0.0.1:{port}")
        self._port = f"metrics.port={port}"

    def train(self) -> Started:
        sizes = ["--actors", f"{NUM_ACTORS}", "--learners", f"{NUM_RANKS}", "--lanes", "4", "--rows", "32"]
        pace = ["--steps", f"{10**9}", "--set", "evaluation.every=25", "--set", "evaluation.episodes=2"]
        named = ["--out", f"{self.out}", "--run", RUN, "--set", self._port]
        return Started(["train", "CartPole-v1", "--algo", "impala", *sizes, *pace, *named])

    def resume(self) -> Started:
        return Started(["resume", RUN, "--out", f"{self.out}"])

    def holding(self) -> set[When]:
        with RunRegistry.open(self.out / "runs.sqlite", read_only=True) as registry:
            config = parse_config(registry.run(RUN).config)
        return holding(self.prometheus, config, self.out, RUN)

    def instances(self, role: str) -> set[str]:
        """Processes that Prometheus can read now; what it knew before it was killed does not count."""
        up = f'up{{run="{RUN}", role="{role}"}}'
        fresh = f"({up} == 1) and timestamp({up}) > {self.prometheus.started_s}"
        return {sample["instance"] for sample in self.prometheus.ask(fresh)}

    def everybody(self) -> bool:
        sizes = {"driver": 1, "actor": NUM_ACTORS, "learner": NUM_RANKS}
        return all(len(self.instances(role)) == size for role, size in sizes.items())

    def going_on(self, driver: Started) -> None:
        """Wait until ten more updates are made."""
        before = updates_made(self.out, RUN)
        driver.wait_for(lambda: updates_made(self.out, RUN) > before + 10, "ten updates more", LIMIT_S)

    def totals_went_back(self) -> list[str]:
        """Totals of the run that were ever less than before, over all drivers of it."""
        back = []
        for metric in TOTALS_OF_THE_RUN:
            by = "run" if metric.label is None else f"run, {metric.label.name}"
            if self.prometheus.ask(f"resets((max by ({by}) ({metric.name}))[15m:1s]) > 0"):
                back.append(metric.name)
        return back

    def kill_one(self, driver: Started, role: str, title: str) -> None:
        """Kill a process; its series end, its successor's begin, the others' go on."""
        before = self.instances(role)
        os.kill(processes_of(driver.process.pid, title)[0], signal.SIGKILL)
        until(lambda: len(self.instances(role) - before) == 1 and self.everybody())
        (gone,) = before - self.instances(role)
        until(lambda: self.prometheus.ask(f'{{instance="{gone}"}}') == [])
        self.going_on(driver)


def until(condition: Callable[[], bool]) -> None:
    assert wait_until(condition, clock=MonotonicClock(), seconds=LIMIT_S, poll_s=0.5)


@needs_prometheus
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_panel_and_alert_over_ray_and_deaths_leave_right_series(tmp_path: Path) -> None:
    """All boards and alerts; then an actor, a rank and Prometheus are killed, and the run is stopped and resumed."""
    watched = Watched(tmp_path, port=free_port())
    with watched.prometheus as prometheus:
        with watched.train() as driver:
            driver.wait_for(lambda: updates_made(tmp_path, RUN) > 60, "60 updates", LIMIT_S)
            until(watched.everybody)
            until(lambda: not unanswered(prometheus, watched.holding()))
            held = watched.holding()
            assert answered_without_cause(prometheus, held) == {}
            assert wrong_alerts(prometheus, held) == {}
            assert prometheus.firing() <= LOAD

            watched.kill_one(driver, "actor", "ray::ActorProcess")
            assert [sample.value for sample in prometheus.ask("truestep_driver_actor_restarts_total")] == [1]
            watched.kill_one(driver, "learner", "ray::RankProcess")
            assert [sample.value for sample in prometheus.ask("truestep_driver_rank_restarts_total")] == [1]
            until(lambda: not unanswered(prometheus, watched.holding()))  # recoveries among them

            prometheus.stop(signal.SIGKILL)
            watched.going_on(driver)
            prometheus.start()
            until(watched.everybody)
            assert watched.totals_went_back() == []

            driver.kill(signal.SIGTERM)
            assert driver.finish().returncode == EXIT_RESUMABLE
        until(lambda: [sample.value for sample in prometheus.ask(stability.DRIVER_GONE.asked())] == [1])
        assert not any(sample.value for sample in prometheus.ask(stability.SILENT_PROCESSES.asked()))
        with watched.resume() as driver:
            watched.going_on(driver)
            until(watched.everybody)
            until(lambda: [sample.value for sample in prometheus.ask(stability.DRIVER_GONE.asked())] == [0])
            assert watched.totals_went_back() == []
            driver.kill(signal.SIGTERM)
            assert driver.finish().returncode == EXIT_RESUMABLE
