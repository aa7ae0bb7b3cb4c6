"""Fragments of random transitions, and one rank that learns from them, for tests of algorithms on sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from common.fragment import Fragment, FragmentLayout
from common.nets import ActorCritic, NetConfig, make_actor_critic
from common.parameters import FlatParameters
from learner.algorithms.appo import Appo, AppoConfig
from learner.algorithms.impala import Impala, ImpalaConfig
from learner.algorithms.outcome import UpdateOutcome
from learner.gradient_step import GradientStep
from learner.intake import Accepted
from learner.optimiser import Optimiser, OptimiserConfig
from learner.parallel.group import OneRank
from tests.support import fragment

CPU = torch.device("cpu")


def accepted(item: Fragment, lag: int = 0) -> Accepted:
    """As the intake hands it on."""
    return Accepted(fragment=item, lag=lag, gap=0)


def random_fragment(layout: FragmentLayout, seed: int = 0, *, num_ends: int = 0, **arrays: Any) -> Fragment:
    """Off-policy: log-probabilities of another policy. `num_ends` rows terminate, each followed by an invalid row."""
    rng = np.random.default_rng(seed)
    rows = (layout.num_rows, layout.num_lanes)
    valid, end = np.ones(rows, np.uint8), np.zeros(rows, np.uint8)
    for _ in range(num_ends):
        t, lane = int(rng.integers(rows[0] - 1)), int(rng.integers(rows[1]))
        if valid[t, lane] and not end[t + 1, lane]:
            end[t, lane], valid[t + 1, lane] = rng.integers(1, 3), 0
    random = {
        "obs": rng.standard_normal((rows[0] + 1, rows[1], *layout.observation["obs"].shape)),
        "action": rng.integers(0, 2, rows),
        "reward": rng.standard_normal(rows) * valid,
        "log_prob": np.log(rng.uniform(0.2, 0.9, rows)),
        "value": rng.standard_normal((rows[0] + 1, rows[1])),
        "valid": valid,
        "end": end,
    }
    if layout.state_size:
        random["core_state"] = rng.standard_normal((rows[1], layout.state_size))
    return fragment(layout, **(random | arrays))


def with_core(layout: FragmentLayout, net: NetConfig) -> FragmentLayout:
    """The layout that a net asks for."""
    return replace(layout, state_size=net.state_size)


class Lab:
    """A model, its optimiser and an algorithm of one rank; APPO's target is a copy of the model as it begins."""

    def __init__(
        self,
        layout: FragmentLayout,
        config: ImpalaConfig | AppoConfig,
        *,
        net: NetConfig | None = None,
        model: ActorCritic | None = None,
        learning_rate: float = 1e-2,
        max_gradient_norm: float = 0.0,
    ) -> None:
        net = net or NetConfig(hidden=(8,))
        self.model = model or self.fresh(layout, net)
        self.parameters = FlatParameters(self.model, trainable=True)
        self.optimiser = Optimiser(OptimiserConfig(learning_rate=learning_rate), self.parameters)
        group = OneRank(0, self.parameters)
        self.step = GradientStep(self.parameters, self.optimiser, group, max_gradient_norm=max_gradient_norm)
        if isinstance(config, AppoConfig):
            self.target = self.fresh(layout, net)
            self.target.load_state_dict(self.model.state_dict())
            self.algorithm: Impala | Appo = Appo(config, self.model, self.target, self.step, group, CPU)
        else:
            self.algorithm = Impala(config, self.model, self.step, group, CPU)

    @staticmethod
    def fresh(layout: FragmentLayout, net: NetConfig) -> ActorCritic:
        """A network with large weights, so that nothing is nearly zero."""
        model = make_actor_critic(layout.observation, layout.action, net, np.random.default_rng(3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.linspace(-1.0, 1.0, parameter.numel()).view(parameter.shape))
        return model

    def update(self, *fragments: Fragment, lags: Sequence[int] = (), seed: int = 0) -> UpdateOutcome:
        """One update with a fresh shuffle stream."""
        pairs = zip(fragments, lags or [0] * len(fragments), strict=True)
        return self.algorithm.update([accepted(*pair) for pair in pairs], np.random.default_rng(seed))

    def gradient(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Of the last step."""
        return self.parameters.gradient.numpy().copy()
