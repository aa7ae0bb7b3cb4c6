"""Ends this process when an environment hangs, and leaves a report that names it.

User code cannot be interrupted from within, so a hang is cut by ending the process; the driver starts a new
incarnation of the actor.

    environment sleeps or waits    a thread sees the mark overdue, writes the report, exits
    environment holds the GIL      the thread cannot run, so it cannot re-arm faulthandler, whose own C thread then
                                   dumps the traceback and exits

Marks cost one clock reading a tick; re-arming happens four times a second, never per tick.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from pathlib import Path

from common.clock import NS_PER_S, Clock

EXIT_HUNG = 70
CHECK_EVERY_S = 0.25


class Watchdog:
    """Watches one loop. `report` is where the last words go; the driver reads it after the process is gone."""

    def __init__(self, clock: Clock, report: Path, *, who: str) -> None:
        self._clock = clock
        self._report = report
        self._who = who
        self._stop = threading.Event()
        self._phase = ""
        self._deadline_s = 0.0
        self._tick = -1
        self._mark_ns = 0

    def start(self) -> None:
        """Start watching; nothing is overdue until `enter`."""
        self._file = self._report.open("w")
        self._file.write(f"{self._who}\n")
        self._file.flush()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def enter(self, phase: str, deadline_s: float) -> None:
        """From here on each mark must come within `deadline_s`."""
        self._mark_ns = self._clock.now_ns()
        self._deadline_s = deadline_s
        self._phase = phase

    def mark(self, tick: int) -> None:
        """Alive, at `tick`."""
        self._tick = tick
        self._mark_ns = self._clock.now_ns()

    def leave(self) -> None:
        """Nothing is awaited any more."""
        self._phase = ""

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._stop.wait(CHECK_EVERY_S):
            phase, deadline_s = self._phase, self._deadline_s
            if not phase:
                faulthandler.cancel_dump_traceback_later()
                continue
            silent_s = (self._clock.now_ns() - self._mark_ns) / NS_PER_S
            if silent_s > deadline_s:
                self._end(phase, deadline_s)
            faulthandler.dump_traceback_later(deadline_s - silent_s + 2 * CHECK_EVERY_S, exit=True, file=self._file)

    def _end(self, phase: str, deadline_s: float) -> None:
        self._file.write(f"{phase} did not return within {deadline_s} s, tick {self._tick}\n")
        self._file.flush()
        faulthandler.dump_traceback(file=self._file)
        self._file.flush()
        os._exit(EXIT_HUNG)
