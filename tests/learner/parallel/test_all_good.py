"""Steps judged together are judged as each by itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.parallel.ledger import Step, all_good

NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 2.0, 2.5, 1e300, float("inf"), float("-inf"), float("nan")])
STEPS, RANKS, BUCKETS = 2, 2, 2


@settings(deadline=None, max_examples=300)
@given(
    digests=st.lists(st.sampled_from([7, 7, 7, 8]), min_size=STEPS * RANKS, max_size=STEPS * RANKS),
    totals=st.lists(NUMBERS, min_size=STEPS * RANKS * BUCKETS, max_size=STEPS * RANKS * BUCKETS),
    tolerance=st.sampled_from([0.0, 0.2, float("inf")]),
    came_out=st.lists(NUMBERS, min_size=STEPS * BUCKETS, max_size=STEPS * BUCKETS),
    exact=st.booleans(),
)
def test_together_and_one_by_one_agree(
    digests: list[int], totals: list[float], tolerance: float, came_out: list[float], exact: bool
) -> None:
    """Digests that differ, sums that fit or not, numbers that are not finite."""
    put_in = np.array(totals).reshape(STEPS, RANKS, BUCKETS)
    with np.errstate(invalid="ignore", over="ignore"):
        out = put_in.sum(1) if exact else np.array(came_out).reshape(STEPS, BUCKETS)
    words = np.zeros((STEPS, RANKS, 1 + 2 * BUCKETS), dtype=np.uint64)
    words[:, :, 0] = np.array(digests, dtype=np.uint64).reshape(STEPS, RANKS)
    words[:, :, 1::2] = put_in.view(np.uint64)
    words[:, :, 2::2] = np.float64(tolerance).view(np.uint64)
    steps = [Step(number=i, came_out=out[i].tolist(), heard=words[i]) for i in range(STEPS)]
    assert all_good(words, out) == all(step.is_good() for step in steps)
