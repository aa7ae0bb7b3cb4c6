"""The ledger: every fragment with its fate, kept over resumes and rollbacks, in few bytes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.clock import ManualClock
from common.errors import RegistryError, RunNotFoundError
from common.ledger import TRAINED, LedgerFragment, LedgerTally, LedgerUpdate
from common.runs import RunRegistry
from common.runs_ledger import BYTES_PER_FRAGMENT
from tests.common.test_runs import create, update


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@pytest.fixture
def registry(path: Path) -> Iterator[RunRegistry]:
    with RunRegistry.open(path, clock=ManualClock(5)) as registry:
        create(registry)
        yield registry


def fragment(actor: int, sequence: int, number: int, **changes: Any) -> LedgerFragment:
    """Of actor `actor`, trained in update `number` at the place of its actor, by weights one update older."""
    fields: dict[str, Any] = {
        "incarnation": 0,
        "term": 1,
        "weights": max(0, number - 1),
        "num_valid": 60,
        "digest": 2**64 - 1 - sequence,
        "decided_in": 1,
        "place": actor,
        "fate": TRAINED,
    }
    return LedgerFragment(**{"actor": actor, "sequence": sequence, "update": number, **fields, **changes})


def dropped(actor: int, sequence: int, number: int, fate: str = "stale", **changes: Any) -> LedgerFragment:
    return fragment(actor, sequence, number, place=-1, fate=fate, **changes)


def train(registry: RunRegistry, *numbers: int, term: int = 1, first: int = 0) -> None:
    """Updates of two actors' fragments; sequence = number of the update - 1 + `first`."""
    fragments = [
        fragment(actor, number - 1 + first, number, term=term, decided_in=term)
        for number in numbers
        for actor in (0, 1)
    ]
    registry.record_updates([update(number, term=term) for number in numbers], fragments)


def names(registry: RunRegistry) -> list[tuple[int, int, int]]:
    """Term of the decision, update and sequence of what actor 0 made, in the order of the ledger."""
    fragments = registry.ledger("pong").fragments
    return [(each.decided_in, each.update, each.sequence) for each in fragments if each.actor == 0]


# What goes in comes out


def test_fragments_come_back_equal_in_the_order_of_their_decisions(registry: RunRegistry) -> None:
    """By term and update, the dropped ones first, then in the order of places; digests use all 64 bits."""
    second = [fragment(1, 1, 2, place=0, digest=2**63), fragment(0, 1, 2, place=1, digest=2**63 - 1)]
    first = [fragment(0, 0, 1, digest=0), fragment(1, 0, 1, digest=2**64 - 1)]
    lost = dropped(2, 0, 2)
    registry.record_updates([update(1), update(2)], [*second, lost, *first])
    ledger = registry.ledger("pong")
    assert ledger.fragments == (*first, lost, *second)
    assert ledger.updates == tuple(LedgerUpdate(update=number, term=1, num_ranks=2) for number in (1, 2))


@given(
    st.builds(
        LedgerFragment,
        actor=st.integers(0, 2**20),
        incarnation=st.integers(0, 2**40),
        sequence=st.integers(0, 2**63 - 1),
        term=st.integers(0, 300),
        weights=st.integers(-1, 2**40),
        num_valid=st.integers(0, 2**40),
        digest=st.integers(0, 2**64 - 1),
        decided_in=st.integers(0, 300),
        update=st.integers(1, 2**63 - 1),
        place=st.integers(-1, 300),
        fate=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
    )
)
@settings(deadline=None, max_examples=10)
def test_every_fragment_survives(tmp_path_factory: pytest.TempPathFactory, one: LedgerFragment) -> None:
    """Whatever its numbers and the word for its fate."""
    with RunRegistry.open(tmp_path_factory.mktemp("l") / "runs.sqlite") as registry:
        create(registry)
        registry.record_fragments("pong", [one])
        assert registry.ledger("pong").fragments == (one,)


