"""The run registry's writer, timed: while it writes, the driver hears nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.clock import Clock
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import Event, Note, RecordUpdate, RollBack, WriteCheckpoint
from deploy.driver import Recorder


class TimedRecorder:
    """Passes everything on.

    Args:
        recorder: to whom.
        clock: by which it is timed.
        spent: told the nanoseconds of each call.
    """

    def __init__(self, recorder: Recorder, clock: Clock, spent: Callable[[int], None]) -> None:
        self._recorder = recorder
        self._clock = clock
        self._spent = spent

    def observe(self, event: Event, conductor: Conductor) -> None:
        with self._timed():
            self._recorder.observe(event, conductor)

    def commit(self, command: RecordUpdate, conductor: Conductor) -> None:
        with self._timed():
            self._recorder.commit(command, conductor)

    def save(self, command: WriteCheckpoint) -> None:
        with self._timed():
            self._recorder.save(command)

    def roll_back(self, command: RollBack) -> None:
        with self._timed():
            self._recorder.roll_back(command)

    def note(self, note: Note) -> None:
        with self._timed():
            self._recorder.note(note)

    def close(self, conductor: Conductor) -> None:
        self._recorder.close(conductor)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start_ns = self._clock.now_ns()
        try:
            yield
        finally:
            self._spent(self._clock.now_ns() - start_ns)
