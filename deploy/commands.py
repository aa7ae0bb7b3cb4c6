"""What the commands do, once their words are understood."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, assert_never

from rich.console import Console
from rich.table import Table

from common.clock import MonotonicClock
from common.errors import EXIT_FINISHED, ConfigError
from deploy import cli
from deploy.config import RunConfig, merge, parse_config, read_toml, recipe, setting
from deploy.display import Display, Lines, Terminal, duration
from deploy.evaluation import evaluate_run
from deploy.outputs import open_registry
from deploy.report import run_report, run_row
from deploy.session import Outcome, resume, train


def carry_out(command: cli.Command) -> int:
    """Do it; returns the exit code."""
    match command:
        case cli.Train():
            return _train(command)
        case cli.Resume():
            display = _display(json_wanted=command.json)
            outcome = resume(
                command.run,
                out=command.out,
                take_over=command.take_over,
                learners=command.learners,
                display=display,
            )
            return _tell_outcome(outcome, json_wanted=command.json)
        case cli.Evaluate():
            return _evaluate(command)
        case cli.Runs():
            return _runs(command)
        case cli.Show():
            return _show(command)
        case other:
            assert_never(other)


def _train(command: cli.Train) -> int:
    display = _display(json_wanted=command.json)
    if command.resume == "auto":
        if not command.run:
            raise ConfigError("--resume auto needs the name of the run", allowed="--run NAME")
        if _exists(command.out, command.run):
            outcome = resume(command.run, out=command.out, learners=command.learners, display=display)
            return _tell_outcome(outcome, json_wanted=command.json)
    config, recipe_name = configuration(command)
    display.tell(f"recipe       {recipe_name}")
    outcome = train(config, out=command.out, run=command.run, init_from=command.init_from, display=display)
    return _tell_outcome(outcome, json_wanted=command.json)


def configuration(command: cli.Train) -> tuple[RunConfig, str]:
    """The layers, one over the other: recipe, file, flags, --set. Returns the recipe's name too."""
    file = {} if command.config is None else read_toml(command.config)
    flags: dict[str, Any] = {}
    if command.env:
        flags = merge(flags, {"env": {"id": command.env}})
    for name in ("algo", "seed", "steps", "engine", "policy_lag", "stop_at_return"):
        if (value := getattr(command, name)) is not None:
            flags[name] = value
    actors = {"num": command.actors, "lanes": command.lanes, "rows": command.rows}
    flags = merge(flags, {"actors": {name: value for name, value in actors.items() if value is not None}})
    if command.learners is not None:
        flags = merge(flags, {"learner": {"ranks": command.learners}})
    asked = merge(file, flags)
    for text in command.set_:
        asked = merge(asked, setting(text), single_value=True)
    env_id = asked.get("env", {}).get("id", "") if isinstance(asked.get("env", {}), dict) else ""
    if not env_id:
        raise ConfigError("no environment", allowed="truestep train ENV, or env.id in --config")
    recipe_name, values = recipe(str(asked.get("algo", "ppo")), str(env_id))
    return parse_config(merge(values, asked)), recipe_name


def _exists(out: Path, run: str) -> bool:
    if not (out / "runs.sqlite").is_file():
        return False
    with open_registry(out) as registry:
        return any(record.run == run for record in registry.runs(limit=1_000_000))


def _display(*, json_wanted: bool) -> Display:
    console = Console(stderr=json_wanted, soft_wrap=True)
    clock = MonotonicClock()
    return Terminal(console, clock) if console.is_terminal else Lines(console, clock)


def _tell_outcome(outcome: Outcome, *, json_wanted: bool) -> int:
    with open_registry(outcome.out) as registry:
        report = run_report(registry, outcome.run)
    if json_wanted:
        print(json.dumps(report, allow_nan=False))
    else:
        evaluation = report["evaluation"]
        if evaluation is not None:
            print(f"mean return  {evaluation['mean']:.2f} over {evaluation['episodes']} greedy episodes")
        if report["parameter_digest"]:
            print(f"parameters   sha256 {report['parameter_digest']}")
        why = outcome.verdict if outcome.error is None else f"at update {report['updates']}, see below"
        print(f"{outcome.status:<12} {why} ({duration(report['wall_s'])})", flush=True)
        if outcome.status == "interrupted":
            print(f"go on with   truestep resume {outcome.run} --out {outcome.out}")
    if outcome.error is not None:
        cli.print_error(outcome.error)
    sys.stdout.flush()
    return outcome.exit_code


def _evaluate(command: cli.Evaluate) -> int:
    answer = evaluate_run(
        command.run, out=command.out, episodes=command.episodes, seed=command.seed, checkpoint=command.checkpoint
    )
    if command.json:
        print(json.dumps(answer, allow_nan=False))
    else:
        print(f"checkpoint   {answer['checkpoint']} (update {answer['update']})")
        print(
            f"mean return  {answer['mean']:.2f} over {answer['episodes']} greedy episodes, "
            f"std {answer['std']:.2f}, from {answer['minimum']:.2f} to {answer['maximum']:.2f}"
        )
    return EXIT_FINISHED


def _runs(command: cli.Runs) -> int:
    with open_registry(command.out) as registry:
        rows = [run_row(registry, record) for record in registry.runs(limit=command.limit)]
    if command.json:
        print(json.dumps({"out": str(command.out), "runs": rows}, allow_nan=False))
        return EXIT_FINISHED
    table = Table("run", "status", "updates", "steps", "evaluation", "time", "created", box=None, pad_edge=False)
    for row in rows:
        mean = "–" if row["evaluation_mean"] is None else f"{row['evaluation_mean']:.1f}"
        table.add_row(
            row["run"],
            row["status"],
            f"{row['updates']:,}",
            f"{row['env_steps']:,}",
            mean,
            duration(row["wall_s"]),
            row["created"],
        )
    Console().print(table if rows else f"no runs in {command.out}")
    return EXIT_FINISHED


def _show(command: cli.Show) -> int:
    with open_registry(command.out) as registry:
        report = run_report(registry, command.run)
    if command.json:
        print(json.dumps(report, allow_nan=False))
        return EXIT_FINISHED
    events = report.pop("events")
    for name, value in report.items():
        print(f"{name:<17} {value}")
    for event in events:
        data = {key: value for key, value in event["data"].items() if key != "detail"}
        print(f"{event['wall']}  {event['kind']:<20} {data}")
    return EXIT_FINISHED
