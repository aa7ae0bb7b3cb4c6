"""Each stage of the ring over a window: moving, starved, blocked or stuck. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum

from common.metrics import Stage
from deploy.attribution.figures import FlowFigures, figures_of
from deploy.attribution.snapshot import Snapshot, StageFacts

PATIENCE_S = 10.0  # a stage that has moved is not stuck before ...
PATIENT_TIMES = 5.0  # ... it has stood still for five of its usual intervals, an update of minutes included
FIRST_PATIENCE_S = 60.0  # nor one that has yet to move the first time: compilation, first fragments, first updates
IDLE = 0.5  # of the window: a stage that works for longer than it waits is moving


class StageState(IntEnum):
    """How a stage stands; the number is what is exported."""

    MOVING = 0
    STARVED = 1  # nothing to work on
    BLOCKED = 2  # no room for what it makes
    STUCK = 3  # both are there, and it does not move


def states_of(snapshots: Sequence[Snapshot]) -> dict[Stage, StageState]:
    """What each stage was most of the time; stuck as soon as it is. Of one snapshot or more, oldest first."""
    flow = figures_of(snapshots).flow
    return {stage: _state([each.stages[stage] for each in snapshots], _idle(stage, flow)) for stage in Stage}


def _idle(stage: Stage, flow: FlowFigures) -> float:
    """For what share of the window a stage had nothing to do or no room. The other stages take no time, so that it is
    seldom seen that they have anything to do: as long as they move they are not idle."""
    match stage:
        case Stage.TICKS | Stage.BUILT:
            return flow.blocked
        case Stage.COMMITTED:
            return flow.starved
        case _:
            return 0.0


def _state(moments: Sequence[StageFacts], idle: float) -> StageState:
    if _stuck(moments[-1]):
        return StageState.STUCK
    moved = moments[-1].mark > moments[0].mark
    if moved and idle < IDLE:
        return StageState.MOVING
    waits = Counter(_moment(each) for each in moments)
    del waits[StageState.MOVING]
    return waits.most_common(1)[0][0] if waits else StageState.MOVING


def _moment(facts: StageFacts) -> StageState:
    if not facts.work:
        return StageState.STARVED
    return StageState.MOVING if facts.room else StageState.BLOCKED


def _stuck(facts: StageFacts) -> bool:
    patience_s = max(PATIENCE_S, PATIENT_TIMES * facts.usual_s) if facts.mark else FIRST_PATIENCE_S
    return facts.work and facts.room and facts.still_s > patience_s
