"""Where ranks disagree and who was wrong: from made-up digests, without a single tensor.

Three ranks (10, 11, 12), a vector of two buckets: bucket 1 holds chunk 0 (parameter "low"), bucket 0 chunks 1 and 2
("high", the last one with the tail).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from common.weights import ParameterManifest
from learner.parallel.buckets import plan_buckets, plan_chunks
from learner.parallel.conservation import Measured
from learner.parallel.digests import CHUNK_ELEMENTS
from learner.parallel.disputes import FirstAttempt, Layout, attribute, find_dispute, uneven_dispute, watched_chunks
from learner.parallel.group import Replicated
from learner.parallel.ledger import Step
from learner.reports import Attribution, Dispute, Fault

MANIFEST = ParameterManifest.of(
    [("low", (CHUNK_ELEMENTS,), "float32"), ("high", (CHUNK_ELEMENTS + 100,), "float32")],
)
BUCKETS = plan_buckets(MANIFEST, CHUNK_ELEMENTS)
LAYOUT = Layout(ranks=(10, 11, 12), manifest=MANIFEST, buckets=BUCKETS, chunks=plan_chunks(BUCKETS, 50))
PUT_IN = ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))  # by rank, for bucket 0 and bucket 1
TOTALS = (9.0, 12.0)


def step(
    rank: int, number: int, chunks: Sequence[int] = (1, 2, 3), put_in: Sequence[float] | None = None, **fields: object
) -> Step:
    """A step as the rank at place `rank` saw it: what it put in, what came out, digests by chunk."""
    totals = PUT_IN[rank] if put_in is None else put_in
    return Step(
        number=number,
        put_in=[Measured(total, 0.01, total * total) for total in totals],
        came_out=list(fields.get("came_out", TOTALS)),
        chunk_digests=np.array(chunks, dtype=np.uint64) + np.uint64(100 * number),
        sha256=fields.get("sha256", {}),
    )


def state(chunks: Sequence[int] = (7, 8, 9)) -> Replicated:
    """The replicated state with these chunk digests; chunk i belongs to parameter "state i"."""
    return Replicated(
        digest=hash(tuple(chunks)) & 0xFFFF,
        chunk_digests=lambda: np.array(chunks, dtype=np.uint64),
        names=lambda found: tuple(f"state {chunk}" for chunk in found),
    )


class Told(Exception):
    """What a rank says into a gather that nobody has answered yet."""


def gather_from(script: list[NDArray[np.uint64]]) -> Callable[[NDArray[np.uint64]], NDArray[np.uint64]]:
    """Gathers that are answered from `script`, as long as it lasts."""
    answers = iter(script)

    def gather(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        for answer in answers:
            return answer
        raise Told(words)

    return gather


def searched(all_steps: Sequence[Sequence[Step]], states: Sequence[Replicated]) -> list[FirstAttempt]:
    """The search of all ranks, from one gather to the next; what each found."""
    script: list[NDArray[np.uint64]] = []
    while True:
        told, found = [], []
        for steps, replicated in zip(all_steps, states, strict=True):
            try:
                found.append(find_dispute(gather_from(script), steps, replicated, LAYOUT))
            except Told as words:
                told.append(words.args[0])
        if not told:
            return found
        assert len(told) == len(all_steps), "ranks part ways in the search: the rest would wait"
        script.append(np.stack(told))


def agreed(steps: Sequence[Sequence[Step]], states: Sequence[Replicated]) -> Dispute:
    """The dispute on which all ranks agree."""
    found = [first.dispute for first in searched(steps, states)]
    assert found[0] == found[1] == found[2]
    return found[0]


def alike(num_steps: int = 3) -> list[list[Step]]:
    """What three sound ranks saw."""
    return [[step(rank, number) for number in range(num_steps)] for rank in range(3)]


SOUND = [state()] * 3


# ── where ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("chunks", "offending", "bucket", "names"),
    [
        ((5, 2, 3), (0,), 1, ("low",)),
        ((1, 5, 3), (1,), 0, ("high",)),
        ((1, 2, 5), (2,), 0, ("high",)),  # its tail may be what differs
        ((4, 2, 5), (0, 2), 1, ("low", "high")),
    ],
)
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_digest_that_differs_is_found_in_its_step_and_chunk(
    chunks: Sequence[int], offending: tuple[int, ...], bucket: int, names: tuple[str, ...], number: int, wrong: int
) -> None:
    """The first such step: what follows from it is no news. Each rank's view of the chunks is in the record."""
    seen = alike()
    for later in range(number, 3):
        seen[wrong][later] = step(wrong, later, chunks)
    dispute = agreed(seen, SOUND)
    assert (dispute.fault, dispute.step, dispute.bucket) == (Fault.DIGEST, number, bucket)
    assert (dispute.chunks, dispute.parameters) == (offending, names)
    views = [dispute.digests[rank] for rank in LAYOUT.ranks]
    assert [view != views[(wrong + 1) % 3] for view in views] == [place == wrong for place in range(3)]


