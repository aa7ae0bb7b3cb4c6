"""kill -9 of every process of a run at once, at moments nobody chose, again and again: the run goes on each time."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from common.clock import MonotonicClock, wait_until
from common.runs import RunRegistry
from deploy.outputs import checkpoint_store
from tests.e2e.command import LIMIT_S, Started, alive, answer, digests, processes_of, truestep

pytest.importorskip("ray")
KILLS = 20
LONGEST_S = 16.0  # from the start of a command to the kill: some hit its start-up, some the training


def kill_everything(started: Started) -> None:
    """SIGKILL to the driver and all that descends from it, children first, so that none is told of the others."""
    driver = started.process.pid
    for pid in [*processes_of(driver, ""), driver]:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    started.finish()


def newest_version(out: Path) -> int:
    """Last version that the registry holds; 0 before there is a run."""
    if not (out / "runs.sqlite").is_file():
        return 0
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        runs = registry.runs()
        return runs[0].version if runs else 0


def damaged(out: Path) -> list[str]:
    """Checkpoints that are there and no good."""
    found: list[str] = []
    checkpoint_store(out, "r").newest_good(lambda name, error: found.append(name))
    return found


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_run_of_two_ranks_that_is_killed_twenty_times_still_solves_cartpole(tmp_path: Path) -> None:
    """Every resume finds a good checkpoint, versions never run backwards, and the last policy holds the pole up."""
    moments = random.Random(20)
    words = ["train", "CartPole-v1", "--learners", "2", "--run", "r", "--resume", "auto", "--out", str(tmp_path)]
    words += [
        "--steps",
        "1500000",
        "--set",
        "checkpoint.every=4",
        "--set",
        "evaluation.every=0",
        "--set",
        "evaluation.final_episodes=100",
    ]
    version = 0
    for _ in range(KILLS):
        with Started(words) as started:
            over = wait_until(
                lambda: started.process.poll() is not None,
                clock=MonotonicClock(),
                seconds=moments.uniform(0.5, LONGEST_S),
            )
            assert not over, started.finish().stderr
            kill_everything(started)
        assert newest_version(tmp_path) >= version
        version = newest_version(tmp_path)
        assert damaged(tmp_path) == []
    with Started([*words, "--json"]) as last:
        report = answer(last.finish(10 * LIMIT_S))
    assert report["status"] == "finished"
    assert report["evaluation"]["mean"] >= 475.0
    with RunRegistry.open(tmp_path / "runs.sqlite", read_only=True) as registry:
        versions = [row.version for row in registry.updates("r")]
    assert versions == sorted(set(versions))
    assert sorted(digests(tmp_path, "r")) == list(range(1, report["updates"] + 1))
    shown = truestep("evaluate", "r", "--out", str(tmp_path), "--json")
    assert answer(shown)["mean"] >= 475.0
