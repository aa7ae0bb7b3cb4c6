"""Verdicts do not flap."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from common.metrics import Stall
from deploy.attribution.steady import FINDS, Steady

ACTORS, LEARNER, HEALTHY = Stall.ACTOR_BOUND, Stall.LEARNER_BOUND, Stall.HEALTHY


def test_three_in_a_row_come_into_force() -> None:
    """Not two, and not three with another between; going back takes as long."""
    steady = Steady()
    found = [ACTORS, ACTORS, LEARNER, ACTORS, ACTORS, ACTORS, ACTORS, HEALTHY, HEALTHY, HEALTHY]
    changed = [steady.take(each) for each in found]
    assert changed == [False, False, False, False, False, True, False, False, False, True]
    assert steady.verdict is HEALTHY


@settings(max_examples=100, deadline=None)
@given(found=st.lists(st.sampled_from(Stall), max_size=60))
def test_verdicts_in_force_last(found: list[Stall]) -> None:
    """Between two changes there are three judgements or more, and what comes into force was found in all of them."""
    steady = Steady()
    changes = [n for n, each in enumerate(found) if steady.take(each)]
    for n in changes:
        assert set(found[n - FINDS + 1 : n + 1]) == {found[n]}
    assert all(later - earlier >= FINDS for earlier, later in itertools.pairwise(changes))
