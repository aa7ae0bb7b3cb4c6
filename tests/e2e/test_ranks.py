"""Several learner ranks make each update together: the same run as with one, and a lost rank costs no update."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.runs import RunRecord, RunRegistry, UpdateRecord
from deploy.config import RunConfig, parse_config
from deploy.driver import StopFlag
from deploy.outputs import checkpoint_store
from deploy.saved import read_saved
from deploy.session import Outcome, resume, train
from tests.e2e.command import alive, digests, processes_of, updates_made
from tests.e2e.in_process import (
    Said,
    beside,
    children,
    embedded_ray,
    say,
    wait_for,
    wait_for_updates,
    wait_gone,
)

pytest.importorskip("ray")
RANKS = "ray::RankProcess"
ENDLESS = 10**9


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    yield from embedded_ray(7)


def config(ranks: int, **changes: Any) -> RunConfig:
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "engine": "inline",
        "seed": 5,
        "steps": 1000,
        "actors": {"num": 2, "lanes": 8, "rows": 32},
        "learner": {"ranks": ranks, "sync": {"collective_s": 3.0, "audit_every": 2}},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 128},
        "evaluation": {"every": 0, "final_episodes": 2, "lanes": 2, "max_ticks": 20},
        "metrics": {"enabled": False},
    }
    return parse_config(plain | changes)


def finished(out: Path, run: str, ranks: int, **changes: Any) -> list[UpdateRecord]:
    """Train to the end; what the registry says of each update."""
    outcome = train(config(ranks, **changes), out=out, run=run)
    assert outcome.status == "finished", outcome.verdict
    return record(out, run)[1]


def record(out: Path, run: str = "r") -> tuple[RunRecord, list[UpdateRecord]]:
    """A run and its updates: none is missing, none is there twice, and the accounts hold in each."""
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        found, rows = registry.run(run), registry.updates(run)
    assert [row.update for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert row.produced == row.trained + sum(row.dropped.values()) + row.in_flight
    return found, rows


def events(out: Path, kind: str, run: str = "r") -> list[dict[str, Any]]:
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        return [event.data for event in registry.events(run) if event.kind == kind]


def parameters(out: Path, run: str) -> NDArray[np.float32]:
    """Of the newest checkpoint."""
    checkpoint = checkpoint_store(out, run).newest_good(lambda name, error: None)
    assert checkpoint is not None
    return read_saved(checkpoint).learner.parameters


def rank_pids() -> list[int]:
    return [pid for pid in processes_of(os.getpid(), RANKS) if alive(pid)]


def lost(out: Path) -> list[dict[str, Any]]:
    return events(out, "RANK_LOST")


def endless(out: Path, script: Any, ranks: int, **changes: Any) -> Outcome:
    """Train over Ray until `script` is over."""
    whole = config(ranks, engine="ray", steps=ENDLESS, **changes)
    return beside(lambda stop: train(whole, out=out, run="r", stop=stop), script)


def assert_as_if_nothing_had_happened(out: Path, ranks: int, **changes: Any) -> None:
    """Every update has the digests of the same update in an undisturbed run of equally many ranks, inline."""
    _, mine = record(out)
    whole = config(ranks, steps=ENDLESS, **changes)
    wait = lambda: wait_for(lambda: updates_made(out, "whole") >= len(mine))
    beside(lambda stop: train(whole, out=out, run="whole", stop=stop), wait)
    unbroken = record(out, "whole")[1][: len(mine)]
    assert [row.parameter_digest for row in mine] == [row.parameter_digest for row in unbroken]
    assert [row.chain for row in mine] == [row.chain for row in unbroken]


# ---- the same run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy_lag", [0, 1])
def test_two_and_three_ranks_train_as_one_does(policy_lag: int, tmp_path: Path) -> None:
    """As many updates and steps; parameters differ in rounding. With two actors the third rank has no rows."""
    alone = finished(tmp_path, "one", 1, policy_lag=policy_lag)
    for ranks in (2, 3):
        together = finished(tmp_path, f"r{ranks}", ranks, policy_lag=policy_lag)
        assert [row.env_steps for row in together] == [row.env_steps for row in alone]
        assert [row.dropped for row in together] == [{}] * len(alone)
        np.testing.assert_allclose(parameters(tmp_path, f"r{ranks}"), parameters(tmp_path, "one"), rtol=0, atol=1e-4)
        assert together[-1].parameter_digest != alone[-1].parameter_digest, "sums over other parts, other roundings"


def test_ranks_in_threads_and_in_processes_give_the_same_bits(cluster: None, tmp_path: Path) -> None:
    """Digest of the parameters, of the whole state and of the chain, after every update; two fragments a rank."""
    actors = {"num": 4, "lanes": 4, "rows": 32}
    inline = finished(tmp_path, "inline", 2, actors=actors)
    over_ray = finished(tmp_path, "ray", 2, actors=actors, engine="ray")
    assert len(inline) >= 2
    assert [(row.parameter_digest, row.state_digest, row.chain) for row in over_ray] == [
        (row.parameter_digest, row.state_digest, row.chain) for row in inline
    ]
    wait_gone(children)


# ---- lost ranks ----------------------------------------------------------------------------------------------------


def test_killed_ranks_are_replaced_and_no_update_is_lost(cluster: None, tmp_path: Path) -> None:
    """kill -9 of one rank, and of the other once the first is back: the bits of an undisturbed run."""

    def script() -> None:
        wait_for_updates(tmp_path, 2)
        for number, victim in enumerate(rank_pids(), start=1):
            os.kill(victim, signal.SIGKILL)
            wait_for(partial(formed, number))
            wait_for_updates(tmp_path, 2)

    def formed(times: int) -> bool:
        return len(events(tmp_path, "GROUP_FORMED")) == times

    outcome = endless(tmp_path, script, 2)
    assert outcome.status == "interrupted", outcome.verdict
    assert sorted(loss["rank"] for loss in lost(tmp_path)) == [0, 1]
    assert all("process ended" in loss["cause"] for loss in lost(tmp_path))
    assert not events(tmp_path, "TRAINING_ROLLBACK") and not events(tmp_path, "ACTOR_LOST")
    assert_as_if_nothing_had_happened(tmp_path, 2)
    wait_gone(children)


@pytest.mark.slow
def test_a_rank_that_stops_answering_is_replaced_within_the_deadlines(cluster: None, tmp_path: Path) -> None:
    """SIGSTOP: the other gives up after its collective's deadline, and the stopped process is ended all the same."""
    victims: list[int] = []

    def script() -> None:
        wait_for_updates(tmp_path, 2)
        victims.append(rank_pids()[1])
        os.kill(victims[0], signal.SIGSTOP)
        wait_for(lambda: bool(events(tmp_path, "GROUP_FORMED")))
        wait_gone(lambda: [pid for pid in victims if alive(pid)])
        wait_for_updates(tmp_path, 2)

    outcome = endless(tmp_path, script, 2)
    assert outcome.status == "interrupted", outcome.verdict
    (loss,) = lost(tmp_path)
    assert "after the others had given up on it" in loss["cause"]
    assert_as_if_nothing_had_happened(tmp_path, 2)
    wait_gone(children)


