"""Proximal policy optimisation (Schulman et al., 2017), clipped objective, on canonical rows.

    fragments ──► GAE(λ) ──► batch of N valid rows ──► epochs × minibatches ──► loss ──► gradient step

Ratios are against the log-probabilities recorded when acting, so one update of policy lag (Huang et al., Cleanba, 2023)
needs no correction: the objective is defined for any behaviour policy near the current one.

Legend: N rows of the batch, M rows of a minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import ConfigError
from common.fragment import Fragment
from common.nets import ActorCritic
from learner.batches import Batch, BatchBuilder
from learner.gradient_step import Committed, GradientStep, Skipped
from learner.returns import generalised_advantages, normalised


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOConfig:
    """Hyperparameters of PPO.

    Attributes:
        discount: γ, per environment step.
        gae_lambda: λ of the advantage estimator.
        clip: ε of the clipped objective.
        value_clip: the value moves at most this far from the recorded one per update; 0 does not clip.
        value_coefficient: weight of the value loss, 0.5 (V - target)².
        entropy_coefficient: weight of the entropy bonus.
        epochs: passes over the batch.
        minibatch: rows of a gradient step. The batch is cut into round(N / minibatch) nearly equal parts, so no step
            is made on a small remainder.
        target_kl: stop the update after an epoch whose mean KL estimate exceeds this; 0 never stops.
        normalise_advantages: zero mean, unit deviation over the valid rows of the batch.
    """

    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    value_clip: float = 0.0
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    epochs: int = 4
    minibatch: int = 256
    target_kl: float = 0.0
    normalise_advantages: bool = True

    def __post_init__(self) -> None:
        for name in ("discount", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"ppo.{name}", got=getattr(self, name), allowed="0 to 1")
        for name in ("value_clip", "value_coefficient", "entropy_coefficient", "target_kl"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"ppo.{name}", got=getattr(self, name), allowed="0 or more, finite")
        if not 0.0 < self.clip < 1.0:
            raise ConfigError("ppo.clip", got=self.clip, allowed="between 0 and 1")
        for name in ("epochs", "minibatch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"ppo.{name}", got=getattr(self, name), allowed="1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The parts of one minibatch's loss; `total` is differentiable, the others are numbers."""

    total: Tensor
    policy: float
    value: float
    entropy: float
    approximate_kl: float
    clip_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOutcome:
    """What one update did.

    Attributes:
        committed: gradient steps made.
        skipped: gradient steps that were not, their gradient being non-finite.
        skipped_at: first parameter whose gradient was non-finite.
        statistics: means over the committed and skipped steps, by name.
    """

    committed: int
    skipped: int
    skipped_at: str
    statistics: dict[str, float]


def ppo_loss(model: ActorCritic, batch: Batch, config: PPOConfig) -> Losses:
    """The clipped objective (eq. 7 and 9 of the paper) on M rows; advantages are taken as they are."""
    parameters, value = model(batch.observation)
    log_prob, entropy = model.head.log_prob_and_entropy(parameters, batch.action)
    log_ratio = log_prob - batch.log_prob
    policy_loss = clipped_surrogate(log_ratio, batch.advantage, config.clip)
    value_loss = _value_loss(value, batch, config.value_clip)
    total = policy_loss + config.value_coefficient * value_loss
    mean_entropy = entropy.mean()
    if config.entropy_coefficient:
        total = total - config.entropy_coefficient * mean_entropy
    with torch.no_grad():
        excess = log_ratio.expm1()  # ratio - 1
        approximate_kl = (excess - log_ratio).mean().item()  # Schulman's low-variance, non-negative estimate
        clip_fraction = (excess.abs() > config.clip).float().mean().item()
    return Losses(
        total=total,
        policy=policy_loss.item(),
        value=value_loss.item(),
        entropy=mean_entropy.item(),
        approximate_kl=approximate_kl,
        clip_fraction=clip_fraction,
    )


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """-mean(min(ρ A, clamp(ρ, 1 - ε, 1 + ε) A)) (eq. 7), a scalar, for log ρ [M] and A [M]."""
    surrogate: Tensor = _ClippedSurrogate.apply(log_ratio, advantage, clip)  # type: ignore[no-untyped-call]
    return surrogate


