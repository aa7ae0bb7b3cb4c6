"""Windows made by hand: ten seconds of a run of which only some figures matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.metrics import Stage
from deploy.attribution.snapshot import ActorFacts, HostFacts, RankFacts, Snapshot, StageFacts

SECONDS = 10.0


def stage(
    mark: int = 0, *, work: bool = True, room: bool = True, still_s: float = 0.0, usual_s: float = 0.1
) -> StageFacts:
    """A stage that has both work and room, and has just moved."""
    return StageFacts(mark=mark, work=work, room=room, still_s=still_s, usual_s=usual_s)


def actor(number: int, **changes: Any) -> ActorFacts:
    """An actor that was at work all the time: 50 fragments of 0.2 s."""
    usual: dict[str, Any] = {
        "present_s": SECONDS,
        "blocked_s": 0.0,
        "fragments": 50,
        "work_s": SECONDS,
        "env_s": 8.0,
        "policy_s": 1.0,
        "cpu_s": 2.0,
        "delay_s": 0.0,
        "major_faults": 0,
        "at_work_s": 0.1,
    }
    return ActorFacts(actor=number, **usual | changes)


def rank(number: int, **changes: Any) -> RankFacts:
    """A rank that worked for 8 of the 10 seconds, and waited for no other."""
    usual: dict[str, Any] = {
        "orders": 50,
        "work_s": 8.0,
        "wait_s": 0.0,
        "verify_s": 0.0,
        "cpu_s": 8.0,
        "delay_s": 0.0,
        "major_faults": 0,
    }
    return RankFacts(rank=number, **usual | changes)


def host(**changes: Any) -> HostFacts:
    """A driver with nothing to complain of."""
    usual: dict[str, Any] = {"cpu_s": 1.0, "delay_s": 0.0, "record_s": 0.1, "writing_s": 0.0, "queueing_s": 0.0}
    return HostFacts(**usual | changes)


def window(
    *,
    starved: float = 0.2,
    blocked: float = 0.1,
    actors: Sequence[ActorFacts] | None = None,
    ranks: Sequence[RankFacts] = (rank(0),),
    stages: Mapping[Stage, StageFacts] | None = None,
    **changes: Any,
) -> list[Snapshot]:
    """A moment at which nothing had happened yet, and the one 10 s later: the learner starved and every actor blocked
    for these shares of the time between."""
    four = actors or [actor(number, blocked_s=SECONDS * blocked) for number in range(4)]
    usual: dict[str, Any] = {
        "asynchronous": True,
        "in_turn": False,
        "in_flight": 8,
        "capacity": 16,
        "host": host(),
    }
    first = Snapshot(
        **usual | changes | {"host": HostFacts(cpu_s=0.0, delay_s=0.0, record_s=0.0, writing_s=0.0, queueing_s=0.0)},
        at_s=100.0,
        ready_s=0.0,
        starved_s=0.0,
        stages={each: stage() for each in Stage},
        actors=(),
        ranks=(),
    )
    last = Snapshot(
        **usual | changes,
        at_s=100.0 + SECONDS,
        ready_s=SECONDS,
        starved_s=SECONDS * starved,
        stages={each: stage(50) for each in Stage} | dict(stages or {}),
        actors=tuple(four),
        ranks=tuple(ranks),
    )
    return [first, last]
