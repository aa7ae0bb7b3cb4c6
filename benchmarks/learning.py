"""Does it learn? Final greedy policies over fresh episodes, per task and seed.

    python -m benchmarks.learning [--tasks TASK ...] [--seeds 0 1 2 3 4] [--jobs 2] [--learners 1] [--engine inline]

Each run is `truestep train` with the shipped recipe of its environment, by default with engine inline: bit for bit what
Ray gives, and two runs share a machine without a cluster. With several learner ranks there are at least as many actors,
so that each has rows, and fewer lanes, so that an update keeps its size. Nothing is evaluated before the end, so no
policy is picked for its score.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.envs import DELAYED_CUE, DICT_GOAL, PIXEL_CATCH
from benchmarks.report import result_line, table

HERE = Path(__file__).parent
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is trained, and what counts as learned.

    Attributes:
        env: environment.
        algo: algorithm.
        core: recurrent layer; "" for what the settings say.
        at_least, at_most: mean return of the final greedy policy over `episodes` fresh episodes.
        within: environment steps.
        allowed_to_fail: seeds that may stay outside.
        settings: TOML file for an environment that truestep ships no recipe for.
        episodes: of the final evaluation.
    """

    env: str
    algo: str = "ppo"
    core: str = ""
    at_least: float
    at_most: float = math.inf
    within: int
    allowed_to_fail: int = 0
    settings: Path | None = None
    episodes: int = 100

    @property
    def bounds(self) -> str:
        """What the mean has to be, in words."""
        return f"{self.at_least:g}" if self.at_most == math.inf else f"{self.at_least:g} to {self.at_most:g}"


def _cue(core: str, at_least: float, at_most: float = math.inf) -> Task:
    """Right in a share p of episodes, a policy returns 2p - 1 in the mean; in 2,000 of them with an error of 0.02."""
    settings, within = HERE / "envs" / "delayed_cue.toml", 450_000
    bounds = {"at_least": at_least, "at_most": at_most}
    return Task(env=DELAYED_CUE, algo="impala", core=core, within=within, settings=settings, episodes=2000, **bounds)


