"""When things happened, in seconds of driving: the axis that updates and events share.

A run may be driven several times, by processes whose clocks have nothing in common. Each driving begins with an event
that ties its clock to the seconds of driving so far; an event belongs to the driving that was going on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.clock import NS_PER_S
from common.runs import EventRecord
from deploy.record import DRIVING


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An event and when it happened.

    Attributes:
        seconds: of driving.
        event: what happened.
    """

    seconds: float
    event: EventRecord


def moments(events: Sequence[EventRecord]) -> list[Moment]:
    """Events in order, each with its seconds of driving; they never go back.

    What is recorded between two drivings (a resume prepares) falls on the beginning of the later one, however long
    nobody drove. Where no event ties the clock (an older truestep), time counts from the first event.
    """
    found: list[Moment] = []
    latest = 0.0
    for event, tie, ceiling in zip(events, _ties(events), _ceilings(events), strict=True):
        latest = max(latest, min(_seconds(event, tie), ceiling))
        found.append(Moment(seconds=latest, event=event))
    return found


def drivings(found: Sequence[Moment]) -> list[float]:
    """Seconds at which each driving began."""
    return [moment.seconds for moment in found if moment.event.kind == DRIVING]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tie:
    """A reading of a clock, which clock it is, and the seconds of driving then."""

    monotonic_ns: int
    clock_id: str
    driving_s: float


def _seconds(event: EventRecord, tie: _Tie) -> float:
    """By the clock that is tied; an event of another clock is at the tie."""
    if event.clock_id != tie.clock_id:
        return tie.driving_s
    return tie.driving_s + max(0.0, (event.monotonic_ns - tie.monotonic_ns) / NS_PER_S)


def _ties(events: Sequence[EventRecord]) -> list[_Tie]:
    """For each event the tie of the driving that was going on; before the first, that one."""
    begun = [event for event in events if event.kind == DRIVING] or list(events[:1])
    ties = [
        _Tie(
            monotonic_ns=event.monotonic_ns,
            clock_id=event.clock_id,
            driving_s=float(event.data.get("driving_s", 0.0)) if event.kind == DRIVING else 0.0,
        )
        for event in begun
    ]
    found, number = [], -1
    for event in events:
        number += event.kind == DRIVING
        found.append(ties[max(0, number)])
    return found


def _ceilings(events: Sequence[EventRecord]) -> list[float]:
    """For each event the seconds at which the next driving begins."""
    found, ceiling = [], math.inf
    for event in reversed(events):
        found.append(ceiling)
        if event.kind == DRIVING:
            ceiling = float(event.data.get("driving_s", 0.0))
    return found[::-1]
