"""What the processes of a run ask of a cluster's nodes, and how that reads beside what the nodes have. Pure: no Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deploy.config import RunConfig
from deploy.preflight.check import Check, Outcome, PreflightError, table
from deploy.preflight.cluster import CLUSTER

SHARE = 0.001  # of a custom resource, for each process: a node that has 1 of it takes a thousand


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one process takes of a node.

    Attributes:
        resources: amounts, by Ray's names.
        labels: that the node must have.
    """

    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    labels: Mapping[str, str] = field(default_factory=dict)

    def times_in(self, node: Room) -> int:
        """How many of it the node would have room for, if it were empty."""
        if any(node.labels.get(name) != value for name, value in self.labels.items()):
            return 0
        return min(int(node.resources.get(name, 0.0) / amount + 1e-6) for name, amount in self.resources.items())

    def __str__(self) -> str:
        return _words(self.resources, self.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A live node, as far as places go.

    Attributes:
        address: as Ray names it.
        resources: that it was started with, be they taken or not.
        labels: that it was started with.
    """

    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Places that have to be there before the run begins.

    Attributes:
        who: they are for.
        count: how many.
        place: each of them.
        strategy: how they lie to each other, in Ray's words.
        fix: how to need fewer.
        given: whether the cluster has them.
    """

    who: str
    count: int
    place: Place
    strategy: str
    fix: str
    given: bool = False


def place_for(selector: str, *, gpus: int = 0) -> Place:
    """The place of one process.

    Args:
        selector: `placement.learner` or `placement.actors`: "", "label=value" or the name of a custom resource.
        gpus: that it takes besides its CPU.
    """
    resources = {"CPU": 1.0} | ({"GPU": float(gpus)} if gpus else {})
    label, equals, value = selector.partition("=")
    if equals:
        return Place(resources=resources, labels={label: value})
    return Place(resources=resources | ({selector: SHARE} if selector else {}))


def asks_of(config: RunConfig, *, gpus_of_a_rank: int) -> tuple[Ask, Ask]:
    """Of the learner ranks, and of as many actors as the run cannot do without."""
    placement = config.placement
    return (
        Ask(
            who="learner ranks",
            count=config.learner.ranks,
            place=place_for(placement.learner, gpus=gpus_of_a_rank),
            strategy=placement.ranks.upper().replace("-", "_"),
            fix="fewer --learners",
        ),
        Ask(
            who="actors",
            count=config.actors.bounds[0],
            place=place_for(placement.actors),
            strategy="SPREAD",
            fix="fewer --actors, or a smaller actors.least",
        ),
    )


def refusal(asks: Sequence[Ask], nodes: Sequence[Room], *, waited_s: float) -> PreflightError:
    """What was asked beside what is present: a row for each ask, then one for each node."""
    rows = [_asked(ask, nodes) for ask in asks] + [_present(node) for node in nodes]
    return PreflightError(
        f"the cluster had no places for this run within {waited_s:g} s, and nothing was started\n{table(rows)}"
    )


def _asked(ask: Ask, nodes: Sequence[Room]) -> Check:
    room = sum(ask.place.times_in(node) for node in nodes)
    if ask.given:
        found = "all"
    elif room < ask.count:
        found = f"room for {room} on {len(nodes)} nodes"
    else:
        found = f"room for {room}, too much of it taken"
    return Check(
        where=CLUSTER,
        what=f"places of {ask.who}",
        found=found,
        needed=f"{ask.count} x {ask.place}, {ask.strategy}",
        outcome=Outcome.OK if ask.given else Outcome.SHORT,
        fix="" if ask.given else f"add nodes, wait longer for them (placement.wait_s), or use {ask.fix}",
    )


def _present(node: Room) -> Check:
    in_order = sorted(node.resources.items(), key=lambda each: (each[0] not in ("CPU", "GPU"), each[0]))
    shown = {name: amount for name, amount in in_order if _is_ours_to_ask(name)}
    labels = {name: value for name, value in node.labels.items() if not name.startswith("ray.io/")}
    return Check(
        where=node.address, what="node", found=_words(shown, labels) or "nothing", needed="", outcome=Outcome.OK
    )


def _is_ours_to_ask(resource: str) -> bool:
    """Memory is not asked for; `node:` resources are Ray's own."""
    return "memory" not in resource and not resource.startswith("node:")


def _words(resources: Mapping[str, float], labels: Mapping[str, str]) -> str:
    amounts = [f"{name} {amount:g}" for name, amount in resources.items()]
    return ", ".join([*amounts, *(f"{name}={value}" for name, value in labels.items())])
