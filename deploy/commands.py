"""What the commands do, once their words are understood."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, assert_never

from rich.console import Console
from rich.table import Table

from common.clock import MonotonicClock
from common.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError
from deploy import cli
from deploy.bisect import Trial, bisect, bisection_lines
from deploy.check_command import check_environment
from deploy.compare import compare_runs, comparison_lines
from deploy.config import RunConfig, merge, parse_config, read_toml, recipe, setting
from deploy.display import Display, Lines, Terminal, duration
from deploy.doctor.command import doctor
from deploy.drill import DrillResult, run_drills
from deploy.drills import DRILLS, DrillPlan, named
from deploy.evaluation import evaluate_run
from deploy.outputs import open_registry
from deploy.preflight.command import preflight, tell_checks
from deploy.profiling.command import profile
from deploy.replay import replay
from deploy.replayed import replayed_lines
from deploy.report import report_lines, run_report, run_row
from deploy.reporting.page import write_report
from deploy.reproduce import reproduce
from deploy.reproduction import reproduction_lines
from deploy.session import Outcome, resume, train
from deploy.top.command import top
from deploy.training_replay import replay_training, training_lines
from deploy.writers.command import export
from deploy.writers.opening import require_writers

WIDE = 140  # columns of a table that goes to a file or a pipe


def carry_out(command: cli.Command) -> int:
    """Do it; returns the exit code."""
    match command:
        case cli.Train():
            return _train(command)
        case cli.Resume():
            return _resume(command)
        case cli.Evaluate():
            return _evaluate(command)
        case cli.Runs():
            return _runs(command)
        case cli.Show():
            return _show(command)
        case cli.Compare():
            return _compare(command)
        case cli.Report():
            return _report(command)
        case cli.Export():
            return export(command)
        case cli.Reproduce():
            return _reproduce(command)
        case cli.Replay():
            return _replay(command)
        case cli.Drill():
            return _drill(command)
        case cli.CheckEnv():
            return check_environment(command)
        case cli.Top():
            return top(command)
        case cli.Profile():
            return profile(command)
        case cli.Doctor():
            return doctor(command)
        case other:
            assert_never(other)


def _train(command: cli.Train) -> int:
    if command.preflight:
        with _stdout_kept(command.json):
            config, _ = configuration(command)
            require_writers(config.writers)
            checks = preflight(config, out=command.out)
        return tell_checks(checks, json_wanted=command.json)
    with _stdout_kept(command.json):
        outcome = _trained(command)
    return _tell_outcome(outcome, json_wanted=command.json)


def _trained(command: cli.Train) -> Outcome:
    display = _display(json_wanted=command.json)
    if command.resume == "auto":
        if not command.run:
            raise ConfigError("--resume auto needs the name of the run", allowed="--run NAME")
        if _exists(command.out, command.run):
            return resume(command.run, out=command.out, learners=command.learners, display=display)
    config, recipe_name = configuration(command)
    display.tell(f"recipe       {recipe_name}")
    return train(config, out=command.out, run=command.run, init_from=command.init_from, display=display)


def _resume(command: cli.Resume) -> int:
    with _stdout_kept(command.json):
        outcome = resume(
            command.run,
            out=command.out,
            take_over=command.take_over,
            learners=command.learners,
            display=_display(json_wanted=command.json),
        )
    return _tell_outcome(outcome, json_wanted=command.json)


@contextmanager
def _stdout_kept(for_answer: bool) -> Iterator[None]:
    """Whatever prints inside (users' environments, Ray on the death of a process) prints on stderr: stdout is for the
    one JSON object."""
    if not for_answer:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


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
    with _stdout_kept(command.json):
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
    _print(table if rows else f"no runs in {command.out}")
    return EXIT_FINISHED


def _show(command: cli.Show) -> int:
    with open_registry(command.out) as registry:
        report = run_report(registry, command.run)
    if command.json:
        print(json.dumps(report, allow_nan=False))
    else:
        print("\n".join(report_lines(report)))
    return EXIT_FINISHED


def _compare(command: cli.Compare) -> int:
    comparison = compare_runs(command.a, command.b, out=command.out, out_b=command.out_b)
    if command.json:
        print(json.dumps(comparison.to_plain(), allow_nan=False))
    else:
        print("\n".join(comparison_lines(comparison)))
    return EXIT_FINISHED


def _report(command: cli.Report) -> int:
    written = write_report(command.run, command.other, out=command.out, out_b=command.out_b, output=command.output)
    if command.json:
        print(json.dumps({"path": str(written.path), "runs": written.runs, "bytes": written.num_bytes}))
    else:
        print(f"report       {written.path} ({written.num_bytes / 1000:,.0f} kB)")
    return EXIT_FINISHED


def _reproduce(command: cli.Reproduce) -> int:
    if command.bisect:
        return _bisect(command)
    with _stdout_kept(command.json):
        result = reproduce(
            command.run,
            out=command.out,
            updates=command.updates,
            engine=command.engine,
            display=_display(json_wanted=command.json),
        )
    if command.json:
        print(json.dumps(result.to_plain(), allow_nan=False))
    else:
        print("\n".join(reproduction_lines(result)), flush=True)
    return result.exit_code


def _replay(command: cli.Replay) -> int:
    if command.training:
        return _replay_training(command)
    with _stdout_kept(command.json):
        result = replay(
            command.run,
            episode=command.episode,
            out=command.out,
            update=command.update,
            render=command.render,
            frames=command.frames,
        )
    if command.json:
        print(json.dumps(result.to_plain(), allow_nan=False))
    else:
        print("\n".join(replayed_lines(result)), flush=True)
    return result.exit_code


def _replay_training(command: cli.Replay) -> int:
    for flag in ("update", "render", "frames"):
        if getattr(command, flag) is not None:
            raise ConfigError(f"--training and --{flag}", got="both", allowed=f"--{flag} with evaluations only")
    with _stdout_kept(command.json):
        display = _display(json_wanted=command.json)
        result = replay_training(command.run, episode=command.episode, out=command.out, display=display)
    if command.json:
        print(json.dumps(result.to_plain(), allow_nan=False))
    else:
        print("\n".join(training_lines(result)), flush=True)
    return result.exit_code


def _bisect(command: cli.Reproduce) -> int:
    trial = Trial(
        run=command.run, out=command.out, updates=command.updates, engine=command.engine, deadline_s=command.step_s
    )
    result = bisect(trial, command.bisect, repo=command.repo, display=_display(json_wanted=command.json))
    if command.json:
        print(json.dumps(result.to_plain()))
    else:
        print("\n".join(bisection_lines(result)), flush=True)
    return result.exit_code


def _drill(command: cli.Drill) -> int:
    if command.list:
        for plan in DRILLS:
            print(f"{plan.name:<15} {plan.about}")
        return EXIT_FINISHED
    plans = _drills_asked(command)
    display = Lines(Console(stderr=True, soft_wrap=True), MonotonicClock())
    with _stdout_kept(command.json):
        results = list(run_drills(plans, out=command.out, display=display))
    if command.json:
        print(json.dumps({"out": str(command.out), "drills": [result.to_plain() for result in results]}))
    else:
        _print(_drill_table(results))
        for result in results:
            if not result.passed:
                print(f"{result.name}: {result.why}; see `truestep show {result.run} --out {command.out}`")
    return EXIT_FINISHED if all(result.passed for result in results) else EXIT_FAILED


def _print(what: Table | str) -> None:
    """On a terminal as wide as that is; elsewhere no name is cut short for the sake of columns."""
    width = None if Console().is_terminal else WIDE
    Console(width=width).print(what)


def _drills_asked(command: cli.Drill) -> list[DrillPlan]:
    if command.all:
        return list(DRILLS)
    names = ", ".join(plan.name for plan in DRILLS)
    if not command.drills:
        raise ConfigError("no drill", allowed=f"--all, or some of {names}")
    plans = []
    for name in command.drills:
        plan = named(name)
        if plan is None:
            raise ConfigError("unknown drill", got=name, allowed=names)
        plans.append(plan)
    return plans


def _drill_table(results: list[DrillResult]) -> Table:
    table = Table("drill", "verdict", "detected after", "located at", "recovered in", "updates lost", "same bits")
    table.box, table.pad_edge = None, False
    for result in results:
        table.add_row(
            result.name,
            "passed" if result.passed else "FAILED",
            _seconds(result.detected_s),
            result.located or "–",
            _seconds(result.recovered_s),
            str(result.updates_lost),
            {True: "yes", False: "no", None: "–"}[result.same_bits],
        )
    return table


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.2f} s"
