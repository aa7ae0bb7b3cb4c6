"""The tasks, the judgement over seeds, and that every recipe fits its environment."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks import learning
from benchmarks.learning import TASKS, Learned, Task, judge, words
from deploy.config import RunConfig, merge, parse_config, read_toml, recipe


def runs(env: str, *means: float | None) -> list[Learned]:
    """Seeds 0, 1, ... with these final means."""
    return [
        Learned(env=env, seed=seed, mean=mean, steps=100, seconds=2.0, verdict="" if mean is not None else "diverged")
        for seed, mean in enumerate(means)
    ]


def configuration(env: str) -> RunConfig:
    """What the benchmark runs."""
    task = TASKS[env]
    values = recipe("ppo", env)[1] if task.settings is None else read_toml(task.settings)
    return parse_config(merge(values, {"env": {"id": env}}))


@pytest.mark.parametrize("env", TASKS)
def test_recipes_stay_within_the_allowed_steps(env: str) -> None:
    """Each task's recipe parses and ends in time, its last update included."""
    config = configuration(env)
    assert config.steps + config.rows_per_update <= TASKS[env].within


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"])
def test_classic_tasks_have_recipes_of_their_own(env: str) -> None:
    """They do not fall back on the default."""
    assert recipe("ppo", env)[0] == f"ppo-{env}"


def test_cartpole_may_not_fail_once() -> None:
    """5 of 5."""
    assert judge("CartPole-v1", runs("CartPole-v1", 500.0, 475.0, 480.0, 500.0, 500.0))["met"]
    assert not judge("CartPole-v1", runs("CartPole-v1", 500.0, 474.9, 480.0, 500.0, 500.0))["met"]


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
    assert text.splitlines()[2].split("|")[1:-1] == [
        f" {cell} " for cell in ("Acrobot-v1 ", "-90      ", "-80.00", "failed", "100  ", "2 to 2 ", "1 of 2")
    ]


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
    monkeypatch.setitem(TASKS, "CartPole-v1", Task(at_least=475.0, within=256, settings=settings))
    learned = learning.learn("CartPole-v1", 3)
    assert learned.seed == 3 and learned.steps >= 256
    assert learned.mean is not None and 8.0 <= learned.mean <= 500.0
