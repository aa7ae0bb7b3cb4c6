"""What a drill is: a fault, and what the record of a run must say of it. Values only; `drill.py` runs them.

a fault at a known place ──► events in the run's record ──► detected? located right? recovered? anything lost?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.drill_faults import Drill

VICTIM = 1  # rank or actor
DROPPED = "FRAGMENT_DROPPED"  # no event of the record: a line of the ledger about a fragment that no update has taken

Event = tuple[str, Mapping[str, Any]]  # kind, data


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPlan:
    """One drill.

    Attributes:
        name: as it is asked for.
        about: what it does, in a sentence.
        fault: makes it, given the path of its mark.
        kind: of the event by which it must be detected.
        detected: whether the data of such an event are about it.
        located: whether the data of some event name the right place, in words; "" if not.
        same_bits: the run must have the digests of one without a fault: nothing was lost and nothing wrong is in. Of a
            drill of actors, whose timing decides: those of the run made again from its ledger.
        recovers: whether something has to recover; a run that only waits or skips goes on as it is.
        of_actors: the run is asynchronous, and goes on until who was struck is well.
    """

    name: str
    about: str
    fault: Callable[[str], Drill]
    kind: str
    detected: Callable[[Mapping[str, Any]], bool]
    located: Callable[[Sequence[Event]], str]
    same_bits: bool
    recovers: bool = True
    of_actors: bool = False


def data_of(events: Sequence[Event], kind: str) -> list[Mapping[str, Any]]:
    return [data for each, data in events if each == kind]


def lost(kind: str, key: str, victims: Sequence[int]) -> Callable[[Sequence[Event]], str]:
    """The victims in words, if events of `kind` name them, all of them, and nobody else."""

    def located(events: Sequence[Event]) -> str:
        named = sorted({data[key] for data in data_of(events, kind)})
        plural = "s" if len(named) > 1 else ""
        return f"{key}{plural} {', '.join(map(str, named))}" if named == sorted(victims) else ""

    return located


def about(key: str, victims: Sequence[int]) -> Callable[[Mapping[str, Any]], bool]:
    """Whether an event names one of the victims."""
    return lambda data: data[key] in victims
