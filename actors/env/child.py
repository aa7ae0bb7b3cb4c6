"""User code in a child process of its own, under deadlines: a hang, an exit or a crash is an answer like any other.

    ours    run_in_child ──fork──► work(report)          theirs: constructs, resets, steps, closes
               │  ◄── phase, facts, the end ──┘
               └── kills whatever is left of it at the deadline of the phase it is in

Forked, like asynchronous lanes: what the user's script has registered is registered in the child, and a start takes
about 10 ms (a new interpreter 250 ms, most of it imports). The child leads a process group of its own, so that what the
environment itself has started goes with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from actors.env.ports import exit_in_words
from common.clock import Clock, Deadline
from common.errors import DeadlineError, EnvironmentFault, TruestepError
from common.process import die_with_parent

START_S = 10.0  # until the child says what it does first
LOOK_EVERY_S = 0.25
DEATH_S = 5.0  # between its last word, or the signal, and its end

Kind = Literal["phase", "fact", "error", "done"]


class Report:
    """How the work says where it is and what it has found."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def phase(self, name: str, deadline_s: float) -> None:
        """What comes next, and the longest it may take."""
        self._send("phase", (name, deadline_s))

    def fact(self, value: Any) -> None:
        """A picklable value; what was found before a crash is not lost with it."""
        self._send("fact", value)

    def _send(self, kind: Kind, value: Any) -> None:
        self._pipe.send((kind, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a child.

    Attributes:
        facts: what it told, in order.
        phase: the one that it was in last.
        error: why it did not come to its end; None if it did.
    """

    facts: tuple[Any, ...]
    phase: str
    error: TruestepError | None


def run_in_child(work: Callable[[Report], None], *, who: str, clock: Clock) -> Outcome:
    """Do `work` in a child of this process; no process of it is left afterwards.

    `who` names it in errors: `EnvironmentFault` where the process ended (by status or signal), `DeadlineError` where a
    phase took too long, else what the work raised. Never raises those itself.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(work, ours, theirs, os.getpid()))
    process.start()
    theirs.close()
    try:
        return _listen(ours, process, who, clock)
    finally:
        _end(process)
        ours.close()


def children_of(pid: int) -> list[int]:
    """Living child processes of `pid`; empty where the kernel does not tell (no /proc)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] not in "ZXx":
                found.append(int(entry.name))
    return sorted(found)


def _listen(pipe: Connection, process: Any, who: str, clock: Clock) -> Outcome:
    facts: list[Any] = []
    phase, deadline = "start", Deadline(clock, START_S)
    error: TruestepError | None = None
    while error is None:
        try:
            if not pipe.poll(min(LOOK_EVERY_S, deadline.remaining_s())):
                if process.exitcode is not None:  # a process that it left behind may hold the pipe open
                    error = _lost(who, phase, process)
                elif deadline.expired():
                    error = _late(who, phase, deadline.seconds)
                continue
            kind, value = pipe.recv()
        except (EOFError, OSError):
            error = _lost(who, phase, process)
            continue
        match kind:
            case "phase":
                phase, deadline = value[0], Deadline(clock, value[1])
            case "fact":
                facts.append(value)
            case "error":
                error = value
            case "done":
                break
    return Outcome(facts=tuple(facts), phase=phase, error=error)


def _late(who: str, phase: str, seconds: float) -> DeadlineError:
    return DeadlineError(
        f"{who}: {phase} did not return",
        got=f"no answer in {seconds:g} s",
        allowed=f"{seconds:g} s",
        fix="mend the environment that hangs, or raise env.step_deadline_s or env.construct_deadline_s",
    )


def _lost(who: str, phase: str, process: Any) -> EnvironmentFault:
    process.join(DEATH_S)
    return EnvironmentFault(
        f"{who}: its process ended during {phase}",
        got=f"it {exit_in_words(process.exitcode)}",
        fix="the environment ended its own process; what it wrote to stderr is above",
    )


def _end(process: Any) -> None:
    """Kill the child's process group, and the child itself in case it has none yet."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join(DEATH_S)
    process.close()


def _child(work: Callable[[Report], None], ours: Connection, theirs: Connection, parent: int) -> None:
    os.setpgid(0, 0)
    ours.close()
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # the driver's handlers are not for this process
    try:
        work(Report(theirs))
        theirs.send(("done", None))
    except TruestepError as error:
        theirs.send(("error", error))
    except BaseException as error:  # noqa: BLE001 - nobody else is there to say it
        detail = "".join(traceback.format_exception(error))
        what = f"the check of an environment raised {type(error).__name__}"
        theirs.send(("error", EnvironmentFault(what, got=str(error), detail=detail)))
