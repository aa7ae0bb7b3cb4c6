"""A run on two hosts, one of which is cut off, comes back, and dies: what is lost, how soon it is known, what is kept.

Run by `make test-net`, which prints the times.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.clock import NS_PER_S
from tests.net.accounts import check_accounts
from tests.net.cluster import CLOCK, PORT, TRUESTEP, Driven, answer, kill_raylet, start_ray, surroundings
from tests.net.hosts import Network, missing
from tests.net.paced import ENV

WANTED = "TRUESTEP_TEST_NET"
pytestmark = [
    pytest.mark.net,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(WANTED not in os.environ, reason="makes network namespaces: run by make test-net"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

RUN = "r"
ACTORS = "ray::ActorProcess"
CUT_S = 20.0
NOTICE_S = 45.0  # Ray's own settings take more than a minute
LIMIT_S = 240.0  # for whatever the machine has to do
SETTINGS = {
    "placement.learner": "learns",  # on the head, which stays
    "env.kwargs.width": 2048,  # a fragment of 557 kB: it lies where it was made until somebody fetches it
    "flow.fragments": 4,  # some always wait for their update
    "net.hidden": "[16]",
    "checkpoint.every": 10,
    "evaluation.every": 0,
    "evaluation.final_episodes": 2,
    "actors.max_restarts": 4,  # what is lost here, and one start on a node that is about to die
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Two hosts with a cluster, and a run on it: room for the learner and three of four actors on the head."""

    network: Network
    env: dict[str, str]
    run: Driven
    out: Path
    pace: Path

    def join(self) -> None:
        """The worker host becomes a node of the cluster."""
        start_ray(self.network["worker"], self.env, cpus=2, head=self.network["head"])

    def away(self) -> list[int]:
        """Actors' processes on the worker host."""
        return self.network["worker"].processes(ACTORS)

    def raylets(self) -> list[int]:
        """The process of Ray that makes the worker host a node."""
        return self.network["worker"].processes("/raylet/raylet ")

    def lost(self) -> list[int]:
        """Which actor each loss in the record was of."""
        return [event["actor"] for event in self.run.events("ACTOR_LOST")]

    def until_updates(self, more: int) -> None:
        """Training goes on."""
        goal = self.run.updates() + more
        self.run.until(lambda: self.run.updates() >= goal, f"{more} more updates", LIMIT_S)

    def until_lost(self, number: int) -> None:
        """As many losses are in the record."""
        self.run.until(lambda: len(self.lost()) >= number, f"{number} actors noticed as lost", NOTICE_S)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    pace, out = tmp_path / "pace", tmp_path / "runs"
    pace.touch()
    env = surroundings(pace)
    arguments = ["train", ENV, "--algo", "impala", "--actors", "4", "--lanes", "4", "--rows", "16"]
    arguments += ["--steps", "40000", "--run", RUN, "--out", str(out)]
    for key, value in SETTINGS.items():
        arguments += ["--set", f"{key}={value}"]
    with Network("head", "worker") as network:
        head, worker = network["head"], network["worker"]
        start_ray(head, env, cpus=4)
        start_ray(worker, env, cpus=2, head=head)
        address = {"RAY_ADDRESS": f"{head.address}:{PORT}"}
        run = Driven(head, env | address, [*TRUESTEP, *arguments], out=out, run=RUN, log=tmp_path / "log")
        yield Stage(network=network, env=env, run=run, out=out, pace=pace)
    run.kill()


def since(begun_ns: int) -> float:
    """Seconds on the monotonic clock."""
    return (CLOCK.now_ns() - begun_ns) / NS_PER_S


def tell(what: str, begun_ns: int) -> None:
    """A measured time, for whoever ran this."""
    print(f"{what:<60} {since(begun_ns):6.1f} s")


