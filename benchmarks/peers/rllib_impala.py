"""RLlib's IMPALA (new API stack) on the same work (optional extra `rllib`).

    python -m benchmarks.peers.rllib_impala --env CartPole-v1 --actors 2 --lanes 256 --rows 32 [--vectorise sync]
                                          [--module ours] [--learners 1]

Its own sampling, queues, V-trace learner and defaults where the work leaves a choice. For Pong it gets ALE's vector
environment, and the network of the others in one of two ways:

    --module own    RLlib's own model, by RLlib's options: what its users have; frames must be float32, channels last
    --module ours   written here as a module for RLlib: it takes bytes and reads channels where ALE keeps them

It needs other versions of Gymnasium than truestep, so it usually lives in an environment of its own.
"""

# mypy: disable-error-code="import-not-found, misc, no-any-unimported, no-untyped-call, union-attr"
from __future__ import annotations

import math
import os
import sys
from typing import Any

os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", PYTHONWARNINGS="ignore")

from benchmarks.peers import impala_setting as work
from benchmarks.peers.impala_setting import PONG, ImpalaOrder, impala_parser, parse_impala_order
from benchmarks.peers.setting import EXIT_NOT_INSTALLED
from benchmarks.rates import Meter
from common.clock import MonotonicClock

REPORT_EVERY_S = 0.5  # of training between two looks at its counters

RLLIB_PONG = "truestep-bench/RllibPong-v0"  # of benchmarks.peers.rllib_pong, which only RLlib's workers import

try:
    import ray
    import torch
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.columns import Columns
    from ray.rllib.core.rl_module.apis import ValueFunctionAPI
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.core.rl_module.torch import TorchRLModule
except ImportError as error:
    print(f"rllib cannot be imported ({error}); install truestep[rllib]", file=sys.stderr)
    sys.exit(EXIT_NOT_INSTALLED)


class NatureModule(TorchRLModule, ValueFunctionAPI):
    """The convolutions of Mnih et al. (2015) over uint8 [N, 4, 84, 84], one hidden layer, two heads."""

    def setup(self) -> None:
        nn = torch.nn
        self.torso = nn.Sequential(
            *(nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 7 * 7, work.FEATURES), nn.ReLU()),
        )
        self.policy = nn.Linear(work.FEATURES, int(self.action_space.n))
        self.value = nn.Linear(work.FEATURES, 1)

    def _features(self, batch: dict[str, Any]) -> Any:
        return self.torso(batch[Columns.OBS].float() * (1.0 / 255.0))

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(self._features(batch))}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        features = self._features(batch)
        return {Columns.ACTION_DIST_INPUTS: self.policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Any:
        return self.value(self._features(batch) if embeddings is None else embeddings)[..., 0]


def environment(name: str, *, module: str) -> tuple[str, dict[str, Any]]:
    """What RLlib is to make, and its options."""
    if name != PONG:
        return name, {}
    env = f"ale_py:{PONG}" if module == "ours" else f"benchmarks.peers.rllib_pong:{RLLIB_PONG}"
    return env, {"num_threads": work.PONG_THREADS}


def network(name: str, *, module: str) -> dict[str, Any]:
    """The network of the work, as arguments of `rl_module`."""
    if name == PONG and module == "ours":
        return {"rl_module_spec": RLModuleSpec(module_class=NatureModule)}
    if name == PONG:
        model = DefaultModelConfig(
            conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
            conv_activation="relu",
            head_fcnet_hiddens=[work.FEATURES],
            head_fcnet_activation="relu",
            vf_share_layers=True,
        )
    else:
        model = DefaultModelConfig(fcnet_hiddens=list(work.HIDDEN), fcnet_activation="tanh", vf_share_layers=False)
    return {"model_config": model}


def configuration(order: ImpalaOrder, *, vectorise: str, learners: int, module: str) -> Any:
    """Its configuration for the work."""
    setting = order.setting
    env, options = environment(setting.env, module=module)
    config = IMPALAConfig().environment(env, env_config=options)
    config.env_runners(
        num_env_runners=setting.actors,
        num_envs_per_env_runner=setting.lanes,
        rollout_fragment_length=setting.rows,
        gym_env_vectorize_mode=vectorise,
    )
    config.learners(num_learners=learners, num_gpus_per_learner=0)
    config.training(
        train_batch_size_per_learner=setting.rows_per_update,
        lr=work.LEARNING_RATE,
        gamma=work.DISCOUNT,
        vf_loss_coeff=work.VALUE_COEFFICIENT,
        entropy_coeff=work.ENTROPY_COEFFICIENT,
        grad_clip=work.MAX_GRADIENT_NORM,
    )
    config.rl_module(**network(setting.env, module=module))
    config.reporting(min_time_s_per_iteration=REPORT_EVERY_S)
    return config.debugging(seed=order.seed, log_level="ERROR")


def steps_of(result: dict[str, Any]) -> int:
    """Steps sampled or steps trained on so far, whichever are fewer; 0 before the first update.

    Batches may be dropped between the two, and the learner counts one more row of each episode as trained.
    """
    sampled = result.get("env_runners", {}).get("num_env_steps_sampled_lifetime") or 0
    trained = result.get("learners", {}).get("__all_modules__", {}).get("num_env_steps_trained_lifetime") or 0
    return 0 if math.isnan(sampled) or math.isnan(trained) else int(min(sampled, trained))


def run(order: ImpalaOrder, *, vectorise: str, learners: int, module: str) -> str:
    """Train, measure, and give the reading as a line."""
    torch.set_num_threads(order.threads)
    ray.init(num_cpus=order.setting.actors + learners + 2, include_dashboard=False, log_to_driver=False)
    algorithm = configuration(order, vectorise=vectorise, learners=learners, module=module).build_algo()
    meter, steps = None, 0
    while meter is None or not meter.done:
        now = steps_of(algorithm.train())
        if now > steps:
            steps = now
            meter = meter or Meter(MonotonicClock(), warmup_s=order.warmup_s, seconds=order.seconds)
            meter.take(steps)
    algorithm.stop()
    ray.shutdown()
    return meter.rate().line()


def main() -> None:
    parser = impala_parser("IMPALA of RLlib.")
    parser.add_argument("--vectorise", choices=("sync", "vector_entry_point"), default="vector_entry_point")
    parser.add_argument("--learners", type=int, choices=(0, 1), default=0, help="1 = a learner process of its own")
    parser.add_argument("--module", choices=("own", "ours"), default="own", help="whose model, on Pong")
    order, own = parse_impala_order(parser)
    print(run(order, vectorise=own.vectorise, learners=own.learners, module=own.module))


if __name__ == "__main__":
    main()
