"""A run says what holds it up: in its record, in its metrics, and without a bit of its training being another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.envs import SLEEPY_CARTPOLE
from common import stint
from common.metrics import Stall
from deploy.attribution import attribution
from deploy.attribution.attribution import VERDICT
from deploy.attribution.snapshot import Snapshot
from deploy.attribution.verdict import Finding
from deploy.config import RunConfig, parse_config
from deploy.driver import StopFlag
from deploy.outputs import open_registry
from deploy.session import train

FEW = 12  # judgements


def configuration(*, step_s: float, steps: int) -> RunConfig:
    """PPO on environments that sleep, in one process: it collects for most of its time."""
    values: dict[str, Any] = {
        "algo": "ppo",
        "engine": "inline",
        "steps": steps,
        "env": {"id": SLEEPY_CARTPOLE, "kwargs": {"step_s": step_s}},
        "actors": {"num": 2, "lanes": 2, "rows": 16},
        "ppo": {"minibatch": 32, "epochs": 1},
        "evaluation": {"every": 0, "final_episodes": 1},
    }
    return parse_config(values)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several judgements a second instead of one, on a kernel that does not tell of queues for its cores: how busy this
    machine is does not matter."""
    for name, seconds in {"SNAPSHOT_EVERY_S": 0.05, "LEAST_WINDOW_S": 0.5, "WINDOW_S": 1.0}.items():
        monkeypatch.setattr(attribution, name, seconds)
    monkeypatch.setattr("deploy.watch.TICK_EVERY_S", 0.05)
    monkeypatch.setattr(stint, "SCHEDULER", stint.SCHEDULER / "missing")


def test_a_run_that_mostly_collects_is_found_out(tmp_path: Path, quick: None) -> None:
    """The change of the verdict is in the record, with its figures; whoever looks on has seen it found."""
    stop = StopFlag()
    seen: list[Stall] = []

    def look(window: Sequence[Snapshot], found: Finding) -> None:
        seen.append(found.verdict)
        if len(seen) == FEW:
            stop.ask("seen enough")

    outcome = train(configuration(step_s=0.004, steps=10_000_000), out=tmp_path, stop=stop, onlooker=look)
    with open_registry(tmp_path, create=False) as registry:
        (event,) = [each for each in registry.events(outcome.run) if each.kind == VERDICT]
    assert outcome.status == "interrupted"
    assert (event.data["verdict"], event.data["before"]) == ("actor_bound", "healthy")
    assert event.data["words"].startswith("actor-bound: the learner had nothing to do ")
    assert event.data["figures"]["flow"]["starved"] > 0.5
    assert seen[-1] is Stall.ACTOR_BOUND


@pytest.mark.slow
def test_judging_changes_no_bit(tmp_path: Path, quick: None) -> None:
    """A run that is judged all the time and one that is too short for it end with the same parameters."""
    digests = []
    for name, step_s in (("judged", 0.001), ("unjudged", 0.0)):
        train(configuration(step_s=step_s, steps=512), out=tmp_path, run=name)
        with open_registry(tmp_path, create=False) as registry:
            digests.append(registry.updates(name)[-1].parameter_digest)
    assert digests[0] == digests[1] != ""
