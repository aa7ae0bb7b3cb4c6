"""The command without a process of its own, and one embedded Ray for many runs: where a test needs many of either."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from common.clock import MonotonicClock, wait_until
from deploy.cli import main
from deploy.config import RunConfig, parse_config
from deploy.driver import StopFlag
from deploy.session import Outcome
from tests.e2e.command import alive, processes_of, updates_made

GONE_WITHIN_S = 90.0
LIMIT_S = 90.0


def small(**changes: Any) -> RunConfig:
    """A run of a few updates in this process, with two checkpoints before the last."""
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "engine": "inline",
        "seed": 4,
        "steps": 600,
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 32},
        "evaluation": {"every": 2, "episodes": 2, "final_episodes": 3, "lanes": 2},
        "metrics": {"enabled": False},
    }
    return parse_config(plain | changes)


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a command came to."""

    code: int
    out: str
    err: str


def say(capsys: pytest.CaptureFixture[str], *arguments: str) -> Said:
    """Run the command in this process; its exit code and words. No child it started may outlive it."""
    before = set(children())
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        main(list(arguments))
    captured = capsys.readouterr()
    wait_gone(lambda: set(children()) - before)
    code = exit_info.value.code
    return Said(code=code if isinstance(code, int) else 1, out=captured.out, err=captured.err)


def children() -> list[int]:
    """Live processes below this one, but for those of a shared Ray that are idle or its own."""
    ours = ("ray::ActorProcess", "ray::RankProcess")
    return [pid for title in ours for pid in processes_of(os.getpid(), title) if alive(pid)]


def wait_gone(left: Any) -> None:
    """Wait until nothing is left; Ray ends processes a moment after it was told to."""
    wait_until(lambda: not left(), clock=MonotonicClock(), seconds=GONE_WITHIN_S)
    assert not left(), f"still there: {left()}"


def embedded_ray(num_processes: int) -> Iterator[None]:
    """For a module's fixture: a run joins the Ray that its process has started."""
    from deploy.ray_launch import connect, disconnect

    connect(num_processes=num_processes, object_store_bytes=0)
    yield
    disconnect()


def beside(run: Callable[[StopFlag], Outcome], script: Callable[[], None]) -> Outcome:
    """Drive a run in this thread while `script` does its worst in another; its end asks the run to stop."""
    stop, faults = StopFlag(), []

    def work() -> None:
        try:
            script()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            faults.append(error)
        stop.ask("the script is over")

    thread = threading.Thread(target=work)
    thread.start()
    outcome = run(stop)
    thread.join()
    if faults:
        raise faults[0]
    return outcome


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait, for long enough on a slow machine."""
    assert wait_until(condition, clock=MonotonicClock(), seconds=LIMIT_S)


def wait_for_updates(out: Path, more: int, run: str = "r") -> None:
    """Wait until `more` updates were made from now on."""
    now = updates_made(out, run)
    wait_for(lambda: updates_made(out, run) >= now + more)
