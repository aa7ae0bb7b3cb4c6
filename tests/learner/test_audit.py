"""Audits: a local gradient computed again, by its own rank and by others, finds what no digest of a sum can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from learner.audit import SPREAD
from learner.parallel.config import SyncConfig
from learner.parallel.faults import FaultKind, RankFault, flip_bit
from learner.parallel.group import Group
from learner.reports import AuditOrder, Fault, OrderStatus, UpdateReport
from tests.learner.ranks import Interference, Ranks, rollout
from tests.support import layout, rank_config

SHAPE = layout(8, 8)
NUM_STEPS = 4
CONFIG = rank_config(SHAPE, hidden=(32, 32), minibatch=64, sync=SyncConfig(bucket_mib=0.004, collective_s=20.0))


def fragments(update: int, num_ranks: int) -> list[NDArray[np.uint8]]:
    """Two minibatches an epoch, whatever the number of ranks; rank 2, if there is one, has no valid row."""
    valid = {1: (64, 64), 2: (64, 64), 3: (64, 64, 0)}[num_ranks]
    return [rollout(SHAPE, update, actor=actor, num_valid=count) for actor, count in enumerate(valid)]


def audit(audited: int, *auditors: int) -> AuditOrder:
    """Of one rank by others."""
    return AuditOrder(audited=audited, auditors=auditors)


def named(reports: Sequence[UpdateReport]) -> tuple[int, ...]:
    """Who was named at once, by a dispute about a local gradient that all ranks report alike."""
    assert {report.status for report in reports} == {OrderStatus.DISPUTED}
    assert len({repr((report.sync.disputes, report.sync.attribution)) for report in reports}) == 1
    (dispute,), attribution = reports[0].sync.disputes, reports[0].sync.attribution
    assert dispute.fault is Fault.LOCAL_GRADIENT
    assert attribution is not None and attribution.dispute == dispute
    return attribution.ranks


def undisturbed(num_ranks: int, updates: int) -> str:
    """The state of ranks that nobody disturbed or audited."""
    twin = Ranks(CONFIG, num_ranks)
    for update in range(updates):
        twin.make(update, fragments(update, num_ranks))
    return twin.ranks[0].standing().state_digest


# ── where all is well ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("num_ranks", "order"),
    [(1, audit(0)), (2, audit(0, 1)), (2, audit(1, 0)), (3, audit(1, 2, 0)), (3, audit(2, 0, 1))],
)
def test_a_sound_rank_passes_and_an_audit_changes_not_a_bit(num_ranks: int, order: AuditOrder) -> None:
    """By itself, by one, by two, and one without rows; in every step of an update in turn."""
    ranks = Ranks(CONFIG, num_ranks)
    for update in range(NUM_STEPS):
        reports = ranks.make(update, fragments(update, num_ranks), audit=order)
        assert {report.sync.audited for report in reports} == {True}
    assert ranks.ranks[0].standing().state_digest == undisturbed(num_ranks, NUM_STEPS)


def test_over_the_updates_every_step_is_audited() -> None:
    """The stride is prime to any number of steps below it."""
    for num_steps in (1, 2, 3, 16, 40, 640, 7_918):
        assert len({update * SPREAD % num_steps for update in range(num_steps)}) == num_steps


def test_an_update_without_rows_is_audited_by_nobody() -> None:
    """No step was made, so there is nothing to compute again."""
    ranks = Ranks(CONFIG, 2)
    nothing = [rollout(SHAPE, 0, actor=actor, num_valid=0) for actor in range(2)]
    assert {report.sync.audited for report in ranks.make(0, nothing, audit=audit(0, 1))} == {False}


def test_an_auditor_that_cannot_read_the_fragments_takes_no_part() -> None:
    """Damaged on their way to it: the audited rank's own word stands, and nobody is accused."""
    ranks = Ranks(CONFIG, 2)
    documents = fragments(0, 2)
    auditor = ranks.ranks[1]
    update = auditor.update
    auditor.update = lambda order, own, audited: update(order, own, [b"noise"] * len(audited))  # type: ignore[method-assign]
    reports = ranks.make(0, documents, audit=audit(0, 1))
    assert {report.sync.audited for report in reports} == {True}


# ── a wrong gradient ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("num_ranks", "wrong", "auditors"), [(1, 0, ()), (2, 0, (1,)), (2, 1, (0,)), (3, 1, (0, 2)), (3, 0, (1,))]
)
@pytest.mark.parametrize("update", [0, 1, 2])
@pytest.mark.parametrize("bit", [0, 22, 31])
def test_a_rank_whose_gradient_was_wrong_contradicts_itself(
    num_ranks: int, wrong: int, auditors: tuple[int, ...], update: int, bit: int
) -> None:
    """A bit of its own gradient, before it was weighed: averaged alike everywhere, and named at once."""
    step = update * SPREAD % NUM_STEPS
    fault = RankFault(kind=FaultKind.FLIP_LOCAL, rank=wrong, update=update, step=step, element=500, bit=bit)
    ranks = Ranks(CONFIG, num_ranks, [fault])
    for earlier in range(update):
        ranks.make(earlier, fragments(earlier, num_ranks))
    before = ranks.ranks[0].standing()
    reports = ranks.update(update, fragments(update, num_ranks), audit=audit(wrong, *auditors))
    assert named(reports) == (wrong,)
    assert reports[0].sync.disputes[0].step == step
    assert ranks.ranks[0].standing() == before
    ranks.make(update, fragments(update, num_ranks), audit=audit(wrong, *auditors))
    assert ranks.ranks[0].standing().state_digest == undisturbed(num_ranks, update + 1)


