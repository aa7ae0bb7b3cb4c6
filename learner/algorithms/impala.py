"""IMPALA (Espeholt et al., 2018): actor-critic on V-trace targets, for fragments of any policy near the current one."""

from __future__ import annotations

from dataclasses import dataclass

from learner.algorithms.limits import check_counts, check_fractions, check_positive, check_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpalaConfig:
    """Hyperparameters of IMPALA.

    Attributes:
        discount: γ, per environment step.
        vtrace_lambda: λ of V-trace: scales the traces c; 1 is the paper's main text, lower cuts variance (remark 2).
        rho_clip: ρ̄, bounds the importance weights of temporal differences: decides which policy is evaluated.
        c_clip: c̄, bounds the traces: decides how fast, not what is converged to.
        pg_rho_clip: bounds the importance weight of the policy gradient.
        value_coefficient: weight of the value loss, 0.5 (V - vs)².
        entropy_coefficient: weight of the entropy bonus.
        minibatches: parts that the lanes of every fragment are cut into; one gradient step each.
        epochs: passes over the minibatches: how often each row is used.
        staleness_exponent: x of the weight (1 + lag)^-x of a fragment's loss; 0 weighs all alike.
        normalise_advantages: zero mean, unit deviation over the valid rows of the update, as they are before any step.
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
