"""Drills of synchronous runs: a rank, or a frame on its way, suffers something at a known update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deploy.drill_faults import ActorFault, ActorFaultKind, Drill
from deploy.drill_plan import VICTIM, DrillPlan, Event, about, data_of, lost
from learner.audit import audited_step
from learner.parallel.faults import FaultKind, RankFault

AT_UPDATE = 10
AT_STEP = 3
STEPS = 16  # of an update: 4 epochs of 4 minibatches
AUDITED_STEP = audited_step(AT_UPDATE, STEPS)
DELAY_S = 2.0
ELEMENT = 5  # of the first parameter
MANTISSA_BIT = 20


def _rank(kind: FaultKind, step: int = AT_STEP, **fields: Any) -> Callable[[str], Drill]:
    def make(mark: str) -> Drill:
        fault = RankFault(kind=kind, rank=VICTIM, update=AT_UPDATE, step=step, mark=mark, **fields)
        return Drill(of_ranks=(fault,))

    return make


def _actor(kind: ActorFaultKind) -> Callable[[str], Drill]:
    return lambda mark: Drill(of_actors=(ActorFault(kind=kind, actor=VICTIM, update=AT_UPDATE, mark=mark),))


def _attributed(step: int | None) -> Callable[[Sequence[Event]], str]:
    """The dispute's place, if the victim and nobody else was named."""

    def located(events: Sequence[Event]) -> str:
        for data in data_of(events, "SYNC_ATTRIBUTED"):
            if data["ranks"] == [VICTIM] and step in (None, data["step"]):
                return f"rank {VICTIM}, {_place(data)}"
        return ""

    return located


def _place(data: Mapping[str, Any]) -> str:
    """Step, bucket and chunks, as far as there are any; else what the dispute was about."""
    words = [f"{key} {data[key]}" for key in ("step", "bucket") if data[key] >= 0]
    words += [f"chunk {chunk}" for chunk in data["chunks"]]
    return ", ".join(words if data["step"] >= 0 else [data["fault"], *words])


def _on_the_way(events: Sequence[Event]) -> str:
    """What was changed between two ranks is nobody's: no rank may be named, but the place must be."""
    for data in data_of(events, "SYNC_ATTRIBUTED"):
        if data["ranks"] == "unattributed" and data["step"] == AT_STEP and data["chunks"]:
            return f"between ranks, {_place(data)}"
    return ""


def _skipped(events: Sequence[Event]) -> str:
    for data in data_of(events, "STEPS_SKIPPED"):
        if data["update"] == AT_UPDATE and data["steps"] == 1:
            return f"update {AT_UPDATE}, {data['parameter']}"
    return ""


def _disputes(fault: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda data: data["update"] == AT_UPDATE and any(each["fault"] == fault for each in data["disputes"])


RANK_DRILLS = (
    DrillPlan(
        name="flip-bit",
        about="one bit of the reduced gradient that one rank holds",
        fault=_rank(FaultKind.FLIP_REDUCED, element=ELEMENT, bit=MANTISSA_BIT),
        kind="SYNC_MISMATCH",
        detected=_disputes("digest"),
        located=_attributed(AT_STEP),
        same_bits=True,
    ),
    DrillPlan(
        name="flip-outgoing",
        about="the exponent of one element on the way from one rank to all",
        fault=_rank(FaultKind.FLIP_OUTGOING, element=ELEMENT, bit=30),
        kind="SYNC_MISMATCH",
        detected=_disputes("conservation"),
        located=_on_the_way,
        same_bits=True,
    ),
    DrillPlan(
        name="flip-parameter",
        about="one bit of a parameter that one rank holds",
        fault=_rank(FaultKind.FLIP_PARAMETER, element=ELEMENT, bit=MANTISSA_BIT),
        kind="SYNC_MISMATCH",
        detected=_disputes("parameters"),
        located=_attributed(None),
        same_bits=True,
    ),
    DrillPlan(
        name="wrong-gradient",
        about="one bit of a gradient that one rank computes, in a step that is audited",
        fault=_rank(FaultKind.FLIP_LOCAL, AUDITED_STEP, element=ELEMENT, bit=MANTISSA_BIT),
        kind="SYNC_MISMATCH",
        detected=_disputes("local_gradient"),
        located=_attributed(AUDITED_STEP),
        same_bits=True,
    ),
    DrillPlan(
        name="nan-gradient",
        about="one element of a gradient that one rank computes becomes NaN",
        fault=_rank(FaultKind.NAN_GRADIENT, element=ELEMENT),
        kind="STEPS_SKIPPED",
        detected=lambda data: data["update"] == AT_UPDATE,
        located=_skipped,
        same_bits=False,
        recovers=False,
    ),
    DrillPlan(
        name="kill-rank",
        about="SIGKILL to one rank in the middle of an update",
        fault=_rank(FaultKind.KILL),
        kind="RANK_LOST",
        detected=about("rank", (VICTIM,)),
        located=lost("RANK_LOST", "rank", (VICTIM,)),
        same_bits=True,
    ),
    DrillPlan(
        name="hang-rank",
        about="one rank never comes back from the middle of an update",
        fault=_rank(FaultKind.HANG),
        kind="RANK_LOST",
        detected=about("rank", (VICTIM,)),
        located=lost("RANK_LOST", "rank", (VICTIM,)),
        same_bits=True,
    ),
    DrillPlan(
        name="delay-rank",
        about=f"one rank stops for {DELAY_S:g} s in the middle of an update",
        fault=_rank(FaultKind.DELAY, seconds=DELAY_S),
        kind="RANK_SLOW",
        detected=about("rank", (VICTIM,)),
        located=lost("RANK_SLOW", "rank", (VICTIM,)),
        same_bits=True,
        recovers=False,
    ),
    DrillPlan(
        name="corrupt-frame",
        about="one bit of one fragment, after its digest was taken",
        fault=_actor(ActorFaultKind.CORRUPT_FRAME),
        kind="FRAGMENT_REFUSED",
        detected=lambda data: data["reason"] == "corrupt",
        located=lost("FRAGMENT_REFUSED", "actor", (VICTIM,)),
        same_bits=False,
        recovers=False,
    ),
)
