"""Stable-Baselines3's PPO on the same work (optional extra `peers`).

    python -m benchmarks.peers.sb3_ppo --lanes 256 --rows 32 --minibatch 2048

Its defaults where the work leaves a choice: DummyVecEnv, its own collection and training loops, CPU.
"""

# mypy: disable-error-code="import-not-found, misc"
# ruff: noqa: I001  the optional package comes last, under its guard
from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from benchmarks.peers import setting as work
from benchmarks.peers.setting import EXIT_NOT_INSTALLED, Order, parse_order
from benchmarks.rates import Meter
from common.clock import MonotonicClock
from common.process import keep_freed_memory


ENDLESS = 2**62  # steps; the meter ends the training

try:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv
except ImportError as error:
    print(f"stable_baselines3 cannot be imported ({error}); install truestep[peers]", file=sys.stderr)
    sys.exit(EXIT_NOT_INSTALLED)


class Metered(BaseCallback):
    """Tells the meter of every update and ends the training when the reading is complete."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def _on_rollout_start(self) -> None:
        self._meter.take(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self._meter.done


def build(order: Order) -> Any:
    """The algorithm, with the networks and constants of the work."""
    setting = order.setting
    envs = make_vec_env(work.ENV, n_envs=setting.lanes, seed=order.seed, vec_env_cls=DummyVecEnv)
    layers = list(work.HIDDEN)
    return PPO(
        "MlpPolicy",
        envs,
        learning_rate=work.LEARNING_RATE,
        n_steps=setting.rows,
        batch_size=setting.minibatch,
        n_epochs=work.EPOCHS,
        gamma=work.DISCOUNT,
        gae_lambda=work.GAE_LAMBDA,
        clip_range=work.CLIP,
        ent_coef=0.0,
        vf_coef=work.VALUE_COEFFICIENT / 2.0,  # its value loss has no factor 1/2
        max_grad_norm=work.MAX_GRADIENT_NORM,
        policy_kwargs={"net_arch": {"pi": layers, "vf": layers}, "activation_fn": nn.Tanh},
        seed=order.seed,
        device="cpu",
    )


def run(order: Order) -> str:
    """Train, measure, and give the reading as a line."""
    if order.allocator and not keep_freed_memory():
        raise SystemExit("--allocator: this C library does not let its allocator be set; allowed: glibc on Linux")
    torch.set_num_threads(order.threads)
    algorithm = build(order)
    meter = Meter(MonotonicClock(), warmup_s=order.warmup_s, seconds=order.seconds)
    algorithm.learn(total_timesteps=ENDLESS, callback=Metered(meter))
    algorithm.get_env().close()
    return meter.rate().line()


if __name__ == "__main__":
    print(run(parse_order("PPO of Stable-Baselines3.")))
