"""A run that was killed goes on from its newest good checkpoint and ends with the bits of the unbroken one."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from common.runs import RunRegistry
from deploy.config import RunConfig, parse_config
from deploy.session import resume, train
from tests.e2e.command import QUIET, SMALL, Started, answer, checkpoints, digests, truestep

UPDATES = 10


def recorded(out: Path, run: str) -> int:
    """Updates in the registry."""
    return max(digests(out, run), default=0)


def config(policy_lag: int, ranks: int = 1, **changes: Any) -> RunConfig:
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "engine": "inline",
        "seed": 5,
        "steps": 2 * 4 * 16 * UPDATES,
        "policy_lag": policy_lag,
        "learner": {"ranks": ranks},
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "net": {"hidden": [16]},
        "optimiser": {"schedule": {"kind": "linear", "final": 0.1}},
        "ppo": {"minibatch": 32},
        "evaluation": {"every": 3, "episodes": 2, "final_episodes": 2, "lanes": 2},
        "checkpoint": {"every": 1, "keep_last": 50},
        "metrics": {"enabled": False},
    }
    return parse_config(plain | changes)


@pytest.fixture(scope="module", params=[(0, 1), (1, 1), (1, 2)], ids=["lag 0", "lag 1", "lag 1, two ranks"])
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """A finished run with a checkpoint after every update, and its digests."""
    out = tmp_path_factory.mktemp("unbroken")
    outcome = train(config(*request.param), out=out, run="r")
    assert outcome.status == "finished"
    made = digests(out, "r")
    assert sorted(made) == list(range(1, max(made) + 1)) and max(made) >= UPDATES
    return out, made


@pytest.mark.parametrize("update", range(1, UPDATES + 1))
def test_going_on_from_any_checkpoint_gives_the_unbroken_run(
    unbroken: tuple[Path, dict[int, str]], tmp_path: Path, update: int
) -> None:
    """From the checkpoint after each of 10 updates: every later digest is that of the run that was never stopped."""
    out, made = unbroken
    cut = tmp_path / "cut"
    shutil.copytree(out, cut)
    for name in checkpoints(cut, "r"):
        if int(name.removeprefix("update-")) > update:
            shutil.rmtree(cut / "r" / "checkpoints" / name)
    outcome = resume("r", out=cut)
    assert outcome.status == "finished", outcome.verdict
    assert digests(cut, "r") == made


def test_accounts_hold_at_every_update_and_over_a_resume(unbroken: tuple[Path, dict[int, str]], tmp_path: Path) -> None:
    """produced = trained + dropped + in flight in every row of the record, before and after a resume."""
    out, _ = unbroken
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        rows = registry.updates("r")
    for row in rows:
        assert row.produced == row.trained + sum(row.dropped.values()) + row.in_flight
    assert rows[-1].trained == rows[-1].env_steps


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(
    unbroken: tuple[Path, dict[int, str]], tmp_path: Path
) -> None:
    """One flipped byte in the newest: the event names it, and the run still ends with the unbroken digests."""
    out, made = unbroken
    cut = tmp_path / "cut"
    shutil.copytree(out, cut)
    newest = checkpoints(cut, "r")[-1]
    file = cut / "r" / "checkpoints" / newest / "tensors.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    assert resume("r", out=cut).status == "finished"
    with RunRegistry.open(cut / "runs.sqlite", read_only=True) as registry:
        skipped = [event.data["name"] for event in registry.events("r") if event.kind == "CHECKPOINT_SKIPPED"]
    assert skipped == [newest]
    assert digests(cut, "r") == made


def test_an_environment_that_cannot_be_restored_starts_new_episodes_under_a_new_incarnation(tmp_path: Path) -> None:
    """Not restorable: the resumed run says so, counts on, and finishes."""
    env = {"id": "tests.envs:truestep-tests/StatefulObject-v0"}
    evaluation = {"every": 0, "final_episodes": 2, "lanes": 2, "max_ticks": 50}
    assert train(config(1, env=env, evaluation=evaluation), out=tmp_path, run="r").status == "finished"
    for name in checkpoints(tmp_path, "r")[5:]:
        shutil.rmtree(tmp_path / "r" / "checkpoints" / name)
    assert resume("r", out=tmp_path).status == "finished"
    with RunRegistry.open(tmp_path / "runs.sqlite", read_only=True) as registry:
        events = registry.events("r")
        rows = registry.updates("r")
    assert {event.data["new"] for event in events if event.kind == "ACTOR_NOT_RESTORED"} == {1}
    assert all(row.produced == row.trained + sum(row.dropped.values()) + row.in_flight for row in rows)


@pytest.mark.parametrize(
    ("engine", "policy_lag"),
    [
        pytest.param("inline", 0, marks=pytest.mark.slow),
        ("inline", 1),
        pytest.param("ray", 0, marks=pytest.mark.slow),
        ("ray", 1),
    ],
)
def test_kill_9_of_the_driver_then_resume(tmp_path: Path, engine: str, policy_lag: int) -> None:
    """Through the real command: killed between checkpoints, resumed, and bit for bit the inline run."""
    words = ["--seed", "5", "--policy-lag", str(policy_lag), "--out", str(tmp_path), *SMALL, *QUIET]
    words += ["--steps", "60000", "--set", "checkpoint.every=4", "--set", "checkpoint.keep_last=2"]
    words += ["--set", "optimiser.schedule.kind=constant"]  # or the rates would depend on --steps
    with Started(["train", "CartPole-v1", "--engine", engine, "--run", "r", *words]) as started:
        started.wait_for(lambda: len(checkpoints(tmp_path, "r")) >= 2, "two checkpoints")
        started.kill(signal.SIGKILL)
        started.finish()
    before = recorded(tmp_path, "r")
    with Started(["resume", "r", "--out", str(tmp_path), "--json"]) as resumed:
        resumed.wait_for(lambda: recorded(tmp_path, "r") > before + 8, "progress after the resume")
        resumed.kill(signal.SIGTERM)
        completed = resumed.finish()
    assert completed.returncode == 75 and answer(completed)["status"] == "interrupted"
    steps = str(recorded(tmp_path, "r") * 128)
    whole = truestep("train", "CartPole-v1", "--engine", "inline", "--run", "whole", *words, "--steps", steps)
    assert whole.returncode == 0, whole.stderr
    unbroken, mine = digests(tmp_path, "whole"), digests(tmp_path, "r")
    both = sorted(set(unbroken) & set(mine))
    assert len(both) > before + 8
    assert all(unbroken[update] == mine[update] for update in both)
