"""What is known of a run at one moment: sums since the driver began, so that what lies between two is a difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from common.metrics import Stage

DECIMALS = 4  # of numbers in recordings: 0.1 ms
Facts = TypeVar("Facts", bound="ActorFacts | RankFacts | HostFacts")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """One stage of the ring.

    Attributes:
        mark: what it has done.
        work: whether there is something for it to do.
        room: whether what it makes can go on.
        still_s: for how long it has had both and done nothing.
        usual_s: between two things that it does, as a moving average; 0 before the second.
    """

    mark: int
    work: bool
    room: bool
    still_s: float
    usual_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorFacts:
    """One actor.

    Attributes:
        actor: which.
        present_s: its process has been there.
        blocked_s: of that, with nothing to do: it waited for weights, or for room in the flow.
        fragments: that it has made.
        work_s, env_s, policy_s: which that took, in all, in its environments and in its policy.
        cpu_s, delay_s: of that, its thread ran, and queued for a core.
        major_faults: pages read from disk meanwhile.
        at_work_s: on the fragment under way; not a sum.
    """

    actor: int
    present_s: float
    blocked_s: float
    fragments: int
    work_s: float
    env_s: float
    policy_s: float
    cpu_s: float
    delay_s: float
    major_faults: int
    at_work_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One learner rank.

    Attributes:
        rank: which.
        orders: that it has answered, those that came to nothing included.
        work_s: which that took.
        wait_s: of that, it waited for other ranks.
        verify_s: of that, it weighed, digested and compared.
        cpu_s, delay_s, major_faults: as of an actor.
        gpu: utilisation of its GPU lately, 0 to 1; None without one. Not a sum.
    """

    rank: int
    orders: int
    work_s: float
    wait_s: float
    verify_s: float
    cpu_s: float
    delay_s: float
    major_faults: int
    gpu: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The driver and the machine that it runs on.

    Attributes:
        cpu_s, delay_s: of the driver's thread.
        record_s: in which it waited for the run registry.
        writing_s: a checkpoint was being written.
        queueing_s: of that, the next one was complete and waited for it.
        memory: used of what there is, 0 to 1; None where that is not known. Not a sum.
        store: likewise of Ray's object store.
    """

    cpu_s: float
    delay_s: float
    record_s: float
    writing_s: float
    queueing_s: float
    memory: float | None = None
    store: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at one moment.

    Attributes:
        at_s: on the monotonic clock.
        asynchronous: whether actors collect at their own pace.
        in_turn: whether one process does everything (engine inline), so that actors and learner never work at once.
        in_flight, capacity: fragments told and not trained on yet, and how many these may be; 0 in synchronous
            collection.
        ready_s: the group of ranks has been whole and has had weights out.
        starved_s: of that, it had no update to make.
        stages: the ring.
        actors, ranks: those that have ever been there.
        host: the driver.
    """

    at_s: float
    asynchronous: bool
    in_turn: bool
    in_flight: int
    capacity: int
    ready_s: float
    starved_s: float
    stages: Mapping[Stage, StageFacts]
    actors: tuple[ActorFacts, ...]
    ranks: tuple[RankFacts, ...]
    host: HostFacts


NO_SUMS = frozenset({"actor", "rank", "at_work_s", "gpu", "memory", "store"})


def since(now: Facts, before: Facts) -> Facts:
    """What has been added between two moments; what is no sum is as it is now."""
    sums = [item.name for item in dataclasses.fields(now) if item.name not in NO_SUMS]
    return dataclasses.replace(now, **{name: getattr(now, name) - getattr(before, name) for name in sums})


def to_plain(snapshot: Snapshot) -> dict[str, Any]:
    """JSON values, rounded to 0.1 ms; `from_plain` reads them back."""
    plain: dict[str, Any] = _rounded(dataclasses.asdict(snapshot))
    return plain


def from_plain(plain: Mapping[str, Any]) -> Snapshot:
    """The snapshot of a recording. Raises TypeError or KeyError where its fields are not those of this release."""
    parts = {
        "stages": {Stage(name): StageFacts(**facts) for name, facts in plain["stages"].items()},
        "actors": tuple(ActorFacts(**facts) for facts in plain["actors"]),
        "ranks": tuple(RankFacts(**facts) for facts in plain["ranks"]),
        "host": HostFacts(**plain["host"]),
    }
    return Snapshot(**{**plain, **parts})


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return round(value, DECIMALS)
        case dict():
            return {str(key): _rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [_rounded(item) for item in value]
        case _:
            return value
