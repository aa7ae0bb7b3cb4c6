"""The real command in a process of its own, and what a test asks of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.clock import MonotonicClock, wait_until
from common.errors import RegistryError, RunNotFoundError
from common.runs import RunRegistry

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "deploy"]
LIMIT_S = 100.0
SMALL = ["--actors", "2", "--lanes", "4", "--rows", "16", "--set", "ppo.minibatch=32", "--set", "net.hidden=[16]"]
QUIET = ["--set", "evaluation.every=0", "--set", "evaluation.final_episodes=2"]


class Started:
    """A command under way."""

    def __init__(self, arguments: list[str], *, own_group: bool = False) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=own_group,
        )

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the driver."""
        self.process.send_signal(number)

    def kill_group(self, number: signal.Signals) -> None:
        """Send a signal to every process of the command's own group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave nothing running, whatever the test came to."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def wait_for(self, condition: Callable[[], bool], what: str, limit_s: float = 90.0) -> None:
        """Wait for a condition; fails naming it, at once if the command ends before."""
        clock = MonotonicClock()
        met = wait_until(lambda: condition() or self.process.poll() is not None, clock=clock, seconds=limit_s)
        if not met or not condition():
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"{what}: not within {limit_s} s, or the command ended before\n{out}\n{err}")

    def finish(self, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Wait for the end, within a limit."""
        try:
            out, err = self.process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"no end within {limit_s} s\n{out}\n{err}") from None
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, out, err)


def environment() -> dict[str, str]:
    """The caller's environment without a cluster of somebody else's."""
    return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}


def truestep(*arguments: str, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return Started(list(arguments)).finish(limit_s)


def answer(completed: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object of a command with --json; fails with everything it said if there is none."""
    try:
        parsed: dict[str, Any] = json.loads(completed.stdout)
    except json.JSONDecodeError:
        raise AssertionError(f"exit {completed.returncode}\n{completed.stdout}\n{completed.stderr}") from None
    return parsed


def digests(out: Path, run: str) -> dict[int, str]:
    """Parameter digest after each update, from the registry."""
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        return {record.update: record.parameter_digest for record in registry.updates(run)}


def updates_made(out: Path, run: str) -> int:
    """Updates in the registry so far; 0 while it, or the run in it, is being made."""
    try:
        return max(digests(out, run), default=0)
    except (RunNotFoundError, RegistryError):
        return 0


def checkpoints(out: Path, run: str) -> list[str]:
    """Names of the checkpoints on disk."""
    return sorted(path.name for path in (out / run / "checkpoints").glob("update-*"))


def processes_of(driver: int, title: str = "ray::") -> list[int]:
    """Pids of live processes that descend from `driver` and whose title begins with `title`."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and _descends(int(path.name), driver):
            try:
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if words.startswith(title):
                found.append(int(path.name))
    return sorted(found)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
