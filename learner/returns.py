"""Returns and advantages on canonical rows: pure functions of arrays, computed in float64.

Shapes: T rows, B lanes. `value` has T+1 rows: `value[t+1]` is V of the true next observation of row t, so bootstrapping
never needs a separate final observation. Every recursion is cut where `end != 0` or `valid == 0`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.fragment import End
from learner.moments import Moments


def generalised_advantages(
    reward: NDArray[np.floating],
    value: NDArray[np.floating],
    end: NDArray[np.uint8],
    valid: NDArray[np.uint8],
    *,
    discount: float,
    lambda_: float,
) -> NDArray[np.float64]:
    """GAE(λ) (Schulman et al., 2016, eq. 16) for every row [T, B]; zero on invalid rows.

    δ_t = r_t + γ V(o_{t+1}) - V(o_t), where V(o_{t+1}) is left out on TERMINATED (and BROKEN) rows only: a truncated
    episode bootstraps from its real final observation. A_t = δ_t + γλ A_{t+1} inside an episode.

    Worked example: reward 1, γ = 0.99, λ = 1, V = 100 everywhere, truncated after 5 steps: A + V is 100 on every row;
    terminated instead it is 4.901 on the first.
    """
    bootstraps = (end == End.CONTINUES) | (end == End.TRUNCATED)
    used = valid.astype(bool)
    value64 = value.astype(np.float64)
    delta = reward + discount * np.where(bootstraps, value64[1:], 0.0) - value64[:-1]
    delta[~used] = 0.0
    carries = (end == End.CONTINUES) & used
    advantage = np.empty_like(delta)
    ahead = np.zeros(delta.shape[1])
    for t in range(len(delta) - 1, -1, -1):
        ahead = delta[t] + np.where(carries[t], discount * lambda_ * ahead, 0.0)  # cut, not times 0: 0 * NaN is NaN
        advantage[t] = ahead
    return advantage


def normalised(advantage: NDArray[np.float64], moments: Moments, *, epsilon: float = 1e-8) -> NDArray[np.float64]:
    """Zero mean and unit (population) deviation by `moments`, those of the rows of all ranks; of fewer than two rows
    in all, unchanged.

    Population, not sample, deviation: one row has no sample deviation (NaN), and equal rows become zero, not noise.
    """
    if moments.count < 2:
        return advantage
    with np.errstate(invalid="ignore"):  # rows with an infinity become NaN: the gradient step is skipped and named
        return (advantage - moments.mean) / (moments.deviation + epsilon)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VTrace:
    """What V-trace makes of a fragment.

    Attributes:
        target: vs, float64 [T, B]: what the value is regressed on; V on invalid rows.
        advantage: float64 [T, B]: what the gradient of log π is multiplied by, importance weight included; 0 on
            invalid rows.
    """

    target: NDArray[np.float64]
    advantage: NDArray[np.float64]


def vtrace(
    ratio: NDArray[np.float64],
    reward: NDArray[np.floating],
    value: NDArray[np.floating],
    end: NDArray[np.uint8],
    valid: NDArray[np.uint8],
    *,
    discount: float,
    lambda_: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    pg_rho_clip: float = 1.0,
) -> VTrace:
    """V-trace (Espeholt et al., 2018, section 4.1) with ratio [T, B] = π(a_t | o_t) / μ(a_t | o_t).

    With ρ_t = min(ρ̄, ratio_t), c_t = λ min(c̄, ratio_t) and V(o_{t+1}) left out on TERMINATED (and BROKEN) rows:

        δ_t  = ρ_t (r_t + γ V(o_{t+1}) - V(o_t))
        vs_t = V(o_t) + δ_t + γ c_t (vs_{t+1} - V(o_{t+1}))                     remark 1, the recursive form of eq. 1
        A_t  = min(ρ̄_pg, ratio_t) (r_t + γ q_{t+1} - V(o_t)),    q = V + λ (vs - V)

    Where the recursion is cut there is no vs_{t+1}: a truncated row, and the last one, use V(o_{t+1}) in both places.
    With λ = 1, q is the paper's vs. On-policy and with clips of at least 1, A is GAE(λ) and vs is V + A.

    Worked example: γ = 1, V = 0, rewards 1, 1 and termination, ratios 2 and 0.5: vs = (1 + 1 · 0.5, 0.5),
    A = (1 + 0.5, 0.5).
    """
    used = valid.astype(bool)
    bootstraps = (end == End.CONTINUES) | (end == End.TRUNCATED)
    carries = (end == End.CONTINUES) & used
    value64 = value.astype(np.float64)
    error = reward + discount * np.where(bootstraps, value64[1:], 0.0) - value64[:-1]
    error[~used] = 0.0
    weight = np.where(used, ratio, 0.0)  # chosen, not times 0: of an invalid row nothing is known
    delta = np.minimum(weight, rho_clip) * error
    trace = discount * lambda_ * np.minimum(weight, c_clip)
    excess = np.zeros((len(delta) + 1, delta.shape[1]))  # vs - V; the last row has no more than its V
    with np.errstate(invalid="ignore"):  # an infinity that is cut off may meet a trace of 0
        for t in range(len(delta) - 1, -1, -1):
            excess[t] = delta[t] + np.where(carries[t], trace[t] * excess[t + 1], 0.0)
        ahead = np.where(carries, discount * lambda_ * excess[1:], 0.0)
        advantage = np.minimum(weight, pg_rho_clip) * (error + ahead)
    return VTrace(target=value64[:-1] + excess[:-1], advantage=advantage)
