"""Proximal policy optimisation (Schulman et al., 2017), clipped objective, on canonical rows.

    fragments ──► GAE(λ) ──► batch of N valid rows ──► epochs × minibatches ──► loss ──► gradient step

Several ranks make one update: the rows of all of them, in the order of ranks, are one batch, cut into the same
minibatches by the same shuffle; a rank computes the part of each minibatch that lies in its own rows, divided by the
rows of the whole minibatch, so the parts add up to the gradient that one rank would have computed.

Ratios are against the log-probabilities recorded when acting, so one update of policy lag (Huang et al., Cleanba, 2023)
needs no correction: the objective is defined for any behaviour policy near the current one.

Legend: N rows of the batch of all ranks, M rows of a minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import ConfigError
from common.fragment import Fragment
from common.nets import ActorCritic
from learner.algorithms.limits import check_counts, check_fractions, check_weights
from learner.algorithms.outcome import NO_ROWS, NO_STEPS, Losses, UpdateOutcome
from learner.algorithms.steps import Steps
from learner.audit import Audit, AuditPart
from learner.batches import Batch, BatchBuilder
from learner.gradient_step import GradientStep
from learner.intake import Accepted
from learner.moments import Moments
from learner.parallel.group import Group
from learner.returns import generalised_advantages, normalised
from learner.spread import NOTHING, Spread
from learner.surrogate import clipped_surrogate


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
        minibatch: rows of a gradient step, of all ranks together. The batch is cut into round(N / minibatch) nearly
            equal parts, so no step is made on a small remainder.
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
        check_fractions("ppo", self, "discount", "gae_lambda")
        check_weights("ppo", self, "value_clip", "value_coefficient", "entropy_coefficient", "target_kl")
        if not 0.0 < self.clip < 1.0:
            raise ConfigError("ppo.clip", got=self.clip, allowed="between 0 and 1")
        check_counts("ppo", self, "epochs", "minibatch")


def ppo_loss(model: ActorCritic, batch: Batch, config: PPOConfig, num_rows: int | None = None) -> Losses:
    """The clipped objective (eq. 7 and 9 of the paper) on the rows of `batch`; advantages are taken as they are.

    Args:
        num_rows: M, of which `batch` holds a part; by default all.
    """
    rows = len(batch) if num_rows is None else num_rows
    parameters, value = model(batch.observation)
    log_prob, entropy = model.head.log_prob_and_entropy(parameters, batch.action)
    log_ratio = log_prob - batch.log_prob
    policy_loss = clipped_surrogate(log_ratio, batch.advantage, config.clip, rows)
    value_loss = _value_loss(value, batch, config.value_clip, rows)
    total = policy_loss + config.value_coefficient * value_loss
    mean_entropy = entropy.sum() / rows
    if config.entropy_coefficient:
        total = total - config.entropy_coefficient * mean_entropy
    with torch.no_grad():
        excess = log_ratio.expm1()  # ratio - 1
        approximate_kl = (excess - log_ratio).sum().item() / rows  # Schulman's low-variance, non-negative estimate
        clip_fraction = (excess.abs() > config.clip).sum().item() / rows
    return Losses(
        total=total,
        policy=policy_loss.item(),
        value=value_loss.item(),
        entropy=mean_entropy.item(),
        approximate_kl=approximate_kl,
        clip_fraction=clip_fraction,
    )


def _value_loss(value: Tensor, batch: Batch, value_clip: float, num_rows: int) -> Tensor:
    error = (value - batch.target).square()
    if value_clip > 0.0:
        near = batch.value + (value - batch.value).clamp(-value_clip, value_clip)
        error = torch.maximum(error, (near - batch.target).square())
    return error.sum() * (0.5 / num_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A rank's rows within those of all ranks.

    Attributes:
        batch: None if it has none.
        start: number of its first row.
        stop: number behind its last row.
        total: rows of all ranks.
    """

    batch: Batch | None
    start: int
    stop: int
    total: int

    @property
    def matches(self) -> bool:
        """Whether the batch has as many rows as its rank says."""
        return (0 if self.batch is None else len(self.batch)) == self.stop - self.start

    def of(self, minibatch: NDArray[np.int64]) -> Batch | None:
        """Those rows of a minibatch [M] (numbers over all ranks) that lie here, in its order."""
        if self.batch is None:
            return None
        if self.stop - self.start < self.total:
            minibatch = minibatch[(minibatch >= self.start) & (minibatch < self.stop)] - self.start
        return self.batch.rows(torch.from_numpy(minibatch)) if len(minibatch) else None


