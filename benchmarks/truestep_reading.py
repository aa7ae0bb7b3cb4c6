"""One reading of truestep, as its users run it: `truestep train` over Ray, measured by a display that ends the run.

Evaluations and checkpoints are off until the end, which lies outside the reading. The reading counts valid transitions
that were trained on, as the driver's own display shows them.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Collection
from pathlib import Path

from benchmarks.rates import Meter
from common.clock import MonotonicClock
from deploy.config import RunConfig
from deploy.display import Progress
from deploy.driver import StopFlag
from deploy.session import train

ENDLESS = 2**53  # steps; the meter ends the run
RUN = "throughput"
FEATURE_CPU = "truestep_process_metrics_cpu_seconds_total"
PROCESS_CPU = "process_cpu_seconds_total"
SCRAPE_S = 5.0


def take_reading_of(config: RunConfig, out: Path, *, warmup_s: float, seconds: float) -> Reading:
    """Run `config` until the reading is complete; its record lies in `out` afterwards. Ends the process if it fails."""
    stop = StopFlag()
    reading = Reading(Meter(MonotonicClock(), warmup_s=warmup_s, seconds=seconds), stop)
    outcome = train(config, out=out, run=RUN, display=reading, stop=stop)
    if outcome.error is not None:
        raise SystemExit(f"truestep: {outcome.error}")
    return reading


class Reading:
    """A display that measures: it stops the run when its meter is done, and reads every process's own metrics then."""

    def __init__(self, meter: Meter, stop: StopFlag) -> None:
        self.meter = meter
        self._stop = stop
        self._steps = 0
        self._targets = ""
        self._cpu: list[dict[str, float]] = []

    def show(self, progress: Progress) -> None:
        if progress.steps == self._steps or self.meter.done:
            return  # nothing was trained since: no end of an update
        self._steps = progress.steps
        was_warm = self.meter.warm
        done = self.meter.take(progress.steps)
        if self.meter.warm and not was_warm:
            self._read_cpu()
        if done:
            self._read_cpu()
            self._stop.ask("the reading is complete")

    def tell(self, text: str) -> None:
        if text.startswith("metrics "):
            self._targets = text.rpartition(" ")[2]
        else:
            print(text, file=sys.stderr)

    def close(self) -> None:
        """Nothing is open."""

    def cpu_facts(self) -> dict[str, float]:
        """CPU seconds of metrics and of everything meanwhile; nothing where metrics were off."""
        if len(self._cpu) < 2:
            return {}
        before, after = self._cpu
        feature_s, process_s = (after[name] - before[name] for name in (FEATURE_CPU, PROCESS_CPU))
        return {"metrics_cpu_s": feature_s, "process_cpu_s": process_s}

    def _read_cpu(self) -> None:
        if self._targets:
            self._cpu.append(run_cpu_seconds(self._targets))


def run_cpu_seconds(targets_url: str) -> dict[str, float]:
    """CPU seconds spent so far on metrics and on everything, summed over all processes of a run."""
    groups = json.loads(_get(targets_url))
    totals = {FEATURE_CPU: 0.0, PROCESS_CPU: 0.0}
    for group in groups:
        for address in group["targets"]:
            found = values(_get(f"http://{address}/metrics"), totals)
            for name in totals:
                totals[name] += found[name]
    return totals


def values(exposition: str, names: Collection[str]) -> dict[str, float]:
    """Metrics without labels, from Prometheus text. Raises ValueError if one of `names` is missing."""
    found = {}
    for line in exposition.splitlines():
        name, _, value = line.partition(" ")
        if name in names:
            found[name] = float(value)
    if missing := sorted(set(names) - set(found)):
        raise ValueError(f"metrics {missing} are not served; got {len(exposition)} bytes")
    return found


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=SCRAPE_S) as answer:
        text: str = answer.read().decode()
        return text
