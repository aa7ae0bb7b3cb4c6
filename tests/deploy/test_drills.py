"""What a drill takes for detected and located: events of a run's record, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.clock import ManualClock
from deploy.drill import drill_config
from deploy.drill_faults import ActorFault, ActorFaultKind, Drill
from deploy.drills import AT_STEP, AT_UPDATE, AUDITED_STEP, DRILLS, STEPS, VICTIM, Event, named

ATTRIBUTED: dict[str, Any] = {"ranks": [VICTIM], "fault": "digest", "step": AT_STEP, "bucket": 0, "chunks": [0]}


def attributed(**changes: Any) -> list[Event]:
    """A record in which a dispute was attributed."""
    return [("SYNC_MISMATCH", {}), ("SYNC_ATTRIBUTED", ATTRIBUTED | changes)]


def located(drill: str, events: list[Event]) -> str:
    plan = named(drill)
    assert plan is not None
    return plan.located(events)


def test_the_right_rank_and_step_are_a_location() -> None:
    """Rank, step, bucket and chunk, in words."""
    assert located("flip-bit", attributed()) == f"rank {VICTIM}, step {AT_STEP}, bucket 0, chunk 0"


@pytest.mark.parametrize(
    "changes",
    [{"ranks": [0]}, {"ranks": [0, VICTIM]}, {"ranks": "unattributed"}, {"step": AT_STEP + 1}],
    ids=["another rank", "both ranks", "nobody", "another step"],
)
def test_anything_else_is_none(changes: dict[str, Any]) -> None:
    """To name the wrong rank, or one more, is worse than to name nobody."""
    assert located("flip-bit", attributed(**changes)) == ""


def test_what_was_changed_on_the_way_is_nobodys() -> None:
    """The place must be known and no rank blamed."""
    on_the_way = attributed(ranks="unattributed", fault="conservation")
    assert located("flip-outgoing", on_the_way) == f"between ranks, step {AT_STEP}, bucket 0, chunk 0"
    assert located("flip-outgoing", attributed(fault="conservation")) == ""
    assert located("flip-outgoing", attributed(ranks="unattributed", chunks=[])) == ""


def test_a_dispute_about_states_has_no_step() -> None:
    """It says what it was about instead."""
    states = attributed(fault="parameters", step=-1, bucket=-1, chunks=[0, 2])
    assert located("flip-parameter", states) == f"rank {VICTIM}, parameters, chunk 0, chunk 2"


@pytest.mark.parametrize(
    ("drill", "kind", "key"), [("kill-rank", "RANK_LOST", "rank"), ("kill-actor", "ACTOR_LOST", "actor")]
)
def test_the_loss_of_another_process_is_no_location(drill: str, kind: str, key: str) -> None:
    """The victim, and nobody besides."""
    assert located(drill, [(kind, {key: VICTIM})]) == f"{key} {VICTIM}"
    assert located(drill, [(kind, {key: 0})]) == ""
    assert located(drill, [(kind, {key: VICTIM}), (kind, {key: 0})]) == ""


def test_a_dispute_about_something_else_does_not_detect_a_fault() -> None:
    """Of another kind, or of another update."""
    plan = named("flip-bit")
    assert plan is not None
    assert plan.detected({"update": AT_UPDATE, "disputes": [{"fault": "digest"}]})
    assert not plan.detected({"update": AT_UPDATE, "disputes": [{"fault": "parameters"}]})
    assert not plan.detected({"update": AT_UPDATE + 1, "disputes": [{"fault": "digest"}]})


def test_drills_have_names_of_their_own_and_come_to_pass() -> None:
    """The update is within the run, and audited at the step that is to be wrong; the victim is the audited rank."""
    config = drill_config()
    assert len({plan.name for plan in DRILLS}) == len(DRILLS) >= 10
    assert config.horizon_updates > AT_UPDATE
    every = config.learner.sync.audit_every
    assert AT_UPDATE % every == 0 and AT_UPDATE // every % config.learner.ranks == VICTIM
    assert config.ppo.epochs * round(config.rows_per_update / config.ppo.minibatch) == STEPS
    assert AT_STEP < STEPS and AUDITED_STEP < STEPS and AT_STEP != AUDITED_STEP


def test_an_actors_fault_strikes_once_and_where_it_is_due(tmp_path: Path) -> None:
    """One bit of the frame for its update; not for another update or actor, and not again once it has a mark."""
    mark = tmp_path / "mark"
    drill = Drill(of_actors=(ActorFault(kind=ActorFaultKind.CORRUPT_FRAME, actor=1, update=3, mark=str(mark)),))
    clock = ManualClock(42)
    frame = np.zeros(9, dtype=np.uint8)
    for actor, update in ((0, 3), (1, 2)):
        drill.after_collect(actor, update, frame, clock)
    assert not frame.any() and not mark.exists()
    drill.after_collect(1, 3, frame, clock)
    assert frame.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0] and mark.read_text() == "42"
    drill.after_collect(1, 3, frame, clock)
    assert frame[4] == 1