def test_a_sum_that_was_lost_is_found_where_digests_agree() -> None:
    """All hold the same wrong sum of bucket 1 of step 1: the bucket is named, and what each rank put in."""
    seen = [[step(rank, 0), step(rank, 1, came_out=(9.0, 13.0)), step(rank, 2)] for rank in range(3)]
    dispute = agreed(seen, SOUND)
    assert (dispute.fault, dispute.step, dispute.bucket) == (Fault.CONSERVATION, 1, 1)
    assert (dispute.chunks, dispute.parameters) == ((), ("low",))
    assert dispute.digests == {10: "put in 2", 11: "put in 4", 12: "put in 6"}


def test_a_digest_comes_before_a_sum_and_both_before_the_state() -> None:
    """Even if the sum was lost in an earlier step: what ranks hold apart tells more."""
    seen = [[step(rank, 0, came_out=(9.0, 13.0)), step(rank, 1)] for rank in range(3)]
    seen[2][1] = step(2, 1, (1, 2, 9))
    states = [state(), state(), state((7, 8, 1))]
    assert agreed(seen, states).fault is Fault.DIGEST
    seen[2][1] = step(2, 1)
    assert agreed(seen, states).fault is Fault.CONSERVATION


@pytest.mark.parametrize("num_steps", [0, 2])
def test_a_state_that_differs_is_found_where_all_steps_were_good(num_steps: int) -> None:
    """After the update, or one that made no step at all."""
    dispute = agreed(alike(num_steps), [state(), state((7, 1, 2)), state()])
    assert (dispute.fault, dispute.step, dispute.bucket) == (Fault.PARAMETERS, -1, -1)
    assert (dispute.chunks, dispute.parameters) == ((1, 2), ("state 1", "state 2"))
    assert dispute.digests[10] == dispute.digests[12] != dispute.digests[11]


def test_what_is_found_nowhere_is_a_dispute_all_the_same() -> None:
    """Words damaged on the way, digests good: nobody can be named, and the update is made again."""
    dispute = agreed(alike(), SOUND)
    assert (dispute.fault, dispute.chunks, dispute.parameters) == (Fault.PARAMETERS, (), ())


def test_different_numbers_of_steps_are_a_dispute_about_the_first_missing_one() -> None:
    """Ranks 10 and 12 made 4, rank 11 made 3."""
    first = uneven_dispute(np.array([4, 3, 4], dtype=np.uint64), LAYOUT)
    assert (first.dispute.fault, first.dispute.step, first.dispute.chunks) == (Fault.DIGEST, 3, ())
    assert first.dispute.digests == {10: "4 steps", 11: "3 steps", 12: "4 steps"}
    assert attribute(first, alike(4)[0], state(), LAYOUT) == Attribution(dispute=first.dispute, ranks=())


def test_a_disputed_chunk_that_was_watched_is_recorded_by_its_sha256() -> None:
    """The second dispute about the same chunk: the record holds what each rank had, by SHA-256."""
    seen = [[step(rank, 0, sha256={1: f"{rank + 1:064x}"})] for rank in range(3)]
    seen[1][0] = step(1, 0, (1, 5, 3), sha256={1: f"{77:064x}"})
    views = agreed(seen, SOUND).digests
    assert all(view.startswith("sha256 ") and len(view) == 7 + 64 for view in views.values())
    assert len(set(views.values())) == 3


# ── who ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def heard(steps: Sequence[Sequence[Step]]) -> None:
    """Give every step the words of all ranks, as the tails did."""
    for same in zip(*steps, strict=True):
        words = np.stack([each.words() for each in same])
        for each in same:
            each.heard = words


