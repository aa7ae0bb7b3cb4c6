"""Ends this process when an environment hangs, and leaves a report that names it.

User code cannot be interrupted from within, so a hang is cut by ending the process; the driver starts a new
incarnation of the actor.

    environment sleeps or waits    a thread sees the mark overdue, writes the report, exits
    environment holds the GIL      the thread cannot run, so it cannot re-arm faulthandler, whose own C thread then
                                   dumps the traceback and exits

Marks cost one clock reading a tick; faulthandler is armed (0.1 ms) when a phase begins, since its very first call may
hold the GIL, and again four times a second, never per tick.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from pathlib import Path
from typing import TextIO

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
        self._lock = threading.Lock()  # arming and disarming never overtake one another
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._phase = ""
        self._deadline_s = 0.0
        self._tick = -1
        self._mark_ns = 0
        self._file: TextIO | None = None

    def start(self) -> None:
        """Start watching; nothing is overdue until `enter`."""
        self._report.parent.mkdir(parents=True, exist_ok=True)  # on another node the driver has made none
        self._file = self._report.open("w")
        self._thread.start()

    def enter(self, phase: str, deadline_s: float) -> None:
        """From here on each mark must come within `deadline_s`."""
        self._mark_ns = self._clock.now_ns()
        self._deadline_s = deadline_s
        with self._lock:
            self._phase = phase
            self._arm(deadline_s)

    def mark(self, tick: int) -> None:
        """Alive, at `tick`."""
        self._tick = tick
        self._mark_ns = self._clock.now_ns()

    def leave(self) -> None:
        """Nothing is awaited any more."""
        with self._lock:
            self._phase = ""
            faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """Stop watching. What was started is gone afterwards; may be called twice, and without `start`."""
        self._stop.set()
        if self._file is None:
            return
        self._thread.join(4 * CHECK_EVERY_S)  # it looks at the flag every quarter of a second
        faulthandler.cancel_dump_traceback_later()
        self._file.close()
        self._file = None

    def _watch(self) -> None:
        while not self._stop.wait(CHECK_EVERY_S):
            with self._lock:
                if not self._phase:
                    continue
                silent_s = (self._clock.now_ns() - self._mark_ns) / NS_PER_S
                if silent_s > self._deadline_s:
                    self._end()
                self._arm(self._deadline_s - silent_s)

    def _arm(self, remaining_s: float) -> None:
        """Have faulthandler end the process if nobody comes back to say otherwise, with the phase in the report."""
        words = f"last seen in {self._phase}, tick {self._tick}, with {self._deadline_s:g} s for each tick"
        faulthandler.dump_traceback_later(remaining_s + 2 * CHECK_EVERY_S, exit=True, file=self._say(words))

    def _end(self) -> None:
        words = f"{self._phase} did not return within {self._deadline_s:g} s, tick {self._tick}"
        faulthandler.dump_traceback(file=self._say(words))
        os._exit(EXIT_HUNG)

    def _say(self, words: str) -> TextIO:
        """Replace the report; faulthandler appends to it."""
        assert self._file is not None, "started"
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{self._who}: {words}\n")
        self._file.flush()
        return self._file
