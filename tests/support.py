"""Fragments and networks made by hand, for the tests of the ground and of the learner."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common.fragment import Fragment, FragmentBuffer, FragmentHeader, FragmentLayout, decode_fragment
from common.nets import NetConfig, make_actor_critic
from common.parameters import FlatParameters
from common.specs import ArraySpec, SpaceSpec
from common.weights import decode_weights
from learner.algorithms.ppo import PPOConfig
from learner.optimiser import OptimiserConfig
from learner.parallel.config import SyncConfig
from learner.rank import LearnerConfig, RankConfig


def box(*shape: int, dtype: str = "float32", low: float | None = None, high: float | None = None) -> ArraySpec:
    """A Box; unbounded unless both bounds are given."""
    bounds = {} if low is None or high is None else {"low": (low,), "high": (high,)}
    return ArraySpec(kind="box", shape=shape, dtype=dtype, **bounds)


def discrete(num_choices: int, start: int = 0) -> ArraySpec:
    """A Discrete space of `num_choices` from `start`."""
    return ArraySpec(kind="discrete", shape=(), dtype="int64", nvec=(num_choices,), start=(start,))


def multi_discrete(*nvec: int, start: tuple[int, ...] = ()) -> ArraySpec:
    """A MultiDiscrete space."""
    return ArraySpec(
        kind="multi_discrete", shape=(len(nvec),), dtype="int64", nvec=nvec, start=start or (0,) * len(nvec)
    )


def space(**parts: ArraySpec) -> SpaceSpec:
    """An observation of the parts given."""
    return SpaceSpec(parts=tuple(parts.items()))


def layout(
    num_rows: int, num_lanes: int = 1, *, obs: ArraySpec | None = None, action: ArraySpec | None = None
) -> FragmentLayout:
    """Fragments with one observation part, by default two floats, and by default two actions."""
    return FragmentLayout(
        num_rows=num_rows, num_lanes=num_lanes, observation=space(obs=obs or box(2)), action=action or discrete(2)
    )


HEADER: dict[str, Any] = {
    "run": "test",
    "actor": 0,
    "lease": "lease",
    "incarnation": 0,
    "sequence": 0,
    "term": 0,
    "version": 0,
    "update": 0,
    "start_ns": 0,
    "end_ns": 1,
    "clock_id": "manual",
}


def document(layout: FragmentLayout, *, header: dict[str, Any] | None = None, **arrays: Any) -> NDArray[np.uint8]:
    """A sealed fragment of the arrays given; else rows are valid transitions, reward 0, log-probability -0.5.

    An array of shape [T] is that of a single lane; `header` replaces fields of `HEADER`.
    """
    buffer = FragmentBuffer(layout)
    buffer.valid[...] = 1
    buffer.log_prob[...] = -0.5
    obs = arrays.pop("obs", None)
    if obs is not None:
        buffer.observation["obs"][...] = np.reshape(obs, buffer.observation["obs"].shape)
    for name, values in arrays.items():
        target = getattr(buffer, name)
        target[...] = np.reshape(values, target.shape)
    counts = {"num_rows": layout.num_rows, "num_lanes": layout.num_lanes, "num_valid": int(buffer.valid.sum())}
    return buffer.seal(FragmentHeader(**(HEADER | counts | (header or {})))).copy()


def fragment(layout: FragmentLayout, **arrays: Any) -> Fragment:
    """The same, decoded."""
    return decode_fragment(document(layout, **arrays), layout)


def rank_config(
    layout: FragmentLayout,
    *,
    seed: int = 7,
    max_lag: int = 1,
    hidden: tuple[int, ...] = (8,),
    learning_rate: float = 1e-2,
    max_gradient_norm: float = 0.5,
    sync: SyncConfig | None = None,
    **ppo: Any,
) -> RankConfig:
    """A small learner for fragments of `layout`, on the CPU."""
    return RankConfig(
        run="test",
        seed=seed,
        horizon_updates=10,
        max_lag=max_lag,
        layout=layout,
        learner=LearnerConfig(device="cpu", sync=sync or SyncConfig()),
        net=NetConfig(hidden=hidden),
        optimiser=OptimiserConfig(learning_rate=learning_rate, max_gradient_norm=max_gradient_norm),
        algorithm=PPOConfig(**({"epochs": 2, "minibatch": 4} | ppo)),
    )


class ActingCopy:
    """What an actor does with published weights, without an actor: acts, and says log-probability and value."""

    def __init__(self, config: RankConfig) -> None:
        observation, action = config.layout.observation, config.layout.action
        self._model = make_actor_critic(observation, action, config.net, np.random.default_rng(0))
        self._parameters = FlatParameters(self._model, trainable=False)

    def follow(self, weights: NDArray[np.uint8]) -> None:
        """Take over the weights of a published document."""
        self._parameters.load(decode_weights(weights, self._parameters.manifest).flat)

    @torch.inference_mode()
    def act(self, obs: NDArray[Any], generator: np.random.Generator) -> dict[str, NDArray[Any]]:
        """Actions, log-probabilities and values for `obs` [N, *shape] of a discrete policy."""
        parameters, value = self._model({"obs": torch.from_numpy(obs)})
        noise = torch.from_numpy(generator.random((len(obs), *self._model.head.noise_shape), dtype=np.float32))
        action = self._model.head.sample(parameters, noise)
        log_prob, _ = self._model.head.log_prob_and_entropy(parameters, action)
        return {"action": action.numpy(), "log_prob": log_prob.numpy(), "value": value.numpy()}

    @torch.inference_mode()
    def probabilities(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        """Probabilities [N, choices] of a discrete policy."""
        values: NDArray[np.float32] = self._model({"obs": torch.from_numpy(obs)})[0].softmax(-1).numpy()
        return values
