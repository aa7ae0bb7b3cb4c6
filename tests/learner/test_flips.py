"""A bit flips in what one rank got out of a reduce: every one is found, in its chunk, and its rank is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from torch import Tensor

from common.clock import ManualClock
from learner.parallel.faults import FaultKind, RankFault, Saboteur, Untouched
from learner.reports import Attribution, Dispute, Fault
from tests.learner.ranks import Interference
from tests.learner.steps import StepRank, StepRanks, random_gradients

SIZES = (20_000, 300, 40_000, 5)  # two buckets; five chunks, the tail in the last one
BUCKET_ELEMENTS = 30_000
NUM_STEPS = 2


@dataclass(frozen=True)
class Trial:
    """What one rank said of an update whose first attempt was disturbed: the dispute, and who it was."""

    dispute: Dispute | None
    attribution: Attribution | None
    restored: bool
    made: bool


def flips(num_trials: int, num_ranks: int, num_elements: int, seed: int) -> list[RankFault]:
    """One for each update: any rank, step, element (those of the tail included) and bit."""
    rng = np.random.default_rng(seed)
    return [
        RankFault(
            kind=FaultKind.FLIP_REDUCED,
            rank=int(rng.integers(num_ranks)),
            update=update,
            step=int(rng.integers(NUM_STEPS)),
            element=int(rng.integers(num_elements)) if update % 20 else num_elements - 1 - update // 20 % 100,
            bit=int(rng.integers(32)) if update >= 32 else update,
        )
        for update in range(num_trials)
    ]


def suffer(ranks: StepRanks, num_trials: int) -> list[list[Trial]]:
    """Every update is attempted twice; by rank and update."""

    def work(rank: StepRank, place: int) -> list[Trial]:
        gradients = random_gradients(0, place, rank.parameters.num_elements, NUM_STEPS)
        trials = []
        for update in range(num_trials):
            before = rank.digest()
            first, _ = rank.attempt(update, gradients)
            restored = rank.digest() == before
            second, _ = rank.attempt(update, gradients)
            trials.append(Trial(first.dispute, second.attribution, restored, second.dispute is None))
        return trials

    return ranks.each(work)


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("num_trials", [100, pytest.param(1_000, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_found_and_its_rank_named(num_ranks: int, num_trials: int) -> None:
    """Any bit of any element on any rank: the chunk is located at once, the rank by the redo; then all is as without.

    The tail counts as much as the gradient: a flip there is found too.
    """
    probe = StepRanks(SIZES, num_ranks, bucket_elements=BUCKET_ELEMENTS)
    whole = len(probe.ranks[0].parameters.gradient_and_tail)
    chunks = probe.ranks[0].verified._chunks
    faults = flips(num_trials, num_ranks, whole, seed=num_ranks)
    tampers = [
        Saboteur(tuple(fault for fault in faults if fault.rank == rank), ManualClock()) for rank in range(num_ranks)
    ]
    ranks = StepRanks(SIZES, num_ranks, bucket_elements=BUCKET_ELEMENTS, tampers=tampers)
    told = suffer(ranks, num_trials)
    assert all(trials == told[0] for trials in told)  # every rank says the same
    for fault, trial in zip(faults, told[0], strict=True):
        chunk = next(i for i, each in enumerate(chunks) if each.start <= fault.element < each.stop)
        assert trial.dispute is not None, fault
        assert (trial.dispute.fault, trial.dispute.step, trial.dispute.chunks) == (Fault.DIGEST, fault.step, (chunk,))
        assert trial.dispute.bucket == chunks[chunk].bucket
        assert trial.attribution is not None and trial.attribution.ranks == (fault.rank,), fault
        assert list(trial.attribution.sha256) == [chunk]
        assert trial.restored and trial.made
    assert len({rank.digest() for rank in ranks.ranks}) == 1
    assert ranks.ranks[0].digest() == undisturbed(num_ranks, num_trials)


def undisturbed(num_ranks: int, num_trials: int) -> int:
    """The state after the same updates of ranks to which nothing happened."""
    ranks = StepRanks(SIZES, num_ranks, bucket_elements=BUCKET_ELEMENTS)

    def work(rank: StepRank, place: int) -> int:
        gradients = random_gradients(0, place, rank.parameters.num_elements, NUM_STEPS)
        for update in range(num_trials):
            assert rank.attempt(update, gradients)[0].dispute is None
        return rank.digest()

    return ranks.each(work)[0]


CHUNK = 16_384
FIRST_OF_BUCKET_0 = 20_300


def swap_two_elements(values: Tensor) -> None:
    """The 7th and the 9th, which are not equal."""
    values[[7, 9]] = values[[9, 7]]


def duplicate_a_chunk(values: Tensor) -> None:
    """The first one comes again instead of the second."""
    values[CHUNK : 2 * CHUNK] = values[:CHUNK].clone()


def zero_a_chunk(values: Tensor) -> None:
    """The second one never arrived."""
    values[CHUNK : 2 * CHUNK] = 0.0


def swap_two_chunks(values: Tensor) -> None:
    """The first and the second."""
    values[: 2 * CHUNK] = values[: 2 * CHUNK].roll(CHUNK)


def replay_an_old_bucket(values: Tensor) -> None:
    """A whole bucket, its tail too, as zeros: what a stale buffer would hold."""
    values.zero_()


@pytest.mark.parametrize(
    ("damage", "places"),
    [
        (swap_two_elements, (0,)),
        (duplicate_a_chunk, (1,)),
        (zero_a_chunk, (1,)),
        (swap_two_chunks, (0, 1)),
        (replay_an_old_bucket, (0, 1, 2)),
    ],
)
@pytest.mark.parametrize("wrong", [0, 1])
def test_misplaced_and_missing_parts_are_found_and_their_rank_named(
    damage: Callable[[Tensor], None], places: tuple[int, ...], wrong: int
) -> None:
    """In bucket 0 of the second step; `places` are the damaged chunks in it."""

    def act(start: int, values: Tensor) -> None:
        if start == FIRST_OF_BUCKET_0:
            damage(values)

    tampers = [Interference("received", act, step=1) if rank == wrong else Untouched() for rank in range(2)]
    ranks = StepRanks(SIZES, 2, bucket_elements=BUCKET_ELEMENTS, tampers=tampers)
    told = suffer(ranks, 1)
    assert told[0] == told[1]
    (trial,) = told[0]
    assert trial.dispute is not None and trial.attribution is not None
    assert (trial.dispute.fault, trial.dispute.step) == (Fault.DIGEST, 1)
    assert trial.dispute.chunks == tuple(2 + place for place in places)  # bucket 1 holds the first two
    assert trial.attribution.ranks == (wrong,)
    assert trial.restored and trial.made
    assert ranks.ranks[0].digest() == undisturbed(2, 1)
