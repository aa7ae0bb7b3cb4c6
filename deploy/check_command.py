"""The command `truestep check`: configuration in, table or JSON out."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout

from rich.console import Console
from rich.table import Table

from actors.env.check import gather
from actors.env.check_facts import SpeedFacts
from actors.env.config import EnvConfig
from actors.env.probes import Check
from common.clock import MonotonicClock
from common.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError
from deploy.check import Judgement, Line, judge
from deploy.cli import CheckEnv
from deploy.config import merge, parse_config, setting

WIDE = 140  # columns of a table that goes to a file or a pipe


def check_environment(command: CheckEnv) -> int:
    """Check, print, and return the exit code: 0 where no contract is broken, else 1. Raises `ConfigError`."""
    if command.lanes < 1 or command.ticks < 1:
        raise ConfigError("--lanes and --ticks", got=f"{command.lanes} and {command.ticks}", allowed="at least 1 each")
    config = _configuration(command)
    check = Check(config=config, seed=command.seed, lanes=command.lanes, ticks=command.ticks, clock=MonotonicClock())
    with redirect_stdout(sys.stderr):  # what the environment prints is not the answer
        report = gather(check, lambda words: print(f"checking     {words}", file=sys.stderr, flush=True))
    judgement = judge(report, voids_nonfinite=config.on_nonfinite != "stop_run")
    if command.json:
        print(json.dumps(judgement.to_plain(), allow_nan=False))
    else:
        _show(judgement)
    sys.stdout.flush()
    return EXIT_FINISHED if judgement.passed else EXIT_FAILED


def _configuration(command: CheckEnv) -> EnvConfig:
    asked = {"env": {"id": command.env}}
    for text in command.set_:
        values = setting(text)
        if set(values) != {"env"}:
            raise ConfigError("--set", got=text, allowed="env.KEY=VALUE: only the environment is checked")
        asked = merge(asked, values, single_value=True)
    return parse_config(asked).env


def _show(judgement: Judgement) -> None:
    console = Console(width=None if Console().is_terminal else WIDE)
    console.print(_lines(judgement.lines))
    if judgement.speeds:
        console.print()
        console.print(_speeds(judgement))
    best = judgement.recommended
    if best is not None:
        console.print(f"\nrecommended  --lanes {best.lanes} --set env.vectorise={best.vectorised}", highlight=False)
    broken = sum(line.verdict == "FAIL" for line in judgement.lines)
    words = "passed" if judgement.passed else f"FAILED: {broken} broken {'contract' if broken == 1 else 'contracts'}"
    console.print(f"{judgement.environment}: {words}", highlight=False, markup=False)
    for line in judgement.lines:
        if line.detail:
            console.print(f"\n{line.name}:\n{line.detail}", highlight=False, markup=False)


def _lines(lines: tuple[Line, ...]) -> Table:
    table = Table("check", "verdict", "found", "what to do", box=None, pad_edge=False)
    for line in lines:
        table.add_row(line.name, line.verdict, _literal(line.found), _literal(line.fix))
    return table


def _speeds(judgement: Judgement) -> Table:
    table = Table("lanes held by", "lanes", "steps/s", box=None, pad_edge=False)
    for speed in judgement.speeds:
        rate = f"{speed.steps_per_s:,.0f}" if isinstance(speed, SpeedFacts) else "failed"
        table.add_row(speed.vectorised, str(speed.lanes), rate)
    return table


def _literal(text: str) -> str:
    """Square brackets are markup to rich."""
    return text.replace("[", r"\[")
