"""Checkpoints written beside the run: one thread, one checkpoint at a time, results as events.

A cut holds a state of the learner and frames, so a disk that takes longer than cuts are apart must not pile them up:
beyond `MOST_HELD` the oldest that waits is left out, and told as failed; never the newest, nor the best.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

from common.clock import NS_PER_S, Clock, Deadline
from common.errors import CheckpointError, TruestepError
from common.manifest import CheckpointInfo
from deploy.conductor.messages import CheckpointWritten, Cut

MOST_HELD = 3  # cuts at a time: the one that is being written, the best and the newest
Save = Callable[[Cut], CheckpointInfo]


class CheckpointWriter:
    """Writes cuts in the order given. A cut aliases nothing that changes, so the run goes on meanwhile."""

    def __init__(self, save: Save, clock: Clock, *, deadline_s: float) -> None:
        self._save = save
        self._clock = clock
        self._deadline_s = deadline_s
        self._todo: deque[Cut] = deque()
        self._changed = threading.Condition()
        self._closing = False
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
        """Queue a cut; one that waits may be left out for it."""
        if not self._pending:
            self._deadline = Deadline(self._clock, self._deadline_s)
        self._pending.append(cut.update)
        with self._changed:
            self._todo.append(cut)
            if len(self._pending) > MOST_HELD and len(self._todo) > MOST_HELD - 1:
                self._leave_out()
            self._changed.notify()

    def _leave_out(self) -> None:
        *waiting, _ = self._todo
        scores = {cut.update: cut.score for cut in waiting if cut.score is not None}
        best = max(scores, key=lambda update: (scores[update], update), default=None)
        cut = next(cut for cut in waiting if cut.update != best)
        self._todo.remove(cut)
        error = f"left out for newer ones: writing takes longer than checkpoints are apart ({MOST_HELD} are held)"
        self._done.put((CheckpointWritten(update=cut.update, name="", digest="", error=error), 0.0))

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
        if written.update == self._pending[0]:  # a cut that is left out says nothing of the one that is being written
            self._deadline = Deadline(self._clock, self._deadline_s)
        self._pending.remove(written.update)
        return written, seconds

    def close(self, timeout_s: float) -> None:
        """Let the thread end; a write that hangs is left to the end of the process."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while (cut := self._next()) is not None:
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

    def _next(self) -> Cut | None:
        with self._changed:
            while not self._todo and not self._closing:
                self._changed.wait()
            return self._todo.popleft() if self._todo else None
