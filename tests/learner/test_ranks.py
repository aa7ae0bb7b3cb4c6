"""What several ranks promise: together they are one learner, and what one of them gets wrong is found and undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import RunFailedError
from learner.parallel.config import SyncConfig
from learner.parallel.faults import FaultKind, RankFault, flip_bit
from learner.rank import RankConfig
from learner.reports import Fault, Formation, OrderStatus, UpdateReport
from tests.learner.ranks import Interference, Ranks, rollout, settled
from tests.support import layout, rank_config

SHAPE = layout(8, 8)  # 64 rows
SYNC = SyncConfig(bucket_mib=0.004, collective_s=20.0)  # a thousand elements a bucket
NUM_STEPS = 4  # of an update of two fragments


def config(*, sync: SyncConfig = SYNC, **changes: Any) -> RankConfig:
    """A network of some 3,000 parameters; two epochs of two minibatches."""
    return rank_config(SHAPE, sync=sync, **({"hidden": (32, 32), "minibatch": 64} | changes))


def fragments(update: int, valid: Sequence[int] = (64, 64)) -> list[NDArray[np.uint8]]:
    """One of each actor, of as many valid rows."""
    return [rollout(SHAPE, update, actor=actor, num_valid=count) for actor, count in enumerate(valid)]


def twin_digest(num_ranks: int, updates: int, valid: Sequence[int] = (64, 64), **changes: Any) -> str:
    """The state of ranks to which nothing happened."""
    twin = Ranks(config(**changes), num_ranks)
    for update in range(updates):
        twin.make(update, fragments(update, valid))
    return twin.ranks[0].standing().state_digest


# ── together they are one learner ────────────────────────────────────────────────────────────────────────────────


def gradient(num_ranks: int, valid: Sequence[int]) -> NDArray[np.float32]:
    """The gradient of one step over all rows; the same bits on every rank."""
    ranks = Ranks(config(epochs=1, minibatch=1_000, max_gradient_norm=0.0), num_ranks)
    reports = ranks.make(0, fragments(0, valid))
    assert [report.steps for report in reports] == [1] * num_ranks
    gradients = [rank._parameters.gradient.numpy().copy() for rank in ranks.ranks]
    assert len({each.tobytes() for each in gradients}) == 1
    return gradients[0]


@pytest.mark.parametrize("valid", [(64, 64), (56, 8), (1, 0, 63), (0, 0, 5), (1, 1, 1)])
def test_the_gradient_of_several_ranks_is_that_of_one(valid: Sequence[int]) -> None:
    """On the same global minibatch, to 1e-6 of its norm: rows count alike, whichever rank holds them."""
    expected = gradient(1, valid)
    difference = np.linalg.norm(gradient(len(valid), valid) - expected) / np.linalg.norm(expected)
    assert difference < 1e-6


@pytest.mark.parametrize("valid", [(56, 8, 64), (1, 0, 63)])
def test_several_ranks_learn_what_one_learns(valid: Sequence[int]) -> None:
    """Five updates of several minibatches, clipped: parameters, losses and counts of 1, 2 and 3 ranks."""

    def learned(num_ranks: int) -> tuple[NDArray[np.float32], list[UpdateReport]]:
        ranks = Ranks(config(learning_rate=1e-3, minibatch=16), num_ranks)
        reports = [ranks.make(update, fragments(update, valid))[0] for update in range(5)]
        return ranks.parameters(), reports

    expected, alone = learned(1)
    for num_ranks in (2, 3):
        parameters, reports = learned(num_ranks)
        np.testing.assert_allclose(parameters, expected, rtol=0, atol=2e-5)
        for one, several in zip(alone, reports, strict=True):
            assert (several.steps, several.skipped_steps) == (one.steps, one.skipped_steps)
            assert several.statistics == pytest.approx(one.statistics, rel=1e-3, abs=1e-4)


def test_every_rank_reports_the_same_numbers() -> None:
    """Losses are over all rows, parameters are alike; verdicts are of a rank's own share."""
    reports = Ranks(config(), 3).make(0, fragments(0, (56, 8, 64)))
    assert [report.rank for report in reports] == [0, 1, 2]
    assert reports[0].statistics == reports[1].statistics == reports[2].statistics
    assert [[verdict.num_valid for verdict in report.verdicts] for report in reports] == [[56], [8], [64]]
    assert len({report.parameter_digest for report in reports}) == 1 and reports[0].parameter_digest
    assert {report.sync.verified_steps for report in reports} == {reports[0].steps}


