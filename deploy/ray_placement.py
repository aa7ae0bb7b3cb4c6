"""Where Ray puts the processes of a run: ranks together in places that are held for them, actors spread over nodes.

ranks    a placement group, held as long as the run: whoever takes a lost rank's seat has its place
actors   one by one, each on another node as long as there is one: the pool grows and shrinks with the cluster
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from common.clock import Clock, Deadline, wait_until
from common.errors import EXIT_RESUMABLE, DeadlineError, TruestepError
from deploy.config import RunConfig
from deploy.placement import Ask, Place, Room, asks_of, refusal
from deploy.ray_resources import ask, free_cpus, gpus_of_a_rank, has_free_cpu

POLL_S = 0.2
TOLD_AFTER_S = 2.0
TRIAL_S = 2.0  # a place that is free is given within milliseconds
RETURN_S = 5.0
logger = logging.getLogger(__name__)


class NotPlacedError(TruestepError):
    """The run was asked to end before it had its places. Exit code 75: tried again, it begins, or goes on."""

    exit_code = EXIT_RESUMABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Options with which Ray starts the processes of a run.

    Attributes:
        gpus_of_a_rank: 0 or 1.
        actor: the place of an actor.
        ranks: places of the learner ranks, by rank; None = wherever there is room: an embedded Ray has one node.
    """

    gpus_of_a_rank: int = 0
    actor: Place = field(default_factory=Place)
    ranks: PlacementGroup | None = None

    def of_rank(self, rank: int) -> dict[str, Any]:
        """Options of a learner rank's process."""
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": self.gpus_of_a_rank}
        if self.ranks is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self.ranks, rank)
        return options

    def of_actor(self) -> dict[str, Any]:
        """Options of an actor's process."""
        if self.ranks is None:
            return {"num_cpus": 1}
        custom = {name: amount for name, amount in self.actor.resources.items() if name != "CPU"}
        options: dict[str, Any] = {"num_cpus": 1, "resources": custom, "scheduling_strategy": "SPREAD"}
        return options | ({"label_selector": dict(self.actor.labels)} if self.actor.labels else {})

    def has_room_for_an_actor(self) -> bool:
        """Whether one more would be given its place at once. Raises DeadlineError where the cluster is silent."""
        if self.ranks is None:
            return has_free_cpu()
        trial = _held(1, self.actor, "PACK")
        try:
            return ask(lambda: trial.wait(TRIAL_S))
        finally:
            _give_back(trial)


@contextmanager
def placed(
    config: RunConfig, clock: Clock, *, embedded: bool, stopped: Callable[[], str], tell: Callable[[str], None]
) -> Iterator[Placement]:
    """Wait for the places that the run cannot do without; those of ranks are held until the block ends.

    The places of actors are only tried: each actor takes its own, wherever there is one when it starts.

    Args:
        embedded: Ray has one node, made for this run: there is nothing to choose, and nothing to wait for.
        stopped: why the run was asked to end, "" as long as it was not.
        tell: of the wait, if there is one.

    Raises:
        OutputError: learner.device = cuda, and an embedded Ray has too few GPUs.
        PreflightError: they were not there within `placement.wait_s`, with a table of what was asked and what there is.
        NotPlacedError: the run was asked to end meanwhile.
        DeadlineError: the head of the cluster does not answer.
    """
    if embedded:
        yield Placement(gpus_of_a_rank=gpus_of_a_rank(config.learner.device, config.learner.ranks))
        return
    gpus = _gpus(config)
    asks = asks_of(config, gpus_of_a_rank=gpus)
    before = free_cpus()
    groups = [_held(each.count, each.place, each.strategy) for each in asks]
    try:
        _wait(asks, groups, Deadline(clock, config.placement.wait_s), clock, stopped=stopped, tell=tell)
        ranks, trial = groups
        _give_back(trial)
        _wait_returned(clock, before - config.learner.ranks)
        yield Placement(gpus_of_a_rank=gpus, actor=asks[1].place, ranks=ranks)
    finally:
        for group in groups:
            _give_back(group)


def _gpus(config: RunConfig) -> int:
    """Of each rank. Where it must have one, a GPU that is not there yet is waited for like any other place."""
    device = config.learner.device
    return 1 if device == "cuda" else gpus_of_a_rank(device, config.learner.ranks)


def _held(count: int, place: Place, strategy: str) -> PlacementGroup:
    bundles = [dict(place.resources) for _ in range(count)]
    labels = [dict(place.labels) for _ in range(count)] if place.labels else None
    group: PlacementGroup = placement_group(bundles, strategy=strategy, bundle_label_selector=labels)
    return group


def _wait(
    asks: Sequence[Ask],
    groups: Sequence[PlacementGroup],
    deadline: Deadline,
    clock: Clock,
    *,
    stopped: Callable[[], str],
    tell: Callable[[str], None],
) -> None:
    """Until both groups are there: asked for together, so that an autoscaler starts all their nodes at once."""
    quiet, told = Deadline(clock, TOLD_AFTER_S), False
    while not all(given := [_is_there(group) for group in groups]):
        if reason := stopped():
            raise NotPlacedError("the run was asked to end while it waited for places", got=reason)
        if deadline.expired():
            final = [replace(each, given=is_there) for each, is_there in zip(asks, given, strict=True)]
            raise refusal(final, ask(_rooms), waited_s=deadline.seconds)
        if quiet.expired() and not told:
            told = True
            wanted = "; ".join(f"{each.count} x {each.place} for {each.who}" for each in asks)
            tell(f"waiting      for places, up to {deadline.seconds:g} s: {wanted}")
        clock.sleep(POLL_S)


def _is_there(group: PlacementGroup) -> bool:
    return ask(lambda: group.wait(0))


def _give_back(group: PlacementGroup) -> None:
    try:
        ask(lambda: remove_placement_group(group))
    except DeadlineError as error:  # the cluster does so itself, once this process has gone
        logger.warning("places are not given back: %s", error)


def _wait_returned(clock: Clock, num_cpus: float) -> None:
    """Where the tried places still count as taken, actors that start are spread badly; that is all the harm."""
    wait_until(lambda: free_cpus() >= num_cpus, clock=clock, seconds=RETURN_S, poll_s=POLL_S)


def _rooms() -> list[Room]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return sorted(
        (
            Room(address=str(node["NodeManagerAddress"]), resources=node["Resources"], labels=node["Labels"])
            for node in nodes
            if node["Alive"]
        ),
        key=lambda room: room.address,
    )
