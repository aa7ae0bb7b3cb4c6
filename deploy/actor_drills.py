"""Drills of asynchronous runs: an actor, its environments, or its frames on their way suffer something."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deploy.conductor.accounts import STALE
from deploy.drill_faults import ActorFault, ActorFaultKind, BorderFault, BorderFaultKind, Drill
from deploy.drill_plan import DROPPED, VICTIM, DrillPlan, Event, about, data_of, lost

AT_COLLECT = 10  # of the actor
ROWS = 16
AT_STEP = AT_COLLECT * ROWS  # of an environment: more than a proof makes
SLEEP_S = 2.0
NODE = (1, 2)  # actors of the node that is cut
LOST, REFUSED = "ACTOR_LOST", "FRAGMENT_REFUSED"


def _actor(kind: ActorFaultKind, **fields: Any) -> Callable[[str], Drill]:
    def make(mark: str) -> Drill:
        fault = ActorFault(kind=kind, actor=VICTIM, update=AT_COLLECT, mark=mark, step=AT_STEP, **fields)
        return Drill(of_actors=(fault,))

    return make


def _border(kind: BorderFaultKind, actor: int | None) -> Callable[[str], Drill]:
    return lambda mark: Drill(at_border=(BorderFault(kind=kind, actor=actor, update=AT_COLLECT, mark=mark),))


def _environment(place: str, *words: str) -> Callable[[Sequence[Event]], str]:
    """Where in the victim's environment, if nobody else was lost and what was told has the place and all the words.

    Args:
        place: pattern.
    """

    def located(events: Sequence[Event]) -> str:
        told = [f"{data['cause']}\n{data['detail']}" for data in data_of(events, LOST)]
        victim = lost(LOST, "actor", (VICTIM,))(events)
        places = [re.search(place, each) for each in told if all(word in each for word in words)]
        return f"{victim}, {places[0][0]}" if victim and len(places) == len(told) and places[0] else ""

    return located


def _stale(events: Sequence[Event]) -> str:
    """The victim's fragments that were too old, if there are any."""
    stale = [data["sequence"] for data in data_of(events, DROPPED) if _is_stale(data)]
    return f"actor {VICTIM}, fragment {', '.join(map(str, stale))}" if stale else ""


def _is_stale(data: Mapping[str, Any]) -> bool:
    return bool(data["actor"] == VICTIM and data["reason"] == STALE)


def _refused(events: Sequence[Event]) -> str:
    """The fragments that were refused, if all are of one actor: the last that a refusal names is what was ordered."""
    refused = data_of(events, REFUSED)
    numbers = [re.findall(r"sequence (\d+)", data["detail"])[-1] for data in refused]
    one = len({data["actor"] for data in refused}) == 1
    return f"actor {refused[0]['actor']}, fragment {', '.join(numbers)}" if one else ""


def _is_refused(data: Mapping[str, Any]) -> bool:
    return data["reason"] in ("duplicate", "misplaced")


ACTOR_DRILLS = (
    DrillPlan(
        name="raise-env",
        about="an environment raises in the middle of a fragment",
        fault=_actor(ActorFaultKind.RAISE_ENV),
        kind=LOST,
        detected=about("actor", (VICTIM,)),
        located=_environment(r"lane \d+, tick \d+", "step raised RuntimeError", "told to raise", "sabotaged.py"),
        same_bits=True,
        of_actors=True,
    ),
    DrillPlan(
        name="hang-env",
        about="an environment never comes back from a step",
        fault=_actor(ActorFaultKind.HANG_ENV),
        kind=LOST,
        detected=about("actor", (VICTIM,)),
        located=_environment(r"tick \d+", "step did not return", "sabotaged.py"),
        same_bits=True,
        of_actors=True,
    ),
    DrillPlan(
        name="slow-actor",
        about=f"an environment takes {SLEEP_S:g} s for one step: its fragment is too old, and dropped",
        fault=_actor(ActorFaultKind.SLOW_ENV, seconds=SLEEP_S),
        kind=DROPPED,
        detected=_is_stale,
        located=_stale,
        same_bits=True,
        recovers=False,
        of_actors=True,
    ),
    DrillPlan(
        name="kill-actor",
        about="SIGKILL to one actor before it collects",
        fault=_actor(ActorFaultKind.KILL),
        kind=LOST,
        detected=about("actor", (VICTIM,)),
        located=lost(LOST, "actor", (VICTIM,)),
        same_bits=True,
        of_actors=True,
    ),
    DrillPlan(
        name="cut-node",
        about="SIGKILL to two of three actors at once, as if their node had gone (Ray's own processes live on)",
        fault=_actor(ActorFaultKind.CUT_NODE, node=NODE),
        kind=LOST,
        detected=about("actor", NODE),
        located=lost(LOST, "actor", NODE),
        same_bits=True,
        of_actors=True,
    ),
    DrillPlan(
        name="duplicate-fragment",
        about="the learner gets a frame again in the place of the next one of that actor",
        fault=_border(BorderFaultKind.DUPLICATE, VICTIM),
        kind=REFUSED,
        detected=_is_refused,
        located=_refused,
        same_bits=True,
        recovers=False,
        of_actors=True,
    ),
    DrillPlan(
        name="reorder-fragments",
        about="the learner gets two frames of one actor in the other order",
        fault=_border(BorderFaultKind.REORDER, None),
        kind=REFUSED,
        detected=_is_refused,
        located=_refused,
        same_bits=True,
        recovers=False,
        of_actors=True,
    ),
)
