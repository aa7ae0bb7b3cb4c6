"""Making lanes for a test, and turning ticks into per-lane lists of transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from actors.env.config import EnvConfig
from actors.env.lanes import Lanes
from actors.env.make import make_lanes
from common.rng import Role, Streams


class Transition(NamedTuple):
    """One valid row of one lane, as Python values that compare exactly."""

    observation: dict[str, Any]
    action: Any
    reward: float
    end: int
    next_observation: dict[str, Any]


def test_id(name: str) -> str:
    """The id of one of the environments of tests.envs."""
    return f"tests.envs:truestep-tests/{name}-v0"


test_id.__test__ = False  # type: ignore[attr-defined]


def lanes_of(
    name: str, num_lanes: int = 1, *, seed: int = 7, index: int = 0, incarnation: int = 0, **config: Any
) -> Lanes:
    """Lanes of `name`: one of tests.envs, or any Gymnasium id with a version."""
    id = name if "-v" in name else test_id(name)
    return make_lanes(
        EnvConfig(id=id, **config),
        num_lanes,
        streams=Streams(seed),
        role=Role.ACTOR,
        index=index,
        incarnation=incarnation,
        who=f"actor {index}",
    )


def transitions(lanes: Lanes, num_ticks: int, choose: Callable[[int, int], Any]) -> list[list[Transition]]:
    """Drive lanes from the start; `choose(lane, n)` is the action of a lane's n-th transition, so that an ignored
    action (on a reset tick) takes nothing from the script."""
    observation = _rows(lanes.start(), lanes.num_lanes)
    found: list[list[Transition]] = [[] for _ in range(lanes.num_lanes)]
    for _ in range(num_ticks):
        actions = [choose(lane, len(rows)) for lane, rows in enumerate(found)]
        tick = lanes.step(np.array(actions, dtype=lanes.action.dtype))
        after = _rows(tick.observation, lanes.num_lanes)
        for lane in np.flatnonzero(tick.valid):
            row = (observation[lane], actions[lane], float(tick.reward[lane]), int(tick.end[lane]), after[lane])
            found[lane].append(Transition(*row))
        observation = after
        if tick.restart is not None:
            begun = _rows(tick.restart.observation, len(tick.restart.lanes))
            for lane, row_after in zip(tick.restart.lanes, begun, strict=True):
                observation[lane] = row_after
    return found


def _rows(parts: dict[str, Any], count: int) -> list[dict[str, Any]]:
    return [{name: array[row].tolist() for name, array in parts.items()} for row in range(count)]
