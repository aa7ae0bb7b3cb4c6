"""A wall clock that is nobody's: for finding out whether an environment asks what time it is.

Replaces `time.time`, `time.time_ns`, and `now`, `today` and `utcnow` of `datetime.datetime` and `datetime.date`, where
they are looked up in their modules. Not noticed: C code, and names that were imported out of these modules before.
truestep itself asks none of them while it steps.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

datetime: Any = importlib.import_module("datetime")  # these two not to read a clock, but to keep others from it
time: Any = importlib.import_module("time")
EPOCH_S = 1_000_000_000.0
TICK_S = 0.001


class FalseClock:
    """Begins at `EPOCH_S + shift_s` and advances by a millisecond each time that it is read.

    Attributes:
        reads: how often it was.
    """

    def __init__(self, shift_s: float) -> None:
        self.reads = 0
        self._begin_s = EPOCH_S + shift_s
        self._before = 0

    def begin(self) -> None:
        """Back to its beginning; reads are counted on."""
        self._before = self.reads

    def now_s(self) -> float:
        """Seconds since 1970, or so it says."""
        self.reads += 1
        return self._begin_s + TICK_S * (self.reads - self._before)


class _ForAll(type):
    """What is no instance of the false class, but of the true one, passes for one: it was made before."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


@contextmanager
def wall_clock_replaced(clock: FalseClock) -> Iterator[None]:
    """Whoever asks for the time of day inside the block is told `clock`'s."""

    class FalseDatetime(datetime.datetime, metaclass=_ForAll):  # type: ignore[misc]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(clock.now_s(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(clock.now_s(), datetime.UTC).replace(tzinfo=None)

        today = now

    class FalseDate(datetime.date, metaclass=_ForAll):  # type: ignore[misc]
        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(clock.now_s())

    replaced: list[tuple[Any, str, Any]] = [
        (time, "time", clock.now_s),
        (time, "time_ns", lambda: int(clock.now_s() * 1e9)),
        (datetime, "datetime", FalseDatetime),
        (datetime, "date", FalseDate),
    ]
    kept = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