class PPO:
    """Updates one model from the fragments of one collection, together with the other ranks of a group.

    Args:
        batches: builds batches of this rank's rows.
        others: builds those of another rank's rows, for audits.
    """

    def __init__(
        self,
        config: PPOConfig,
        model: ActorCritic,
        step: GradientStep,
        group: Group,
        batches: BatchBuilder,
        others: BatchBuilder,
    ) -> None:
        self._config = config
        self._model = model
        self._step = step
        self._group = group
        self._batches = batches
        self._others = others

    def update(
        self, accepted: Sequence[Accepted], shuffle: np.random.Generator, part: AuditPart | None = None
    ) -> UpdateOutcome:
        """All epochs over the valid rows of the fragments of all ranks.

        Args:
            accepted: the fragments of this rank.
            shuffle: minibatches are drawn from it alone; the same on every rank.
            part: what this rank recomputes.

        Raises:
            SyncError: the ranks fell apart; parameters and optimiser are somewhere in the middle.
        """
        batch = self._build(self._batches, accepted)
        everyone = self._exchange(batch)
        counts = [int(each.advantage.count) for each in everyone]
        total = sum(counts)
        if not total:
            return NO_STEPS
        together = Spread.merged(everyone)
        own = self._rows(batch, counts, self._group.place, together.advantage)
        num_parts = max(1, round(total / self._config.minibatch))
        audit, audited = None, own
        if part is not None:
            audited = self._audited_rows(part, own, counts, together.advantage)
            num_steps = num_parts * self._config.epochs
            audit = Audit(part, self._step, self._group, num_steps=num_steps, matches=audited.matches)
        steps, stopped_early = Steps(self._step, audit), False
        for _ in range(self._config.epochs):
            minibatches = np.array_split(shuffle.permutation(total), num_parts)
            kl = math.fsum(self._step_on(minibatch, own, audited, steps) for minibatch in minibatches)
            if self._stops(kl / num_parts):
                stopped_early = True
                break
        return steps.outcome(together.explained_variance, stopped_early=stopped_early)

    def _build(self, batches: BatchBuilder, accepted: Sequence[Accepted]) -> Batch | None:
        return batches.build([each.fragment for each in accepted], self._advantages)

    def _exchange(self, batch: Batch | None) -> list[Spread]:
        """What each rank's rows are like, by place."""
        own = NOTHING
        if batch is not None:
            own = Spread.of(*(each.cpu().numpy() for each in (batch.advantage, batch.target, batch.value)))
        return [Spread.from_numbers(numbers) for numbers in self._group.exchange(own.to_numbers())]

    def _rows(self, batch: Batch | None, counts: Sequence[int], place: int, advantage: Moments) -> Rows:
        """The rows of the rank at `place`, their advantages normalised by those of all."""
        start = sum(counts[:place])
        rows = Rows(batch=batch, start=start, stop=start + counts[place], total=sum(counts))
        if batch is not None and rows.matches and self._config.normalise_advantages:
            scaled = normalised(batch.advantage.cpu().numpy().astype(np.float64), advantage)
            batch.advantage.copy_(torch.from_numpy(scaled))
        return rows

    def _audited_rows(self, part: AuditPart, own: Rows, counts: Sequence[int], advantage: Moments) -> Rows:
        if part.place == self._group.place:
            return own
        batch = self._build(self._others, part.accepted)
        return self._rows(batch, counts, part.place, advantage)

    def _advantages(self, fragment: Fragment) -> NDArray[np.float64]:
        return generalised_advantages(
            fragment.reward,
            fragment.value,
            fragment.end,
            fragment.valid,
            discount=self._config.discount,
            lambda_=self._config.gae_lambda,
        )

    def _step_on(self, minibatch: NDArray[np.int64], own: Rows, audited: Rows, steps: Steps) -> float:
        """One gradient step; returns this rank's part of the minibatch's KL estimate."""
        return steps.make(lambda: self._losses(own, minibatch), lambda: self._losses(audited, minibatch)).approximate_kl

    def _losses(self, rows: Rows, minibatch: NDArray[np.int64]) -> Losses:
        batch = rows.of(minibatch)
        return NO_ROWS if batch is None else ppo_loss(self._model, batch, self._config, len(minibatch))

    def _stops(self, kl: float) -> bool:
        """Whether the epoch's mean KL estimate, over the rows of all ranks, is beyond the limit."""
        if not self._config.target_kl > 0.0:
            return False
        return float(self._group.exchange(np.array([kl])).sum()) > self._config.target_kl