def redone(first: FirstAttempt, steps: Sequence[Sequence[Step]], replicated: Replicated) -> Attribution:
    """Who was wrong, now that all agree; every rank says the same."""
    heard(steps)
    found = [attribute(first, own, replicated, LAYOUT) for own in steps]
    assert found[0] == found[1] == found[2]
    return found[0]


@pytest.mark.parametrize(
    ("wrong", "named"), [((0,), (10,)), ((2,), (12,)), ((0, 1), (10, 11)), ((1, 2), (11, 12)), ((0, 1, 2), ())]
)
def test_wrong_was_whoever_differs_from_the_redo(wrong: tuple[int, ...], named: tuple[int, ...]) -> None:
    """Also where the wrong ones were the majority. If all of them were, nobody can be named."""
    seen = alike()
    for place in wrong:
        seen[place][1] = step(place, 1, (1, 50 + place, 3))
    heard(seen)
    first = searched(seen, SOUND)[0]
    attribution = redone(first, alike(), state())
    assert (attribution.ranks, attribution.dispute) == (named, first.dispute)


def test_the_record_holds_what_all_agree_on() -> None:
    """SHA-256 of the disputed chunks of the disputed step, from the redo."""
    seen = alike()
    seen[0][1] = step(0, 1, (1, 5, 3))
    first = searched(seen, SOUND)[0]
    again = [[step(rank, 0), step(rank, 1, sha256={1: "ab"}), step(rank, 2)] for rank in range(3)]
    assert watched_chunks(first, again[0][1]) == [1]
    assert watched_chunks(first, again[0][0]) == [] and watched_chunks(None, again[0][1]) == []
    assert redone(first, again, state()).sha256 == {1: "ab"}


def lost_sum(place: int | None) -> FirstAttempt:
    """A first attempt whose step 1 lost something in bucket 1; if `place` is given it had put in something else."""
    seen = [[step(rank, 0), step(rank, 1, (6, 2, 3), came_out=(9.0, 13.0)), step(rank, 2)] for rank in range(3)]
    if place is not None:
        seen[place][1] = step(place, 1, (6, 2, 3), put_in=(1.5, 2.5), came_out=(9.0, 13.0))
    heard(seen)
    return searched(seen, SOUND)[0]


def test_a_sum_lost_on_the_way_is_located_by_the_redo_and_names_nobody() -> None:
    """All put in what they put in again: it was the way. The chunk that came out otherwise is named now."""
    first = lost_sum(None)
    attribution = redone(first, alike(), state())
    assert attribution.ranks == ()
    assert (attribution.dispute.chunks, attribution.dispute.parameters) == ((0,), ("low",))
    assert watched_chunks(first, step(0, 1)) == [0]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_sum_to_which_a_rank_put_in_something_else_names_it(place: int) -> None:
    """Its words were others in the first attempt."""
    assert redone(lost_sum(place), alike(), state()).ranks == (LAYOUT.ranks[place],)


def test_words_that_were_damaged_name_nobody() -> None:
    """A first attempt of which nothing could be heard."""
    first = lost_sum(0)
    deaf = FirstAttempt(dispute=first.dispute, digests=first.digests, heard=(None, None, None))
    assert redone(deaf, alike(), state()).ranks == ()


def test_parameters_that_strayed_after_the_last_step_are_told_by_the_states() -> None:
    """All steps were the same in both attempts."""
    seen = alike()
    heard(seen)
    first = searched(seen, [state(), state(), state((7, 8, 1))])[0]
    assert redone(first, alike(), state()).ranks == (12,)


def test_parameters_that_strayed_earlier_are_told_by_the_first_gradient_that_was_another() -> None:
    """From step 2 on everybody computes something else, since all add up what rank 11 put in at step 1."""
    seen = alike(3)
    seen[1][1] = step(1, 1, (4, 5, 6), put_in=(3.5, 4.0))
    for place in (0, 2):
        seen[place][1] = step(place, 1, (4, 5, 6))
    for place in range(3):
        seen[place][2] = step(place, 2, (7, 8, 9), put_in=(9.0, 9.0))
    for rank_steps in seen:
        for each in rank_steps:
            each.came_out = [sum(own[each.number].put_in[bucket].total for own in seen) for bucket in range(2)]
    heard(seen)
    states = [state((1, 1, 1)), state((2, 2, 2)), state((1, 1, 1))]
    first = searched(seen, states)[0]
    assert first.dispute.fault is Fault.PARAMETERS
    assert redone(first, alike(3), state()).ranks == (11,)