@pytest.mark.slow
def test_the_loss_of_the_only_rank_costs_updates_and_not_the_run(cluster: None, tmp_path: Path) -> None:
    """Back to the newest state that the driver holds, under a new term; actors live on."""

    def script() -> None:
        wait_for_updates(tmp_path, 2)
        os.kill(rank_pids()[0], signal.SIGKILL)
        wait_for(lambda: bool(events(tmp_path, "TRAINING_ROLLBACK")))
        wait_for_updates(tmp_path, 2)

    outcome = endless(tmp_path, script, 1, checkpoint={"every": 4})
    assert outcome.status == "interrupted", outcome.verdict
    _, rows = record(tmp_path)
    (back,) = events(tmp_path, "TRAINING_ROLLBACK")
    assert back["to_update"] % 4 == 0 and back["term"] == 1 == rows[-1].term
    assert not events(tmp_path, "ACTOR_LOST")
    wait_gone(children)


@pytest.mark.slow
def test_ranks_that_are_lost_again_and_again_end_the_run(cluster: None, tmp_path: Path) -> None:
    """More often than learner.max_restarts: exit code 1, the number and the last cause in the verdict."""

    def script() -> None:
        wait_for_updates(tmp_path, 1)
        os.kill(rank_pids()[0], signal.SIGKILL)
        wait_for(lambda: record(tmp_path)[0].status != "running")

    learner = {"ranks": 2, "max_restarts": 0, "sync": {"collective_s": 3.0}}
    outcome = endless(tmp_path, script, 2, learner=learner)
    assert outcome.status == "failed" and outcome.exit_code == 1
    assert "rank" in outcome.verdict and "process ended" in outcome.verdict, outcome.verdict
    wait_gone(children)


