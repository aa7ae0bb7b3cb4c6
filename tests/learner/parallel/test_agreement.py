"""What ranks must have in common: any difference is found, by all ranks alike, and named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import RunFailedError
from learner.parallel.agreement import check_alike, describe, differences

BASE: dict[str, Any] = {
    "config": {"seed": 7, "net": {"hidden": [64, 64]}, "rate": 0.1},
    "parameters": [["body.0.weight", [64, 4]], ["body.0.bias", [64]]],
    "updates": 3,
}


def refusal(ranks: tuple[int, ...], *descriptions: dict[str, Any]) -> str:
    """The words of the refusal."""
    with pytest.raises(RunFailedError) as error:
        check_alike(ranks, [describe(each) for each in descriptions])
    return str(error.value)


def test_ranks_that_are_alike_are_let_through() -> None:
    """Also one alone."""
    check_alike((4, 7, 9), [describe(BASE)] * 3)
    check_alike((4,), [describe(BASE)])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": BASE["config"] | {"seed": 8}}, "config.seed differs; got 8; allowed: 7"),
        ({"config": BASE["config"] | {"net": {"hidden": [64]}}}, "config.net.hidden[1] differs; got None; allowed: 64"),
        ({"config": BASE["config"] | {"extra": 1}}, "config.extra differs; got 1; allowed: None"),
        ({"updates": 4}, "updates differs; got 4; allowed: 3"),
        (
            {"parameters": BASE["parameters"][::-1]},
            "parameters[0][0] differs; got 'body.0.bias'; allowed: 'body.0.weight'",
        ),
    ],
)
def test_the_first_difference_is_named_with_both_values(change: dict[str, Any], words: str) -> None:
    """Rank, path, its value, and that of the others."""
    told = refusal((0, 1, 2), BASE, BASE | change, BASE)
    assert told.startswith(f"learner rank 1 is not like rank 0: {words}; start every rank from the same configuration")


def test_the_odd_one_out_is_named_wherever_it_stands() -> None:
    """Most ranks are right, also against the rank at place 0."""
    odd = BASE | {"updates": 9}
    assert "rank 5 is not like rank 6" in refusal((5, 6, 7), odd, BASE, BASE)
    assert "rank 7 is not like rank 5" in refusal((5, 6, 7), BASE, BASE, odd)


def test_of_two_that_differ_the_lower_place_is_right() -> None:
    """A choice that all ranks make alike; the message says so by naming both."""
    assert "rank 3 is not like rank 1: updates differs; got 9" in refusal((1, 3), BASE, BASE | {"updates": 9})


def test_a_difference_in_bytes_alone_is_a_difference() -> None:
    """1 and 1.0 are equal in Python and are not alike here."""
    told = refusal((0, 1), {"rate": 1}, {"rate": 1.0})
    assert "rank 1 is not like rank 0" in told


def test_a_long_value_is_cut() -> None:
    """A message of megabytes helps nobody."""
    assert len(refusal((0, 1), {"x": "a" * 10_000}, {"x": "b" * 10_000})) < 700


PLAIN = st.recursive(
    st.one_of(st.integers(-5, 5), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


@settings(deadline=None, max_examples=150)
@given(PLAIN, PLAIN)
def test_differences_are_found_where_there_are_any_and_nowhere_else(one: Any, other: Any) -> None:
    """Every one names two unequal values."""
    found = list(differences(one, other))
    assert bool(found) == (one != other)
    assert all(got != allowed for _, got, allowed in found)
