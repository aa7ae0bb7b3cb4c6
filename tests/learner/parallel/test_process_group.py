"""Ranks that meet, add and gather over real connections, and what each of them hears when another does not."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest
import torch

from common.errors import SyncError
from learner.parallel.process_group import Blackboard, Meeting, ProcessGroup
from learner.reports import Formation
from tests.learner.ranks import settled, together

T = TypeVar("T")
CPU = torch.device("cpu")
RANKS = (4, 7, 9)  # names, not places
LONG_S, SHORT_S = 30.0, 2.0
NUMBERS = itertools.count(1)


class Lab:
    """A meeting place, at which formations of `ranks` meet."""

    def __init__(self, ranks: tuple[int, ...] = RANKS) -> None:
        self.ranks = ranks
        self.meeting = Meeting("127.0.0.1", deadline_s=LONG_S)

    def formation(self, number: int = 1) -> Formation:
        """Of all ranks."""
        return Formation(number=number, ranks=self.ranks, address=self.meeting.address)

    def blackboard(self, place: int, *, number: int = 1, deadline_s: float = LONG_S) -> Blackboard:
        """Of the rank at `place`; place 0 holds the meeting itself."""
        own = self.meeting if place == 0 else None
        return Blackboard(self.formation(number), place, own, deadline_s=deadline_s)

    def join(self, place: int, *, number: int = 1, deadline_s: float = LONG_S) -> ProcessGroup:
        """The group, once all are there."""
        blackboard = self.blackboard(place, number=number, deadline_s=deadline_s)
        return ProcessGroup(blackboard, self.formation(number), place, CPU, deadline_s=deadline_s)

    def each(self, work: Callable[[int], T], places: Sequence[int] | None = None) -> list[T | BaseException]:
        """The results of all places at once, or of some."""
        chosen = range(len(self.ranks)) if places is None else places
        return settled([lambda place=place: work(place) for place in chosen])


def message(result: object) -> str:
    """Of what must be a failed collective."""
    assert isinstance(result, SyncError), result
    return str(result)


# ── what they do together ────────────────────────────────────────────────────────────────────────────────────────


def test_what_one_says_all_hear_in_the_order_of_places() -> None:
    """Any bytes, none included."""
    lab = Lab()
    heard = lab.each(lambda place: lab.blackboard(place).exchange("topic", b"\x00\xff" * place))
    assert heard == [[b"", b"\x00\xff", b"\x00\xff\x00\xff"]] * 3


def test_a_sum_is_the_same_bits_on_every_rank() -> None:
    """In place, over numbers that round: 1e8 + 1 + 0.1."""
    lab = Lab()

    def add(place: int) -> bytes:
        group, values = lab.join(place), torch.full((1000,), (1e8, 1.0, 0.1)[place])
        group.finish(group.begin_sum(values))
        return values.numpy().tobytes()

    sums = lab.each(add)
    assert sums[0] == sums[1] == sums[2]
    assert np.frombuffer(sums[0], np.float32)[0] in (np.float32(1e8), np.float32(1e8) + np.float32(8))


def test_sums_under_way_at_once_do_not_mix() -> None:
    """Several buckets, finished in the order in which they were begun."""
    lab = Lab()

    def add(place: int) -> list[float]:
        group = lab.join(place)
        vectors = [torch.full((size,), float(place + size)) for size in (3, 20_000, 1)]
        for handle in [group.begin_sum(vector) for vector in vectors]:
            group.finish(handle)
        return [vector.unique().tolist() for vector in vectors]

    assert lab.each(add) == [[[3 * size + 3.0] for size in (3, 20_000, 1)]] * 3


def test_words_are_gathered_bit_for_bit() -> None:
    """All 64 of them, in the order of places; also none."""
    lab = Lab()

    def gather(place: int) -> list[list[list[int]]]:
        group = lab.join(place)
        words = np.array([2**64 - 1 - place, place], dtype=np.uint64)
        return [group.gather(words).tolist(), group.gather(words[:0]).tolist()]

    words = [[2**64 - 1 - place, place] for place in range(3)]
    assert lab.each(gather) == [[words, [[], [], []]]] * 3


# ── when one does not ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_rank_that_does_not_come_is_named_within_the_deadline(missing: int) -> None:
    """By every rank that has come: who waits, for whom, in which formation, how long."""
    lab = Lab()
    places = [place for place in range(3) if place != missing]
    results = lab.each(lambda place: lab.blackboard(place, number=5, deadline_s=SHORT_S).exchange("t", b""), places)
    for place, result in zip(places, results, strict=True):
        words = f"learner rank {RANKS[place]} did not hear of learner rank {RANKS[missing]} in formation 5; got "
        assert message(result).startswith(words)
        assert "allowed: within 2 s" in message(result)


def test_nobody_at_the_meeting_place_is_an_error_that_says_so() -> None:
    """Its host has gone: connecting fails within the deadline, by name."""
    lab = Lab()
    address = lab.meeting.address
    lab.meeting = None  # type: ignore[assignment]
    formation = Formation(number=3, ranks=RANKS, address=address)
    words = r"learner rank 7 did not reach the meeting place in formation 3; got .*within 2 s"
    with pytest.raises(SyncError, match=words):
        Blackboard(formation, 1, None, deadline_s=SHORT_S)


def test_a_rank_that_stays_away_from_a_collective_is_waited_for_until_the_deadline() -> None:
    """The others say what they could not do, with whom, and how long they were allowed to wait."""
    lab, over = Lab((0, 1)), threading.Event()

    def work(place: int) -> None:
        group = lab.join(place, deadline_s=SHORT_S)
        if place == 1:
            assert over.wait(LONG_S)
            return
        try:
            group.finish(group.begin_sum(torch.ones(3)))
        finally:
            over.set()

    assert re.match(
        r"learner rank 0 could not reduce with ranks \[0, 1\]; got .*; allowed: within 2 s",
        message(lab.each(work)[0]),
    )


@pytest.mark.parametrize("collective", ["sum", "gather"])
@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_rank_that_leaves_makes_the_others_fail_at_once(collective: str, leaver: int) -> None:
    """Their deadline is far beyond the limit of this test; each that fails leaves too, so that nobody waits for it.

    Somebody who holds on to the group does not keep it open.
    """
    lab = Lab()
    groups = together([lambda place=place: lab.join(place, deadline_s=600.0) for place in range(3)])

    def failure(group: ProcessGroup) -> str:
        try:
            if collective == "sum":
                group.finish(group.begin_sum(torch.ones(3)))
            else:
                group.gather(np.zeros(1, dtype=np.uint64))
        except SyncError as error:
            return str(error)
        raise AssertionError("nobody was missed")

    def work(place: int) -> str:
        words = "" if place == leaver else failure(groups[place])
        groups[place].abort()
        return words

    for place, words in enumerate(lab.each(work)):
        assert place == leaver or f"learner rank {RANKS[place]} could not" in str(words)


def test_leaving_twice_is_leaving_once() -> None:
    """A rank that failed leaves, and leaves again when it joins anew."""
    lab = Lab((0, 1))

    def work(place: int) -> None:
        group = lab.join(place)
        group.abort()
        group.abort()

    assert lab.each(work) == [None, None]


# ── again ────────────────────────────────────────────────────────────────────────────────────────────────────────


def gathered(lab: Lab, number: int) -> list[list[list[int]] | BaseException]:
    """One gather of formation `number`."""

    def work(place: int) -> list[list[int]]:
        group = lab.join(place, number=number)
        words: list[list[int]] = group.gather(np.array([place], dtype=np.uint64)).tolist()
        return words

    return lab.each(work)


def test_after_a_failure_the_same_ranks_form_anew_at_the_same_place() -> None:
    """Formation after formation, with nothing left of those before."""
    lab = Lab()
    lab.each(lambda place: lab.join(place, number=1).gather(np.zeros(1, np.uint64)) if place else lab.join(0).abort())
    for number in (2, 3):
        assert gathered(lab, number) == [[[0], [1], [2]]] * 3


def test_a_late_comer_of_an_earlier_formation_meets_nobody() -> None:
    """Its words are under another number: the formation that is under way does not hear them, and it hears nobody."""
    lab = Lab((0, 1))

    def work(place: int) -> list[bytes]:
        number = (2, 1)[place]  # rank 0 has been told of formation 2, rank 1 is late for formation 1
        return lab.blackboard(place, number=number, deadline_s=SHORT_S).exchange("t", b"")

    results = lab.each(work)
    assert "did not hear of learner rank 1 in formation 2" in message(results[0])
    assert "did not hear of learner rank 0 in formation 1" in message(results[1])
