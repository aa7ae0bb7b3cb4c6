"""Actors and their places in a cluster: who waits for one, who is lost, and what a lost node takes with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from actors.worker import ActorConfig
from common.clock import ManualClock
from common.ports import PortRange
from common.process_identity import ProcessIdentity
from deploy.compose import compose
from deploy.conductor.messages import (
    ActorCommand,
    ActorLost,
    Collect,
    Event,
    FragmentMade,
    LearnerSnapshot,
    LearnerStarted,
    Publish,
    RankLost,
    RankUpdated,
    Share,
    SnapshotLearner,
    StartActor,
    Update,
)
from deploy.config import parse_config

ray = pytest.importorskip("ray")

from deploy import ray_placement  # noqa: E402 - imports ray
from deploy.ray_actors import GET_A_PROCESS, RayActors  # noqa: E402 - imports ray
from deploy.ray_calls import Calls, Failure, Process, Processes  # noqa: E402 - imports ray
from deploy.ray_endings import Endings  # noqa: E402 - imports ray
from deploy.ray_placement import Placement  # noqa: E402 - imports ray
from deploy.ray_processes import Presence, ProcessSetup  # noqa: E402 - imports ray
from deploy.ray_ranks import RayRanks  # noqa: E402 - imports ray
from tests.deploy.test_ray_calls import FakeRay  # noqa: E402 - imports ray

START_S = 20.0


class Method:
    """Stands for a method of Ray's that returns two things: references named after it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def options(self, *, num_returns: int) -> Method:
        assert num_returns == 2
        return self

    def remote(self, *arguments: Any) -> tuple[str, str]:
        return f"{self._name}: load", f"{self._name}: answer"


class Handle:
    """Stands for Ray's."""

    def __getattr__(self, name: str) -> Method:
        return Method(name)


class Scene:
    """One actor and one rank of a run, over calls whose answers a test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.clock = ManualClock()
        self.fake = FakeRay(self.clock)
        self.ended: list[Any] = []
        monkeypatch.setattr("deploy.ray_calls.ray", self.fake)
        monkeypatch.setattr(Endings, "end", lambda _, handle, identity: self.ended.append(handle))
        plain = {"env": {"id": "CartPole-v1"}, "deadlines": {"start_s": START_S}}
        self.calls = Calls(self.clock)
        self.roles = {role: Processes(self.calls, Endings(self.clock)) for role in ("actor", "learner")}
        setup = ProcessSetup(
            driver=ProcessIdentity.current(),
            sources={},
            python_path=(),
            metrics_host="",
            metrics_ports=PortRange.parse("0"),
        )
        composition = compose("r", parse_config(plain))
        self.actors = RayActors(composition, setup, self.roles["actor"], Placement(), last_words=tmp_path)
        self.ranks = RayRanks(composition, setup, self.roles["learner"], Placement())

    def process(self, role: Literal["actor", "learner"] = "actor", host: str | None = None) -> Process:
        """The process with index 0; `host` is where it lives, None while it has not started."""
        process = Process(role=role, index=0, lease="lease", who=f"{role} 0", handle=Handle())
        if host is not None:
            identity = dataclasses.replace(ProcessIdentity.current(), host=host)
            process.presence = Presence(identity=identity, metrics_host="", metrics_port=0)
        self.roles[role].add(process)
        return process

    def tell(self, command: Any) -> None:
        """As the engine does it."""
        (self.actors if isinstance(command, ActorCommand) else self.ranks).carry_out(command)

    def next_event(self, timeout_s: float) -> Event | None:
        """As the engine makes it."""
        outcome = self.calls.next_outcome(timeout_s)
        if not isinstance(outcome, Failure):
            return outcome
        return (self.actors if outcome.call.process.role == "actor" else self.ranks).failed(outcome)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scene:
    return Scene(monkeypatch, tmp_path)


def test_for_want_of_a_place_nobody_is_lost(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand deadlines without a free CPU cost nothing; with one it is the process that does not come."""
    process = scene.process()
    scene.calls.expect(process, "place", GET_A_PROCESS, START_S, lambda _: None)
    monkeypatch.setattr(ray_placement, "has_free_cpu", lambda: False)
    for _ in range(1000):
        assert scene.next_event(START_S) is None
    assert not scene.ended
    monkeypatch.setattr(ray_placement, "has_free_cpu", lambda: True)
    lost = scene.next_event(START_S)
    assert isinstance(lost, ActorLost) and scene.ended == [process.handle]
    assert lost.cause == "actor 0 did not get a process from Ray within 20 s"


