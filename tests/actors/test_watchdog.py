"""Hangs are ended by ending the process, whether or not the interpreter lock is held. Each runs in its own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from actors.watchdog import EXIT_HUNG, Watchdog
from common.clock import ManualClock

MUST_BE_OVER_S = 60  # a process that nobody ends would run for ever
PROGRAM = """
import re, sys, threading
from pathlib import Path
from actors.watchdog import Watchdog
from common.clock import MonotonicClock

def user_step_that_sleeps():
    threading.Event().wait()

def user_step_that_holds_the_interpreter_lock():
    re.match(r"(a+)+$", "a" * 64 + "b")

def user_step_that_returns():
    pass

clock = MonotonicClock()
watchdog = Watchdog(clock, Path(sys.argv[1]), who="actor 3")
watchdog.start()
"""


def run(report: Path, body: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM + body, str(report)]
    return subprocess.run(command, timeout=MUST_BE_OVER_S, capture_output=True, text=True, check=False)


def test_an_environment_that_sleeps_is_ended_and_named(tmp_path: Path) -> None:
    """The report says who hung, in which phase, for how long, at which tick, and shows the user's frame."""
    report = tmp_path / "report.txt"
    ended = run(report, "watchdog.enter('step', 0.5); watchdog.mark(17); user_step_that_sleeps()")
    words = report.read_text()
    assert ended.returncode == EXIT_HUNG, ended.stderr
    assert words.startswith("actor 3: step did not return within 0.5 s, tick 17\n")
    assert "in user_step_that_sleeps" in words


@pytest.mark.parametrize("pause_s", [0.0, 0.6])
def test_an_environment_that_holds_the_interpreter_lock_is_ended_and_named(tmp_path: Path, pause_s: float) -> None:
    """Also when it takes the lock in the first instant of a phase, before the watching thread was ever scheduled."""
    report = tmp_path / "report.txt"
    body = f"watchdog.enter('construct', 1.0); clock.sleep({pause_s}); user_step_that_holds_the_interpreter_lock()"
    ended = run(report, body)
    words = report.read_text()
    assert ended.returncode == 1, ended.stderr
    assert words.startswith("actor 3: last seen in construct, tick -1, with 1 s for each tick\nTimeout")
    assert "in user_step_that_holds_the_interpreter_lock" in words


def test_what_is_slow_but_alive_is_left_alone(tmp_path: Path) -> None:
    """Deadlines pass over a phase whose ticks keep coming, and when nothing is awaited."""
    body = """
watchdog.enter("step", 1.0)
for tick in range(50):
    user_step_that_returns()
    clock.sleep(0.05)
    watchdog.mark(tick)
watchdog.leave()
clock.sleep(1.8)
watchdog.close()
print("alive")
"""
    ended = run(tmp_path / "report.txt", body)
    assert (ended.returncode, ended.stdout) == (0, "alive\n"), ended.stderr


def test_close_leaves_nothing_behind(tmp_path: Path) -> None:
    """The thread has ended, the report is closed; a second close, or one without a start, does nothing."""
    never = Watchdog(ManualClock(), tmp_path / "never.txt", who="actor 0")
    never.close()
    assert not (tmp_path / "never.txt").exists()
    watchdog = Watchdog(ManualClock(), tmp_path / "report.txt", who="actor 0")
    watchdog.start()
    watchdog.enter("reset", 1e6)
    watchdog.leave()
    watchdog.close()
    watchdog.close()
    assert not watchdog._thread.is_alive()
    assert (tmp_path / "report.txt").read_text().startswith("actor 0: last seen in reset")
