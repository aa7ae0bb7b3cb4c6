"""Where processes are put: what each asks of a node, how a refusal reads, and which options Ray is given."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.clock import ManualClock
from common.errors import EXIT_BAD_INPUT, EXIT_RESUMABLE, ConfigError
from deploy.config import RunConfig, parse_config
from deploy.config_sections import PlacementConfig
from deploy.placement import Place, Room, asks_of, place_for, refusal
from deploy.preflight.check import PreflightError

pytest.importorskip("ray")
from deploy import ray_placement
from deploy.ray_placement import NotPlacedError, Placement, placed

STEADY = Room(address="10.0.0.2", resources={"CPU": 3, "memory": 1e9, "node:10.0.0.2": 1}, labels={"tier": "steady"})
SPOT = Room(address="10.0.0.3", resources={"collects": 1, "GPU": 1, "CPU": 2}, labels={"ray.io/node-id": "abc"})


def config(**settings: Any) -> RunConfig:
    return parse_config({"env": {"id": "CartPole-v1"}, **settings})


@pytest.mark.parametrize(
    ("selector", "resources", "labels"),
    [
        ("", {"CPU": 1.0}, {}),
        ("collects", {"CPU": 1.0, "collects": 0.001}, {}),
        ("tier=steady", {"CPU": 1.0}, {"tier": "steady"}),
        ("ray.io/market-type=spot", {"CPU": 1.0}, {"ray.io/market-type": "spot"}),
    ],
)
def test_a_selector_is_a_label_or_a_resource(
    selector: str, resources: dict[str, float], labels: dict[str, str]
) -> None:
    """With = a label, without a thousandth of a custom resource, empty neither; a CPU always."""
    assert place_for(selector) == Place(resources=resources, labels=labels)
    assert place_for(selector, gpus=1).resources == {**resources, "GPU": 1.0}


@pytest.mark.parametrize("selector", ["CPU", "GPU", "memory", "a b", "=x", "x=", "a=b=c", "-a", "a,b"])
def test_what_is_neither_is_refused(selector: str) -> None:
    """With the key, and what is allowed."""
    with pytest.raises(ConfigError, match=r"placement\.actors"):
        PlacementConfig(actors=selector)


@pytest.mark.parametrize("wait_s", [-1.0, float("inf"), float("nan")])
def test_no_wait_is_without_end(wait_s: float) -> None:
    """Every one is finite."""
    with pytest.raises(ConfigError, match=r"placement\.wait_s"):
        PlacementConfig(wait_s=wait_s)


def test_room_is_counted_by_what_is_scarcest() -> None:
    """Three CPUs hold three; a label that is not there, none; a resource of 1 never limits what CPUs do not."""
    assert place_for("tier=steady").times_in(STEADY) == 3
    assert place_for("tier=steady").times_in(SPOT) == 0
    assert place_for("collects").times_in(SPOT) == 2
    assert place_for("", gpus=1).times_in(STEADY) == 0


@settings(deadline=None, max_examples=50)
@example(cpus=4000, tenths=7)
@given(cpus=st.integers(0, 4000), tenths=st.integers(0, 30))
def test_a_resource_of_one_holds_a_thousand(cpus: int, tenths: int) -> None:
    """Whatever the rounding of a thousandth: 0.7 / 0.001 is a little less than 700."""
    node = Room(address="n", resources={"CPU": cpus, "collects": tenths / 10}, labels={})
    assert place_for("collects").times_in(node) == min(cpus, 100 * tenths)


def test_only_the_fewest_actors_are_asked_for() -> None:
    """A pool of 2 to 8 begins in a cluster for 2, which grows when it grows."""
    wanted = config(algo="impala", actors={"num": 4, "least": 2, "most": 8}, learner={"ranks": 3})
    ranks, actors = asks_of(wanted, gpus_of_a_rank=1)
    assert (ranks.count, ranks.strategy, ranks.place.resources["GPU"]) == (3, "PACK", 1.0)
    assert (actors.count, actors.strategy) == (2, "SPREAD")
    together = config(placement={"ranks": "strict-pack"})
    assert asks_of(together, gpus_of_a_rank=0)[0].strategy == "STRICT_PACK"


def test_a_refusal_is_a_table_of_asked_and_present() -> None:
    """Every node with what it has, CPUs first whatever the order, what is only Ray's left out; exit code 2."""
    asks = asks_of(config(actors={"num": 4}, placement={"learner": "tier=steady"}), gpus_of_a_rank=0)
    error = refusal(asks, [STEADY, SPOT], waited_s=30.0)
    rows = [line.split("  ") for line in str(error).splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert error.exit_code == EXIT_BAD_INPUT
    assert cells[0] == ["the cluster had no places for this run within 30 s, and nothing was started"]
    assert "1 x CPU 1, tier=steady, PACK" in str(error) and "4 x CPU 1, SPREAD" in str(error)
    assert "room for 3, too much of it taken" in str(error)
    assert ["10.0.0.2", "node", "CPU 3, tier=steady", "ok"] in cells
    assert ["10.0.0.3", "node", "CPU 2, GPU 1, collects 1", "ok"] in cells


# ---- Ray's options ---------------------------------------------------------------------------------------------------


def test_in_an_embedded_ray_nothing_is_chosen() -> None:
    """One node: a CPU each."""
    assert Placement().of_actor() == {"num_cpus": 1}
    assert Placement(gpus_of_a_rank=1).of_rank(2) == {"num_cpus": 1, "num_gpus": 1}


class Group:
    """Stands for a placement group of Ray's."""

    def __init__(self, *, there: bool) -> None:
        self.there = there
        self.given_back = False

    def wait(self, seconds: float) -> bool:
        return self.there


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """What is asked of Ray, in order; the first is there, the second is not."""
    made: list[Group] = []

    def make(bundles: Any, **options: Any) -> Group:
        made.append(Group(there=not made))
        return made[-1]

    monkeypatch.setattr(ray_placement, "placement_group", make)
    monkeypatch.setattr(ray_placement, "remove_placement_group", lambda group: setattr(group, "given_back", True))
    monkeypatch.setattr(ray_placement, "free_cpus", lambda: 4.0)
    monkeypatch.setattr(ray_placement, "gpus_of_a_rank", lambda device, ranks: 0)
    monkeypatch.setattr(ray_placement, "_rooms", lambda: [STEADY])
    return made


def wait_for_places(groups: list[Group], *, stopped: str = "", wait_s: float = 30.0) -> tuple[ManualClock, list[str]]:
    clock, said = ManualClock(), list[str]()
    asked = config(placement={"wait_s": wait_s})
    with placed(asked, clock, embedded=False, stopped=lambda: stopped, tell=said.append) as placement:
        assert not groups[0].given_back and groups[1].given_back
        assert placement.of_actor()["scheduling_strategy"] == "SPREAD"
        assert placement.of_rank(0)["scheduling_strategy"].placement_group is groups[0]
    return clock, said


def test_ranks_keep_their_places_and_actors_only_try_theirs(
    groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was tried is given back before an actor starts; what is held, at the end."""
    monkeypatch.setattr(Group, "wait", lambda group, seconds: True)
    _, said = wait_for_places(groups)
    assert groups[0].given_back and said == []


def test_a_wait_for_places_ends_at_its_deadline(groups: list[Group]) -> None:
    """It says once what it waits for, then refuses, with what was given and what was not; nothing is held."""
    with pytest.raises(PreflightError) as caught:
        wait_for_places(groups, wait_s=5.0)
    lines = str(caught.value).splitlines()
    ranks = next(line for line in lines if "learner ranks" in line)
    actors = next(line for line in lines if "places of actors" in line)
    assert ranks.split()[-1] == "ok" and "short" in actors and "within 5 s" in lines[0]
    assert all(group.given_back for group in groups)


def test_who_is_asked_to_end_waits_no_longer(groups: list[Group]) -> None:
    """Exit code 75: whoever sent the signal may try again."""
    with pytest.raises(NotPlacedError, match="SIGTERM") as caught:
        wait_for_places(groups, stopped="SIGTERM")
    assert caught.value.exit_code == EXIT_RESUMABLE
    assert all(group.given_back for group in groups)
