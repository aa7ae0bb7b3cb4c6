"""Runs that normalise observations and rewards keep every promise of those that do not: the same bits, saved and made
again; and what they report is what environments said."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import CheckpointError, ConfigError
from deploy.compose import compose
from deploy.config import RunConfig, merge, parse_config
from deploy.evaluation import evaluate_run
from deploy.outputs import checkpoint_store, open_registry
from deploy.reproduce import reproduce
from deploy.reproduction import Verdict
from deploy.saved import read_saved
from deploy.session import resume, train
from tests.e2e.command import checkpoints, digests

ON = {"normalise_observations": True, "normalise_rewards": True, "reward_scale": 0.5, "reward_clip": 2.0}
LAG_0 = {"policy_lag": 0}
TWO_RANKS = {"learner": {"ranks": 2}}
ASYNC = {"algo": "impala", "flow": {"fragments": 2}}


def config(**changes: Any) -> RunConfig:
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "engine": "inline",
        "seed": 4,
        "steps": 600,
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 32},
        "processing": ON,
        "evaluation": {"every": 2, "episodes": 2, "final_episodes": 2, "lanes": 2},
        "checkpoint": {"every": 1, "keep_last": 50},
        "metrics": {"enabled": False},
    }
    return parse_config(merge(plain, changes))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As the command has it from the start: another number of threads is another fingerprint."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            patch.setenv(name, "1")
        yield


@pytest.fixture(scope="module", params=[LAG_0, {}, TWO_RANKS, ASYNC], ids=["lag 0", "lag 1", "two ranks", "async"])
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output directory with a finished run, `r`, that has a checkpoint of every update."""
    place = tmp_path_factory.mktemp("runs")
    assert train(config(**request.param), out=place, run="r").status == "finished"
    return place


def statistics(out: Path, run: str = "r") -> dict[str, float]:
    """Of the last update."""
    with open_registry(out) as registry:
        return registry.updates(run)[-1].statistics


def config_of(out: Path) -> RunConfig:
    """As the registry has it."""
    with open_registry(out) as registry:
        return parse_config(registry.run("r").config)


def newest(out: Path, run: str = "r") -> Any:
    """State of the learner in the newest checkpoint."""
    checkpoint = checkpoint_store(out, run).newest_good(lambda name, error: None)
    assert checkpoint is not None
    return read_saved(checkpoint)


def test_every_transition_trained_on_is_in_the_statistics_once(out: Path) -> None:
    """Their count is that of environment steps, in the record and in the checkpoint."""
    saved = newest(out)
    assert saved.learner.statistics[0] == saved.cut.env_steps == statistics(out)["normaliser_rows"] >= 600
    assert statistics(out)["normaliser_refused"] == 0.0


@pytest.mark.parametrize("update", [1, 3])
def test_going_on_from_a_checkpoint_is_exact(out: Path, tmp_path: Path, update: int) -> None:
    """Synchronous, it ends with every bit of the unbroken run, statistics too; asynchronous, where no two runs promise
    to be alike, the resumed one is one history that its ledger makes again."""
    cut = tmp_path / "cut"
    shutil.copytree(out, cut)
    for name in checkpoints(cut, "r"):
        if int(name.removeprefix("update-")) > update:
            shutil.rmtree(cut / "r" / "checkpoints" / name)
    assert resume("r", out=cut).status == "finished"
    if config_of(out).asynchronous:
        assert reproduce("r", out=cut).verdict == Verdict.IDENTICAL
    else:
        assert digests(cut, "r") == digests(out, "r")
        assert newest(cut).learner.statistics.tobytes() == newest(out).learner.statistics.tobytes()


def test_it_is_made_again_from_its_ledger_bit_for_bit(out: Path) -> None:
    """Every update and every fragment, be it asynchronous."""
    found = reproduce("r", out=out)
    assert (found.verdict, found.difference) == (Verdict.IDENTICAL, None)


def test_returns_are_reported_as_the_environment_gave_them(out: Path) -> None:
    """A step of CartPole is worth 1, whatever the learner makes of it; also where a checkpoint is evaluated."""
    evaluated = evaluate_run("r", out=out, episodes=2)
    assert evaluated["returns"] == [float(length) for length in evaluated["lengths"]]
    shown = statistics(out)["episode_return"]
    assert math.isnan(shown) or shown >= 8.0  # no episode is shorter


def test_it_changes_what_is_learnt(tmp_path: Path) -> None:
    """Each half of it does; off is off."""
    made = {}
    for name, processing in {
        "off": {"normalise_observations": False, "normalise_rewards": False, "reward_scale": 1.0, "reward_clip": 0.0},
        "observations": {"normalise_rewards": False},
        "rewards": {"normalise_observations": False},
        "both": {},
    }.items():
        train(config(processing=processing, steps=256), out=tmp_path, run=name)
        made[name] = digests(tmp_path, name)[2]
    assert len(set(made.values())) == 4


def test_a_run_begins_with_anothers_statistics_or_is_refused(tmp_path: Path) -> None:
    """Weights mean something only by the statistics that they were trained with."""
    train(config(steps=256), out=tmp_path, run="first")
    train(config(steps=256), out=tmp_path, run="second", init_from="first")
    rows = newest(tmp_path, "first").learner.statistics[0]
    assert newest(tmp_path, "second").learner.statistics[0] == rows + newest(tmp_path, "second").cut.env_steps
    assert reproduce("second", out=tmp_path).verdict == Verdict.IDENTICAL
    off = config(steps=256, processing={"normalise_observations": False})
    with pytest.raises((CheckpointError, ConfigError), match="see observations or rewards in another way"):
        outcome = train(off, out=tmp_path, run="third", init_from="first")
        assert outcome.error is not None
        raise outcome.error


def test_what_cannot_be_normalised_is_refused_before_anything_starts() -> None:
    """FrozenLake's observation is a choice."""
    frozen = config(env={"id": "FrozenLake-v1"})
    with pytest.raises(ConfigError, match=r"processing\.normalise_observations: nothing to normalise"):
        compose("r", frozen)


@pytest.mark.slow
def test_processes_compute_what_one_process_does(tmp_path: Path) -> None:
    """Engine ray with two ranks: the parameters of every update, and the statistics."""
    for engine in ("inline", "ray"):
        assert train(config(engine=engine, **TWO_RANKS), out=tmp_path, run=engine).status == "finished"
    assert digests(tmp_path, "ray") == digests(tmp_path, "inline")
    one, other = newest(tmp_path, "inline").learner, newest(tmp_path, "ray").learner
    assert one.statistics.tobytes() == other.statistics.tobytes()
