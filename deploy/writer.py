"""Checkpoints written beside the run: one thread, one checkpoint at a time, results as events."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from common.clock import NS_PER_S, Clock, Deadline
from common.errors import CheckpointError, TruestepError
from common.manifest import CheckpointInfo
from deploy.conductor.messages import CheckpointWritten, Cut

Save = Callable[[Cut], CheckpointInfo]


class CheckpointWriter:
    """Writes cuts in the order given. A cut aliases nothing that changes, so the run goes on meanwhile."""

    def __init__(self, save: Save, clock: Clock, *, deadline_s: float) -> None:
        self._save = save
        self._clock = clock
        self._deadline_s = deadline_s
        self._todo: queue.SimpleQueue[Cut | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[CheckpointWritten, float]] = queue.SimpleQueue()
        self._deadline: Deadline | None = None
        self._pending: list[int] = []
        self._thread = threading.Thread(target=self._work, name="checkpoint-writer", daemon=True)

    def start(self) -> None:
        """Begin to take cuts."""
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a result is still to come."""
        return bool(self._pending)

    def write(self, cut: Cut) -> None:
        """Queue a cut."""
        if not self._pending:
            self._deadline = Deadline(self._clock, self._deadline_s)
        self._pending.append(cut.update)
        self._todo.put(cut)

    def result_nowait(self) -> tuple[CheckpointWritten, float] | None:
        """A finished write and its seconds, or None. A write past its deadline is reported as failed."""
        try:
            written, seconds = self._done.get_nowait()
        except queue.Empty:
            if not self._pending or self._deadline is None or not self._deadline.expired():
                return None
            error = f"not written within {self._deadline_s:g} s: the disk hangs"
            written, seconds = CheckpointWritten(update=self._pending[0], name="", digest="", error=error), 0.0
        if written.update not in self._pending:
            return None  # it came after all, when it had been given up
        self._pending.remove(written.update)
        self._deadline = Deadline(self._clock, self._deadline_s)
        return written, seconds

    def close(self, timeout_s: float) -> None:
        """Let the thread end; a write that hangs is left to the end of the process."""
        self._todo.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while (cut := self._todo.get()) is not None:
            start_ns = self._clock.now_ns()
            try:
                info = self._save(cut)
                written = CheckpointWritten(update=cut.update, name=info.name, digest=info.digest)
            except (TruestepError, OSError) as error:
                written = CheckpointWritten(update=cut.update, name="", digest="", error=str(error))
            except Exception as error:  # noqa: BLE001 - whatever it is, the run must hear of it rather than wait
                failed = CheckpointError(f"checkpoint {cut.update}: {type(error).__name__}: {error}")
                written = CheckpointWritten(update=cut.update, name="", digest="", error=str(failed))
            self._done.put((written, (self._clock.now_ns() - start_ns) / NS_PER_S))
