"""Work in a child: what it told, how it ended, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from actors.env.child import Outcome, Report, children_of, run_in_child
from common.clock import MonotonicClock, wait_until
from common.errors import ConfigError, DeadlineError, EnvironmentFault
from tests.actors.test_env_faults import children, state


def outcome_of(work: Callable[[Report], None]) -> Outcome:
    outcome = run_in_child(work, who="the work", clock=MonotonicClock())
    assert children() == []
    return outcome


def test_facts_arrive_in_order() -> None:
    """Whatever pickles; the end is no error."""

    def work(report: Report) -> None:
        report.phase("counting", 30.0)
        for number in range(3):
            report.fact({"number": number})

    outcome = outcome_of(work)
    assert outcome.facts == ({"number": 0}, {"number": 1}, {"number": 2})
    assert (outcome.phase, outcome.error) == ("counting", None)


def test_what_was_found_before_a_crash_is_kept() -> None:
    """The facts so far, the phase, and the signal by its name."""

    def work(report: Report) -> None:
        report.phase("the leap", 30.0)
        report.fact("before")
        os.kill(os.getpid(), signal.SIGKILL)

    outcome = outcome_of(work)
    assert outcome.facts == ("before",)
    assert isinstance(outcome.error, EnvironmentFault)
    assert outcome.error.what == "the work: its process ended during the leap"
    assert outcome.error.got == "it was killed by signal 9 (SIGKILL)"


def test_a_phase_that_does_not_end_is_named_at_its_own_deadline() -> None:
    """Each phase begins a new deadline; a child that ignores signals is gone all the same."""

    def work(report: Report) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report.phase("the first", 600.0)
        report.phase("the second", 0.3)
        threading.Event().wait()

    error = outcome_of(work).error
    assert isinstance(error, DeadlineError)
    assert error.what == "the work: the second did not return"
    assert error.got == "no answer in 0.3 s"


def test_our_errors_arrive_as_they_are_and_others_with_their_traceback() -> None:
    """Fields and all."""

    def ours(report: Report) -> None:
        raise ConfigError("the knob", got=11, allowed="0 to 10", fix="turn it down")

    def theirs(report: Report) -> None:
        raise LookupError("not here")

    error = outcome_of(ours).error
    assert isinstance(error, ConfigError)
    assert (error.what, error.got, error.allowed, error.fix) == ("the knob", "11", "0 to 10", "turn it down")
    error = outcome_of(theirs).error
    assert isinstance(error, EnvironmentFault)
    assert error.got == "not here" and "in theirs" in error.detail


def test_a_process_that_it_leaves_behind_neither_hides_its_end_nor_outlives_it() -> None:
    """A forked grandchild holds the pipe open; the end of the child is noticed all the same, and the group goes."""

    def work(report: Report) -> None:
        report.phase("leaving", 600.0)
        grandchild = os.fork()
        if grandchild == 0:
            threading.Event().wait()
        report.fact(grandchild)
        os._exit(3)

    outcome = outcome_of(work)
    assert isinstance(outcome.error, EnvironmentFault) and outcome.error.got == "it exited with status 3"
    (grandchild,) = outcome.facts
    assert wait_until(lambda: state(grandchild) in ("", "Z"), clock=MonotonicClock(), seconds=30)


def test_children_are_found_by_their_parent() -> None:
    """Living ones, of one process."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert process.pid in children_of(os.getpid())
    assert process.pid not in children_of(process.pid)
    process.communicate(b"\n")
    assert process.pid not in children_of(os.getpid())


def test_a_child_writes_where_its_parent_says(capfd: pytest.CaptureFixture[str]) -> None:
    """Its standard streams are those of the process that asked."""
    outcome_of(lambda report: print("from the child", file=sys.stderr, flush=True))
    assert "from the child" in capfd.readouterr().err