def test_a_rank_without_any_row_takes_part_in_everything() -> None:
    """It has no fragment at all: there are more ranks than actors."""
    ranks = Ranks(config(), 3)
    for update in range(3):
        reports = ranks.make(update, fragments(update))
        assert [len(report.verdicts) for report in reports] == [0, 1, 1]
    assert ranks.parameters(0).tobytes() == ranks.parameters(2).tobytes()


def test_an_update_without_any_row_is_made_by_all() -> None:
    """No step, no loss, and the next one works."""
    ranks = Ranks(config(), 2)
    reports = ranks.make(0, fragments(0, (0, 0)))
    assert {(report.steps, report.trained, len(report.statistics)) for report in reports} == {(0, False, 0)}
    assert all(report.trained for report in ranks.make(1, fragments(1)))


def test_all_ranks_stop_after_the_same_epoch() -> None:
    """target_kl is compared with the KL over the rows of all ranks: alone, these two would stop at different times."""
    limits = {"learning_rate": 3e-2, "epochs": 8, "target_kl": 0.02}
    for valid in ((64, 64), (63, 1)):
        reports = Ranks(config(**limits), 2).make(0, fragments(0, valid))
        expected = Ranks(config(**limits), 1).make(0, fragments(0, valid))[0]
        assert {report.steps for report in reports} == {expected.steps}
        assert {report.statistics["stopped_early"] for report in reports} == {1.0}
        assert 0 < expected.steps < 8 * NUM_STEPS // 2


def test_the_fragments_of_other_ranks_are_received_too() -> None:
    """Only their keys are told: a rank that takes over another share refuses what another has trained on."""
    ranks = Ranks(config(), 2)
    ranks.make(0, fragments(0))
    swapped = fragments(0)[::-1]
    reports = ranks.make(1, swapped)
    assert [report.verdicts[0].refusal for report in reports] == ["duplicate", "duplicate"]


# ── parameters ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("num_ranks", "rank", "step", "bit"),
    [
        (2, 0, 0, 0),
        (2, 1, 1, 12),
        (2, 0, 3, 3),
        (2, 1, 3, 31),
        (3, 2, 2, 22),
        (3, 1, 3, 0),
        (3, 0, 0, 26),
        (2, 1, 1, 30),
    ],
)
def test_a_flipped_parameter_is_found_and_its_rank_named(num_ranks: int, rank: int, step: int, bit: int) -> None:
    """After any step, the last one included, whatever it does to the gradients behind it."""
    fault = RankFault(kind=FaultKind.FLIP_PARAMETER, rank=rank, update=1, step=step, element=700, bit=bit)
    valid = (64, 64, 64)[:num_ranks]
    ranks = Ranks(config(), num_ranks, [fault])
    ranks.make(0, fragments(0, valid))
    start = ranks.ranks[0].standing()
    reports = ranks.update(1, fragments(1, valid))
    assert {report.status for report in reports} == {OrderStatus.DISPUTED}
    (dispute,) = reports[0].sync.disputes
    assert (dispute.fault, dispute.step) == (Fault.PARAMETERS, -1)
    assert [each.standing().state_digest for each in ranks.ranks] == [start.state_digest] * num_ranks
    reports = ranks.make(1, fragments(1, valid))
    assert {report.sync.attribution.ranks for report in reports if report.sync.attribution} == {(rank,)}
    assert reports[0].state_digest == twin_digest(num_ranks, 2, valid)


def test_a_moment_that_strayed_is_found_with_the_parameters_it_belongs_to() -> None:
    """The second moment of one element, after the last step: parameters do not show it yet."""
    ranks = Ranks(config(), 2)
    second_moment = ranks.ranks[1]._optimiser.tensors()[1]
    interference = Interference("stepped", lambda _: flip_bit(second_moment, 5, 10), step=NUM_STEPS - 1)
    ranks.ranks[1]._tamper = interference
    ranks.form()
    (dispute,) = ranks.update(0, fragments(0))[0].sync.disputes
    assert dispute.fault is Fault.PARAMETERS and dispute.parameters
    report = ranks.make(0, fragments(0))[0]
    assert report.sync.attribution is not None and report.sync.attribution.ranks == (1,)
    assert report.state_digest == twin_digest(2, 1)


# ── what is not finite ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_nan_of_one_rank_is_skipped_by_all_alike(num_ranks: int) -> None:
    """No dispute: nobody was wrong. The parameter is named on every rank, and the other steps are made."""
    fault = RankFault(kind=FaultKind.NAN_GRADIENT, rank=1, update=0, step=2, element=0)
    ranks = Ranks(config(), num_ranks, [fault])
    reports = ranks.make(0, fragments(0, (64, 64, 64)[:num_ranks]))
    assert len({(report.steps, report.skipped_steps, report.skipped_at) for report in reports}) == 1
    assert (reports[0].skipped_steps, reports[0].trained) == (1, True)
    assert reports[0].skipped_at == ranks.ranks[0]._parameters.manifest.entries[0].name


