"""Between a run and one writer: rows wait in a bounded queue, and a thread of its own hands them over.

consumes   rows and undoings, put there by the driver without waiting
produces   calls of the writer
waits for  the next item
unblocked  by `put`, `undo_after` or `close`; a writer that hangs is left behind by `close` at its deadline
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from common.clock import Deadline
from deploy.writers.writer import Writer

CAPACITY_ROWS = 4096  # some 20 MB; a minute and a half, as long as W&B may take to begin, at 40 updates a second
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Row:
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Undo:
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of a writer's rows.

    Attributes:
        name: of the writer.
        written: that it took.
        left_out: that it did not: the queue was full, the writer raised, or it was not done by the deadline.
        error: what it raised first; "" if nothing.
    """

    name: str
    written: int
    left_out: int
    error: str


class Outbox:
    """One writer's rows. Nothing that its methods do waits for the writer, but for `close`, which has a deadline.

    Args:
        name: of the writer, for people.
        open_writer: makes it; called on the thread, since it may take its time or fail like any call.
        tell: where a person is told, once for each kind of trouble.
        capacity: rows that may wait; what comes on top is left out, and counted.
    """

    def __init__(
        self,
        name: str,
        open_writer: Callable[[], Writer],
        tell: Callable[[str], None],
        *,
        capacity: int = CAPACITY_ROWS,
    ) -> None:
        self.name = name
        self._open_writer = open_writer
        self._tell = tell
        self._capacity = capacity
        self._todo: deque[_Row | _Undo] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._gone = False
        self._written = 0
        self._left_out = 0
        self._in_hand = 0
        self._error = ""
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._work, name=f"writer-{name}", daemon=True)

    def start(self) -> None:
        """Begin to hand over."""
        self._thread.start()

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Queue a row, or leave it out."""
        with self._changed:
            fits = len(self._todo) < self._capacity and not (self._gone or self._ending)
            if fits:
                self._todo.append(_Row(step, values))
                self._changed.notify()
            else:
                self._left_out += 1
            late = not fits and not self._gone
        if late:
            self._warn("full", f"does not keep up: {self._capacity:,} rows wait, and what comes on top is left out")

    def undo_after(self, step: int) -> None:
        """Queue an undoing; it finds its place however many rows wait."""
        with self._changed:
            self._todo.append(_Undo(step))
            self._changed.notify()

    def end(self) -> None:
        """Take no more rows; the thread ends behind the last one."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def close(self, deadline: Deadline) -> Tally:
        """`end`, and wait for it until the deadline; a writer that hangs is left behind with the rows it holds."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(deadline.remaining_s())
        with self._changed:
            if self._thread.is_alive():
                self._error = self._error or "it was not done at the end of the run"
            waiting = self._in_hand + sum(isinstance(item, _Row) for item in self._todo)
            return Tally(name=self.name, written=self._written, left_out=self._left_out + waiting, error=self._error)

    def _work(self) -> None:
        opened: list[Writer] = []
        if not self._attempt("begin", lambda: opened.append(self._open_writer())):
            self._give_up()
            return
        writer = opened[0]
        while (item := self._next()) is not None:
            self._hand_over(writer, item)
        self._attempt("finish", writer.close)

    def _next(self) -> _Row | _Undo | None:
        with self._changed:
            while not self._todo and not self._ending:
                self._changed.wait()
            if not self._todo:
                return None
            item = self._todo.popleft()
            self._in_hand = int(isinstance(item, _Row))
            return item

    def _hand_over(self, writer: Writer, item: _Row | _Undo) -> None:
        match item:
            case _Row(step, values):
                taken = self._attempt("take a row", lambda: writer.scalars(step, values))
                with self._changed:
                    self._in_hand = 0
                    self._written += taken
                    self._left_out += not taken
            case _Undo(step):
                self._attempt("undo rows", lambda: writer.undo_after(step))

    def _give_up(self) -> None:
        with self._changed:
            self._gone = True
            self._left_out += sum(isinstance(item, _Row) for item in self._todo)
            self._todo.clear()

    def _attempt(self, what: str, call: Callable[[], Any]) -> bool:
        """Whether it went through; what it raises costs one log record and one line for each `what`."""
        try:
            call()
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            with self._changed:
                self._error = self._error or words
            if what not in self._told:
                logger.exception("writer %s could not %s; the run goes on; told once", self.name, what)
            self._warn(what, f"could not {what}: {words}; the run goes on")
            return False
        return True

    def _warn(self, what: str, words: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._tell(f"WARNING: writer {self.name} {words}")