def test_numpy_integers_become_plain_numbers(registry: RunRegistry) -> None:
    """A digest of numpy's is no blob."""
    registry.record_fragments("pong", [fragment(np.int64(0), 1, np.int32(1), digest=np.uint64(2**64 - 1))])
    (found,) = registry.ledger("pong").fragments
    assert (type(found.actor), type(found.update), found.digest) == (int, int, 2**64 - 1)


def test_updates_and_their_fragments_are_recorded_together_or_not_at_all(registry: RunRegistry) -> None:
    """A fragment recorded twice takes its update with it; fragments without an update are not lost silently."""
    train(registry, 1)
    with pytest.raises(RegistryError, match=r"updates 2 to 2 .*recorded already"):
        registry.record_updates([update(2)], [fragment(0, 1, 2), fragment(0, 0, 1)])
    assert names(registry) == [(1, 1, 0)]
    assert [record.update for record in registry.updates("pong")] == [1]
    with pytest.raises(ValueError, match="see record_fragments"):
        registry.record_updates([], [fragment(0, 1, 2)])


def test_a_run_that_does_not_exist_has_no_ledger(registry: RunRegistry) -> None:
    """Neither rows nor numbers."""
    for read in (registry.ledger, registry.ledger_tally):
        with pytest.raises(RunNotFoundError, match="'ping'"):
            read("ping")


# Resumes and rollbacks


def test_a_resume_goes_on_from_what_was_decided_before_its_cut(registry: RunRegistry) -> None:
    """Fragments of later updates go, trained or dropped, and the event tells how many; other runs keep theirs."""
    create(registry, "other")
    registry.record_fragments("other", [fragment(0, 9, 9)])
    train(registry, 1, 2, 3)
    registry.record_fragments("pong", [dropped(0, 3, 4)])
    registry.truncate_after("pong", 2)
    assert names(registry) == [(1, 1, 0), (1, 2, 1)]
    assert registry.events("pong")[-1].data["fragments_removed"] == 3
    train(registry, 3)
    registry.truncate_after("pong", 0)
    assert names(registry) == []
    assert len(registry.ledger("other").fragments) == 1


def test_of_two_decisions_on_a_fragment_the_later_one_holds(registry: RunRegistry) -> None:
    """Dropped right behind the cut that it is part of, and decided on again after the resume: dropped once more (with
    the same update told) or trained."""
    train(registry, 1, 2)
    registry.record_fragments("pong", [dropped(5, 0, 2), dropped(5, 1, 2)])
    registry.truncate_after("pong", 2)
    registry.record_fragments("pong", [dropped(5, 0, 2)])
    registry.record_updates([update(3)], [fragment(5, 1, 3)])
    ledger = registry.ledger("pong")
    assert [(each.name, each.fate) for each in ledger.fragments if each.actor == 5] == [
        ((5, 0, 0), "stale"),
        ((5, 0, 1), "trained"),
    ]


def test_a_rollback_keeps_the_fragments_of_what_it_undoes(registry: RunRegistry) -> None:
    """They moved environments. The same updates made again stand beside them, under the next term."""
    train(registry, 1, 2, 3)
    registry.roll_back("pong", 1, term=2, reason="r")
    train(registry, 2, term=2, first=2)
    assert names(registry) == [(1, 1, 0), (1, 2, 1), (1, 3, 2), (2, 2, 3)]
    assert [(each.update, each.term) for each in registry.ledger("pong").updates] == [(1, 1), (2, 2)]


def test_a_resume_behind_a_rollback_keeps_what_lies_before_its_cut(registry: RunRegistry) -> None:
    """The undone updates 2 and 3 of term 1 are before the cut after update 2 of term 2; update 3 of term 2 is not."""
    train(registry, 1, 2, 3)
    registry.roll_back("pong", 1, term=2, reason="r")
    train(registry, 2, 3, term=2, first=2)
    registry.truncate_after("pong", 2)
    assert names(registry) == [(1, 1, 0), (1, 2, 1), (1, 3, 2), (2, 2, 3)]


