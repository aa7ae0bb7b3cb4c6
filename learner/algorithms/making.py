"""The seam between a rank and its algorithm: fragments and a shuffle stream in, gradient steps made, an outcome out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, assert_never

import numpy as np
import torch

from common.fragment import FragmentLayout
from common.nets import ActorCritic
from learner.algorithms.appo import Appo, AppoConfig
from learner.algorithms.impala import Impala, ImpalaConfig
from learner.algorithms.outcome import UpdateOutcome
from learner.algorithms.ppo import PPO, PPOConfig
from learner.audit import AuditPart
from learner.batches import BatchBuilder
from learner.gradient_step import GradientStep
from learner.intake import Accepted
from learner.parallel.group import Group
from learner.target import TargetNetwork

AlgorithmConfig = PPOConfig | ImpalaConfig | AppoConfig


class Algorithm(Protocol):
    """What makes an update of fragments."""

    def update(
        self, accepted: Sequence[Accepted], shuffle: np.random.Generator, part: AuditPart | None = None
    ) -> UpdateOutcome:
        """Make all gradient steps of one update, together with the other ranks.

        Args:
            accepted: the fragments of this rank.
            shuffle: the same stream on every rank.
            part: what this rank recomputes.

        Raises:
            SyncError: the ranks fell apart; parameters and optimiser are somewhere in the middle.
        """
        ...


def target_interval(config: AlgorithmConfig) -> int:
    """Updates between two of the target network; 0 where the algorithm has none."""
    return config.target_update_every if isinstance(config, AppoConfig) else 0


def make_algorithm(
    config: AlgorithmConfig,
    model: ActorCritic,
    target: TargetNetwork | None,
    step: GradientStep,
    group: Group,
    layout: FragmentLayout,
    device: torch.device,
) -> Algorithm:
    """The algorithm that `config` is of; `target` is there where it wants one."""
    match config:
        case PPOConfig():
            return PPO(config, model, step, group, BatchBuilder(layout, device), BatchBuilder(layout, device))
        case ImpalaConfig():
            return Impala(config, model, step, group, device)
        case AppoConfig():
            assert target is not None
            return Appo(config, model, target.model, step, group, device)
        case _:
            assert_never(config)
