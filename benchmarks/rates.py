"""Steady-state rates: what a contender does per second once everything that happens only once is over."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from common.clock import NS_PER_S, Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One reading.

    Attributes:
        steps: valid environment transitions collected and trained on. Reset rows are none.
        seconds: in which that was done.
        facts: whatever else the contender reports about the reading.
    """

    steps: int
    seconds: float
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def steps_per_s(self) -> float:
        """steps / seconds."""
        return self.steps / self.seconds

    def line(self) -> str:
        """One JSON object; `read` takes it back."""
        figures = {"steps": self.steps, "seconds": self.seconds, "steps_per_s": self.steps_per_s}
        return json.dumps({**figures, "facts": self.facts}, allow_nan=False)

    @classmethod
    def read(cls, output: str) -> Rate:
        """The reading on the last line of a contender's standard output. Raises ValueError if it is not there."""
        lines = output.strip().splitlines()
        try:
            value = json.loads(lines[-1])
            return cls(steps=value["steps"], seconds=value["seconds"], facts=value["facts"])
        except (IndexError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"no reading on the last line; got {output[-300:]!r}") from error


class Meter:
    """Turns a count that grows into a steady-state rate.

    `take(steps)` is told the running total after each update; the first `warmup_s` from the end of the first update on
    are not counted, and the reading is complete once `seconds` more have passed. Both ends of it lie on the end of an
    update.
    """

    def __init__(self, clock: Clock, *, warmup_s: float, seconds: float) -> None:
        self._clock = clock
        self._begun_ns: int | None = None
        self._warmup_s = warmup_s
        self._seconds = seconds
        self._start: tuple[int, int] | None = None
        self._end: tuple[int, int] | None = None

    @property
    def warm(self) -> bool:
        """The reading has begun."""
        return self._start is not None

    @property
    def done(self) -> bool:
        """The reading is complete."""
        return self._end is not None

    def take(self, steps: int) -> bool:
        """`steps` environment steps have been trained on by now. True once the reading is complete."""
        now_ns = self._clock.now_ns()
        if self._begun_ns is None:
            self._begun_ns = now_ns
        if self._start is None:
            if (now_ns - self._begun_ns) / NS_PER_S >= self._warmup_s:
                self._start = (now_ns, steps)
        elif self._end is None and (now_ns - self._start[0]) / NS_PER_S >= self._seconds:
            self._end = (now_ns, steps)
        return self.done

    @property
    def window(self) -> tuple[int, int]:
        """Running totals at both ends of the reading. Raises ValueError before it is complete."""
        (_, start), (_, end) = self._ends()
        return start, end

    def rate(self, **facts: float) -> Rate:
        """The reading. Raises ValueError before it is complete."""
        (start_ns, start), (end_ns, end) = self._ends()
        return Rate(steps=end - start, seconds=(end_ns - start_ns) / NS_PER_S, facts=facts)

    def _ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        if self._start is None or self._end is None:
            raise ValueError("the contender ended before its reading was complete; allowed: run until `done`")
        return self._start, self._end


def measure(update: Callable[[], int], clock: Clock, *, warmup_s: float, seconds: float) -> Rate:
    """The rate of `update`, which trains once and returns how many steps it trained on."""
    meter = Meter(clock, warmup_s=warmup_s, seconds=seconds)
    steps = update()
    while not meter.take(steps):
        steps += update()
    return meter.rate()
