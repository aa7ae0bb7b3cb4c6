"""Large gradients: buckets take turns at the scales, digests take none."""

from __future__ import annotations

import pytest

from common.clock import MonotonicClock
from learner.parallel import verified
from learner.parallel.faults import FaultKind, RankFault, Saboteur, Untouched
from learner.reports import Dispute, Fault
from tests.learner.steps import StepRanks, random_gradients

SIZES = (300,) * 5  # five buckets of one parameter each; bucket 0 is the last parameter
STEPS = 8


def disputed(kind: FaultKind, *, step: int, bucket: int) -> Dispute | None:
    """What the two ranks make of the highest bit of an exponent, changed at a step in a bucket of rank 1."""
    element = sum(SIZES) - 300 * (bucket + 1)
    fault = RankFault(kind=kind, rank=1, update=0, step=step, element=element, bit=30)
    ranks = StepRanks(SIZES, 2, bucket_elements=300, tampers=[Untouched(), Saboteur((fault,), MonotonicClock())])
    gradients = [random_gradients(1, place, sum(SIZES), STEPS) for place in range(2)]
    closed = ranks.each(lambda rank, place: rank.attempt(0, gradients[place])[0])
    assert closed[0].dispute == closed[1].dispute
    norms = [len(rank.group.effort.norms) for rank in ranks.ranks]
    ranks.each(lambda rank, place: rank.group.leave())
    assert norms == [STEPS // 4 if verified.LARGE_ELEMENTS == 0 else STEPS] * 2
    return closed[0].dispute


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every gradient counts as large."""
    monkeypatch.setattr(verified, "LARGE_ELEMENTS", 0)


@pytest.mark.parametrize("step", range(4))
def test_what_changes_on_the_way_is_seen_when_it_is_the_buckets_turn(large: None, step: int) -> None:
    """Bucket b is weighed at steps b, b + 4, ...; at the others nobody can know."""
    dispute = disputed(FaultKind.FLIP_OUTGOING, step=step, bucket=2)
    if step == 2:
        assert dispute is not None and (dispute.fault, dispute.step, dispute.bucket) == (Fault.CONSERVATION, 2, 2)
    else:
        assert dispute is None


def test_small_gradients_are_weighed_at_every_step() -> None:
    """The same change, whatever the step."""
    for step in range(2):
        dispute = disputed(FaultKind.FLIP_OUTGOING, step=step, bucket=2)
        assert dispute is not None and (dispute.step, dispute.bucket) == (step, 2)


@pytest.mark.parametrize("step", range(4))
def test_what_one_rank_holds_differently_is_seen_at_every_step(large: None, step: int) -> None:
    """Digests know no turns."""
    dispute = disputed(FaultKind.FLIP_REDUCED, step=step, bucket=1)
    assert dispute is not None and (dispute.fault, dispute.step, dispute.bucket) == (Fault.DIGEST, step, 1)
