"""A script: what is to be made again, in which order, and where the ledger does not reach further."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.ledger import TRAINED, Ledger, LedgerFragment, LedgerUpdate, ScriptedFragment
from common.script import script_of


def fragment(actor: int, sequence: int, number: int, **changes: Any) -> LedgerFragment:
    """Trained in update `number` at the place of its actor, by weights one update older, all in term 0."""
    fields: dict[str, Any] = {"incarnation": 0, "term": 0, "weights": max(0, number - 1), "num_valid": 8, "digest": 1}
    fields |= {"decided_in": 0, "place": actor, "fate": TRAINED, "actor": actor, "sequence": sequence, "update": number}
    return LedgerFragment(**fields | changes)


def dropped(actor: int, sequence: int, number: int, **changes: Any) -> LedgerFragment:
    return fragment(actor, sequence, number, **{"place": -1, "fate": "stale", **changes})


def ledger(*fragments: LedgerFragment, terms: tuple[int, ...] = (0, 0, 0), ranks: int = 1) -> Ledger:
    updates = [LedgerUpdate(update=number, term=term, num_ranks=ranks) for number, term in enumerate(terms, start=1)]
    return Ledger(fragments=fragments, updates=tuple(updates))


PLAIN = tuple(fragment(actor, number - 1, number) for number in (1, 2, 3) for actor in (0, 1))


def weights(script: Any, actor: int) -> list[list[int]]:
    return [[each.weights for each in life] for life in script.lives[actor]]


def test_a_script_by_hand() -> None:
    """Two actors, three updates, one fragment dropped in between, one life after another, one fragment nobody needs."""
    made = (
        fragment(0, 0, 1),
        fragment(1, 0, 1),
        dropped(1, 1, 2, weights=0),
        fragment(1, 2, 2, place=0),
        fragment(0, 1, 2, place=1),
        fragment(0, 0, 3, incarnation=1),
        dropped(0, 1, 3, incarnation=1, weights=3),
    )
    script = script_of(ledger(*made))
    assert script.updates == (
        ((0, 0, 0), (1, 0, 0)),
        ((1, 0, 2), (0, 0, 1)),
        ((0, 1, 0),),
    )
    assert (weights(script, 0), weights(script, 1)) == ([[0, 1], [2]], [[0, 0, 1]])
    assert script.lives[0][1] == (ScriptedFragment(actor=0, incarnation=1, sequence=0, weights=2),)
    assert script.cut_short == ""


def test_a_script_ends_with_the_last_update_wanted() -> None:
    """Lives end with the last fragment that it needs."""
    script = script_of(ledger(*PLAIN), through=2)
    assert len(script.updates) == 2
    assert (weights(script, 0), script.cut_short) == ([[0, 1]], "")


def test_lives_that_no_update_needs_are_empty() -> None:
    """The second life of an actor stays the second; an actor that was never trained on has none."""
    made = (dropped(0, 0, 1), fragment(0, 0, 1, incarnation=2, place=0), dropped(1, 0, 1))
    script = script_of(ledger(*made, terms=(0,)))
    assert (weights(script, 0), weights(script, 1)) == ([[], [], [0]], [])


def test_an_update_whose_steps_were_all_skipped_is_made_again() -> None:
    """Its fragments have places, whatever their fate."""
    made = [replace(each, fate="skipped") if each.update == 2 else each for each in PLAIN]
    assert script_of(ledger(*made)) == script_of(ledger(*PLAIN))


@pytest.mark.parametrize(
    ("missing", "updates", "why"),
    [
        ((0, 0, 1), 0, "update 1 cannot be made again: its fragments are not whole: places [1, 2]"),
        ((1, 1, 2), 1, "update 2 cannot be made again: its fragments are not whole: places [0, 2]"),
        (None, 3, ""),
    ],
)
def test_an_update_of_which_a_fragment_is_missing_ends_the_script(
    missing: tuple[int, int, int] | None, updates: int, why: str
) -> None:
    """Also if the other fragments are there."""
    every = [(actor, number - 1, number) for number in (1, 2, 3) for actor in (0, 1, 2)]
    script = script_of(ledger(*(fragment(*which) for which in every if which != missing)))
    assert (len(script.updates), script.cut_short) == (updates, why)


def test_a_gap_in_a_life_ends_the_script_at_the_first_update_that_depends_on_it() -> None:
    """Update 2 takes nothing of actor 1 behind the gap, update 3 does."""
    made = (fragment(0, 0, 1), fragment(1, 0, 1), fragment(0, 1, 2), fragment(1, 2, 3, place=0), dropped(1, 3, 3))
    script = script_of(ledger(*made))
    assert len(script.updates) == 2
    assert script.cut_short == (
        "update 3 cannot be made again: fragment 1 of actor 1, incarnation 0, is missing from the ledger"
    )
    assert weights(script, 1) == [[0]]


def test_a_gap_behind_the_last_fragment_that_is_needed_hinders_nothing() -> None:
    """What came after it moved nothing that an update depends on."""
    script = script_of(ledger(*PLAIN, dropped(0, 9, 3)))
    assert (len(script.updates), script.cut_short) == (3, "")


def test_a_fragment_that_is_there_twice_ends_the_script() -> None:
    """Which of the two moved the environments cannot be known."""
    script = script_of(ledger(*PLAIN, dropped(1, 1, 2)))
    assert len(script.updates) == 1
    assert script.cut_short.endswith("fragment 1 of actor 1, incarnation 0, is in the ledger twice")


def test_weights_that_a_rollback_has_undone_cannot_act_again() -> None:
    """Update 2 was made in term 0, undone, and made again in term 1: a fragment by the first one's weights is lost, and
    so is what its actor made behind it. Weights from before the rollback's target act again."""
    undone = (fragment(0, 1, 2), fragment(1, 1, 2), dropped(0, 2, 3, weights=2))
    again = (
        fragment(0, 3, 2, term=1, decided_in=1, weights=1),
        fragment(1, 2, 2, term=1, decided_in=1, weights=1),
    )
    first = (fragment(0, 0, 1), fragment(1, 0, 1))
    script = script_of(ledger(*first, *undone, *again, terms=(0, 1)))
    assert len(script.updates) == 1
    assert script.cut_short.endswith(
        "fragment 2 of actor 0, incarnation 0, was made by weights of update 2 that a rollback has undone"
    )
    harmless = (fragment(0, 1, 2), fragment(1, 1, 2), dropped(0, 2, 3, weights=1))
    script = script_of(ledger(*first, *harmless, *again, terms=(0, 1)))
    assert script.updates[1] == ((0, 0, 3), (1, 0, 2))
    assert (weights(script, 0), script.cut_short) == ([[0, 1, 1, 1]], "")


