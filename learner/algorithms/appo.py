"""APPO: the clipped objective of PPO on V-trace advantages, for fragments of older policies (Luo et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ConfigError
from learner.algorithms.limits import check_counts, check_fractions, check_positive, check_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class AppoConfig:
    """Hyperparameters of APPO.

    Attributes:
        discount: γ, per environment step.
        vtrace_lambda: λ of V-trace: scales the traces c; 1 cuts none.
        rho_clip: ρ̄, bounds the importance weights of temporal differences.
        c_clip: c̄, bounds the traces.
        clip: ε of the clipped objective.
        behaviour_clip: bounds μ / π_target, by which a ratio against the behaviour policy μ becomes one against the
            target policy.
        target_update_every: updates after which the target network takes over the parameters.
        value_coefficient: weight of the value loss, 0.5 (V - vs)².
        entropy_coefficient: weight of the entropy bonus.
        minibatches: parts that the lanes of every fragment are cut into; one gradient step each.
        epochs: passes over the minibatches: how often each row is used.
        staleness_exponent: x of the weight (1 + lag)^-x of a fragment's loss; 0 weighs all alike.
        normalise_advantages: zero mean, unit deviation over the valid rows of the update.
    """

    discount: float = 0.99
    vtrace_lambda: float = 0.95
    rho_clip: float = 1.0
    c_clip: float = 1.0
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
        check_positive("appo", self, "rho_clip", "c_clip", "behaviour_clip")
        check_weights("appo", self, "value_coefficient", "entropy_coefficient", "staleness_exponent")
        check_counts("appo", self, "target_update_every", "minibatches", "epochs")
        if not 0.0 < self.clip < 1.0:
            raise ConfigError("appo.clip", got=self.clip, allowed="between 0 and 1")