@pytest.mark.parametrize(
    ("term", "kept"), [(None, [(1, 1, 0)]), (1, [(1, 1, 0)]), (2, [(1, 1, 0), (1, 2, 1), (1, 3, 2)])]
)
def test_a_cut_of_one_update_may_lie_before_a_rollback_to_it_or_behind(
    registry: RunRegistry, term: int | None, kept: list[tuple[int, int, int]]
) -> None:
    """Which of the two a run goes on from, its term says."""
    train(registry, 1, 2, 3)
    registry.roll_back("pong", 1, term=2, reason="r")
    train(registry, 2, term=2, first=2)
    registry.truncate_after("pong", 1, term=term)
    assert names(registry) == kept


# In numbers


def test_a_tally_counts_by_fate_and_what_a_rollback_has_undone(registry: RunRegistry) -> None:
    """Trained in an update that does not stand any more is not trained."""
    train(registry, 1, 2, 3)
    registry.record_fragments("pong", [dropped(0, 3, 4), dropped(1, 3, 4), dropped(0, 4, 4, "old_term")])
    registry.roll_back("pong", 1, term=2, reason="r")
    train(registry, 2, term=2, first=5)
    tally = registry.ledger_tally("pong")
    assert (tally.made, tally.trained) == (11, 4)
    assert tally.dropped == {"old_term": 1, "rolled_back": 4, "stale": 2}
    create(registry, "empty")
    assert registry.ledger_tally("empty") == LedgerTally(made=0, trained=0, dropped={}, num_bytes=0)


@pytest.mark.parametrize("lag", [1, 3])
def test_a_fragment_takes_the_bytes_that_are_told(path: Path, registry: RunRegistry, lag: int) -> None:
    """20,000 fragments of 8 actors, as a long run records them: the file grows by what the tally says, within 15 %."""

    def size() -> int:
        with registry._database.reading() as session:
            page, count, free = (
                session.one(f"PRAGMA {name}") for name in ("page_size", "page_count", "freelist_count")
            )
            assert page is not None and count is not None and free is not None
            return int(page["page_size"]) * (int(count["page_count"]) - int(free["freelist_count"]))

    before = size()
    for number in range(1, 2501):
        digests = np.random.default_rng(number).integers(0, 2**63, 8)
        weights = max(0, number - lag)
        group = [
            fragment(actor, number - 1, number, digest=int(digests[actor]) * 2 + 1, num_valid=8000, weights=weights)
            for actor in range(8)
        ]
        registry.record_fragments("pong", group)
    grown = size() - before
    assert registry.ledger_tally("pong").num_bytes == 20_000 * BYTES_PER_FRAGMENT
    assert grown == pytest.approx(20_000 * BYTES_PER_FRAGMENT, rel=0.15)


# Damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            "weights = 'seven'",
            "weights of fragment 0 of actor 1, incarnation 0; got 'seven'; allowed: an integer of -1",
        ),
        ("weights = 0.5", "weights of fragment 0 of actor 1, incarnation 0; got 0.5"),
        ("place = -2", "place of fragment 0 of actor 1, incarnation 0; got -2; allowed: an integer of -1 or more"),
        ("num_valid = -1", "num_valid of fragment 0 of actor 1, incarnation 0; got -1"),
        ("digest = x'00'", "digest of fragment 0 of actor 1, incarnation 0; got b'\\x00'"),
        ("fate = 9", "fate of fragment 0 of actor 1, incarnation 0; got 9; allowed: one of the codes [0]"),
        ("sequence = 'x'", "sequence of fragment 'x' of actor 1, incarnation 0; got 'x'"),
    ],
)
def test_a_damaged_row_is_named(path: Path, registry: RunRegistry, damage: str, said: str) -> None:
    """Nothing is made again from a ledger in which a number is none."""
    train(registry, 1)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE fragments SET {damage} WHERE actor = 1")
    connection.close()
    with pytest.raises(RegistryError) as caught:
        registry.ledger("pong")
    assert f"the ledger is damaged: {said}" in str(caught.value)
