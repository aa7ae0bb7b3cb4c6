"""What metrics cost: CPU time of recording and of scrapes in a run of four actors, and of one scrape of 1,000 series.

    python -m benchmarks.metrics [--seconds 30] [--actors 4] [--engine ray]

A run of CartPole-v1 whose processes are scraped as often as the shipped Prometheus does it. Each process accounts for
the CPU time of its own metrics. Timing ticks is outside that account, since reading a clock once more a tick would cost
as much as it does; it is measured by itself and added. Shares are of the CPU time that the processes took meanwhile.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import tempfile
import threading
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors.stopwatch import Stopwatch
from benchmarks.report import mark, result_line, table
from common.clock import MonotonicClock, thread_cpu_ns
from common.metrics import ActorMetrics, DriverMetrics, LearnerMetrics, new_registry
from deploy.config import parse_config
from deploy.display import Progress, Silent
from deploy.driver import StopFlag
from deploy.outputs import open_registry
from deploy.serving import SERVING
from deploy.session import train

MOST_SHARE = 0.01
MOST_SCRAPE_MS = 10.0
SCRAPE_EVERY_S = 5.0  # deploy/prometheus/prometheus.yml
SCRAPES = 200
OPEN_METRICS = "application/openmetrics-text;version=1.0.0"


@dataclass(slots=True)
class Readings:
    """What was read of one process: first and last of each series that matters, and how many series there were."""

    first: dict[str, float]
    last: dict[str, float] = field(default_factory=dict)
    num_series: set[int] = field(default_factory=set)

    def grown(self, name: str) -> float:
        """By how much a total grew."""
        return self.last.get(name, 0.0) - self.first.get(name, 0.0)


def scrape_cost_ms() -> tuple[float, int]:
    """CPU milliseconds of one answered scrape, compressed, by 1,000 series; and of how many series it was measured."""
    registry = new_registry()
    ActorMetrics(registry), LearnerMetrics(registry), DriverMetrics(registry)
    costs = []
    for _ in range(SCRAPES):
        start_ns = thread_cpu_ns()
        text, _ = registry.render(OPEN_METRICS)
        gzip.compress(text, compresslevel=1, mtime=0)
        costs.append((thread_cpu_ns() - start_ns) / 1e6)
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    assert not [line for line in lines if "_created" in line]
    return statistics.median(costs) * 1_000 / len(lines), len(lines)


def tick_cost_ns() -> float:
    """CPU nanoseconds that timing one tick takes."""
    rows, rounds = 128, 500
    watch = Stopwatch(rows, 8)
    start_ns = thread_cpu_ns()
    for _ in range(rounds):
        watch.begin_fragment(0)
        for _ in range(rows):
            watch.tick(0, 1)
    return (thread_cpu_ns() - start_ns) / (rounds * rows)


def get(address: str, path: str) -> str:
    """A page of one of the processes."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept-Encoding": "identity"})
    with urllib.request.urlopen(request, timeout=30) as response:
        text: str = response.read().decode()
    return text


def numbers(text: str) -> tuple[dict[str, float], int]:
    """Sum of the series of each metric, and how many series there are."""
    found: dict[str, float] = {}
    series = re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE)
    for name, value in series:
        found[name] = found.get(name, 0.0) + float(value)
    return found, len(series)


def scraped_run(out: Path, *, actors: int, engine: str, seconds: float) -> dict[str, Readings]:
    """Run, scrape every process now and then once the first updates are made, and end it."""
    stop, processes = StopFlag(), dict[str, Readings]()
    onlooker = threading.Thread(target=_look_on, args=(out, stop, processes, seconds))
    onlooker.start()
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "engine": engine,
        "steps": 10**9,
        "actors": {"num": actors, "lanes": 64, "rows": 128},
        "evaluation": {"every": 0, "final_episodes": 1},
    }
    outcome = train(parse_config(plain), out=out, run="r", stop=stop, display=Warm())
    onlooker.join()
    assert outcome.status == "interrupted", outcome.verdict
    return processes


class Warm(Silent):
    """Says when the first updates are made."""

    made = threading.Event()

    def show(self, progress: Progress) -> None:
        if progress.updates >= 10:
            self.made.set()


def _look_on(out: Path, stop: StopFlag, processes: dict[str, Readings], seconds: float) -> None:
    clock = MonotonicClock()
    Warm.made.wait(120)
    with open_registry(out) as registry:
        (serving,) = (event.data for event in registry.events("r") if event.kind == SERVING)
    targets = json.loads(get(serving["address"], "/targets"))
    for number in range(round(seconds / SCRAPE_EVERY_S) + 1):
        clock.sleep(SCRAPE_EVERY_S if number else 0.0)
        for target in targets:
            name = "{role}-{index}".format(**target["labels"])
            seen, count = numbers(get(target["targets"][0], "/metrics"))
            readings = processes.setdefault(name, Readings(first=seen))
            readings.last = seen
            readings.num_series.add(count)
    stop.ask("measured")


def spent_s(readings: Readings, tick_ns: float) -> tuple[float, float]:
    """CPU seconds that a process spent on metrics, and on everything."""
    ticks = readings.grown("truestep_actor_env_step_seconds_count")
    on_metrics = readings.grown("truestep_process_metrics_cpu_seconds_total") + ticks * tick_ns / 1e9
    return on_metrics, readings.grown("process_cpu_seconds_total")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--engine", choices=["ray", "inline"], default="ray")
    asked = parser.parse_args()
    scrape_ms, measured_series = scrape_cost_ms()
    tick_ns = tick_cost_ns()
    with tempfile.TemporaryDirectory() as folder:
        processes = scraped_run(Path(folder), actors=asked.actors, engine=asked.engine, seconds=asked.seconds)
    spent = {name: spent_s(readings, tick_ns) for name, readings in sorted(processes.items())}
    spent["all"] = (sum(metrics for metrics, _ in spent.values()), sum(everything for _, everything in spent.values()))
    shares = {name: metrics / everything for name, (metrics, everything) in spent.items()}
    rows = [
        [
            name,
            str(sum(max(each.num_series) for who, each in processes.items() if name in ("all", who))),
            f"{everything / asked.seconds:.3f}",
            f"{1e3 * metrics / asked.seconds:.2f} ms",
            f"{100 * shares[name]:.2f} %",
        ]
        for name, (metrics, everything) in spent.items()
    ]
    print(table(["process", "series", "cores busy", "on metrics, a second", "share"], rows))
    print(f"all together  {mark(shares['all'] < MOST_SHARE)} (promised: below 1 %)")
    print(f"one scrape    {scrape_ms:.2f} ms of CPU time by 1,000 series (of {measured_series}), compressed")
    print(f"one tick      {tick_ns:.0f} ns to time it")
    steady = all(len(readings.num_series) == 1 for readings in processes.values())
    print(f"series        {'as many in the last scrape as in the first' if steady else 'not as many in all scrapes'}")
    result = {
        "scrape_ms_per_1000_series": round(scrape_ms, 2),
        "tick_ns": round(tick_ns),
        "shares": {name: round(share, 5) for name, share in shares.items()},
        "series": {name: max(readings.num_series) for name, readings in processes.items()},
        "steady": steady,
        "kept": shares["all"] < MOST_SHARE and scrape_ms < MOST_SCRAPE_MS and steady,
    }
    print(result_line(result))


if __name__ == "__main__":
    main()