# ---- stops and resumes ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_to_one_rank_ends_the_run_at_one_checkpoint(cluster: None, tmp_path: Path) -> None:
    """As a scheduler that takes one machine away sends it: nothing is lost, and the run can be gone on with."""

    def script() -> None:
        wait_for_updates(tmp_path, 2)
        os.kill(rank_pids()[1], signal.SIGTERM)
        wait_for(lambda: record(tmp_path)[0].status != "running")

    outcome = endless(tmp_path, script, 2)
    assert outcome.status == "interrupted" and outcome.exit_code == 75, outcome.verdict
    assert "SIGTERM at learner rank" in outcome.verdict
    assert not lost(tmp_path) and len(events(tmp_path, "STOP_ASKED")) == 1
    made = updates_made(tmp_path, "r")
    with RunRegistry.open(tmp_path / "runs.sqlite", read_only=True) as registry:
        assert [saved.update for saved in registry.checkpoints("r")] == [made]
    go_on = beside(lambda stop: resume("r", out=tmp_path, stop=stop), lambda: wait_for_updates(tmp_path, 2))
    assert go_on.status == "interrupted", go_on.verdict
    assert_as_if_nothing_had_happened(tmp_path, 2)
    wait_gone(children)


def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    """From two to three and on with one: recorded each time, what was made before stays, no update is missing."""

    def two(stop: StopFlag) -> Outcome:
        return train(config(2, steps=ENDLESS), out=tmp_path, run="r", stop=stop)

    def on_with(ranks: int) -> Callable[[StopFlag], Outcome]:
        return lambda stop: resume("r", out=tmp_path, learners=ranks, stop=stop)

    made: dict[int, str] = {}
    for drive in (two, on_with(3), on_with(1)):
        outcome = beside(drive, lambda: wait_for_updates(tmp_path, 1))
        assert outcome.status == "interrupted", outcome.verdict
        assert len(record(tmp_path)[1]) > len(made)
        now = digests(tmp_path, "r")
        assert made.items() <= now.items()
        made = now
    assert events(tmp_path, "RANKS_CHANGED") == [{"before": 2, "now": 3}, {"before": 2, "now": 1}]


# ---- the command ---------------------------------------------------------------------------------------------------

WORDS = ["--engine", "inline", "--actors", "1", "--lanes", "4", "--rows", "16", "--set", "net.hidden=[16]"]
QUIET = ["--set", "ppo.minibatch=32", "--set", "evaluation.every=0", "--set", "evaluation.final_episodes=2"]


def test_the_command_takes_learners_and_says_which_have_no_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--learners of train, and of resume with a warning; the number of the record stays the first one."""
    where = ["--out", str(tmp_path), "--run", "r"]
    said = say(capsys, "train", "CartPole-v1", *WORDS, *QUIET, *where, "--steps", "200", "--learners", "2")
    assert said.code == 0, said
    assert "2 ranks, every gradient step verified" in said.out
    assert "WARNING: 1 learner ranks have no rows of their own" in said.out
    again = say(capsys, "resume", "r", "--out", str(tmp_path), "--learners", "1")
    assert again.code == 0 and "WARNING: 1 learner ranks instead of the 2" in again.out, again
    assert record(tmp_path)[0].config["learner"]["ranks"] == 2


@pytest.mark.parametrize("words", [["--learners", "0"], ["--learners", "2", "--set", "learner.sync.collective_s=900"]])
def test_ranks_that_cannot_be_are_refused(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything starts: none at all, and ranks that would outwait the driver."""
    said: Said = say(capsys, "train", "CartPole-v1", *WORDS, *QUIET, "--out", str(tmp_path), *words)
    assert said.code == 2 and "learner." in said.err and "Traceback" not in said.err
