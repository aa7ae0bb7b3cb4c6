"""Probes of a run in one process, whose learner stops making updates and goes on again (C54)."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from common.probes import Probe
from deploy.config import RunConfig, parse_config
from deploy.session import resume, train
from learner.rank import LearnerRank
from tests.e2e.in_process import beside, wait_for_updates
from tests.pod.polling import Kubelet

STALL_S = 1.0
HELD_S = 60.0


def config(**changes: Any) -> RunConfig:
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "engine": "inline",
        "steps": 10**9,
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 32},
        "evaluation": {"every": 0, "final_episodes": 1, "lanes": 1, "max_ticks": 10},
        "metrics": {"stall_s": STALL_S},
    }
    return parse_config(plain | changes)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Event:
    """The learner waits before an update while this is not set."""
    gate, update = Event(), LearnerRank.update
    gate.set()

    def held(self: LearnerRank, *arguments: Any, **named: Any) -> Any:
        assert gate.wait(HELD_S), "nobody opened the gate"
        return update(self, *arguments, **named)

    monkeypatch.setattr(LearnerRank, "update", held)
    return gate


def test_a_run_that_makes_no_progress_is_not_alive_until_it_goes_on(gate: Event, tmp_path: Path) -> None:
    """And says since when and what it waits for. It has begun and was ready all the same; then it checkpoints, and the
    next driver of the run is asked at its own address."""
    kubelet = Kubelet(tmp_path)

    def script() -> None:
        kubelet.wait_for(Probe.READY, 200)
        gate.clear()
        try:
            stuck = kubelet.wait_for(Probe.LIVE, 503)
            assert stuck.why.startswith("no progress for ") and f"({STALL_S:g} s are allowed)" in stuck.why
            assert "waiting for " in stuck.why and "update" in stuck.why
            assert kubelet.ask(Probe.HEALTH).status == 503
            assert kubelet.ask(Probe.STARTUP).status == kubelet.ask(Probe.READY).status == 200
        finally:
            gate.set()
        kubelet.wait_for(Probe.LIVE, 200)

    outcome = beside(lambda stop: train(config(), out=tmp_path, run="r", stop=stop), script)
    assert outcome.exit_code == 75, outcome.verdict
    assert not kubelet.serves()

    def again() -> None:
        assert " s ago" in kubelet.wait_for(Probe.LIVE, 200).why
        wait_for_updates(tmp_path, 2)

    assert beside(lambda stop: resume("r", out=tmp_path, stop=stop), again).exit_code == 75


def test_a_run_is_not_ready_before_its_weights_are_out(gate: Event, tmp_path: Path) -> None:
    """The record is there, so it has begun; its learner is not there yet."""
    kubelet, start = Kubelet(tmp_path), Event()
    begin = LearnerRank.__init__

    def late(self: LearnerRank, *arguments: Any, **named: Any) -> None:
        assert start.wait(HELD_S), "nobody let it start"
        begin(self, *arguments, **named)

    def script() -> None:
        try:
            kubelet.wait_for(Probe.STARTUP, 200)
            waiting = kubelet.ask(Probe.READY)
            assert waiting.status == 503 and waiting.why.startswith("waiting for the learner's weights")
        finally:
            start.set()
        kubelet.wait_for(Probe.READY, 200)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LearnerRank, "__init__", late)
        assert beside(lambda stop: train(config(), out=tmp_path, run="r", stop=stop), script).exit_code == 75
