"""Where a run that is made again parts from its record: fragment by fragment, update by update, with fakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.errors import RunFailedError
from common.fragment import FragmentSummary
from common.ledger import Ledger, LedgerUpdate
from deploy.compare import UpdateDifference
from deploy.conductor.messages import FragmentMade, RollBack, StopAsked
from deploy.divergence import Check, Diverged, FragmentDifference, suspect_of
from learner.reports import UpdateReport
from tests.common.test_ledger import dropped, fragment
from tests.common.test_runs import update

FRAGMENTS = (fragment(0, 0, 1, digest=11), fragment(1, 0, 1, digest=12), dropped(1, 1, 2, digest=13))
UPDATES = (update(1), update(2))
ANY: Any = None  # the conductor of events that say nothing of it


def check() -> Check:
    updates = tuple(LedgerUpdate(update=number, term=1, num_ranks=2) for number in (1, 2))
    return Check(Ledger(fragments=FRAGMENTS, updates=updates), UPDATES, num_ranks=1)


def summary(actor: int, sequence: int, **changes: Any) -> FragmentSummary:
    fields: dict[str, Any] = dict.fromkeys(FragmentSummary.__slots__, 0)
    fields |= {"episode_returns": (), "episode_lengths": (), "gc_pause_ns": (), "num_valid": 60, "lease": "now"}
    return FragmentSummary(**{**fields, "actor": actor, "sequence": sequence, **changes})


def report(number: int, **changes: Any) -> UpdateReport:
    fields: dict[str, Any] = {"term": 0, "version": 1, "trained": True, "verdicts": (), "steps": 1, "skipped_steps": 0}
    fields |= {"skipped_at": "", "lag": 1, "gaps": 0, "learning_rate": 0.1}
    digests = {"parameter_digest": f"digest-{number}", "state_digest": f"state-{number}"}
    return UpdateReport(**{**fields, "update": number - 1, **digests, **changes})


def diverged(made: Check, what: FragmentSummary | UpdateReport) -> Any:
    with pytest.raises(Diverged) as caught:
        if isinstance(what, FragmentSummary):
            made.compare_fragment(what)
        else:
            made.compare_update(what, env_steps=128, trained=120)
    return caught.value.difference


def test_what_is_the_same_is_counted() -> None:
    """Fragments and updates; leases, terms, versions and times are no difference."""
    made = check()
    for actor, digest in ((0, 11), (1, 12)):
        made.observe(FragmentMade(summary=summary(actor, 0, digest=digest), frame=None), ANY)
    made.observe(StopAsked(reason="somebody"), ANY)
    made.compare_update(report(1), env_steps=1, trained=1)
    assert (made.fragments, made.identical_through) == (2, 1)
    made.compare_fragment(summary(1, 1, digest=13))
    assert made.fragments == 3


@pytest.mark.parametrize(
    ("changes", "a", "b"),
    [
        ({"num_valid": 59, "digest": 12}, (60, f"{12:016x}"), (59, f"{12:016x}")),
        ({"digest": 2**62}, (60, f"{12:016x}"), (60, "4000000000000000")),
    ],
)
def test_another_fragment_is_named_with_both_sides(changes: dict[str, Any], a: Any, b: Any) -> None:
    """By its valid transitions or its arrays; with the weights up to which everything was the same."""
    found = diverged(check(), summary(1, 0, **changes))
    assert isinstance(found, FragmentDifference)
    assert (found.actor, found.incarnation, found.sequence, found.weights) == (1, 0, 0, 0)
    assert (tuple(found.a.values()), tuple(found.b.values())) == (a, b)


def test_a_dropped_fragment_is_compared_too() -> None:
    """It moved the environments that later ones depend on."""
    found = diverged(check(), summary(1, 1, digest=1))
    assert (found.sequence, found.weights) == (1, 1)


def test_a_digest_that_was_not_recorded_is_not_compared() -> None:
    """Nor one that is not made now."""
    unknown = tuple(replace(each, digest=0) for each in FRAGMENTS)
    made = Check(Ledger(fragments=unknown, updates=()), UPDATES, num_ranks=1)
    made.compare_fragment(summary(0, 0, digest=99))
    check().compare_fragment(summary(0, 0, digest=0))


@pytest.mark.parametrize("changes", [{"parameter_digest": "x"}, {"state_digest": "x"}])
def test_another_update_is_named_with_both_sides(changes: dict[str, Any]) -> None:
    """Digests, steps and ranks of either side."""
    made = check()
    made.compare_update(report(1), env_steps=128, trained=120)
    found = diverged(made, report(2, **changes))
    assert isinstance(found, UpdateDifference)
    assert (found.update, made.identical_through) == (2, 1)
    assert (found.a["parameter_digest"], found.a["state_digest"], found.a["num_ranks"]) == ("digest-2", "state-2", 2)
    assert (found.b["env_steps"], found.b["trained"], found.b["num_ranks"]) == (128, 120, 1)
    assert all(found.b[name] == value for name, value in changes.items())


def test_a_rollback_ends_a_reproduction() -> None:
    """What was found the same would have to be taken back."""
    with pytest.raises(RunFailedError, match=r"update 2 could not be made again.*got disputed twice"):
        check().roll_back(RollBack(update=1, term=1, reason="disputed twice"))


@pytest.mark.parametrize(
    ("same", "of_fragment", "of_update"),
    [
        (True, "the environment is the suspect: equal weights", "the learner is the suspect: equal fragments"),
        (
            False,
            "the environment is the suspect, or what differs in code",
            "what differs in code, versions or processor",
        ),
    ],
)
def test_a_difference_points_at_somebody(same: bool, of_fragment: str, of_update: str) -> None:
    """Equal code, versions and processor leave the environment or the learner; else they are suspects themselves."""
    one = FragmentDifference(actor=0, incarnation=0, sequence=0, weights=0, a={}, b={})
    two = UpdateDifference(update=1, a={}, b={})
    assert suspect_of(one, same_fingerprint=same).startswith(of_fragment)
    assert suspect_of(two, same_fingerprint=same).startswith(of_update)