TASKS = {
    "CartPole-v1": Task(env="CartPole-v1", at_least=475.0, within=500_000),
    "CartPole-v1 impala": Task(env="CartPole-v1", algo="impala", at_least=475.0, within=500_000),
    "CartPole-v1 appo": Task(env="CartPole-v1", algo="appo", at_least=475.0, within=500_000),
    "Acrobot-v1": Task(env="Acrobot-v1", at_least=-90.0, within=500_000, allowed_to_fail=1),
    "Pendulum-v1": Task(env="Pendulum-v1", at_least=-250.0, within=1_000_000, allowed_to_fail=1),
    "PixelCatch-v0": Task(env=PIXEL_CATCH, at_least=0.95, within=150_000, settings=HERE / "envs" / "pixel_catch.toml"),
    "DictGoal-v0": Task(env=DICT_GOAL, at_least=0.95, within=200_000, settings=HERE / "envs" / "dict_goal.toml"),
    "DelayedCue-v0 lstm": _cue("lstm", 0.95),
    "DelayedCue-v0 gru": _cue("gru", 0.95),
    "DelayedCue-v0 none": _cue("none", -0.1, 0.1),  # within 0.05 of chance, half of the cues right
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """How one run ended.

    Attributes:
        task: its name.
        seed: of the run.
        mean: return of the final greedy policy; None if the run failed.
        steps: environment steps trained on.
        seconds: of the run on a monotonic clock, the final evaluation included.
        verdict: of the run.
    """

    task: str
    seed: int
    mean: float | None
    steps: int
    seconds: float
    verdict: str

    def passes(self, task: Task) -> bool:
        """Good enough, and within the steps."""
        good = self.mean is not None and task.at_least <= self.mean <= task.at_most
        return good and self.steps <= task.within


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How runs are carried out.

    Attributes:
        learners: learner ranks.
        engine: inline or ray.
    """

    learners: int = 1
    engine: str = "inline"

    def actors(self, recipe: dict[str, int]) -> dict[str, int]:
        """As the recipe has them, unless there are fewer than ranks: then more, with about as many lanes in all."""
        num = max(self.learners, recipe["num"])
        return {"num": num, "lanes": max(1, recipe["num"] * recipe["lanes"] // num)}


INLINE = Shape()


def values_of(task: Task) -> dict[str, Any]:
    """What is trained: the shipped recipe of the task's environment, or the task's own settings."""
    from deploy.config import merge, read_toml, recipe

    values = recipe(task.algo, task.env)[1] if task.settings is None else read_toml(task.settings)
    chosen: dict[str, Any] = {"env": {"id": task.env}, "algo": task.algo}
    return merge(values, chosen | ({"net": {"core": task.core}} if task.core else {}))


def learn(name: str, seed: int, shape: Shape = INLINE) -> Learned:
    """One run, in this process. Raises UserError for a recipe that does not fit."""
    from deploy.config import merge, parse_config
    from deploy.outputs import open_registry
    from deploy.report import run_report
    from deploy.session import train

    task = TASKS[name]
    values = values_of(task)
    fixed = {
        "seed": seed,
        "engine": shape.engine,
        "learner": {"ranks": shape.learners},
        "actors": shape.actors(values["actors"]),
        "evaluation": {"every": 0, "final_episodes": task.episodes},
        "metrics": {"enabled": False},
    }
    config = parse_config(merge(values, fixed))
    if config.steps > task.within:
        raise ValueError(f"recipe of {name} trains for {config.steps:,} steps; allowed: {task.within:,}")
    with tempfile.TemporaryDirectory() as out:
        outcome = train(config, out=out)
        with open_registry(Path(out), create=False) as registry:
            report = run_report(registry, outcome.run)
    evaluation = report["evaluation"]
    return Learned(
        task=name,
        seed=seed,
        mean=None if evaluation is None else evaluation["mean"],
        steps=report["env_steps"],
        seconds=report["wall_s"],
        verdict=outcome.verdict,
    )


def learn_all(names: Sequence[str], seeds: Sequence[int], shape: Shape, *, jobs: int) -> Iterator[Learned]:
    """Every run, `jobs` at a time in processes of their own, in the order of tasks and seeds."""
    for name in ONE_THREAD:
        os.environ.setdefault(name, "1")  # before numpy is imported there
    work = [(name, seed) for name in names for seed in seeds]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        for running in [pool.submit(learn, name, seed, shape) for name, seed in work]:
            yield running.result()


def judge(name: str, runs: Sequence[Learned]) -> dict[str, Any]:
    """One task's runs, in plain values."""
    task = TASKS[name]
    passed = sum(run.passes(task) for run in runs)
    return {
        "task": name,
        "bounds": task.bounds,
        "within": task.within,
        "means": [run.mean for run in runs],
        "steps": [run.steps for run in runs],
        "seconds": [round(run.seconds, 1) for run in runs],
        "failures": {str(run.seed): run.verdict for run in runs if run.mean is None},
        "passed": passed,
        "runs": len(runs),
        "met": bool(runs) and passed >= len(runs) - task.allowed_to_fail,
    }


def words(judged: Sequence[dict[str, Any]], seeds: Sequence[int]) -> str:
    """The table: a line a task, a column a seed."""
    header = ["task", "solved at", *(f"seed {seed}" for seed in seeds), "steps", "s a run", "passed"]
    rows = []
    for each in judged:
        means = ["failed" if mean is None else f"{mean:.2f}" for mean in each["means"]]
        seconds = f"{min(each['seconds']):.0f} to {max(each['seconds']):.0f}"
        passed = f"{each['passed']} of {each['runs']}"
        rows.append([each["task"], each["bounds"], *means, f"{max(each['steps']):,}", seconds, passed])
    return table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Final greedy policies over fresh episodes.")
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS), metavar="TASK")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--learners", type=int, default=1, help="learner ranks of a run")
    parser.add_argument("--engine", choices=("inline", "ray"), default="inline")
    asked = parser.parse_args()
    shape = Shape(learners=asked.learners, engine=asked.engine)
    if asked.jobs < 1:
        parser.error(f"--jobs: got {asked.jobs}, allowed: 1 or more")
    runs: dict[str, list[Learned]] = {name: [] for name in asked.tasks}
    for run in learn_all(asked.tasks, asked.seeds, shape, jobs=asked.jobs):
        runs[run.task].append(run)
        mean = "failed: " + run.verdict if run.mean is None else f"{run.mean:.2f}"
        print(f"{run.task}  seed {run.seed}  {mean}  {run.steps:,} steps  {run.seconds:.1f} s", file=sys.stderr)
    judged = [judge(name, each) for name, each in runs.items()]
    print(words(judged, asked.seeds))
    met = all(each["met"] for each in judged)
    facts = {"benchmark": "learning", "seeds": asked.seeds, "learners": asked.learners, "engine": asked.engine}
    print(result_line({**facts, "tasks": judged, "met": met}))


if __name__ == "__main__":
    main()
