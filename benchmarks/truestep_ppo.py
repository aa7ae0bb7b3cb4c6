"""truestep on the work of the peers, as its users run it: Ray, one actor process beside the learner, metrics served.

    python -m benchmarks.truestep_ppo --lanes 256 --rows 32 --minibatch 2048 [--policy-lag 0] [--no-metrics]

One actor, because one batched forward over all lanes costs less than two over half of them, and because the machine
of the record has two cores: the other is the learner's. Evaluations and checkpoints are off until the end, which lies
outside the reading. The reading counts valid transitions that were trained on, as the driver's own display shows them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import urllib.request
from collections.abc import Collection
from pathlib import Path

from benchmarks.peers import setting as work
from benchmarks.peers.setting import Order, parse_order
from benchmarks.rates import Meter
from common.clock import MonotonicClock
from deploy.config import RunConfig, parse_config
from deploy.display import Progress
from deploy.driver import StopFlag
from deploy.session import train

ENDLESS = 2**53  # steps; the meter ends the run
FEATURE_CPU = "truestep_process_metrics_cpu_seconds_total"
PROCESS_CPU = "process_cpu_seconds_total"
SCRAPE_S = 5.0


def configuration(order: Order, *, policy_lag: int, metrics: bool) -> RunConfig:
    """The run of one reading."""
    setting = order.setting
    return parse_config(
        {
            "env": {"id": work.ENV},
            "seed": order.seed,
            "steps": ENDLESS,
            "engine": "ray",
            "policy_lag": policy_lag,
            "actors": {"num": 1, "lanes": setting.lanes, "rows": setting.rows},
            "learner": {"device": "cpu", "threads": order.threads},
            "net": {"hidden": list(work.HIDDEN), "activation": "tanh"},
            "optimiser": {
                "learning_rate": work.LEARNING_RATE,
                "epsilon": work.ADAM_EPSILON,
                "max_gradient_norm": work.MAX_GRADIENT_NORM,
            },
            "ppo": {
                "discount": work.DISCOUNT,
                "gae_lambda": work.GAE_LAMBDA,
                "clip": work.CLIP,
                "value_coefficient": work.VALUE_COEFFICIENT,
                "epochs": work.EPOCHS,
                "minibatch": setting.minibatch,
            },
            "evaluation": {"every": 0},
            "metrics": {"enabled": metrics},
        }
    )


class Reading:
    """A display that measures: it stops the run when its meter is done, and reads every process's own metrics then."""

    def __init__(self, meter: Meter, stop: StopFlag) -> None:
        self._meter = meter
        self._stop = stop
        self._steps = 0
        self._targets = ""
        self._cpu: list[dict[str, float]] = []

    def show(self, progress: Progress) -> None:
        if progress.steps == self._steps or self._meter.done:
            return  # nothing was trained since: no end of an update
        self._steps = progress.steps
        was_warm = self._meter.warm
        done = self._meter.take(progress.steps)
        if self._meter.warm and not was_warm:
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

    def line(self) -> str:
        """The reading; with metrics on, the share of CPU time that they took meanwhile."""
        if len(self._cpu) < 2:
            return self._meter.rate().line()
        before, after = self._cpu
        feature_s, process_s = (after[name] - before[name] for name in (FEATURE_CPU, PROCESS_CPU))
        return self._meter.rate(metrics_cpu_s=feature_s, process_cpu_s=process_s).line()

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


def run(order: Order, *, policy_lag: int, metrics: bool) -> str:
    """Train, measure, and give the reading as a line."""
    stop = StopFlag()
    reading = Reading(Meter(MonotonicClock(), warmup_s=order.warmup_s, seconds=order.seconds), stop)
    with tempfile.TemporaryDirectory() as out:
        config = configuration(order, policy_lag=policy_lag, metrics=metrics)
        outcome = train(config, out=Path(out), run="throughput", display=reading, stop=stop)
    if outcome.error is not None:
        raise SystemExit(f"truestep: {outcome.error}")
    return reading.line()


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--policy-lag", type=int, choices=(0, 1), default=1)
    own.add_argument("--no-metrics", action="store_true", help="serve no metrics")
    switches, rest = own.parse_known_args()
    print(run(parse_order("truestep's PPO.", rest), policy_lag=switches.policy_lag, metrics=not switches.no_metrics))


if __name__ == "__main__":
    main()
