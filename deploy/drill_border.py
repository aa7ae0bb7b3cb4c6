"""Faults on purpose at the border of the learner: frames that come twice or in another order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.clock import Clock
from deploy.drill_faults import LEARNER, WELL_AFTER, BorderFault, BorderFaultKind, mark_once, well_file
from learner.parallel.faults import mark
from learner.reports import UpdateOrder


class Border:
    """Between the object store and the intake of a group of one rank."""

    def __init__(self, faults: Sequence[BorderFault]) -> None:
        self._faults = tuple(faults)
        self._before: dict[int, Any] = {}  # by actor, the last frame that came in
        self._struck = -1  # the update in which a fault happened

    def let_in(self, order: UpdateOrder, frames: tuple[Any, ...], clock: Clock) -> tuple[Any, ...]:
        """The frames of an order as they reach the intake."""
        if not self._faults:
            return frames
        actors = [key.actor for key in order.keys]
        arriving = list(frames)
        for fault in self._faults:
            if order.update >= fault.update and not Path(fault.mark).exists() and self._strike(fault, actors, arriving):
                mark(fault.mark, clock)
                self._struck = order.update
            if 0 <= self._struck <= order.update - WELL_AFTER:
                mark_once(well_file(fault.mark, LEARNER), clock)
        self._before.update({actor: np.array(frame) for actor, frame in zip(actors, frames, strict=True)})
        return tuple(arriving)

    def _strike(self, fault: BorderFault, actors: list[int], arriving: list[Any]) -> bool:
        """Change what arrives; False where this update does not lend itself to it."""
        places = _places(fault, actors)
        if fault.kind is BorderFaultKind.REORDER and len(places) > 1:
            first, second = places[:2]
            arriving[first], arriving[second] = arriving[second], arriving[first]
            return True
        if fault.kind is BorderFaultKind.DUPLICATE and places and actors[places[0]] in self._before:
            arriving[places[0]] = self._before[actors[places[0]]]
            return True
        return False


def _places(fault: BorderFault, actors: Sequence[int]) -> list[int]:
    """Where in an update the frames of the fault's actor are."""
    repeated = [actor for actor in actors if actors.count(actor) > 1]
    whose = fault.actor if fault.actor is not None else repeated[0] if repeated else -1
    return [place for place, actor in enumerate(actors) if actor == whose]
