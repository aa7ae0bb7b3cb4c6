"""truestep's IMPALA on the work of the peers: Ray, actors and learner in processes of their own, metrics served.

    python -m benchmarks.truestep_impala --env CartPole-v1 --actors 2 --lanes 256 --rows 32

Collection is asynchronous: actors never wait for the learner, and an update takes the fragment that arrived first. The
reading says how long the learner had nothing to do meanwhile and how old the weights were that fragments were made
with, from the run's own record.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import impala_setting as work
from benchmarks.peers.impala_setting import PONG, ImpalaOrder, impala_parser, parse_impala_order
from benchmarks.truestep_reading import ENDLESS, RUN, take_reading_of
from common.run_records import UpdateRecord
from deploy.config import RunConfig, parse_config
from deploy.outputs import open_registry

IDLE_SHARE, LAG_MEDIAN, LAG_MAX, DROPPED = "idle_share", "lag_median", "lag_max", "dropped_steps"
FRAGMENTS_OF_AN_ACTOR = 3  # in flight: one being made, one queued behind it, one with the learner; more only adds lag
BACKUP = "seconds_sync_backup"  # the one part of sync that lies in no phase of an update


def configuration(order: ImpalaOrder, *, bfloat16: bool = False) -> RunConfig:
    """The run of one reading; with `bfloat16` the learner's convolutions are in 16 bits."""
    setting = order.setting
    in_flight = FRAGMENTS_OF_AN_ACTOR * setting.actors
    return parse_config(
        {
            "env": environment(setting.env),
            "algo": "impala",
            "seed": order.seed,
            "steps": ENDLESS,
            "engine": "ray",
            "actors": {"num": setting.actors, "lanes": setting.lanes, "rows": setting.rows},
            "flow": {"fragments": 1, "first_in_flight": in_flight, "most_in_flight": in_flight},
            "learner": {
                "device": "cpu",
                "threads": order.threads,
                "precision": "bfloat16" if bfloat16 else "float32",
            },
            "net": {"hidden": [work.FEATURES] if setting.env == PONG else list(work.HIDDEN), "activation": "tanh"},
            "optimiser": {
                "learning_rate": work.LEARNING_RATE,
                "epsilon": work.ADAM_EPSILON,
                "max_gradient_norm": work.MAX_GRADIENT_NORM,
            },
            "impala": {
                "discount": work.DISCOUNT,
                "value_coefficient": work.VALUE_COEFFICIENT,
                "entropy_coefficient": work.ENTROPY_COEFFICIENT,
                "minibatches": 1,
                "epochs": 1,
            },
            "evaluation": {"every": 0, "episodes": 1, "final_episodes": 1, "lanes": 1, "max_ticks": 1},
        }
    )


def environment(env: str) -> dict[str, Any]:
    """Section `env`: Pong through ALE's own vector environment."""
    if env != PONG:
        return {"id": env}
    return {"id": f"ale_py:{env}", "vectorise": "own", "kwargs": {"num_threads": work.PONG_THREADS}}


def flow_facts(updates: Sequence[UpdateRecord], window: tuple[int, int], seconds: float) -> dict[str, float]:
    """What the record says of the reading: learner's idle share, policy lag in updates, steps dropped.

    Args:
        updates: of the run, in order.
        window: steps trained on at both ends of the reading.
        seconds: of the reading.
    """
    start, end = window
    inside = [each for each in updates if start < each.env_steps <= end]
    before = next((each for each in reversed(updates) if each.env_steps <= start), None)
    dropped = sum(inside[-1].dropped.values()) - (sum(before.dropped.values()) if before else 0)
    lags = [each.lag for each in inside]
    return {
        IDLE_SHARE: max(0.0, 1.0 - sum(busy_s(each) for each in inside) / seconds),
        LAG_MEDIAN: statistics.median(lags),
        LAG_MAX: max(lags),
        DROPPED: float(dropped),
    }


def busy_s(update: UpdateRecord) -> float:
    """Seconds that the learner spent on an update: its phases, and the copy of its start."""
    phases = {name: s for name, s in update.statistics.items() if name.startswith("seconds_")}
    return sum(s for name, s in phases.items() if not name.startswith("seconds_sync_") or name == BACKUP)


def run(order: ImpalaOrder, *, bfloat16: bool) -> str:
    """Train, measure, and give the reading as a line."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        reading = take_reading_of(
            configuration(order, bfloat16=bfloat16), out, warmup_s=order.warmup_s, seconds=order.seconds
        )
        with open_registry(out) as registry:
            updates = registry.updates(RUN)
    rate = reading.meter.rate()
    facts = flow_facts(updates, reading.meter.window, rate.seconds)
    return reading.meter.rate(**facts, **reading.cpu_facts()).line()


def main() -> None:
    parser = impala_parser("truestep's IMPALA.")
    parser.add_argument("--bfloat16", action="store_true", help="the learner's convolutions in 16 bits")
    order, own = parse_impala_order(parser)
    print(run(order, bfloat16=own.bfloat16))


if __name__ == "__main__":
    main()
