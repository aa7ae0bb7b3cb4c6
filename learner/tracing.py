"""A trace of a learner rank's updates with torch.profiler: every operation, its time, its thread and its kernel.

    request ── trace(10 s) ─► wanted ─┬─► the rank begins the trace before its next update
                                      └─◄ and ends it after the first update that ends 10 s later; the request writes it

The profiler lives in the rank's own thread and between updates only; it looks at operations and changes none, so the
parameters are the same bits with it and without.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile

from common.clock import Clock, Deadline, wait_until
from common.errors import DeadlineError, UnreachableError

MAX_UPDATES = 10  # of one trace: the next ones look the same, and 200,000 operations are 60 MB and a pause of 0.8 s
PATIENCE_S = 60.0  # for an update to begin, and for the last one to end
POLL_S = 0.05


@dataclass(slots=True, kw_only=True, eq=False)
class _Request:
    """Somebody waits for a trace.

    Attributes:
        seconds: of it.
        done: set by the rank's thread when `profiler` holds it, or `failure` says why there is none.
    """

    seconds: float
    done: threading.Event = field(default_factory=threading.Event)
    profiler: profile | None = None
    failure: str = ""


class UpdateTracer:
    """Traces updates of one rank: `update()` around each of them in its thread, `trace()` from any other.

    One trace at a time; whoever serves requests sees to that.
    """

    def __init__(self, clock: Clock, *, patience_s: float = PATIENCE_S) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._wanted: _Request | None = None
        self._traced: tuple[_Request, profile, Deadline] | None = None
        self._updates = 0

    def trace(self, seconds: float, *, stop: threading.Event) -> bytes:
        """The updates of the next `seconds`, at most `MAX_UPDATES` of them, as Chrome trace JSON.

        Args:
            stop: set when nobody wants it any more.

        Raises:
            DeadlineError: no update began within the patience that there is, or the last one did not end.
            UnreachableError: the profiler failed; the rank goes on without it.
        """
        request = self._wanted = _Request(seconds=seconds)
        try:
            wait_s = seconds + self._patience_s
            ended = wait_until(
                lambda: request.done.is_set() or stop.is_set(), clock=self._clock, seconds=wait_s, poll_s=POLL_S
            )
        finally:
            self._wanted = None
        if request.failure:
            raise UnreachableError("torch's profiler failed", got=request.failure)
        if request.profiler is None:
            raise DeadlineError(
                "no trace of the learner rank",
                got="the process is ending" if ended else f"no update that began and ended within {wait_s:g} s",
                fix="see what the run waits for: `truestep top`",
            )
        return _chrome_trace(request.profiler)

    @contextmanager
    def update(self) -> Iterator[None]:
        """One update of the rank; in its thread. Raises nothing of its own."""
        if self._traced is None and (request := self._wanted) is not None:
            self._begin(request)
        try:
            yield
        finally:
            if self._traced is not None:
                self._end_if_due(*self._traced)

    def _begin(self, request: _Request) -> None:
        self._wanted, self._updates = None, 0
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        profiler = profile(activities=activities, acc_events=False)
        try:
            profiler.start()
        except Exception as error:  # noqa: BLE001 - whatever a profiler raises must not cost the run its rank
            request.failure = f"{type(error).__name__}: {error}"
            request.done.set()
            return
        self._traced = request, profiler, Deadline(self._clock, request.seconds)

    def _end_if_due(self, request: _Request, profiler: profile, deadline: Deadline) -> None:
        self._updates += 1
        if not deadline.expired() and self._updates < MAX_UPDATES:
            return
        self._traced = None
        try:
            profiler.stop()
            request.profiler = profiler
        except Exception as error:  # noqa: BLE001 - as above
            request.failure = f"{type(error).__name__}: {error}"
        request.done.set()


def _chrome_trace(profiler: profile) -> bytes:
    with TemporaryDirectory(prefix="truestep-") as directory:
        file = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(file))
        return file.read_bytes()