def test_without_an_audit_a_wrong_gradient_is_not_seen() -> None:
    """What audits are for: all ranks hold the same sum, and it is the sum of what was put in."""
    fault = RankFault(kind=FaultKind.FLIP_LOCAL, rank=0, update=0, step=1, element=500, bit=20)
    ranks = Ranks(CONFIG, 2, [fault])
    assert ranks.make(0, fragments(0, 2))[0].state_digest != undisturbed(2, 1)


class Miscomputes:
    """Lets a rank's recomputations (not the gradients it uses) come out wrong: all of them alike, or each otherwise."""

    def __init__(self, group: Group, *, consistently: bool) -> None:
        self._digest, self._consistently, self._calls = group.digest_gradient, consistently, 0
        group.digest_gradient = self._wrongly  # type: ignore[method-assign]

    def _wrongly(self) -> int:
        self._calls += 1
        return self._digest() ^ (1 if self._consistently else self._calls)


@pytest.mark.parametrize(("num_ranks", "auditor", "others"), [(2, 1, ()), (3, 2, (1,)), (3, 0, (2,))])
def test_an_auditor_that_computes_wrongly_is_named(num_ranks: int, auditor: int, others: tuple[int, ...]) -> None:
    """It contradicts itself; the audited rank does not."""
    ranks = Ranks(CONFIG, num_ranks)
    Miscomputes(ranks.ranks[auditor]._group, consistently=False)
    audited = next(rank for rank in range(num_ranks) if rank not in (auditor, *others))
    assert named(ranks.update(0, fragments(0, num_ranks), audit=audit(audited, auditor, *others))) == (auditor,)


def test_of_two_that_differ_consistently_nobody_is_named() -> None:
    """One word against another: unattributed, and all ranks say so."""
    ranks = Ranks(CONFIG, 2)
    Miscomputes(ranks.ranks[1]._group, consistently=True)
    assert named(ranks.update(0, fragments(0, 2), audit=audit(0, 1))) == ()


def test_of_three_the_majority_decides_about_an_auditor() -> None:
    """One auditor is consistently wrong, the audited rank and the other auditor agree."""
    ranks = Ranks(CONFIG, 3)
    Miscomputes(ranks.ranks[2]._group, consistently=True)
    assert named(ranks.update(0, fragments(0, 3), audit=audit(0, 1, 2))) == (2,)


def always(group: Group, act: Callable[[Tensor], None]) -> None:
    """The rank computes wrongly whenever it computes: what it uses and what it computes again."""
    digest, gradient = group.digest_gradient, group._parameters.gradient

    def wrongly() -> int:
        act(gradient)
        return digest()

    group.digest_gradient = wrongly  # type: ignore[method-assign]


def test_of_three_the_majority_decides_about_the_audited_rank() -> None:
    """It does the same wrong thing every time, so it does not contradict itself: two auditors outvote it."""

    def flip(start: int, values: Tensor) -> None:
        if start == 0:
            flip_bit(values, 3, 20)

    ranks = Ranks(CONFIG, 3, tampers={0: Interference("computed", flip)})
    always(ranks.ranks[0]._group, lambda gradient: flip_bit(gradient, 3, 20))
    assert named(ranks.update(0, fragments(0, 3), audit=audit(0, 1, 2))) == (0,)


def test_ranks_on_unlike_machines_do_not_audit_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their gradients differ in the last bits and nobody is wrong; a rank can still contradict itself."""
    facts = iter(range(9))
    monkeypatch.setattr("learner.rank.machine_facts", lambda _: {"cpu": next(facts)})
    ranks = Ranks(CONFIG, 2)
    Miscomputes(ranks.ranks[1]._group, consistently=True)
    assert {report.sync.audited for report in ranks.make(0, fragments(0, 2), audit=audit(0, 1))} == {True}
    Miscomputes(ranks.ranks[0]._group, consistently=True)
    assert named(ranks.update(1, fragments(1, 2), audit=audit(0, 1))) == (0,)


def test_an_audit_costs_time_that_is_reported() -> None:
    """CPU time, on the ranks that took part and on no other."""
    reports: list[Any] = Ranks(CONFIG, 3).make(0, fragments(0, 3), audit=audit(0, 1))
    assert [report.sync.seconds["audit"] > 0.0 for report in reports] == [True, True, False]