class _ClippedSurrogate(torch.autograd.Function):
    """One node instead of eight. Where the clipped term is the smaller one it does not depend on ρ: no gradient."""

    @staticmethod
    def forward(ctx: Any, log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
        ratio = log_ratio.exp()
        free = ratio * advantage
        clipped = ratio.clamp_(1.0 - clip, 1.0 + clip).mul_(advantage)
        ctx.save_for_backward(free, free <= clipped)
        return torch.minimum(free, clipped).mean().neg()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        free, counts = ctx.saved_tensors  # d(ρ A) / d log ρ = ρ A
        return (free * counts).mul_(gradients[0] / -len(free)), None, None


def _value_loss(value: Tensor, batch: Batch, value_clip: float) -> Tensor:
    error = (value - batch.target).square()
    if value_clip > 0.0:
        near = batch.value + (value - batch.value).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (near - batch.target).square())
    return 0.5 * error.mean()


class PPO:
    """Updates one model from the fragments of one collection."""

    def __init__(self, config: PPOConfig, model: ActorCritic, step: GradientStep, batches: BatchBuilder) -> None:
        self._config = config
        self._model = model
        self._step = step
        self._batches = batches

    def update(self, fragments: Sequence[Fragment], shuffle: np.random.Generator) -> UpdateOutcome:
        """All epochs over the valid rows of `fragments`; minibatches are drawn from `shuffle` alone."""
        if not any(fragment.header.num_valid for fragment in fragments):
            return UpdateOutcome(committed=0, skipped=0, skipped_at="", statistics={})
        batch = self._batches.build(fragments, self._advantages)
        explained = _explained_variance(batch)
        if self._config.normalise_advantages:
            advantage = normalised(batch.advantage.cpu().numpy().astype(np.float64))
            batch.advantage.copy_(torch.from_numpy(advantage))
        record = _Record()
        for _ in range(self._config.epochs):
            kl = math.fsum(self._epoch(batch, shuffle, record)) / max(1, record.steps_in_epoch)
            if 0.0 < self._config.target_kl < kl:
                record.stopped_early = True
                break
        return record.outcome(explained)

    def _advantages(self, fragment: Fragment) -> NDArray[np.float64]:
        return generalised_advantages(
            fragment.reward,
            fragment.value,
            fragment.end,
            fragment.valid,
            discount=self._config.discount,
            lambda_=self._config.gae_lambda,
        )

    def _epoch(self, batch: Batch, shuffle: np.random.Generator, record: _Record) -> Iterator[float]:
        order = torch.from_numpy(shuffle.permutation(len(batch)))
        num_parts = max(1, round(len(batch) / self._config.minibatch))
        record.steps_in_epoch = num_parts
        for index in order.tensor_split(num_parts):
            losses = ppo_loss(self._model, batch.rows(index), self._config)
            record.add(losses, self._step.make(losses.total))
            yield losses.approximate_kl


class _Record:
    """What happened in one update, step by step."""

    def __init__(self) -> None:
        self.steps_in_epoch = 0
        self.stopped_early = False
        self._losses: list[Losses] = []
        self._steps: list[Committed | Skipped] = []

    def add(self, losses: Losses, step: Committed | Skipped) -> None:
        self._losses.append(losses)
        self._steps.append(step)

    def outcome(self, explained_variance: float) -> UpdateOutcome:
        committed = [step for step in self._steps if isinstance(step, Committed)]
        skipped = [step for step in self._steps if isinstance(step, Skipped)]
        names = ("policy", "value", "entropy", "approximate_kl", "clip_fraction")
        statistics = {name: _mean([getattr(losses, name) for losses in self._losses]) for name in names}
        statistics["gradient_norm"] = _mean([step.gradient_norm for step in committed])
        statistics["clipped_steps"] = float(sum(step.clipped for step in committed))
        statistics["stopped_early"] = float(self.stopped_early)
        statistics["explained_variance"] = explained_variance
        return UpdateOutcome(
            committed=len(committed),
            skipped=len(skipped),
            skipped_at=skipped[0].parameter if skipped else "",
            statistics=statistics,
        )


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values and all(map(math.isfinite, values)) else math.nan


def _explained_variance(batch: Batch) -> float:
    """1 - Var(target - V) / Var(target); 0 where the targets do not vary."""
    variance = batch.target.var(correction=0).item()
    return 0.0 if variance == 0.0 else 1.0 - (batch.target - batch.value).var(correction=0).item() / variance
