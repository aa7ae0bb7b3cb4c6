"""Asks a live Prometheus everything that boards and alerts ask it, and says what was answered wrongly.

A query has an answer exactly when its `When` says so. Whether a condition holds is read from the run's configuration
and record and from the machine; of the series only what fires.
"""

from __future__ import annotations

from pathlib import Path

from common.runs import RunRegistry
from deploy.config import RunConfig
from deploy.prometheus.alerts import ALERTS
from deploy.prometheus.queries import CATALOGUE, When
from deploy.sync_tally import RECOVERED
from tests.watching.prometheus_server import PrometheusServer

LOAD = {"TruestepStalled", "TruestepUnbalanced", "TruestepMemoryHigh"}  # what a small or busy machine may cause
WINDOW = "2m"  # longer than any of these runs has lasted: what happened once is in it


def holding(prometheus: PrometheusServer, config: RunConfig, out: Path, run: str) -> set[When]:
    """The conditions that hold in this run, on this machine, now."""
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        recovered = any(event.kind == RECOVERED for event in registry.events(run))
        evaluated = bool(registry.evaluations(run))
        checkpointed = bool(registry.checkpoints(run))
    facts = {
        When.RUNNING: True,
        When.EPISODE: True,  # those of CartPole are over in no time
        When.EVALUATED: evaluated,
        When.CHECKPOINTED: checkpointed,
        When.ASYNCHRONOUS: config.asynchronous,
        When.PROCESSES: config.engine == "ray",
        When.GPU: Path("/dev/nvidia0").exists(),
        When.RECOVERED: recovered,
        When.FIRING: bool(prometheus.firing()),
    }
    return {when for when in When if facts[when]}


def unanswered(prometheus: PrometheusServer, held: set[When]) -> dict[str, str]:
    """Queries that should have an answer and have none, by name."""
    expected = {name: query for name, query in CATALOGUE.items() if query.when in held}
    asked = {name: query.asked(window=WINDOW) for name, query in expected.items()}
    return {name: promql for name, promql in asked.items() if not prometheus.ask(promql)}


def answered_without_cause(prometheus: PrometheusServer, held: set[When]) -> dict[str, str]:
    """Queries that should have no answer and have one, by name."""
    unexpected = {name: query for name, query in CATALOGUE.items() if query.when not in held}
    asked = {name: query.asked(window=WINDOW) for name, query in unexpected.items()}
    return {name: promql for name, promql in asked.items() if prometheus.ask(promql)}


def wrong_alerts(prometheus: PrometheusServer, held: set[When]) -> dict[str, str]:
    """Alerts that do not see what they watch, or do not say what exceeds their limit, by name."""
    wrong = {}
    for alert in ALERTS:
        moment = prometheus.now_s()
        watched = prometheus.ask(alert.watched, at_s=moment)
        beyond = [sample for sample in watched if sample.value > alert.above]
        if bool(watched) != (alert.query.when in held):
            wrong[alert.name] = f"{alert.watched} gives {watched}"
        if prometheus.ask(alert.expression, at_s=moment) != beyond:
            wrong[alert.name] = f"{alert.expression} does not give {beyond}"
    unhealthy = {rule["name"]: rule["lastError"] for rule in prometheus.rules() if rule["health"] != "ok"}
    return wrong | unhealthy
