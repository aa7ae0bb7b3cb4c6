"""IMPALA (Espeholt et al., 2018): actor-critic on V-trace targets, for fragments of any policy near the current one.

    fragments ──► lanes of a minibatch ──► unroll ──► V-trace ──► loss ──► gradient step
                         ▲                                                     │
                         └──────────────── epochs × minibatches ───────────────┘

V-trace is made anew in every step from the values of that step's own forward pass, so a fragment of weights of many
updates ago is corrected towards the policy that is being changed. Fragments are never joined: a step's loss is the sum
over fragments, each divided by the valid rows that all ranks have in the minibatch, so the parts of several ranks add
up to the gradient that one rank would have computed.

Legend: T rows, L lanes of a fragment that lie in a minibatch; μ acted, π is being trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from common.nets import ActorCritic
from learner.algorithms.limits import check_counts, check_fractions, check_positive, check_weights
from learner.algorithms.outcome import NO_STEPS, Losses, UpdateOutcome, summed
from learner.algorithms.steps import Steps
from learner.audit import Audit, AuditPart
from learner.gradient_step import GradientStep
from learner.intake import Accepted
from learner.lanes import LanePlan, count_rows, minibatch_of
from learner.moments import Moments
from learner.parallel.group import Group
from learner.returns import VTrace, normalised, vtrace
from learner.sequences import Sequences, Unrolled, sequences_of, unrolled
from learner.spread import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpalaConfig:
    """Hyperparameters of IMPALA.

    Attributes:
        discount: γ, per environment step.
        vtrace_lambda: λ of V-trace: scales the traces c; 1 is the paper's main text, less has less variance (remark 2).
        rho_clip: ρ̄, bounds the importance weights of temporal differences: decides which policy is evaluated.
        c_clip: c̄, bounds the traces: decides how fast, not what is converged to.
        pg_rho_clip: bounds the importance weight of the policy gradient.
        value_coefficient: weight of the value loss, 0.5 (V - vs)².
        entropy_coefficient: weight of the entropy bonus.
        minibatches: parts that the lanes of every fragment are cut into; one gradient step each. Never more than there
            are lanes: a part without one is no step.
        epochs: passes over the minibatches: how often each row is used.
        staleness_exponent: x of the weight (1 + lag)^-x of a fragment's loss; 0 weighs all alike.
        normalise_advantages: zero mean, unit deviation over the valid rows of a minibatch, of all ranks together.
    """

    discount: float = 0.99
    vtrace_lambda: float = 1.0
    rho_clip: float = 1.0
    c_clip: float = 1.0
    pg_rho_clip: float = 1.0
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    minibatches: int = 1
    epochs: int = 1
    staleness_exponent: float = 0.0
    normalise_advantages: bool = False

    def __post_init__(self) -> None:
        check_fractions("impala", self, "discount", "vtrace_lambda")
        check_positive("impala", self, "rho_clip", "c_clip", "pg_rho_clip")
        check_weights("impala", self, "value_coefficient", "entropy_coefficient", "staleness_exponent")
        check_counts("impala", self, "minibatches", "epochs")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """One fragment's part of a minibatch, as the network sees it before the step.

    Attributes:
        sequences: the rows.
        said: by the network, differentiable.
        value: of it, float64 [T+1, L].
        log_ratio: log π / μ, float64 [T, L]; 0 on invalid rows.
        trace: V-trace of it, for π.
    """

    sequences: Sequences
    said: Unrolled
    value: NDArray[np.float64]
    log_ratio: NDArray[np.float64]
    trace: VTrace

    @property
    def spread(self) -> Spread:
        """Of the valid rows."""
        used = self.sequences.valid.astype(bool)
        return Spread.of(self.trace.advantage[used], self.trace.target[used], self.value[:-1][used])


def impala_pass(model: ActorCritic, sequences: Sequences, config: ImpalaConfig) -> Pass:
    """Unroll the network and make V-trace of what it says."""
    said = unrolled(model, sequences)
    value = said.value.detach().cpu().numpy().astype(np.float64)
    log_ratio = said.log_ratio(sequences)
    with np.errstate(over="ignore"):  # an infinite ratio is clipped like any large one
        ratio = np.exp(log_ratio)
    trace = vtrace(
        ratio,
        sequences.reward,
        value,
        sequences.end,
        sequences.valid,
        discount=config.discount,
        lambda_=config.vtrace_lambda,
        rho_clip=config.rho_clip,
        c_clip=config.c_clip,
        pg_rho_clip=config.pg_rho_clip,
    )
    return Pass(sequences=sequences, said=said, value=value, log_ratio=log_ratio, trace=trace)


def impala_loss(one: Pass, config: ImpalaConfig, num_rows: int, advantage: Moments | None = None) -> Losses:
    """The gradients of section 4.2 as a loss: -Σ A log π + 0.5 Σ (V - vs)² - Σ H, each over `num_rows`.

    A holds the clipped importance weight; neither A nor vs is differentiated.

    Args:
        num_rows: valid rows of the minibatch, of which these are a part.
        advantage: of the minibatch, by which A is normalised; None leaves it as it is.
    """
    said, used = one.said, one.sequences.used
    scaled = one.trace.advantage
    if advantage is not None:
        scaled = np.where(one.sequences.valid, normalised(scaled, advantage), 0.0)
    policy = (said.log_prob * _like(said.log_prob, scaled)).sum() * (-1.0 / num_rows)
    value = (said.value[:-1] - _like(said.value, one.trace.target)).square().sum() * (0.5 / num_rows)
    entropy = (said.entropy * used).sum() / num_rows
    total = policy + config.value_coefficient * value
    if config.entropy_coefficient:
        total = total - config.entropy_coefficient * entropy
    with np.errstate(over="ignore"):
        excess = np.expm1(one.log_ratio)  # ratio - 1
    return Losses(
        total=total if one.sequences.weight == 1.0 else one.sequences.weight * total,
        policy=policy.item(),
        value=value.item(),
        entropy=entropy.item(),
        approximate_kl=float((excess - one.log_ratio).sum()) / num_rows,
        clip_fraction=float(np.count_nonzero(excess > config.rho_clip - 1.0)) / num_rows,
    )


def _like(tensor: torch.Tensor, values: NDArray[np.float64]) -> torch.Tensor:
    """As float32 beside `tensor`."""
    with np.errstate(over="ignore"):  # becomes inf, and the gradient step that it spoils is skipped and named
        return torch.from_numpy(values.astype(np.float32)).to(tensor.device)


class Impala:
    """Updates one model from fragments of earlier policies, together with the other ranks of a group."""

    def __init__(
        self, config: ImpalaConfig, model: ActorCritic, step: GradientStep, group: Group, device: torch.device
    ) -> None:
        self._config = config
        self._model = model
        self._step = step
        self._group = group
        self._device = device

    def update(
        self, accepted: Sequence[Accepted], shuffle: np.random.Generator, part: AuditPart | None = None
    ) -> UpdateOutcome:
        """All epochs over the minibatches of the fragments of all ranks.

        Args:
            accepted: the fragments of this rank, with their lags.
            shuffle: the order of minibatches is drawn from it; the same on every rank.
            part: what this rank recomputes.

        Raises:
            SyncError: the ranks fell apart; parameters and optimiser are somewhere in the middle.
        """
        config = self._config
        own = self._sequences(accepted)
        counts = self._group.exchange(count_rows(own, config.minibatches))
        plan = LanePlan(counts=counts, epochs=config.epochs)
        if not plan.num_steps:
            return NO_STEPS
        audit, audited = None, own
        if part is not None:
            audited = own if part.place == self._group.place else self._sequences(part.accepted)
            matches = plan.matches(part.place, audited)
            audit = Audit(part, self._step, self._group, num_steps=plan.num_steps, matches=matches)
        steps = Steps(self._step, audit)
        spreads = [self._step_on(minibatch, plan, own, audited, steps) for minibatch in plan.order(shuffle)]
        everyone = self._group.exchange(Spread.merged(spreads).to_numbers())
        together = Spread.merged([Spread.from_numbers(numbers) for numbers in everyone])
        return steps.outcome(together.explained_variance)

    def _sequences(self, accepted: Sequence[Accepted]) -> list[Sequences]:
        return [sequences_of(each, self._device, self._config.staleness_exponent) for each in accepted]

    def _step_on(
        self, minibatch: int, plan: LanePlan, own: Sequence[Sequences], audited: Sequence[Sequences], steps: Steps
    ) -> Spread:
        """One gradient step; returns what this rank's rows of the minibatch are like before it."""
        passes, rows = self._passes(own, minibatch), plan.rows(minibatch)
        spread = Spread.merged([one.spread for one in passes])
        moments = self._advantage_of_all(spread) if self._config.normalise_advantages else None
        steps.make(
            partial(self._losses, passes, rows, moments),
            lambda: self._losses(self._passes(audited, minibatch), rows, moments),
        )
        return spread

    def _passes(self, sequences: Sequence[Sequences], minibatch: int) -> list[Pass]:
        """Over the fragments that have a valid row in the minibatch."""
        cut = minibatch_of(sequences, minibatch, self._config.minibatches)
        return [impala_pass(self._model, each, self._config) for each in cut if each.valid.any()]

    def _losses(self, passes: Sequence[Pass], rows: int, moments: Moments | None) -> Losses:
        return summed(impala_loss(one, self._config, rows, moments) for one in passes)

    def _advantage_of_all(self, spread: Spread) -> Moments:
        everyone = self._group.exchange(np.array(spread.advantage.to_numbers()))
        return Moments.merged([Moments.from_numbers(numbers) for numbers in everyone.tolist()])
