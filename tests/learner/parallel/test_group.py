"""A group of one: the same calls, nobody to wait for, and still it can contradict itself. And what sync is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from common.errors import ConfigError
from common.parameters import FlatParameters
from learner.parallel.config import SyncConfig
from learner.parallel.conservation import Measured
from learner.parallel.group import Closed, OneRank, Replicated
from learner.parallel.ledger import Step, words_of_step
from learner.parallel.verdict import Recomputed
from learner.reports import Fault

NOTHING = Replicated(digest=0, chunk_digests=lambda: np.zeros(0, np.uint64), names=lambda _: ())


def alone(num_elements: int = 4) -> tuple[OneRank, FlatParameters]:
    """Rank 5, alone, and its parameters."""
    parameters = FlatParameters(nn.ParameterDict({"p": nn.Parameter(torch.zeros(num_elements))}), trainable=True)
    return OneRank(5, parameters), parameters


def stepped(group: OneRank, parameters: FlatParameters, *, watched: bool = False) -> None:
    """One step with a gradient of ones."""
    group.begin_step(watched=watched)
    parameters.gradient.fill_(1.0)
    group.finish_step()


# ── a group of one ───────────────────────────────────────────────────────────────────────────────────────────────


def test_alone_everything_is_agreed_and_counted() -> None:
    """Steps of this attempt, its own numbers as one row, and the gradient as it is."""
    group, parameters = alone()
    for _ in range(2):  # the second attempt begins a new account
        group.begin_update(0)
        for _ in range(3):
            stepped(group, parameters)
        closed = group.close_update(NOTHING, np.array([1.0, 2.0]))
        assert (closed.verified_steps, closed.dispute, closed.attribution, closed.audited) == (3, None, None, False)
        assert closed.extra.tolist() == [[1.0, 2.0]]
    assert group.exchange(np.array([7.0])).tolist() == [[7.0]]
    assert parameters.gradient.tolist() == [1.0] * 4
    group.leave()


@pytest.mark.parametrize("second_is_right", [True, False])
def test_alone_a_rank_can_contradict_itself(second_is_right: bool) -> None:
    """And is named at once."""
    group, parameters = alone()
    group.begin_update(0)
    parameters.gradient.fill_(1.0 if second_is_right else 1.5)
    second = group.digest_gradient()
    stepped(group, parameters, watched=True)
    group.recomputed(2, Recomputed(first=group.local_digest(), second=second))
    closed = group.close_update(NOTHING, np.zeros(0))
    assert closed.audited
    if second_is_right:
        assert closed.dispute is None
    else:
        assert closed.dispute is not None
        assert (closed.dispute.fault, closed.dispute.step) == (Fault.LOCAL_GRADIENT, 2)
        assert closed.attribution is not None and closed.attribution.ranks == (5,)
    group.begin_update(0)
    assert not group.close_update(NOTHING, np.zeros(0)).audited


def test_only_a_watched_step_is_digested() -> None:
    """The digest kept is that of the last watched one, not of the steps behind it."""
    group, parameters = alone()
    group.begin_update(0)
    stepped(group, parameters, watched=True)
    kept = group.local_digest()
    stepped(group, parameters)
    parameters.gradient.fill_(3.0)
    assert group.local_digest() == kept != group.digest_gradient()


def test_a_verdict_without_anything_is_good() -> None:
    """The defaults of a record."""
    assert Closed(extra=np.zeros((1, 0))).dispute is None


# ── the words of a step ──────────────────────────────────────────────────────────────────────────────────────────


def step(digest: int = 3, came_out: tuple[float, ...] = (3.0, 30.0)) -> Step:
    """One chunk, two buckets, put in 1 ± 0.25 and 10 ± 0.5."""
    put_in = [Measured(1.0, 0.25, 1.0), Measured(10.0, 0.5, 100.0)]
    return Step(number=2, put_in=put_in, came_out=list(came_out), chunk_digests=np.array([digest], dtype=np.uint64))


def test_the_words_of_a_step_are_its_digest_and_its_sums() -> None:
    """One word for the digest of all chunks, two for each bucket, as bits; packed and as numbers they are the same."""
    words = step().words()
    assert len(words) == words_of_step(2) == 5
    assert words[1:].view(np.float64).tolist() == [1.0, 0.25, 10.0, 0.5]
    assert words[0] != step(digest=4).words()[0]
    assert step().packed() == words.astype("<u8").tobytes()


def heard(*steps: Step) -> Step:
    """The first of the steps of several ranks, having heard of all."""
    steps[0].heard = np.stack([each.words() for each in steps])
    return steps[0]


def test_a_step_is_good_if_digests_agree_and_sums_add_up() -> None:
    """Two ranks put in 1 and 10 each."""
    assert heard(step(came_out=(2.0, 20.0)), step()).is_good()
    assert not heard(step(came_out=(2.0, 20.0)), step(digest=4)).is_good()
    assert not heard(step(came_out=(2.0, 23.0)), step()).is_good()


def test_a_step_of_which_nothing_was_heard_is_not_good() -> None:
    """Its words were damaged on the way."""
    assert not step().is_good()


# ── configuration ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"collective_s": 0.0}, "learner.sync.collective_s; got 0.0; allowed: above 0"),
        ({"collective_s": float("inf")}, "learner.sync.collective_s; got inf"),
        ({"bucket_mib": -1.0}, "learner.sync.bucket_mib; got -1.0"),
        ({"bucket_mib": float("nan")}, "learner.sync.bucket_mib; got nan"),
        ({"audit_every": -1}, r"learner.sync.audit_every; got -1; allowed: 0 \(never\)"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_key(change: dict[str, Any], words: str) -> None:
    """With what is allowed."""
    with pytest.raises(ConfigError, match=words):
        SyncConfig(**change)


def test_a_bucket_holds_at_least_one_element() -> None:
    """25 MiB are 6,553,600 of them."""
    assert SyncConfig().bucket_elements == 6_553_600
    assert SyncConfig(bucket_mib=1e-9).bucket_elements == 1
