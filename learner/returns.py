"""Returns and advantages on canonical rows: pure functions of arrays, computed in float64.

Shapes: T rows, B lanes. `value` has T+1 rows: `value[t+1]` is V of the true next observation of row t, so bootstrapping
never needs a separate final observation. Every recursion is cut where `end != 0` or `valid == 0`.
"""

from __future__ import annotations

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
