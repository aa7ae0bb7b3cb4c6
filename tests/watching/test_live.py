"""Every panel and every alert, asked of a real Prometheus that watches a real run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.clock import MonotonicClock, wait_until
from deploy.config import parse_config
from deploy.session import train
from tests.e2e.command import updates_made
from tests.e2e.in_process import beside
from tests.watching.prometheus_server import PrometheusServer, free_port, needs_prometheus
from tests.watching.walk import LOAD, answered_without_cause, holding, unanswered, wrong_alerts

LIMIT_S = 60.0
RUN = "watched"


@needs_prometheus
@pytest.mark.timeout(180)
def test_every_panel_and_alert_has_its_answer(tmp_path: Path) -> None:
    """On one process, asynchronous, evaluated and saved as it goes: the queries of all boards, and of all alerts."""
    port = free_port()
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "algo": "impala",
        "engine": "inline",
        "steps": 10**9,
        "actors": {"num": 2, "lanes": 4, "rows": 32},
        "net": {"hidden": [16]},
        "learner": {"ranks": 2},
        "evaluation": {"every": 50, "episodes": 2, "final_episodes": 2, "lanes": 2},
        "metrics": {"port": port},
    }
    config = parse_config(plain)

    def script() -> None:
        with PrometheusServer(tmp_path, driver=f"127.0.0.1:{port}") as prometheus:
            clock = MonotonicClock()
            assert wait_until(lambda: updates_made(tmp_path, RUN) > 100, clock=clock, seconds=LIMIT_S)
            held = holding(prometheus, config, tmp_path, RUN)
            wait_until(lambda: not unanswered(prometheus, held), clock=clock, seconds=LIMIT_S, poll_s=1.0)
            assert unanswered(prometheus, held) == {}
            assert answered_without_cause(prometheus, held) == {}
            assert wrong_alerts(prometheus, held) == {}
            assert prometheus.firing() <= LOAD

    outcome = beside(lambda stop: train(config, out=tmp_path, run=RUN, stop=stop), script)
    assert outcome.status == "interrupted", outcome.verdict
