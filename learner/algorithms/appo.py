"""APPO: the clipped objective of PPO on V-trace advantages, for fragments of older policies (IMPACT, Luo et al., 2020).

    fragments ──► target network ──► V-trace ──► epochs × lanes of a minibatch ──► unroll ──► loss ──► gradient step

A clipped objective needs a policy to stay near. The one that acted is another for each fragment, and may be many
updates old; so it is the *target network*, the parameters as they were after the last of every `target_update_every`
updates. V-trace evaluates it (its values, its ratios against μ), once per update, before any step; the objective is

    min(r A, clamp(r, 1 - ε, 1 + ε) A)    with    r = min(μ / π_target, c) π / μ

which is π / π_target wherever the first factor is not bounded (section 3.1 of the paper, and RLlib's APPO; those take
the values from the network being trained, here they are the target's, so that all of V-trace is about one policy).
A holds V-trace's bounded weight π_target / μ. On-policy, with a target that follows every update, this is PPO.

Legend: T rows, B lanes of a fragment, L of them in a minibatch; μ acted, π is being trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import ConfigError
from common.nets import ActorCritic
from learner.algorithms.limits import check_counts, check_fractions, check_positive, check_weights
from learner.algorithms.outcome import NO_STEPS, Losses, UpdateOutcome, summed
from learner.algorithms.steps import Steps
from learner.audit import Audit, AuditPart
from learner.gradient_step import GradientStep
from learner.intake import Accepted
from learner.lanes import LanePlan, count_rows, lane_bounds
from learner.moments import Moments
from learner.parallel.group import Group
from learner.returns import normalised, vtrace
from learner.sequences import Sequences, sequences_of, unrolled
from learner.spread import NUMBERS, Spread
from learner.surrogate import clipped_surrogate


@dataclass(frozen=True, slots=True, kw_only=True)
class AppoConfig:
    """Hyperparameters of APPO.

    Attributes:
        discount: γ, per environment step.
        vtrace_lambda: λ of V-trace: scales the traces c; 1 cuts none.
        rho_clip: ρ̄, bounds the importance weights of temporal differences.
        c_clip: c̄, bounds the traces.
        pg_rho_clip: bounds the importance weight of the advantages.
        clip: ε of the clipped objective.
        behaviour_clip: c, bounds μ / π_target, by which a ratio against μ becomes one against the target network.
        target_update_every: updates after which the target network takes over the parameters.
        value_coefficient: weight of the value loss, 0.5 (V - vs)².
        entropy_coefficient: weight of the entropy bonus.
        minibatches: parts that the lanes of every fragment are cut into; one gradient step each. Never more than there
            are lanes: a part without one is no step.
        epochs: passes over the minibatches: how often each row is used.
        staleness_exponent: x of the weight (1 + lag)^-x of a fragment's loss; 0 weighs all alike.
        normalise_advantages: zero mean, unit deviation over the valid rows of the update, of all ranks together.
    """

    discount: float = 0.99
    vtrace_lambda: float = 0.95
    rho_clip: float = 1.0
    c_clip: float = 1.0
    pg_rho_clip: float = 1.0
    clip: float = 0.2
    behaviour_clip: float = 2.0
    target_update_every: int = 1
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    minibatches: int = 4
    epochs: int = 2
    staleness_exponent: float = 0.0
    normalise_advantages: bool = True

    def __post_init__(self) -> None:
        check_fractions("appo", self, "discount", "vtrace_lambda")
        check_positive("appo", self, "rho_clip", "c_clip", "pg_rho_clip", "behaviour_clip")
        check_weights("appo", self, "value_coefficient", "entropy_coefficient", "staleness_exponent")
        check_counts("appo", self, "target_update_every", "minibatches", "epochs")
        if not 0.0 < self.clip < 1.0:
            raise ConfigError("appo.clip", got=self.clip, allowed="between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Targets:
    """Some lanes of a fragment and what the target network makes of them; fixed for the whole update.

    Attributes:
        sequences: T rows of L lanes.
        advantage: float32 [T, L]; 0 on invalid rows.
        vs: float32 [T, L]: what the value is regressed on.
        offset: float32 [T, L]: log of min(μ / π_target, c) / μ; log r is log π plus this, on valid rows.
    """

    sequences: Sequences
    advantage: Tensor
    vs: Tensor
    offset: Tensor

    def lanes(self, start: int, stop: int) -> Targets:
        """Lanes `start` to `stop` of these, as views."""
        return Targets(
            sequences=self.sequences.lanes(start, stop),
            advantage=self.advantage[:, start:stop],
            vs=self.vs[:, start:stop],
            offset=self.offset[:, start:stop],
        )

    def normalised_by(self, advantage: Moments) -> Targets:
        """The same with advantages of zero mean and unit deviation over the rows that `advantage` is of."""
        scaled = normalised(self.advantage.cpu().numpy().astype(np.float64), advantage)
        scaled = np.where(self.sequences.valid, scaled, 0.0)
        return Targets(
            sequences=self.sequences, advantage=_float32(scaled, self.vs.device), vs=self.vs, offset=self.offset
        )


@torch.no_grad()
def appo_targets(target: ActorCritic, sequences: Sequences, config: AppoConfig) -> tuple[Targets, Spread]:
    """V-trace of the target network for sequences, advantages as they are; and what the valid rows are like."""
    said = unrolled(target, sequences)
    value = said.value.cpu().numpy().astype(np.float64)
    log_ratio = said.log_ratio(sequences)  # π_target / μ
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
    offset = np.minimum(-log_ratio, math.log(config.behaviour_clip)) - sequences.log_prob
    used, device = sequences.valid.astype(bool), said.value.device
    targets = Targets(
        sequences=sequences,
        advantage=_float32(trace.advantage, device),
        vs=_float32(trace.target, device),
        offset=_float32(offset, device),
    )
    return targets, Spread.of(trace.advantage[used], trace.target[used], value[:-1][used])


def _float32(values: NDArray[np.floating], device: torch.device) -> Tensor:
    with np.errstate(over="ignore"):  # becomes inf, and the gradient step that it spoils is skipped and named
        return torch.from_numpy(values.astype(np.float32)).to(device)


def appo_loss(model: ActorCritic, targets: Targets, config: AppoConfig, num_rows: int) -> Losses:
    """The clipped objective, 0.5 Σ (V - vs)² and the entropy bonus, each over `num_rows`.

    The KL estimate and the fraction of clipped rows are those of r.

    Args:
        num_rows: valid rows of the minibatch, of which these are a part.
    """
    sequences, used = targets.sequences, targets.sequences.used
    said = unrolled(model, sequences)
    log_ratio = torch.where(used > 0.0, said.log_prob + targets.offset, 0.0)
    policy = clipped_surrogate(log_ratio, targets.advantage, config.clip, num_rows)
    value = ((said.value[:-1] - targets.vs) * used).square().sum() * (0.5 / num_rows)
    entropy = (said.entropy * used).sum() / num_rows
    total = policy + config.value_coefficient * value
    if config.entropy_coefficient:
        total = total - config.entropy_coefficient * entropy
    with torch.no_grad():
        excess = log_ratio.expm1()  # r - 1
        approximate_kl = (excess - log_ratio).sum().item() / num_rows
        clip_fraction = (excess.abs() > config.clip).sum().item() / num_rows
    return Losses(
        total=total if sequences.weight == 1.0 else sequences.weight * total,
        policy=policy.item(),
        value=value.item(),
        entropy=entropy.item(),
        approximate_kl=approximate_kl,
        clip_fraction=clip_fraction,
    )


class Appo:
    """Updates one model from fragments of earlier policies, together with the other ranks of a group.

    Args:
        target: the target network; who owns it changes it between updates.
    """

    def __init__(
        self,
        config: AppoConfig,
        model: ActorCritic,
        target: ActorCritic,
        step: GradientStep,
        group: Group,
        device: torch.device,
    ) -> None:
        self._config = config
        self._model = model
        self._target = target
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
        targets, spread = self._targets(accepted)
        plan, together = self._agree(targets, spread)
        if not plan.num_steps:
            return NO_STEPS
        own = self._normalised(targets, together.advantage)
        audit, audited = None, own
        if part is not None:
            if part.place != self._group.place:
                audited = self._normalised(self._targets(part.accepted)[0], together.advantage)
            matches = plan.matches(part.place, [each.sequences for each in audited])
            audit = Audit(part, self._step, self._group, num_steps=plan.num_steps, matches=matches)
        steps = Steps(self._step, audit)
        for minibatch in plan.order(shuffle):
            rows = plan.rows(minibatch)
            steps.make(partial(self._losses, own, minibatch, rows), partial(self._losses, audited, minibatch, rows))
        return steps.outcome(together.explained_variance)

    def _targets(self, accepted: Sequence[Accepted]) -> tuple[list[Targets], Spread]:
        """Of each fragment, and what the rows of all of them are like."""
        sequences = [sequences_of(each, self._device, self._config.staleness_exponent) for each in accepted]
        pairs = [appo_targets(self._target, each, self._config) for each in sequences]
        return [targets for targets, _ in pairs], Spread.merged([spread for _, spread in pairs])

    def _agree(self, targets: Sequence[Targets], spread: Spread) -> tuple[LanePlan, Spread]:
        """The plan of the update, and what the rows of all ranks are like: one exchange."""
        counts = count_rows([each.sequences for each in targets], self._config.minibatches)
        everyone = self._group.exchange(np.concatenate([spread.to_numbers(), counts]))
        plan = LanePlan(counts=everyone[:, NUMBERS:], epochs=self._config.epochs)
        return plan, Spread.merged([Spread.from_numbers(numbers) for numbers in everyone[:, :NUMBERS]])

    def _normalised(self, targets: list[Targets], advantage: Moments) -> list[Targets]:
        if not self._config.normalise_advantages:
            return targets
        return [each.normalised_by(advantage) for each in targets]

    def _losses(self, targets: Sequence[Targets], minibatch: int, rows: int) -> Losses:
        """Over the fragments that have a valid row in the minibatch."""
        cut = [
            each.lanes(*lane_bounds(each.sequences.num_lanes, minibatch, self._config.minibatches)) for each in targets
        ]
        return summed(appo_loss(self._model, each, self._config, rows) for each in cut if each.sequences.valid.any())
