"""SIGINT and SIGTERM end a run at a checkpoint, with exit code 75 and the command that goes on."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from common.errors import RegistryError, RunNotFoundError
from common.runs import RunRegistry
from tests.e2e.command import SMALL, Started, answer, checkpoints, digests, truestep, updates_made
from tests.e2e.in_process import say

pytest.importorskip("ray")
WORDS = [*SMALL, "--set", "evaluation.every=0", "--set", "evaluation.final_episodes=2", "--set", "checkpoint.every=20"]
ENDLESS = ["--steps", "1000000000"]


def start(out: Path, engine: str, *more: str, own_group: bool = False) -> Started:
    words = ["train", "CartPole-v1", "--engine", engine, "--run", "r", "--out", str(out), *WORDS, *ENDLESS, *more]
    return Started(words, own_group=own_group)


def announced(out: Path) -> bool:
    """Whether the run is in the registry: its processes are started next."""
    try:
        with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
            return registry.run("r").status == "running"
    except (RunNotFoundError, RegistryError):
        return False


def assert_interrupted(completed: subprocess.CompletedProcess[str], out: Path, name: str) -> None:
    """Exit code, words, status, a checkpoint of the last update; and `runs` and `show` agree."""
    assert completed.returncode == 75, completed.stderr
    assert "Traceback" not in completed.stderr + completed.stdout, completed.stderr
    assert name in completed.stdout and f"truestep resume r --out {out}" in completed.stdout
    shown = answer(truestep("show", "r", "--out", str(out), "--json"))
    assert shown["status"] == "interrupted"
    assert shown["checkpoints"][-1]["update"] == shown["updates"] == updates_made(out, "r")
    assert shown["produced"] == shown["trained"] + sum(shown["dropped"].values()) + shown["in_flight"]


def assert_goes_on_to_the_end(out: Path) -> None:
    """`train --resume auto`, as a job script would say it again: three more updates are trained, then it is over."""
    before = digests(out, "r")
    with Started(["train", "CartPole-v1", "--run", "r", "--resume", "auto", "--out", str(out), "--json"]) as resumed:
        resumed.wait_for(lambda: updates_made(out, "r") >= max(before, default=0) + 3, "three more updates")
        resumed.kill(signal.SIGTERM)
        completed = resumed.finish()
    assert completed.returncode == 75 and answer(completed)["status"] == "interrupted", completed.stderr
    after = digests(out, "r")
    assert all(after[update] == digest for update, digest in before.items())


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("inline", "SIGINT"),
        pytest.param("inline", "SIGTERM", marks=pytest.mark.slow),
        ("ray", "SIGTERM"),
        pytest.param("ray", "SIGINT", marks=pytest.mark.slow),
    ],
)
def test_a_signal_in_the_middle_ends_the_run_at_a_checkpoint(engine: str, name: str, tmp_path: Path) -> None:
    """A second and a third one, sent at once, change nothing."""
    with start(tmp_path, engine) as started:
        started.wait_for(lambda: updates_made(tmp_path, "r") > 3, "some updates")
        for _ in range(3):
            started.kill(signal.Signals[name])
        completed = started.finish()
    assert_interrupted(completed, tmp_path, name)
    if name == "SIGTERM":
        assert_goes_on_to_the_end(tmp_path)


@pytest.mark.parametrize("engine", [pytest.param("inline", marks=pytest.mark.slow), "ray"])
def test_a_signal_while_processes_start_is_not_lost(engine: str, tmp_path: Path) -> None:
    """As soon as the run exists: it ends before its first updates, and can be gone on with."""
    with start(tmp_path, engine) as started:
        started.wait_for(lambda: announced(tmp_path), "the run in the registry")
        started.kill(signal.SIGTERM)
        completed = started.finish()
    assert_interrupted(completed, tmp_path, "SIGTERM")
    if engine == "inline":
        assert_goes_on_to_the_end(tmp_path)


def test_ctrl_c_which_reaches_every_process_of_the_terminal_ends_the_run_at_a_checkpoint(tmp_path: Path) -> None:
    """SIGINT to the whole process group, as a terminal sends it: actors and learner finish what the driver asks."""
    with start(tmp_path, "ray", own_group=True) as started:
        started.wait_for(lambda: updates_made(tmp_path, "r") > 3, "some updates")
        started.kill_group(signal.SIGINT)
        completed = started.finish()
    assert_interrupted(completed, tmp_path, "SIGINT")
    with RunRegistry.open(tmp_path / "runs.sqlite", read_only=True) as registry:
        assert not [event for event in registry.events("r") if event.kind == "ACTOR_LOST"]


@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_signal_during_a_checkpoint_waits_for_it(engine: str, tmp_path: Path) -> None:
    """With one after each update there is always one under way: the last one is whole, and none is left half made."""
    with start(tmp_path, engine, "--set", "checkpoint.every=1") as started:
        started.wait_for(lambda: len(checkpoints(tmp_path, "r")) >= 2, "two checkpoints")
        started.kill(signal.SIGINT)
        completed = started.finish()
    assert_interrupted(completed, tmp_path, "SIGINT")
    left = {path.name for path in (tmp_path / "r" / "checkpoints").iterdir() if path.is_dir()}
    assert left == set(checkpoints(tmp_path, "r"))


def test_a_run_that_has_finished_says_so_and_is_not_harmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """resume, and train --resume auto, of a finished run: exit code 0, the same digests, nothing trained."""
    words = ["train", "CartPole-v1", "--engine", "inline", "--run", "r", "--out", str(tmp_path), *WORDS]
    assert say(capsys, *words, "--steps", "600").code == 0
    before = digests(tmp_path, "r")
    for again in (["resume", "r", "--out", str(tmp_path)], [*words, "--resume", "auto"]):
        said = say(capsys, *again)
        assert said.code == 0 and "finished" in said.out, said
        assert digests(tmp_path, "r") == before
    (row,) = json.loads(say(capsys, "runs", "--out", str(tmp_path), "--json").out)["runs"]
    assert (row["run"], row["status"]) == ("r", "finished")
