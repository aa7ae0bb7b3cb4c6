"""The command without a process of its own, and one embedded Ray for many runs: where a test needs many of either."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from common.clock import MonotonicClock, wait_until
from deploy.cli import main
from tests.e2e.command import alive, processes_of

GONE_WITHIN_S = 90.0


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