def test_rows_with_nan_on_one_rank_are_skipped_by_all_alike() -> None:
    """A poisoned fragment: every step of the update is skipped, and the state is as before but for its number."""
    ranks = Ranks(config(), 2)
    before = ranks.ranks[1].state()
    poisoned = rollout(SHAPE, 0, actor=1, log_prob=np.full((8, 8), np.nan))
    reports = ranks.make(0, [rollout(SHAPE, 0), poisoned])
    assert {(report.steps, report.skipped_steps) for report in reports} == {(0, NUM_STEPS)}
    after = ranks.ranks[1].state()
    assert after.parameters.tobytes() == before.parameters.tobytes()
    assert ranks.make(1, fragments(1))[0].trained


# ── disputes ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_disputed_update_leaves_no_trace() -> None:
    """State, intake and what is known of versions are those before: the redo, and all that follows, is the twin's."""
    fault = RankFault(kind=FaultKind.FLIP_REDUCED, rank=0, update=1, step=1, element=11, bit=20)
    ranks = Ranks(config(), 2, [fault])
    ranks.make(0, fragments(0))
    before = [(rank.standing(), rank.state().document()) for rank in ranks.ranks]
    reports = ranks.update(1, fragments(1))
    assert {report.status for report in reports} == {OrderStatus.DISPUTED}
    assert {(report.updates, report.trained, report.steps) for report in reports} == {(1, False, 0)}
    assert reports[0].sync.disputes == reports[1].sync.disputes
    assert [(rank.standing(), rank.state().document()) for rank in ranks.ranks] == before
    again = ranks.make(1, fragments(1))
    assert [verdict.refusal for report in again for verdict in report.verdicts] == ["", ""]
    assert again[0].sync.attribution is not None and again[0].sync.attribution.ranks == (0,)
    assert ranks.make(2, fragments(2))[0].sync.attribution is None
    assert ranks.ranks[0].standing().state_digest == twin_digest(2, 3)


def test_a_fault_that_stays_is_disputed_every_time() -> None:
    """The second dispute says, by SHA-256, what each rank held; the group is still a group, and ends when it stops."""
    fault = RankFault(kind=FaultKind.FLIP_REDUCED, rank=1, update=0, step=0, element=11, bit=20, again=True)
    ranks = Ranks(config(), 2, [fault])
    seen = [ranks.update(0, fragments(0))[0].sync.disputes[0] for _ in range(3)]
    assert len({(dispute.fault, dispute.step, dispute.chunks) for dispute in seen}) == 1
    assert not any(view.startswith("sha256") for view in seen[0].digests.values())
    assert all(view.startswith("sha256") for dispute in seen[1:] for view in dispute.digests.values())
    ranks.ranks[1]._tamper.began(99)  # the fault is over


def test_behind_a_disputed_update_the_next_order_is_out_of_step() -> None:
    """It was queued already: nothing is done on any rank, and nobody waits."""
    fault = RankFault(kind=FaultKind.FLIP_REDUCED, rank=1, update=0, element=0, bit=1)
    ranks = Ranks(config(), 2, [fault])
    ranks.update(0, fragments(0))
    behind = ranks.update(1, fragments(1))
    assert {(report.status, report.updates) for report in behind} == {(OrderStatus.OUT_OF_STEP, 0)}
    ranks.make(0, fragments(0))
    ranks.make(1, fragments(1))
    assert ranks.ranks[1].standing().state_digest == twin_digest(2, 2)


# ── ranks that fall out ──────────────────────────────────────────────────────────────────────────────────────────


class Broken(RuntimeError):
    """What a test breaks a rank with."""


def breaks(*_: Any) -> None:
    """In the middle of a step."""
    raise Broken("here")


@pytest.mark.parametrize("where", ["stepping", "computed", "sent", "received", "stepped"])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_rank_that_raises_in_the_middle_lets_the_others_go_back(where: str, num_ranks: int) -> None:
    """They report FAILED at once and stand at the start, as it does; formed anew, the redo is the twin's."""
    valid = (64, 64, 64)[:num_ranks]
    tamper = Interference(where, breaks, step=1, updates=(1,))
    ranks = Ranks(config(), num_ranks, tampers={1: tamper})
    ranks.make(0, fragments(0, valid))
    before = [(rank.standing(), rank.state().document()) for rank in ranks.ranks]
    results = ranks.settled(1, fragments(1, valid))
    assert isinstance(results[1], Broken)
    for rank, result in enumerate(results):
        if rank != 1:
            assert isinstance(result, UpdateReport) and result.status is OrderStatus.FAILED
            assert f"learner rank {rank} could not" in result.sync.failure
    assert [(rank.standing(), rank.state().document()) for rank in ranks.ranks] == before
    ranks.form()
    assert ranks.make(1, fragments(1, valid))[0].state_digest == twin_digest(num_ranks, 2, valid)


