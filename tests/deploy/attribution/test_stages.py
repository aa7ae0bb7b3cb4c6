"""Stages of the ring: moving, starved, blocked or stuck."""

from __future__ import annotations

import pytest

from common.metrics import Stage
from deploy.attribution.snapshot import StageFacts
from deploy.attribution.stages import StageState, states_of
from tests.deploy.attribution.windows import stage, window


def state(which: Stage, facts: StageFacts, *, starved: float = 0.2, blocked: float = 0.1) -> StageState:
    """Of one stage, at the end of a window that it began with mark 0."""
    return states_of(window(starved=starved, blocked=blocked, stages={which: facts}))[which]


def test_a_run_that_works_moves_everywhere() -> None:
    """Whatever waits there are, as long as they are short."""
    assert set(states_of(window()).values()) == {StageState.MOVING}


@pytest.mark.parametrize("which", [Stage.TICKS, Stage.BUILT])
def test_actors_that_mostly_wait_are_blocked_or_starved(which: Stage) -> None:
    """By the flow, or by weights that do not come; they move now and then."""
    full, nothing = stage(50, room=False), stage(50, work=False)
    assert state(which, full, blocked=0.8) is StageState.BLOCKED
    assert state(which, nothing, blocked=0.8) is StageState.STARVED
    assert state(which, full, blocked=0.2) is StageState.MOVING


def test_a_learner_that_mostly_waits_is_starved() -> None:
    """Half of the time or more, by the driver's clock and not by how often it was seen waiting."""
    nothing = stage(50, work=False)
    assert state(Stage.COMMITTED, nothing, starved=0.6) is StageState.STARVED
    assert state(Stage.COMMITTED, nothing, starved=0.4) is StageState.MOVING


@pytest.mark.parametrize("which", [Stage.ACCEPTED, Stage.DRAWN, Stage.PUBLISHED, Stage.ADOPTED])
def test_stages_that_take_no_time_move_while_anything_does(which: Stage) -> None:
    """That they are never seen at work says nothing; that they have not moved says what they lack."""
    assert state(which, stage(50, work=False)) is StageState.MOVING
    assert state(which, stage(0, work=False)) is StageState.STARVED
    assert state(which, stage(0, room=False)) is StageState.BLOCKED


def test_a_stage_with_work_and_room_that_stands_still_is_stuck() -> None:
    """Ten seconds, or five of its usual intervals; a minute before it has moved at all."""
    assert state(Stage.COMMITTED, stage(50, still_s=9.0)) is StageState.MOVING
    assert state(Stage.COMMITTED, stage(50, still_s=11.0)) is StageState.STUCK
    assert state(Stage.COMMITTED, stage(50, still_s=11.0, usual_s=60.0)) is StageState.MOVING
    assert state(Stage.COMMITTED, stage(50, still_s=301.0, usual_s=60.0)) is StageState.STUCK
    assert state(Stage.COMMITTED, stage(0, still_s=59.0)) is StageState.MOVING
    assert state(Stage.COMMITTED, stage(0, still_s=61.0)) is StageState.STUCK


def test_a_stage_without_work_is_never_stuck() -> None:
    """However long it has stood still."""
    assert state(Stage.COMMITTED, stage(50, work=False, still_s=99.0), starved=1.0) is StageState.STARVED
