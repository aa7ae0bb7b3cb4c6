"""A Ray cluster on two hosts, with the health settings that truestep ships, and a driver on its head."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from common.clock import MonotonicClock, wait_until
from common.errors import RegistryError, RunNotFoundError
from common.runs import RunRegistry
from tests.net.hosts import SCRATCH, Host
from tests.net.paced import PACE

ROOT = Path(__file__).resolve().parents[2]
HEALTH = ROOT / "deploy" / "ray" / "health.env"
PORT = 6379
START_S = 120.0
STORE_BYTES = 200_000_000
POLL_S = 0.05
TRUESTEP = (sys.executable, "-m", "deploy")
CLOCK = MonotonicClock()


def health() -> dict[str, str]:
    """The settings, as a shell reads the file."""
    lines = (line.strip() for line in HEALTH.read_text().splitlines())
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def surroundings(pace: Path) -> dict[str, str]:
    """Environment of everything on the hosts: nothing of another Ray, no tokens, paced environments."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    fixed = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    places = {"TMPDIR": SCRATCH, "PYTHONPATH": str(ROOT), PACE: str(pace)}
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return own | fixed | threads | health() | places


def start_ray(host: Host, env: dict[str, str], *, cpus: int, head: Host | None = None) -> None:
    """`ray start` on the host: its own cluster, or a node of that of `head`."""
    place = ["--head", f"--port={PORT}", "--include-dashboard=false", '--resources={"learns": 1}']
    if head is not None:
        place = [f"--address={head.address}:{PORT}"]
    own = [f"--node-ip-address={host.address}", f"--num-cpus={cpus}", f"--object-store-memory={STORE_BYTES}"]
    ray = str(Path(sys.executable).with_name("ray"))
    host.run([ray, "start", *place, *own, "--disable-usage-stats"], limit_s=START_S, env=env)


def kill_raylet(host: Host) -> None:
    """End the node as the kernel ends a process: it cannot say goodbye."""
    raylets = host.processes("/raylet/raylet ")
    assert raylets, f"no raylet on {host.name}"
    for pid in raylets:
        os.kill(pid, signal.SIGKILL)


class Machine(Protocol):
    """Where commands are run."""

    def command(self, words: Sequence[str]) -> list[str]:
        """`words` as a command of this machine that runs them there."""
        ...


class ThisMachine:
    """This one."""

    def command(self, words: Sequence[str]) -> list[str]:
        """As they are."""
        return list(words)


class Driven:
    """A command that trains under way on a host, and the record of its run.

    Args:
        host: where the command runs.
        words: the command.
        log: where everything it says goes.
    """

    def __init__(
        self, host: Machine, env: dict[str, str], words: Sequence[str], *, out: Path, run: str, log: Path
    ) -> None:
        self._out, self._run, self._log = out, run, log
        command = host.command(words)
        with log.open("w") as file:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )

    def wait(self, limit_s: float) -> int:
        """Wait for the end; returns the exit code."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {limit_s:g} s\n{self.said()}") from None

    def said(self) -> str:
        """Everything so far."""
        return self._log.read_text(errors="replace")

    def updates(self) -> int:
        """Committed updates in the record; 0 while there is none."""
        try:
            with RunRegistry.open(self._out / "runs.sqlite", read_only=True) as registry:
                return registry.run(self._run).updates
        except (RunNotFoundError, RegistryError):
            return 0

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What the record says of each, oldest first."""
        with RunRegistry.open(self._out / "runs.sqlite", read_only=True) as registry:
            return [event.data for event in registry.events(self._run) if event.kind == kind]

    def lives(self) -> set[tuple[int, int]]:
        """Actor and incarnation of every fragment in the record whose fate is decided."""
        with RunRegistry.open(self._out / "runs.sqlite", read_only=True) as registry:
            return {(each.actor, each.incarnation) for each in registry.ledger(self._run).fragments}

    def until(self, condition: Callable[[], object], what: str, limit_s: float) -> None:
        """Wait for a condition. Fails if the command ends before, or time is up."""
        over = lambda: bool(condition()) or self._process.poll() is not None
        wait_until(over, clock=CLOCK, seconds=limit_s, poll_s=POLL_S)
        assert condition(), f"{what}: not within {limit_s:g} s, or the command ended before\n{self.said()}"

    def kill(self) -> None:
        """End it with the hosts that it runs on."""
        self._process.kill()
        self._process.wait(START_S)


def answer(*arguments: str, limit_s: float) -> dict[str, Any]:
    """What `truestep ... --json`, run on this machine, says; it has to end with exit code 0."""
    command = [*TRUESTEP, *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stdout + done.stderr
    plain: dict[str, Any] = json.loads(done.stdout)
    return plain
