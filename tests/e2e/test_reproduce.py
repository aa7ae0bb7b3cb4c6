"""A run made again from its ledger is the run: asynchronous, over processes, with deaths on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.runs import RunRegistry
from tests.e2e.command import Started, answer, processes_of, truestep, updates_made
from tests.e2e.in_process import say

ENV = "tests.envs:truestep-tests/FaultyCartPole-v0"
TINY = ["--lanes", "4", "--rows", "16", "--set", "net.hidden=[16]", "--set", "evaluation.every=0"]
QUIET = ["--set", "evaluation.final_episodes=2", "--set", "checkpoint.every=0"]


Capture = pytest.CaptureFixture[str]


def train_here(capsys: Capture, out: Path, *arguments: str) -> dict[str, Any]:
    """In this process, and with engine inline: no time is lost on processes."""
    options = ["--out", str(out), "--run", "r", "--json", "--engine", "inline"]
    made: dict[str, Any] = json.loads(say(capsys, "train", *TINY, *QUIET, *options, *arguments).out)
    return made


def reproduced(out: Path, *arguments: str, limit_s: float = 100.0) -> dict[str, Any]:
    return answer(truestep("reproduce", "r", "--out", str(out), "--json", *arguments, limit_s=limit_s))


def losses(out: Path) -> list[str]:
    """Why actors were lost so far."""
    if not updates_made(out, "r"):
        return []
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        return [event.data["cause"] for event in registry.events("r") if event.kind == "ACTOR_LOST"]


@contextmanager
def busy_processors(count: int) -> Iterator[None]:
    """Other work on this machine meanwhile, as nice as processes of Ray: else those would get next to nothing."""
    burners = [subprocess.Popen(["nice", "-n", "15", sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--algo", "impala"),
        ("--algo", "appo", "--set", "net.core=lstm", "--set", "net.core_size=8"),
        ("--algo", "ppo", "--set", "ppo.minibatch=32"),
        ("--algo", "impala", "--learners", "2", "--set", "flow.fragments=3"),
    ],
    ids=["impala", "appo with memory", "ppo in turn", "two ranks"],
)
def test_a_run_is_made_again_bit_for_bit(capsys: Capture, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Every fragment and every update, whichever algorithm, network and number of ranks."""
    made = train_here(capsys, tmp_path, "CartPole-v1", "--steps", "2000", *arguments)
    again = json.loads(say(capsys, "reproduce", "r", "--out", str(tmp_path), "--json").out)
    assert again["verdict"] == "identical"
    assert again["identical_through"] == made["updates"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_an_asynchronous_run_with_deaths_is_made_again_three_times(tmp_path: Path) -> None:
    """Four actors, two learner ranks, one actor killed and one environment hanging on the way, at least 300 updates:
    identical each time, with the processors idle, busy and very busy."""
    hang = {"kind": "hang", "where": "step", "at": 300, "once": str(tmp_path / "hangs"), "skip": 5, "times": 1}
    kwargs = "{" + ", ".join(f"{name} = {value!r}" for name, value in hang.items()) + "}"
    arguments = [*TINY, *QUIET, "--out", str(tmp_path), "--run", "r", "--json", ENV, "--algo", "impala"]
    arguments += ["--actors", "4", "--learners", "2", "--steps", "50000", "--set", "flow.fragments=2"]
    arguments += ["--set", f"env.kwargs={kwargs}", "--set", "env.step_deadline_s=3"]
    with Started(["train", *arguments]) as run:
        run.wait_for(lambda: len(losses(tmp_path)) == 1, "the loss of the actor that hangs")
        os.kill(processes_of(run.process.pid, "ray::ActorProcess")[0], signal.SIGKILL)
        made = answer(run.finish(300.0))
    assert made["updates"] >= 300
    assert len(losses(tmp_path)) == 2
    for burners in (0, 2, 6):
        with busy_processors(burners):
            again = reproduced(tmp_path, limit_s=400.0)
        assert (again["verdict"], again["identical_through"]) == ("identical", made["updates"])


@pytest.mark.slow
def test_a_resumed_run_is_made_again_as_one(tmp_path: Path) -> None:
    """Stopped in the middle, gone on with, over processes: its ledger is that of one run."""
    arguments = ["train", *TINY, *QUIET, "--out", str(tmp_path), "--run", "r", "--json", "CartPole-v1"]
    arguments += ["--algo", "impala", "--steps", "60000"]
    with Started(arguments) as run:
        run.wait_for(lambda: updates_made(tmp_path, "r") >= 40, "40 updates")
        run.kill(signal.SIGTERM)
        assert run.finish().returncode == 75
    before = updates_made(tmp_path, "r")
    resumed = answer(truestep("resume", "r", "--out", str(tmp_path), "--json"))
    assert resumed["updates"] > before
    again = reproduced(tmp_path)
    assert (again["verdict"], again["identical_through"]) == ("identical", resumed["updates"])


def test_an_environment_of_chance_is_named(capsys: Capture, tmp_path: Path) -> None:
    """It reads the wall clock: the first fragment that differs, and who is to blame; never "identical"."""
    train_here(capsys, tmp_path, "tests.envs:truestep-tests/Clock-v0", "--steps", "600", "--algo", "impala")
    said = say(capsys, "reproduce", "r", "--out", str(tmp_path), "--json")
    again = json.loads(said.out)
    assert (said.code, again["verdict"]) == (1, "different")
    assert "environment" in again["why"]