def test_weights_that_were_never_recorded_cannot_act_again() -> None:
    """As after a rollback that the run ended on."""
    script = script_of(ledger(fragment(0, 0, 1, weights=7), terms=(0,)))
    assert script.cut_short.endswith("was made by weights of update 7, not recorded")


def test_weights_that_are_not_known_cannot_act_again() -> None:
    """A fragment of a cut of an older release, which did not say by which weights it was made."""
    script = script_of(ledger(fragment(0, 0, 1, weights=-1), terms=(0,)))
    assert script.cut_short.endswith("was made by weights that are not recorded")


@pytest.mark.parametrize("first", [2, 3])
def test_a_gap_between_updates_ends_the_script(first: int) -> None:
    """Updates count from 1."""
    updates = tuple(LedgerUpdate(update=number, term=0, num_ranks=1) for number in (1, 2, 3) if number != first - 1)
    script = script_of(Ledger(fragments=PLAIN, updates=updates))
    assert (len(script.updates), script.cut_short) == (
        first - 2,
        f"update {first - 1} cannot be made again: it is not recorded",
    )


def test_another_number_of_ranks_ends_the_script() -> None:
    """Sums over other parts are rounded otherwise."""
    updates = tuple(LedgerUpdate(update=number, term=0, num_ranks=ranks) for number, ranks in ((1, 2), (2, 1)))
    script = script_of(Ledger(fragments=PLAIN, updates=updates))
    assert script.cut_short == "update 2 cannot be made again: 1 learner ranks made it, and 2 the first one"


def test_a_run_without_a_ledger_has_no_script() -> None:
    """Made by a truestep that kept none, or not begun."""
    script = script_of(ledger())
    assert script.cut_short == "update 1 cannot be made again: its fragments are not recorded"
    assert (script.updates, script.lives) == ((), {})
    assert script_of(Ledger(fragments=(), updates=())).cut_short == ""


@given(st.permutations(PLAIN), st.integers(0, 3))
@settings(deadline=None, max_examples=50)
def test_the_order_of_rows_does_not_matter(rows: list[LedgerFragment], through: int) -> None:
    """A script is a function of the set of rows."""
    assert script_of(ledger(*rows), through=through) == script_of(ledger(*PLAIN), through=through)


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_what_a_script_holds_can_be_done_in_order(data: st.DataObject) -> None:
    """Whatever rows are missing: every fragment of an update is in a life, lives have no gaps, and no fragment needs
    weights of an update that the script does not make before it."""
    kept = data.draw(st.lists(st.sampled_from(PLAIN), unique=True))
    script = script_of(ledger(*kept))
    made = {
        (each.actor, each.incarnation, each.sequence): each
        for lives in script.lives.values()
        for life in lives
        for each in life
    }
    for lives in script.lives.values():
        for life in lives:
            assert [each.sequence for each in life] == list(range(len(life)))
    for number, names in enumerate(script.updates, start=1):
        assert all(made[name].weights < number for name in names)
    assert (script.cut_short == "") == (len(script.updates) == 3)


def test_what_the_learner_refused_in_its_place_is_named() -> None:
    """It keeps its place in the update; what was dropped before an update took it has none."""
    made = (fragment(0, 0, 1), fragment(1, 0, 1, fate="corrupt"), dropped(1, 1, 1))
    script = script_of(ledger(*made, terms=(0,)))
    assert script.updates == (((0, 0, 0), (1, 0, 0)),)
    assert script.refused == {(1, 0, 0)}
