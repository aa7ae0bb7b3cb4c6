"""Actors and their places in a cluster: who waits for one, who is lost, and what a lost node takes with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from common.clock import ManualClock
from common.ports import PortRange
from common.process_identity import ProcessIdentity
from deploy.compose import compose
from deploy.conductor.messages import ActorLost, Collect, Event, FragmentMade
from deploy.config import parse_config

ray = pytest.importorskip("ray")

from deploy import ray_actors  # noqa: E402 - imports ray
from deploy.ray_actors import GET_A_PLACE, RayActors  # noqa: E402 - imports ray
from deploy.ray_calls import Calls, Failure, Process, Processes  # noqa: E402 - imports ray
from deploy.ray_endings import Endings  # noqa: E402 - imports ray
from deploy.ray_processes import Presence, ProcessSetup  # noqa: E402 - imports ray
from tests.deploy.test_ray_calls import FakeRay  # noqa: E402 - imports ray

START_S = 20.0
COLLECT_S = 300.0


class Handle:
    """Stands for Ray's: a collect is answered by references named after it."""

    def __init__(self) -> None:
        self.collect = self

    def options(self, *, num_returns: int) -> Handle:
        assert num_returns == 2
        return self

    def remote(self, order: Any, weights: Any) -> tuple[str, str]:
        return f"frame {order.update}", f"summary {order.update}"


class Scene:
    """One actor of a run, over calls whose answers a test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.clock = ManualClock()
        self.fake = FakeRay(self.clock)
        self.ended: list[Any] = []
        for module in ("ray_calls", "ray_actors"):
            monkeypatch.setattr(f"deploy.{module}.ray.wait", self.fake.wait)
            monkeypatch.setattr(f"deploy.{module}.ray.get", self.fake.get)
        monkeypatch.setattr(Endings, "end", lambda _, handle, identity: self.ended.append(handle))
        plain = {"env": {"id": "CartPole-v1"}, "deadlines": {"start_s": START_S, "collect_s": COLLECT_S}}
        self.calls = Calls(self.clock)
        self.processes = Processes(self.calls, Endings(self.clock))
        setup = ProcessSetup(
            driver=ProcessIdentity.current(),
            sources={},
            python_path=(),
            metrics_host="",
            metrics_ports=PortRange.parse("0"),
        )
        self.actors = RayActors(compose("r", parse_config(plain)), setup, self.processes, last_words=tmp_path)

    def process(self, host: str | None = None) -> Process:
        """A process of actor 0; `host` is where it lives, None while it has not started."""
        process = Process(role="actor", index=0, lease="lease", who="actor 0 (incarnation 0)", handle=Handle())
        if host is not None:
            identity = dataclasses.replace(ProcessIdentity.current(), host=host)
            process.presence = Presence(identity=identity, metrics_host="", metrics_port=0)
        self.processes.add(process)
        return process

    def next_event(self, timeout_s: float) -> Event | None:
        """As the engine makes it."""
        outcome = self.calls.next_outcome(timeout_s)
        return self.actors.failed(outcome) if isinstance(outcome, Failure) else outcome

    def collect(self, update: int = 0) -> None:
        self.actors.carry_out(Collect(actor=0, update=update, term=0, version=None, weights=None))


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scene:
    return Scene(monkeypatch, tmp_path)


def test_for_want_of_a_place_nobody_is_lost(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand deadlines without a free CPU cost nothing; with one it is the process that does not come."""
    process = scene.process()
    scene.calls.expect(process, "place", GET_A_PLACE, START_S, lambda _: None)
    monkeypatch.setattr(ray_actors, "has_free_cpu", lambda: False)
    for _ in range(1000):
        assert scene.next_event(START_S) is None
    assert not scene.ended
    monkeypatch.setattr(ray_actors, "has_free_cpu", lambda: True)
    lost = scene.next_event(START_S)
    assert isinstance(lost, ActorLost) and scene.ended == [process.handle]
    assert lost.cause == "actor 0 (incarnation 0) did not be given a process by Ray within 20 s"


def test_the_time_to_start_runs_from_when_there_is_a_place(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour without a place, and then all of its 20 s; they are not given twice, whatever CPUs there are."""
    process = scene.process()
    scene.calls.expect(process, "place", GET_A_PLACE, START_S, lambda _: None)
    scene.calls.expect(process, "start", "start", START_S, lambda _: None)
    monkeypatch.setattr(ray_actors, "has_free_cpu", lambda: False)
    for _ in range(180):
        assert scene.next_event(START_S) is None
    scene.fake.answers["place"] = True
    assert scene.next_event(1.0) is None
    assert scene.next_event(START_S - 1.0) is None
    lost = scene.next_event(1.0)
    assert isinstance(lost, ActorLost) and lost.cause == "actor 0 (incarnation 0) did not start within 20 s"


def test_a_fragment_of_this_host_is_made_once_its_summary_is_there(scene: Scene) -> None:
    """Its frame lies where the driver is: nobody waits for it, and nobody looks into it."""
    scene.process(ProcessIdentity.current().host)
    scene.collect()
    scene.fake.answers["summary 0"] = "summary"
    assert scene.next_event(1.0) == FragmentMade(summary="summary", frame="frame 0")  # type: ignore[arg-type]


def test_a_fragment_of_another_host_is_made_once_its_frame_is_here(scene: Scene) -> None:
    """What is counted as made no node can take with it but the driver's own."""
    scene.process("far")
    scene.collect()
    scene.fake.answers["summary 0"] = "summary"
    assert scene.next_event(1.0) is None
    scene.fake.answers["frame 0"] = b"document"
    assert scene.next_event(1.0) == FragmentMade(summary="summary", frame="frame 0")  # type: ignore[arg-type]


def test_a_frame_that_was_lost_on_its_way_was_never_made(scene: Scene) -> None:
    """Its node is gone with the actor: the loss of the one is the loss of the other, and no update waits for it."""
    process = scene.process("far")
    scene.collect()
    scene.fake.answers["summary 0"] = "summary"
    scene.fake.answers["frame 0"] = ray.exceptions.ObjectLostError("00" * 28, None, "")
    lost = scene.next_event(1.0)
    assert isinstance(lost, ActorLost) and scene.ended == [process.handle]
    assert lost.cause.startswith("actor 0 (incarnation 0): ObjectLostError while it should collect for update 0")