def test_the_time_to_start_runs_from_when_there_is_a_place(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour without a place, and then all of its 20 s; they are not given twice, whatever CPUs there are."""
    process = scene.process()
    scene.calls.expect(process, "place", GET_A_PROCESS, START_S, lambda _: None)
    scene.calls.expect(process, "start", "start", START_S, lambda _: None)
    monkeypatch.setattr(ray_placement, "has_free_cpu", lambda: False)
    for _ in range(180):
        assert scene.next_event(START_S) is None
    scene.fake.answers["place"] = True
    assert scene.next_event(1.0) is None
    assert scene.next_event(START_S - 1.0) is None
    lost = scene.next_event(1.0)
    assert isinstance(lost, ActorLost) and lost.cause == "actor 0 did not start within 20 s"


def test_whose_node_dies_before_it_is_there_has_lost_nothing(scene: Scene) -> None:
    """Another process is asked for, of the same life and from the same state; what dies otherwise is lost."""
    made: list[ActorConfig] = []
    starts: list[Any] = []

    def make(setup: Any, config: ActorConfig, evaluation: Any) -> Any:
        life = len(made)
        made.append(config)
        start = SimpleNamespace(remote=lambda snapshot: starts.append(snapshot) or f"start {life}")
        return SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: f"place {life}"), start=start)

    scene.actors._class = SimpleNamespace(options=lambda num_cpus: SimpleNamespace(remote=make))
    scene.tell(StartActor(actor=0, incarnation=5, snapshot=b"state"))
    error = ray.exceptions.ActorDiedError()
    error.error_msg = "The actor died because its node has died."
    scene.fake.answers["place 0"] = error
    assert scene.next_event(1.0) is None and len(scene.ended) == 1
    assert [config.incarnation for config in made] == [5, 5] and made[0].lease != made[1].lease
    assert starts == [b"state", b"state"]
    scene.fake.answers["place 1"] = ray.exceptions.ActorDiedError()
    lost = scene.next_event(1.0)
    assert isinstance(lost, ActorLost) and lost.lease == made[1].lease and len(made) == 2


COLLECT = Collect(actor=0, update=7, term=0, version=None, weights=None)
UPDATE = Update(update=7, attempt=0, term=0, version=8, keys=(), shares=(Share(rank=0, frames=()),))
LOADS: dict[str, tuple[Any, str, Any, type]] = {
    "a frame": (COLLECT, "collect", "summary", FragmentMade),
    "weights of an update": (UPDATE, "update", ("report", True), RankUpdated),
    "weights of a start": (
        Publish(rank=0, version=1, term=0),
        "publish",
        SimpleNamespace(updates=0, parameter_digest=""),
        LearnerStarted,
    ),
    "a learner's state": (SnapshotLearner(update=7), "state", 7, LearnerSnapshot),
}


@pytest.mark.parametrize("load", LOADS)
def test_a_load_from_another_host_is_there_once_it_is_here(scene: Scene, load: str) -> None:
    """What the conductor counts on no node can take with it but the driver's own; on one host nobody waits for it."""
    command, method, answer, event = LOADS[load]
    role: Literal["actor", "learner"] = "actor" if command is COLLECT else "learner"
    for host in ("far", ProcessIdentity.current().host):
        scene.process(role, host)
        scene.tell(command)
        scene.fake.answers[f"{method}: answer"] = answer
        if host == "far":
            assert scene.next_event(1.0) is None
            scene.fake.answers[f"{method}: load"] = b"document"
        assert type(scene.next_event(1.0)) is event
        scene.fake.answers.clear()


@pytest.mark.parametrize("load", LOADS)
def test_a_load_that_was_lost_on_its_way_is_the_loss_of_its_process(scene: Scene, load: str) -> None:
    """Its node is gone with it: nothing was made, and nobody is told of what cannot be had."""
    command, method, answer, _ = LOADS[load]
    process = scene.process("actor" if command is COLLECT else "learner", "far")
    scene.tell(command)
    scene.fake.answers[f"{method}: answer"] = answer
    scene.fake.answers[f"{method}: load"] = ray.exceptions.ObjectLostError("00" * 28, None, "")
    lost = scene.next_event(1.0)
    assert isinstance(lost, ActorLost | RankLost) and scene.ended == [process.handle]
    assert lost.cause.startswith(f"{process.who}: ObjectLostError while it should ")


def test_a_forgotten_load_is_nobody_s(scene: Scene) -> None:
    """A process that was ended while its frame was on its way is not lost again when that arrives."""
    process = scene.process("actor", "far")
    scene.tell(COLLECT)
    scene.roles["actor"].end(process)
    scene.fake.answers |= {"collect: answer": "summary", "collect: load": b"document"}
    assert scene.next_event(1.0) is None
