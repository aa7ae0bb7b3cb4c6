"""Ending a process: Ray's way first, the kernel's where that is not enough."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.clock import ManualClock, MonotonicClock, wait_until
from common.process_identity import ProcessIdentity

pytest.importorskip("ray")

from deploy.ray_endings import GRACE_S, Endings

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
SAY_WHO_AND_STAY = """
import dataclasses, json, signal
from common.process_identity import ProcessIdentity
print(json.dumps(dataclasses.asdict(ProcessIdentity.current())), flush=True)
signal.pause()
"""


class Child:
    """A process, and what it says of itself."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SAY_WHO_AND_STAY], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.identity = ProcessIdentity(**json.loads(self.process.stdout.readline()))

    def ended(self) -> bool:
        return self.process.poll() is not None


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    """Ray's kill does nothing: as with a process that was stopped."""
    monkeypatch.setattr("deploy.ray_endings.ray.kill", lambda handle, *, no_restart: None)
    child = Child()
    yield child
    child.process.kill()
    child.process.communicate()


def test_a_stopped_process_is_killed_once_its_time_is_up_and_not_before(child: Child) -> None:
    """Ray's kill does not reach it; the kernel's does."""
    clock = ManualClock()
    endings = Endings(clock)
    os.kill(child.process.pid, signal.SIGSTOP)
    endings.end(None, child.identity)
    clock.advance(GRACE_S * 0.9)
    endings.enforce()
    assert not wait_until(child.ended, clock=MonotonicClock(), seconds=0.2)
    clock.advance(GRACE_S)
    endings.enforce()
    assert wait_until(child.ended, clock=MonotonicClock(), seconds=LIMIT_S)
    assert child.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("changes", [{"start_ticks": 1}, {"host": "elsewhere"}, {"boot_id": "before"}])
def test_whoever_has_taken_the_pid_is_left_alone(changes: dict[str, Any], child: Child) -> None:
    """Another start, another host, another boot: not the process that was to end, and nothing to wait for."""
    clock = ManualClock()
    endings = Endings(clock)
    endings.end(None, dataclasses.replace(child.identity, **changes))
    clock.advance(2 * GRACE_S)
    assert endings.wait(0.0)
    assert not wait_until(child.ended, clock=MonotonicClock(), seconds=0.2)


def test_waiting_ends_when_all_are_gone_or_time_is_up(child: Child) -> None:
    """False while one lives; killing takes place within the wait."""
    clock = ManualClock()
    endings = Endings(clock)
    endings.end(None, child.identity)
    assert not endings.wait(GRACE_S / 2)
    assert not child.ended()
    assert Endings(clock).wait(0.0), "nobody to wait for"
    real = Endings(MonotonicClock())
    real.end(None, child.identity)
    assert real.wait(LIMIT_S) and wait_until(child.ended, clock=MonotonicClock(), seconds=LIMIT_S)


def test_a_process_that_never_said_who_it_is_is_left_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked, by its handle, and not to be started again."""
    asked: list[tuple[Any, bool]] = []
    monkeypatch.setattr("deploy.ray_endings.ray.kill", lambda handle, *, no_restart: asked.append((handle, no_restart)))
    endings = Endings(ManualClock())
    endings.end("handle", None)
    assert asked == [("handle", True)] and endings.wait(0.0)
