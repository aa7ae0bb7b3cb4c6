"""Judgements over what ranks told one another, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from learner.parallel.verdict import (
    AuditVerdict,
    Recomputed,
    Weighed,
    alike,
    first_unlike,
    judge_audit,
    unconserved_bucket,
    unlike_columns,
    wrong_rows,
)


def digests(*rows: list[int]) -> np.ndarray:
    """One row for each rank."""
    return np.array(rows, dtype=np.uint64)


def weighed(totals: list[list[float]], reduced: list[float], tolerance: float = 0.25) -> Weighed:
    """Every rank and bucket with the same tolerance."""
    put_in = np.array(totals)
    return Weighed(totals=put_in, tolerances=np.full_like(put_in, tolerance), reduced=reduced)


def test_the_first_bucket_that_lost_something_is_found() -> None:
    """Two ranks: 1 + 2 = 3 and 10 + 20 = 30; tolerances add up and count twice: 1.0."""
    totals = [[1.0, 10.0], [2.0, 20.0]]
    assert unconserved_bucket(weighed(totals, [3.0, 30.0])) is None
    assert unconserved_bucket(weighed(totals, [4.0, 29.0])) is None
    assert unconserved_bucket(weighed(totals, [3.0, 31.5])) == 1
    assert unconserved_bucket(weighed(totals, [1.5, 31.5])) == 0


def test_a_bucket_that_is_not_finite_is_judged_by_what_went_in() -> None:
    """Not finite in, not finite out; buckets are judged apart."""
    totals = [[math.nan, 10.0], [2.0, 20.0]]
    assert unconserved_bucket(weighed(totals, [math.nan, 30.0])) is None
    assert unconserved_bucket(weighed(totals, [2.0, 30.0])) == 0
    assert unconserved_bucket(weighed(totals, [math.inf, math.nan])) == 1


def test_rows_are_alike_if_every_word_is() -> None:
    """One row alone is."""
    assert alike(digests([1, 2], [1, 2], [1, 2])) and alike(digests([7, 8]))
    assert not alike(digests([1, 2], [1, 2], [1, 3]))


def test_the_columns_in_which_ranks_differ() -> None:
    """Whichever rank it is, the first included."""
    table = digests([9, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5])
    assert (first_unlike(table), unlike_columns(table)) == (0, [0, 3])
    assert (first_unlike(digests([1, 2], [1, 2])), unlike_columns(digests([1, 2], [1, 2]))) == (None, [])
    assert first_unlike(np.zeros((2, 0), dtype=np.uint64)) is None


def test_wrong_is_whoever_differs_from_what_all_agree_on_later() -> None:
    """Not who differs from the majority: here two of three were wrong, in the disputed columns only."""
    first, agreed = digests([1, 2, 3], [1, 8, 3], [1, 9, 7]), np.array([1, 2, 4], dtype=np.uint64)
    assert wrong_rows(first, agreed, [1]) == [1, 2]
    assert wrong_rows(first, agreed, [0]) == []
    assert wrong_rows(first, agreed, [1, 2]) == [0, 1, 2]


def audited(**digests: tuple[int, int]) -> dict[int, Recomputed]:
    """r0=(first, second), ..."""
    return {int(rank[1:]): Recomputed(first=a, second=b) for rank, (a, b) in digests.items()}


@pytest.mark.parametrize(
    ("recomputed", "agreed", "ranks"),
    [
        ({}, True, ()),
        (audited(r0=(5, 5)), True, ()),
        (audited(r0=(5, 6)), False, (0,)),  # it contradicts itself
        (audited(r0=(5, 5), r1=(5, 5)), True, ()),
        (audited(r0=(5, 5), r1=(6, 6)), False, ()),  # one word against another
        (audited(r0=(5, 5), r1=(5, 6)), False, (1,)),  # the auditor contradicts itself
        (audited(r0=(5, 6), r1=(5, 5)), False, (0,)),
        (audited(r0=(5, 6), r1=(7, 8)), False, (0, 1)),
        (audited(r0=(6, 6), r1=(5, 5), r2=(5, 5)), False, (0,)),  # two of three
        (audited(r0=(5, 5), r1=(5, 5), r2=(6, 6)), False, (2,)),
        (audited(r0=(5, 5), r1=(6, 6), r2=(7, 7)), False, ()),  # no majority
        (audited(r0=(5, 5), r1=(5, 5), r2=(6, 6), r3=(6, 6)), False, ()),  # half is none
        (audited(r4=(6, 6), r7=(5, 5), r9=(5, 5), r2=(5, 5)), False, (4,)),
        (audited(r0=(6, 6), r1=(5, 5), r2=(5, 7)), False, (2,)),  # who contradicts itself is named before all others
    ],
)
def test_who_was_wrong_in_an_audit(recomputed: dict[int, Recomputed], agreed: bool, ranks: tuple[int, ...]) -> None:
    """Whoever contradicts itself; else whoever contradicts more than half of at least three; else nobody."""
    assert judge_audit(recomputed) == AuditVerdict(agreed=agreed, ranks=ranks)
