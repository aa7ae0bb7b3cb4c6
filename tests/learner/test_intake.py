"""The border of the learner: each reason for a refusal, and the counts that must add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.wire import pack_plain, unpack_plain
from learner.intake import Accepted, Intake, Refusal, Refused
from learner.reports import FragmentKey
from tests.support import document, layout

LAYOUT = layout(3)


def intake(max_lag: int = 1) -> Intake:
    """An intake that knows version 10 of update 5."""
    made = Intake("test", LAYOUT, max_lag=max_lag)
    made.published(10, 5)
    return made


def sent(**header: Any) -> NDArray[np.uint8]:
    """A fragment made with version 10."""
    return document(LAYOUT, header={"version": 10} | header)


def judge(border: Intake, *, update: int = 5, term: int = 0, **header: Any) -> Accepted | Refused:
    """Hand one fragment over."""
    return border.accept(sent(**header), term=term, update=update)


def refused(judgement: Accepted | Refused) -> Refusal:
    """The reason of what must be a refusal."""
    assert isinstance(judgement, Refused), judgement
    assert judgement.detail
    return judgement.reason


def accepted(judgement: Accepted | Refused) -> tuple[int, int]:
    """Lag and gap of what must be accepted."""
    assert isinstance(judgement, Accepted), judgement
    return judgement.lag, judgement.gap


def test_reasons_are_a_closed_set() -> None:
    """They are labels of a counter."""
    assert sorted(Refusal) == [
        "corrupt",
        "duplicate",
        "foreign_run",
        "misplaced",
        "old_incarnation",
        "old_term",
        "stale",
        "unknown_version",
    ]


def test_a_fragment_in_order_is_accepted() -> None:
    """With its lag in updates and nothing missing before it."""
    border = intake()
    assert accepted(judge(border, sequence=0)) == (0, 0)
    assert accepted(judge(border, sequence=1, update=6)) == (1, 0)


@pytest.mark.parametrize("damage", ["flip first", "flip middle", "flip last", "cut", "empty", "text", "other layout"])
def test_a_damaged_document_is_refused_and_the_next_one_is_not(damage: str) -> None:
    """One flipped bit anywhere is seen; the intake goes on."""
    whole = sent()
    at = {"flip first": 0, "flip middle": len(whole) // 2, "flip last": len(whole) - 1}
    bad: Any = whole.copy()
    if damage in at:
        bad[at[damage]] ^= 1
    bad = {"cut": whole[:-9], "empty": b"", "text": b"hello", "other layout": document(layout(4))}.get(damage, bad)
    border = intake()
    assert refused(border.accept(bad, term=0, update=5)) is Refusal.CORRUPT
    assert accepted(border.accept(whole, term=0, update=5)) == (0, 0)


@pytest.mark.parametrize("at", range(0, 4096, 331))
def test_no_flipped_byte_gets_through(at: int) -> None:
    """Header, padding, payload and digest alike."""
    bad = sent()
    bad[at % len(bad)] ^= 0xFF
    assert refused(intake().accept(bad, term=0, update=5)) is Refusal.CORRUPT


def test_a_fragment_of_another_run_is_refused() -> None:
    """Two runs on one cluster never mix."""
    assert refused(judge(intake(), run="other")) is Refusal.FOREIGN_RUN


@pytest.mark.parametrize("term", [0, 2])
def test_a_fragment_of_another_term_is_refused_and_leaves_no_trace(term: int) -> None:
    """After a rollback the same sequence numbers come again, and are no duplicates of those of the old term."""
    border = intake()
    assert refused(judge(border, term=1, sequence=7)) is Refusal.OLD_TERM
    assert refused(border.accept(sent(term=term), term=1, update=5)) is Refusal.OLD_TERM
    assert accepted(border.accept(sent(term=1, sequence=0), term=1, update=5)) == (0, 0)


def test_a_fragment_is_trained_on_once() -> None:
    """The same one again, or an earlier one that comes late, is a duplicate; other actors have their own count."""
    border = intake()
    judge(border, sequence=3)
    assert refused(judge(border, sequence=3)) is Refusal.DUPLICATE
    assert refused(judge(border, sequence=2)) is Refusal.DUPLICATE
    assert accepted(judge(border, actor=1, sequence=0)) == (0, 0)


def test_a_new_incarnation_begins_again_and_ends_the_old_one() -> None:
    """Its sequence counts from 0; a zombie of the old one is refused."""
    border = intake()
    judge(border, sequence=8)
    assert accepted(judge(border, incarnation=1, sequence=0)) == (0, 0)
    assert refused(judge(border, incarnation=0, sequence=9)) is Refusal.OLD_INCARNATION
    assert accepted(judge(border, incarnation=1, sequence=1)) == (0, 0)


def test_what_never_arrived_is_counted() -> None:
    """Sequence 1 and 2 are missing before 3, and 0 before the first of an incarnation."""
    border = intake()
    judge(border, sequence=0)
    assert accepted(judge(border, sequence=3)) == (0, 2)
    assert accepted(judge(border, incarnation=1, sequence=1)) == (0, 1)


def test_what_arrived_too_late_is_no_gap() -> None:
    """A stale fragment was refused, not lost: each missing one is counted once, with the first that comes after it."""
    border = intake()
    judge(border, sequence=0)
    stale = judge(border, sequence=2, update=7)
    assert refused(stale) is Refusal.STALE
    assert isinstance(stale, Refused) and stale.gap == 1
    border.published(11, 6)
    assert accepted(judge(border, sequence=3, version=11, update=7)) == (1, 0)
    assert refused(judge(border, sequence=2, version=11, update=7)) is Refusal.DUPLICATE


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_the_lag_allowed_is_the_lag_accepted(max_lag: int) -> None:
    """At the limit it is trained on, one above it is stale."""
    assert accepted(judge(intake(max_lag), update=5 + max_lag)) == (max_lag, 0)
    assert refused(judge(intake(max_lag), update=6 + max_lag)) is Refusal.STALE


def test_a_version_that_was_forgotten_is_stale_and_one_never_published_unknown() -> None:
    """The reasons differ: the first is a slow actor, the second is a fault."""
    border = intake(max_lag=1)
    border.published(11, 6)
    border.published(12, 7)
    assert refused(judge(border, version=10, update=7)) is Refusal.STALE
    assert refused(judge(border, version=13, update=7, sequence=1)) is Refusal.UNKNOWN_VERSION
    assert accepted(judge(border, version=11, update=7, sequence=2)) == (1, 0)


def test_nothing_is_known_before_anything_was_published() -> None:
    """A refusal, not an exception."""
    assert refused(Intake("test", LAYOUT, max_lag=0).accept(sent(), term=0, update=0)) is Refusal.UNKNOWN_VERSION


def test_the_intake_remembers_over_a_crash() -> None:
    """C45: through the wire; what was a duplicate, a gap or a known version before is one afterwards."""
    border = intake()
    judge(border, sequence=4)
    judge(border, actor=2, incarnation=3, sequence=0)
    resumed = Intake("test", LAYOUT, max_lag=1)
    resumed.set_state(unpack_plain(pack_plain(border.state())))
    assert resumed.state() == border.state()
    for other in (border, resumed):
        assert refused(judge(other, sequence=4)) is Refusal.DUPLICATE
        assert refused(judge(other, actor=2, incarnation=2, sequence=9)) is Refusal.OLD_INCARNATION
        assert accepted(judge(other, sequence=6)) == (0, 1)


def test_a_snapshot_of_the_intake_does_not_change_with_it() -> None:
    """Nor does the intake with the snapshot."""
    border = intake()
    state = border.state()
    judge(border, sequence=0)
    border.published(11, 6)
    assert state == {"last": [], "versions": [[10, 5]]}


def test_a_fragment_that_went_to_another_rank_is_received() -> None:
    """Only its key comes here: it leaves no gap, and neither it nor an older one of its actor is taken any more."""
    border = intake()
    border.note(FragmentKey(actor=0, incarnation=1, sequence=4))
    assert refused(judge(border, incarnation=1, sequence=4)) is Refusal.DUPLICATE
    assert refused(judge(border, incarnation=0, sequence=9)) is Refusal.OLD_INCARNATION
    assert accepted(judge(border, incarnation=1, sequence=5)) == (0, 0)
    assert accepted(judge(border, actor=1, sequence=0)) == (0, 0)


def test_a_key_never_moves_an_actor_back() -> None:
    """A key of what has been received already changes nothing."""
    border = intake()
    judge(border, incarnation=1, sequence=4)
    before = border.state()
    for incarnation, sequence in ((1, 4), (1, 3), (0, 9)):
        border.note(FragmentKey(actor=0, incarnation=incarnation, sequence=sequence))
    assert border.state() == before


def test_a_document_must_be_the_fragment_that_was_ordered_in_its_place() -> None:
    """Two that changed places are refused, both: else the ledger would say of each that it was the other."""
    border = intake()
    first, second = (FragmentKey(actor=0, incarnation=0, sequence=sequence) for sequence in (0, 1))
    for key, sequence in ((first, 1), (second, 0)):
        assert refused(border.accept(sent(sequence=sequence), term=0, update=5, key=key)) is Refusal.MISPLACED
    assert accepted(border.accept(sent(sequence=0), term=0, update=5, key=first)) == (0, 0)
    for other in ({"actor": 1}, {"incarnation": 1}, {"sequence": 7}):
        assert refused(border.accept(sent(**other), term=0, update=5, key=second)) is Refusal.MISPLACED
    assert accepted(border.accept(sent(sequence=1), term=0, update=5, key=second)) == (0, 0)