def test_a_rank_that_hangs_is_waited_for_until_the_deadline_and_no_longer() -> None:
    """It comes back when the others have given it up: it fails too, and nobody has made the update."""
    hang = RankFault(kind=FaultKind.DELAY, rank=0, update=0, step=2, seconds=5.0)
    ranks = Ranks(config(sync=SyncConfig(bucket_mib=0.004, collective_s=2.5)), 2, [hang])
    before = ranks.ranks[0].standing().state_digest
    reports = ranks.update(0, fragments(0))
    assert {report.status for report in reports} == {OrderStatus.FAILED}
    assert "within 2.5 s" in reports[1].sync.failure
    behind = ranks.update(0, fragments(0))
    assert {report.sync.failure for report in behind} == {"this rank is in no group"}
    assert {rank.standing().state_digest for rank in ranks.ranks} == {before}
    ranks.form()
    assert ranks.make(0, fragments(0))[0].state_digest == twin_digest(2, 1)


def test_a_rank_that_leaves_makes_the_others_fail_at_once() -> None:
    """Long before the deadline, which is beyond the limit of this test."""
    ranks = Ranks(config(sync=SyncConfig(bucket_mib=0.004, collective_s=600.0)), 3)
    ranks.ranks[1].leave()
    results = ranks.settled(0, fragments(0, (64, 64, 64)))
    assert [result.status for result in results if isinstance(result, UpdateReport)] == [OrderStatus.FAILED] * 3


def test_a_rank_with_another_state_is_not_let_in() -> None:
    """Every rank refuses alike, by name, before anything is computed."""
    ranks = Ranks(config(), 2)
    lonely = Ranks(config(), 1)
    lonely.make(0, fragments(0))
    ranks.ranks[1].adopt(lonely.ranks[0].state())
    formation = Formation(number=7, ranks=(0, 1), address=ranks.ranks[0].open_meeting())
    refusals = settled([lambda rank=rank: rank.join(formation) for rank in ranks.ranks])
    assert len({str(refusal) for refusal in refusals}) == 1
    assert isinstance(refusals[0], RunFailedError)
    assert "learner rank 1 is not like rank 0: updates differs; got 1; allowed: 0" in str(refusals[0])


def test_a_replacement_is_fed_from_a_survivor_and_the_redo_is_the_twins() -> None:
    """Rank 1 is lost in the middle of update 2; a new process takes the survivor's state, and no update is lost."""
    tamper = Interference("sent", breaks, step=2, updates=(2,))
    ranks = Ranks(config(), 2, tampers={1: tamper})
    for update in range(2):
        ranks.make(update, fragments(update))
    ranks.settled(2, fragments(2))
    replacement = Ranks(config(), 1).ranks[0]
    replacement._rank = 1
    assert replacement.adopt(ranks.ranks[0].state()).state_digest == ranks.ranks[0].standing().state_digest
    ranks.ranks[1] = replacement
    ranks.form()
    reports = ranks.make(2, fragments(2))
    assert [verdict.refusal for report in reports for verdict in report.verdicts] == ["", ""]
    assert reports[0].state_digest == twin_digest(2, 3)


# ── what it costs ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_step_allocates_nothing_of_the_size_of_the_gradient() -> None:
    """Gradient, tail, parameters and moments stay where they are, and are views of what is sent."""
    ranks = Ranks(config(), 2)

    def places() -> list[int]:
        rank = ranks.ranks[0]
        flat = [rank._parameters.gradient_and_tail, rank._parameters.gradient, rank._parameters.vector.grad]
        parts = [part.grad for part in rank._parameters.parts]
        return [each.data_ptr() for each in [*flat, *parts, *rank._optimiser.tensors()] if each is not None]

    ranks.make(0, fragments(0))
    before = places()
    ranks.make(1, fragments(1))
    assert places() == before


def test_what_verification_came_to_is_reported() -> None:
    """Bytes reduced are those of gradient and tail in every step; the time of each phase is there."""
    report = Ranks(config(), 2).make(0, fragments(0))[1]
    rank = Ranks(config(), 2).ranks[0]
    assert report.sync.reduced_bytes == NUM_STEPS * 4 * len(rank._parameters.gradient_and_tail)
    assert set(report.sync.seconds) == {"reduce", "exchange", "verify", "audit", "backup"}
    assert report.sync.gradient_norm > 0.0
