"""The tasks, the judgement over seeds, and that every recipe fits its environment."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks import learning
from benchmarks.learning import TASKS, Learned, Task, judge, values_of, words
from deploy.config import parse_config, recipe


def runs(task: str, *means: float | None) -> list[Learned]:
    """Seeds 0, 1, ... with these final means."""
    return [
        Learned(task=task, seed=seed, mean=mean, steps=100, seconds=2.0, verdict="" if mean is not None else "diverged")
        for seed, mean in enumerate(means)
    ]


@pytest.mark.parametrize("name", TASKS)
def test_recipes_stay_within_the_allowed_steps(name: str) -> None:
    """Each task's recipe parses, is of its algorithm and core, and ends in time, its last update included."""
    task = TASKS[name]
    config = parse_config(values_of(task))
    assert config.steps + config.rows_per_update <= task.within
    assert (config.algo, config.net.core) == (task.algo, task.core or "none")


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_classic_tasks_have_recipes_of_their_own(env: str) -> None:
    """They do not fall back on the default."""
    assert recipe("ppo", env)[0] == f"ppo-{env}"


def test_cartpole_may_not_fail_once() -> None:
    """5 of 5."""
    assert judge("CartPole-v1", runs("CartPole-v1", 500.0, 475.0, 480.0, 500.0, 500.0))["met"]
    assert not judge("CartPole-v1", runs("CartPole-v1", 500.0, 474.9, 480.0, 500.0, 500.0))["met"]


def test_what_cannot_be_learned_may_not_be_learned() -> None:
    """Without memory a policy that knows the cue is as wrong as one that has learned to be wrong."""
    name = "DelayedCue-v0 none"
    assert judge(name, runs(name, 0.0, 0.1, -0.1, 0.02, 0.0))["met"]
    assert not judge(name, runs(name, 0.0, 0.11, -0.1, 0.02, 0.0))["met"]
    assert not judge(name, runs(name, 0.0, 0.1, -0.11, 0.02, 0.0))["met"]


def test_acrobot_may_fail_once() -> None:
    """4 of 5; a run that broke counts as one that failed, and says why."""
    judged = judge("Acrobot-v1", runs("Acrobot-v1", -80.0, -85.0, -90.0, -70.0, None))
    assert judged["met"] and judged["failures"] == {"4": "diverged"}
    assert not judge("Acrobot-v1", runs("Acrobot-v1", -80.0, -85.0, -90.1, -70.0, None))["met"]


def test_a_run_that_took_more_steps_does_not_pass() -> None:
    """The last update counts: a run ends with the update that reaches its steps."""
    run = runs("CartPole-v1", 500.0)[0]
    assert dataclasses.replace(run, steps=500_000).passes(TASKS["CartPole-v1"])
    assert not dataclasses.replace(run, steps=500_001).passes(TASKS["CartPole-v1"])


def test_the_table_has_a_column_a_seed() -> None:
    """Failed runs are named in it."""
    text = words([judge("Acrobot-v1", runs("Acrobot-v1", -80.0, None))], [0, 1])
    cells = [cell.strip() for cell in text.splitlines()[2].split("|")[1:-1]]
    assert cells == ["Acrobot-v1", "-90", "-80.00", "failed", "100", "2 to 2", "1 of 2"]


def test_a_recipe_that_overstays_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark does not judge a policy that took more steps than promised."""
    short = dataclasses.replace(TASKS["CartPole-v1"], within=10)
    monkeypatch.setitem(TASKS, "CartPole-v1", short)
    with pytest.raises(ValueError, match="allowed: 10"):
        learning.learn("CartPole-v1", 0)


def test_one_run_from_recipe_to_mean(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """A short run ends with a mean over fresh episodes and the steps it took."""
    settings = tmp_path / "short.toml"
    settings.write_text("steps = 256\n[actors]\nnum = 1\nlanes = 4\nrows = 32\n[ppo]\nminibatch = 64\n")
    monkeypatch.setitem(TASKS, "CartPole-v1", Task(env="CartPole-v1", at_least=475.0, within=256, settings=settings))
    learned = learning.learn("CartPole-v1", 3)
    assert learned.seed == 3 and learned.steps >= 256
    assert learned.mean is not None and 8.0 <= learned.mean <= 500.0
