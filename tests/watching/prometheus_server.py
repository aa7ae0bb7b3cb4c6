"""A real Prometheus, started with the shipped configuration, and what it answers."""

from __future__ import annotations

import json
import math
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.clock import MonotonicClock, wait_until

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy" / "prometheus" / "prometheus.yml"
READY_WITHIN_S = 30.0
ENDS_WITHIN_S = 10.0
INTERVAL = "1s"  # instead of the 5 s of the shipped file: rates need two scrapes

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no Prometheus here: apt-get install --no-install-recommends prometheus"
)
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here: apt-get install --no-install-recommends prometheus"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series of an answer: its labels and its value."""

    labels: tuple[tuple[str, str], ...]
    value: float

    def __getitem__(self, label: str) -> str:
        return dict(self.labels)[label]


class PrometheusServer:
    """Debian's Prometheus on a free port of the loopback, with its data in a directory of its own.

    It may be killed and started again: port and data stay.

    Attributes:
        started_s: when it began to answer, by its own time.
    """

    def __init__(self, directory: Path, *, driver: str) -> None:
        self._directory = directory
        self._address = f"127.0.0.1:{free_port()}"
        self._config = directory / "prometheus.yml"
        self._config.write_text(self._configuration(driver))
        self._process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0

    def _configuration(self, driver: str) -> str:
        """The shipped file with another pace and other addresses."""
        config = yaml.safe_load(SHIPPED.read_text())
        config["global"] |= {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL}
        config["rule_files"] = [str(SHIPPED.parent / name) for name in config["rule_files"]]
        del config["alerting"]
        truestep, itself = config["scrape_configs"]
        truestep["http_sd_configs"] = [{"url": f"http://{driver}/targets", "refresh_interval": INTERVAL}]
        itself["static_configs"] = [{"targets": [self._address]}]
        return yaml.safe_dump(config)

    def start(self) -> None:
        """Start it; on return it answers."""
        with (self._directory / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._config}",
                    f"--storage.tsdb.path={self._directory / 'data'}",
                    f"--web.listen-address={self._address}",
                ],
                stdout=log,
                stderr=log,
            )
        ready = wait_until(self._answers, clock=MonotonicClock(), seconds=READY_WITHIN_S)
        assert ready, (self._directory / "prometheus.log").read_text()
        self.started_s = self.now_s()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, by default in good order."""
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(ENDS_WITHIN_S)
        self._process = None

    def __enter__(self) -> PrometheusServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def ask(self, promql: str, *, at_s: float | None = None) -> list[Sample]:
        """The answer to an instant query; series without a number (NaN) are none."""
        moment = {} if at_s is None else {"time": f"{at_s:.3f}"}
        found = self._get("query", query=promql, **moment)["result"]
        samples = [
            Sample(labels=tuple(sorted(each["metric"].items())), value=float(each["value"][1])) for each in found
        ]
        return [sample for sample in samples if not math.isnan(sample.value)]

    def now_s(self) -> float:
        """Its own time, to ask several queries of one moment."""
        answer = self._get("query", query="time()")
        return float(answer["result"][1])

    def rules(self) -> list[dict[str, Any]]:
        """Every rule as it stands."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"}

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