def test_a_host_is_cut_off_and_comes_back_and_its_node_dies(stage: Stage) -> None:
    """Neither ends the run, stops the others, or loses a fragment uncounted; it is made again on one host."""
    print()
    stage.run.until(lambda: stage.run.updates() >= 2 and len(stage.away()) == 2, "actors on both hosts", LIMIT_S)
    cut_off(stage)
    come_back(stage)
    blink(stage)
    node_dies(stage)
    stage.pace.unlink()
    assert stage.run.wait(LIMIT_S) == 0, stage.run.said()
    check_accounts(stage.out, RUN)
    found = answer("reproduce", RUN, "--engine", "inline", "--out", str(stage.out), limit_s=LIMIT_S)
    assert (found["verdict"], found["why"]) == ("identical", ""), found
    print(f"made again on one host: identical through update {found['identical_through']}")


def cut_off(stage: Stage) -> None:
    """20 s: both actors there are lost, one finds a place on the head, the other waits, training goes on."""
    old = stage.away()
    begun_ns = CLOCK.now_ns()
    stage.network.cut("worker")
    stage.until_lost(2)
    tell("link cut: both actors of the host known to be lost after", begun_ns)
    assert len(set(stage.lost())) == 2
    stage.until_updates(1)
    tell("link cut: next update after", begun_ns)
    stage.run.until(lambda: not set(old) & set(stage.away()), "the host that was cut off ends its actors", LIMIT_S)
    tell("link cut: the host has ended its actors after", begun_ns)
    stage.run.until(lambda: {(actor, 1) for actor in stage.lost()} & stage.run.lives(), "one replaced", LIMIT_S)
    tell("link cut: first update with a fragment of a replacement after", begun_ns)
    stage.run.until(lambda: since(begun_ns) >= CUT_S, "the cut", LIMIT_S)
    stage.network.mend("worker")
    assert len(stage.lost()) == 2, stage.run.said()


def come_back(stage: Stage) -> None:
    """`ray start` again: the actor that waited has its place, and both are in updates again, as other lives."""
    begun_ns = CLOCK.now_ns()
    stage.join()
    tell("ray start: returned after", begun_ns)
    stage.run.until(lambda: {(actor, 1) for actor in stage.lost()} <= stage.run.lives(), "both replaced", LIMIT_S)
    tell("ray start: first update with a fragment of the host after", begun_ns)
    assert len(stage.lost()) == 2 and len(stage.away()) == 1, stage.run.said()


def blink(stage: Stage) -> None:
    """Cut off until its actor is given up and no longer: the old life is still there, and is refused and ended."""
    old, losses, begun_ns = set(stage.away()), len(stage.lost()), CLOCK.now_ns()
    stage.network.cut("worker")
    stage.until_lost(losses + 1)
    tell("short cut: the actor of the host known to be lost after", begun_ns)
    alive = old & set(stage.away())
    stage.network.mend("worker")
    tell(f"short cut: mended, with {len(alive)} of {len(old)} old lives still there, after", begun_ns)
    stage.run.until(lambda: not old & set(stage.away()), "the old life to be ended", LIMIT_S)
    tell("short cut: the old life has ended after", begun_ns)
    actor = stage.lost()[-1]
    replaced = lambda: any(each == actor and life > 1 for each, life in stage.run.lives())
    stage.run.until(lambda: replaced() or not stage.raylets(), "a place, or none", LIMIT_S)
    if not replaced():
        stage.join()  # the node had been given up too
    stage.run.until(replaced, "replaced again", LIMIT_S)
    tell("short cut: first update with a fragment of the next life after", begun_ns)
    assert set(stage.lost()[losses:]) == {actor}, stage.run.said()
    print(f"fragments refused so far: {[event['reason'] for event in stage.run.events('FRAGMENT_REFUSED')]}")


def node_dies(stage: Stage) -> None:
    """Its actor is lost and finds no place; nobody else is."""
    losses, begun_ns = len(stage.lost()), CLOCK.now_ns()
    kill_raylet(stage.network["worker"])
    stage.until_lost(losses + 1)
    tell("raylet killed: the actor of the host known to be lost after", begun_ns)
    stage.until_updates(1)
    tell("raylet killed: next update after", begun_ns)
    stage.until_updates(4)
    assert len(stage.lost()) == losses + 1 and stage.lost()[-1] == stage.lost()[-2], stage.run.said()
    assert not stage.run.events("ACTOR_QUARANTINED") and not stage.run.events("RANK_LOST"), stage.run.said()
