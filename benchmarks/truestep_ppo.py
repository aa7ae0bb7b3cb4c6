"""truestep on the work of the peers, as its users run it: Ray, one actor process beside the learner, metrics served.

    python -m benchmarks.truestep_ppo --lanes 256 --rows 32 --minibatch 2048 [--policy-lag 0] [--no-metrics]

One actor, because one batched forward over all lanes costs less than two over half of them, and because the machine
of the record has two cores: the other is the learner's.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.peers import setting as work
from benchmarks.peers.setting import Order, parse_order
from benchmarks.truestep_reading import ENDLESS, take_reading_of
from deploy.config import RunConfig, parse_config


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


def run(order: Order, *, policy_lag: int, metrics: bool) -> str:
    """Train, measure, and give the reading as a line."""
    config = configuration(order, policy_lag=policy_lag, metrics=metrics)
    with tempfile.TemporaryDirectory() as out:
        reading = take_reading_of(config, Path(out), warmup_s=order.warmup_s, seconds=order.seconds)
    return reading.meter.rate(**reading.cpu_facts()).line()


def main() -> None:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--policy-lag", type=int, choices=(0, 1), default=1)
    own.add_argument("--no-metrics", action="store_true", help="serve no metrics")
    switches, rest = own.parse_known_args()
    print(run(parse_order("truestep's PPO.", rest), policy_lag=switches.policy_lag, metrics=not switches.no_metrics))


if __name__ == "__main__":
    main()
