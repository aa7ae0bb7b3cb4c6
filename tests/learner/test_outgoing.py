"""A bit flips on the way into a sum: all ranks hold the same wrong value, and the sums find what is large enough."""

from __future__ import annotations

import pytest

from benchmarks.conservation import BITS, shares, table
from common.clock import ManualClock
from learner.parallel.faults import FaultKind, RankFault, Saboteur
from learner.reports import Attribution, Dispute, Fault
from tests.learner.steps import StepRank, StepRanks, random_gradients

SIZES = (20_000, 300, 40_000, 5)  # two buckets
NUM_STEPS = 2


def suffered(faults: list[RankFault], num_ranks: int) -> list[tuple[Dispute | None, Attribution | None]]:
    """Each update once with its fault; where that was disputed, once more. All ranks say the same."""
    tampers = [
        Saboteur(tuple(fault for fault in faults if fault.rank == rank), ManualClock()) for rank in range(num_ranks)
    ]
    ranks = StepRanks(SIZES, num_ranks, bucket_elements=30_000, tampers=tampers)

    def work(rank: StepRank, place: int) -> list[tuple[Dispute | None, Attribution | None]]:
        gradients, told = random_gradients(0, place, rank.parameters.num_elements, NUM_STEPS), []
        for update in range(len(faults)):
            dispute, attribution = rank.attempt(update, gradients)[0].dispute, None
            if dispute is not None:
                again = rank.attempt(update, gradients)[0]
                assert again.dispute is None
                attribution = again.attribution
            told.append((dispute, attribution))
        return told

    told = ranks.each(work)
    assert all(each == told[0] for each in told)
    return told[0]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_the_highest_bit_of_an_exponent_is_always_found_and_nobody_is_accused(num_ranks: int) -> None:
    """Of any element: a conservation dispute in its step and bucket, its chunk told by the redo, and no name."""
    elements = [0, 7, 16_500, 20_299, 20_300, 36_700, 53_100, 60_304]
    faults = [
        RankFault(kind=FaultKind.FLIP_OUTGOING, rank=i % num_ranks, update=i, step=i % NUM_STEPS, element=each, bit=30)
        for i, each in enumerate(elements)
    ]
    for fault, (dispute, attribution) in zip(faults, suffered(faults, num_ranks), strict=True):
        assert dispute is not None and attribution is not None, fault
        assert (dispute.fault, dispute.step) == (Fault.CONSERVATION, fault.step)
        assert dispute.bucket == (1 if fault.element < 20_300 else 0)
        assert attribution.ranks == ()
        assert len(attribution.dispute.chunks) == len(attribution.sha256) == 1


def test_whatever_the_bit_nobody_is_accused() -> None:
    """Each bit in turn: found or not, no rank is named, and the group goes on."""
    faults = [
        RankFault(kind=FaultKind.FLIP_OUTGOING, rank=bit % 2, update=bit, step=bit % 2, element=bit * 1_800, bit=bit)
        for bit in range(32)
    ]
    told = suffered(faults, 2)
    found = [bit for bit, (dispute, _) in enumerate(told) if dispute is not None]
    assert 30 in found and 0 not in found
    assert all(attribution is None or attribution.ranks == () for _, attribution in told)


def test_what_the_sums_find_by_bit() -> None:
    """High bits always, the sign and the exponent of large elements always, the lowest bits never; and by size."""
    small, large = shares(2_000, 40, largest=False), shares(2_000, 40, largest=True)
    wide = shares(200_000, 40, largest=False)
    assert small[30] == large[30] == wide[30] == 1.0
    assert all(large[bit] == 1.0 for bit in range(20, 32))
    assert all(each[bit] == 0.0 for each in (small, large, wide) for bit in range(8))
    assert sum(small.values()) > sum(wide.values())


def test_the_table_joins_neighbouring_bits_with_equal_rows() -> None:
    """But never a sign with an exponent, nor an exponent with a mantissa."""
    one, other = dict.fromkeys(BITS, 1.0), dict.fromkeys(BITS, 1.0)
    other[30] = 0.25
    assert table({"a": one, "b": other}).splitlines() == [
        "| bit | a | b |",
        "| --- | ---: | ---: |",
        "| 31 (sign) | 100 % | 100 % |",
        "| 30 (exponent) | 100 % | 25 % |",
        "| 29 to 23 (exponent) | 100 % | 100 % |",
        "| 22 to 0 (mantissa) | 100 % | 100 % |",
    ]
