"""The driver of a run: conductor, engine, registry, checkpoints, metrics and display, wired to one loop.

consumes   events of the engine and the checkpoint writer, signals
produces   commands, records, checkpoints
waits for  the engine's next event, at most WAIT_S at a time
unblocked  by any process of the run, or by the deadline of what it was told
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from common.clock import NS_PER_S, Clock
from common.errors import DeadlineError
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import (
    Command,
    Event,
    Finish,
    FragmentDropped,
    Note,
    RecordUpdate,
    RollBack,
    StopAsked,
    WriteCheckpoint,
)
from deploy.engines import Engine
from deploy.probes import RunHealth
from deploy.watch import Watch
from deploy.writer import CheckpointWriter

WAIT_S = 0.25
WAIT_WHILE_WRITING_S = 0.02
CLOSE_WRITER_S = 5.0


@dataclass(slots=True)
class StopFlag:
    """Set by a signal handler; read by the loop. The second signal changes nothing: the first is being obeyed."""

    reason: str = ""

    def ask(self, reason: str) -> None:
        """Ask the run to checkpoint and end."""
        self.reason = self.reason or reason


class Recorder(Protocol):
    """What is told of everything that becomes final: the registry's writer, or who compares with what it wrote."""

    def observe(self, event: Event, conductor: Conductor) -> None:
        """Take an event that the conductor has taken in."""
        ...

    def commit(self, command: RecordUpdate, conductor: Conductor) -> None:
        """Take an update that every rank of the group agreed on; the conductor stands right behind it."""
        ...

    def save(self, command: WriteCheckpoint) -> None:
        """A cut is about to be written."""
        ...

    def roll_back(self, command: RollBack) -> None:
        """Later updates are undone."""
        ...

    def note(self, note: Note) -> None:
        """Take a fact."""
        ...

    def close(self, conductor: Conductor) -> None:
        """The run is over."""
        ...


class Driver:
    """Runs a conductor to its end."""

    def __init__(
        self,
        conductor: Conductor,
        engine: Engine,
        writer: CheckpointWriter,
        record: Recorder,
        watch: Watch,
        clock: Clock,
        stop: StopFlag,
        health: RunHealth,
        *,
        silence_s: float,
    ) -> None:
        self._conductor = conductor
        self._engine = engine
        self._writer = writer
        self._record = record
        self._watch = watch
        self._clock = clock
        self._stop = stop
        self._health = health
        self._stop_told = False
        self._silence_s = silence_s
        self._heard_ns = 0

    def run(self) -> Finish:
        """Carry out the run; returns how it ended."""
        self._heard_ns = self._clock.now_ns()
        self._carry_out(self._conductor.begin())
        finish = None
        while finish is None:
            for event in self._events():
                commands = self._conductor.handle(event)
                self._observe(event)
                self._carry_out(commands)
            for note in self._watch.tick(self._conductor):
                self._record.note(note)
                self._watch.note(note)
            self._health.look(self._conductor)
            finish = self._conductor.finish
        self._record.close(self._conductor)
        self._writer.close(CLOSE_WRITER_S)
        return finish

    def _events(self) -> Iterator[Event]:
        if self._stop.reason and not self._stop_told:
            self._stop_told = True
            yield StopAsked(reason=self._stop.reason)
        while (result := self._writer.result_nowait()) is not None:
            written, seconds = result
            self._watch.checkpoint(written, seconds)
            yield written
        event = self._engine.next_event(WAIT_WHILE_WRITING_S if self._writer.busy else WAIT_S)
        if event is not None:
            self._heard_ns = self._clock.now_ns()
            yield event
        elif not self._writer.busy:
            self._check_silence()

    def _check_silence(self) -> None:
        """Every command has its deadline in the engine; this one catches what no command covers."""
        if (self._clock.now_ns() - self._heard_ns) / NS_PER_S > self._silence_s:
            raise DeadlineError(
                f"nothing happened for {self._silence_s:g} s",
                got=f"waiting for {self._conductor.waiting_for()}",
                fix="resume the run; please report this with the run's record",
            )

    def _observe(self, event: Event) -> None:
        self._record.observe(event, self._conductor)
        self._watch.observe(event)
        self._health.observe(event)

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            self._watch.told(command)
            match command:
                case WriteCheckpoint():
                    self._record.save(command)
                    self._writer.write(command.cut)
                case RecordUpdate():
                    self._record.commit(command, self._conductor)
                    self._health.commit(command)
                    if (recovered := self._watch.commit(command)) is not None:
                        self._record.note(recovered)
                        self._watch.note(recovered)
                case RollBack():
                    self._record.roll_back(command)
                case Note():
                    self._record.note(command)
                    self._watch.note(command)
                case FragmentDropped():
                    self._watch.drop(command)
                case Finish():
                    pass
                case _:
                    self._engine.carry_out(command)
