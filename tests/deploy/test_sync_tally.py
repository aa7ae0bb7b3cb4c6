"""What verified sync came to: counted live, counted again from the record, and timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.clock import ManualClock
from common.metrics import RecoveryCause
from common.runs import RunRegistry, UpdateRecord
from deploy.sync_tally import SyncTally, Trouble


def mismatch(update: int, *faults: str) -> tuple[str, dict[str, Any]]:
    return "SYNC_MISMATCH", {"update": update, "disputes": [{"fault": fault} for fault in faults]}


def failed(update: int) -> tuple[str, dict[str, Any]]:
    return "SYNC_FAILED", {"update": update, "attempt": 1}


def rollback(from_update: int, to_update: int) -> tuple[str, dict[str, Any]]:
    return "TRAINING_ROLLBACK", {"from_update": from_update, "to_update": to_update}


def test_a_mismatch_counts_once_an_attempt_and_once_a_fault() -> None:
    """Three buckets that differ are one mismatch; what they differ in is counted by kind."""
    tally = SyncTally()
    tally.count(*mismatch(3, "digest", "digest", "digest"))
    tally.count(*mismatch(3, "digest", "conservation"))
    assert tally.mismatches == 2
    assert tally.faults == {"digest": 2, "conservation": 1}


def test_an_update_that_is_committed_after_a_voided_attempt_was_retried() -> None:
    """However many attempts it took, and only once it is committed; others were not."""
    tally = SyncTally()
    tally.count(*mismatch(1, "digest"))
    tally.count(*failed(1))
    tally.commit(1, verified=True)
    assert tally.retries == 0
    tally.commit(2, verified=True)
    tally.commit(3, verified=False)
    assert (tally.retries, tally.failures, tally.verified) == (1, 1, 2)


def test_what_a_rollback_gave_up_was_not_retried() -> None:
    """Its number made again later is another update."""
    tally = SyncTally()
    tally.count(*mismatch(5, "digest"))
    tally.count(*mismatch(5, "digest"))
    tally.count(*rollback(5, 4))
    for updates in (5, 6):
        tally.commit(updates, verified=True)
    assert (tally.retries, tally.rollbacks) == (0, 1)


def test_ranks_that_failed_to_meet_voided_no_attempt() -> None:
    """A failure, but the next update was not made again for it."""
    tally = SyncTally()
    tally.count("SYNC_FAILED", {"update": 0, "formation": 1, "failures": {"1": "nobody came"}})
    tally.commit(1, verified=True)
    assert (tally.failures, tally.retries) == (1, 0)


def test_ranks_are_counted_and_other_events_are_not() -> None:
    """RANK_LOST and RANK_QUARANTINED; ACTOR_LOST is no rank."""
    tally = SyncTally()
    for kind in ("RANK_LOST", "RANK_LOST", "RANK_QUARANTINED", "ACTOR_LOST", "GROUP_FORMED"):
        tally.count(kind, {})
    assert (tally.ranks_lost, tally.ranks_quarantined) == (2, 1)


def row(update: int) -> UpdateRecord:
    return UpdateRecord(
        run="r",
        update=update,
        term=0,
        version=update,
        env_steps=update,
        parameter_digest="p",
        state_digest="s",
        chain="c",
        produced=0,
        trained=0,
        in_flight=0,
        dropped={},
        fragments_lost=0,
        lag=0.0,
        statistics={},
    )


STEPS = st.lists(st.sampled_from(["commit", "mismatch", "failed", "rollback", "lost"]), max_size=30)


@settings(deadline=None, max_examples=25)
@given(steps=STEPS)
def test_the_record_tells_the_same_as_was_counted_live(tmp_path_factory: pytest.TempPathFactory, steps: Any) -> None:
    """Whatever happened in whatever order: a resumed run's totals go on where they stood."""
    path: Path = tmp_path_factory.mktemp("tally") / "runs.sqlite"
    live, updates = SyncTally(), 0
    with RunRegistry.open(path) as registry:
        registry.create_run(run="r", env="e", algo="a", seed=0, engine="ray", config={}, facts={}, out="o")
        for step in steps:
            match step:
                case "commit":
                    updates += 1
                    live.commit(updates, verified=True)
                    registry.record_updates([row(updates)])
                case "rollback":
                    target = updates // 2
                    live.count(*rollback(updates, target))
                    registry.roll_back("r", target, term=0, reason="why")
                    updates = target
                case other:
                    event = {"mismatch": mismatch(updates, "digest"), "failed": failed(updates)}
                    kind, data = event.get(other, ("RANK_LOST", {}))
                    live.count(kind, data)
                    registry.record_event("r", kind, data)
        assert SyncTally.of_run(registry, "r") == live


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("SYNC_MISMATCH", RecoveryCause.MISMATCH),
        ("TRAINING_ROLLBACK", RecoveryCause.ROLLBACK),
    ],
)
def test_a_recovery_lasts_from_what_went_wrong_first_to_the_next_commit(kind: str, cause: RecoveryCause) -> None:
    """What follows from it neither restarts the time nor changes the cause; the next trouble is a new one."""
    clock = ManualClock()
    trouble = Trouble(clock)
    assert trouble.over_at_commit() is None
    trouble.note(kind)
    clock.advance(2.0)
    trouble.note("SYNC_FAILED")
    trouble.note("TRAINING_ROLLBACK")
    trouble.note("GROUP_FORMED")
    clock.advance(1.5)
    assert trouble.over_at_commit() == (cause, 3.5)
    assert trouble.over_at_commit() is None


@pytest.mark.parametrize("mended", ["GROUP_FORMED", "TRAINING_ROLLBACK"])
@pytest.mark.parametrize(
    ("kind", "cause"), [("RANK_LOST", RecoveryCause.RANK_LOST), ("SYNC_FAILED", RecoveryCause.SYNC_FAILED)]
)
def test_the_commit_of_those_that_are_left_ends_no_recovery(kind: str, cause: RecoveryCause, mended: str) -> None:
    """Survivors had made the update in flight: the group is whole again only once it has been formed."""
    clock = ManualClock()
    trouble = Trouble(clock)
    trouble.note(kind)
    clock.advance(0.5)
    assert trouble.over_at_commit() is None
    clock.advance(4.0)
    trouble.note(mended)
    clock.advance(0.5)
    assert trouble.over_at_commit() == (cause, 5.0)


def test_a_loss_at_the_start_is_over_with_the_first_commit() -> None:
    """No GROUP_FORMED is told of the first forming: that the group publishes says it stands."""
    clock = ManualClock()
    trouble = Trouble(clock)
    trouble.note("RANK_LOST")
    clock.advance(3.0)
    trouble.group_published()
    assert trouble.over_at_commit() == (RecoveryCause.RANK_LOST, 3.0)


def test_a_rank_that_is_lost_in_a_failed_update_leaves_the_failure_as_the_cause() -> None:
    """But the group has to be whole before it is over."""
    clock = ManualClock()
    trouble = Trouble(clock)
    trouble.note("SYNC_FAILED")
    trouble.note("RANK_LOST")
    clock.advance(1.0)
    assert trouble.over_at_commit() is None
    trouble.note("GROUP_FORMED")
    assert trouble.over_at_commit() == (RecoveryCause.SYNC_FAILED, 1.0)
