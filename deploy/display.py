"""What a person sees while a run goes on: a live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from common.clock import NS_PER_S, Clock

LINE_EVERY_S = 5.0
REFRESH_EVERY_S = 0.25
DIGEST = re.compile(r"[0-9a-f]{16,}")
BRIEF_DIGEST = 12
BRIEF_ITEMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands.

    Attributes:
        steps, total_steps: environment steps trained on, of how many.
        steps_per_s: recent rate; None before it is known.
        updates: committed.
        episode_return: mean of the last episodes; None before the first ends.
        evaluation: mean return of the newest evaluation; None before the first.
        lag: updates between acting and learning.
        actors: that are there, of how many that should be.
        ranks: learner ranks that are in the group, of how many; shown where there is more than one.
        waiting: what is awaited, if nothing moves.
        held_up: what holds the run up, by stall attribution, if anything does.
    """

    steps: int
    total_steps: int
    steps_per_s: float | None
    updates: int
    episode_return: float | None
    evaluation: float | None
    lag: int
    actors: tuple[int, int]
    ranks: tuple[int, int] = (1, 1)
    waiting: str = ""
    held_up: str = ""

    @property
    def eta_s(self) -> float | None:
        """Seconds to the last step at the recent rate."""
        if not self.steps_per_s:
            return None
        return max(0.0, self.total_steps - self.steps) / self.steps_per_s

    def words(self) -> str:
        """One line."""
        parts = [
            f"steps {self.steps:,}/{self.total_steps:,}",
            f"{_number(self.steps_per_s)} steps/s",
            f"update {self.updates:,}",
            f"return {_number(self.episode_return)}",
            f"evaluation {_number(self.evaluation)}",
            f"lag {self.lag}",
            f"actors {self.actors[0]}/{self.actors[1]}",
            *([f"ranks {self.ranks[0]}/{self.ranks[1]}"] if self.ranks[1] > 1 else []),
            *([self.held_up] if self.held_up else []),
            f"ETA {duration(self.eta_s)}",
        ]
        return "  ".join(parts)


class Display(Protocol):
    """Shows progress and tells what happens."""

    def show(self, progress: Progress) -> None:
        """Progress, as often as the caller likes; the display keeps its own pace."""
        ...

    def tell(self, text: str) -> None:
        """A line that stays."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class Silent:
    """Shows nothing: for callers from Python."""

    def show(self, progress: Progress) -> None:
        """Nothing."""

    def tell(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines:
    """For files and pipes: a line every few seconds, one at the end."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._last_ns = clock.now_ns()
        self._shown = ""
        self._newest = ""

    def show(self, progress: Progress) -> None:
        self._newest = progress.words()
        if (self._clock.now_ns() - self._last_ns) / NS_PER_S >= LINE_EVERY_S:
            self._last_ns = self._clock.now_ns()
            self._print()

    def tell(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        if self._newest != self._shown:
            self._shown = self._newest
            self.tell(self._newest)


class Terminal:
    """For a terminal: a bar and a line that are redrawn in place."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._last_ns = 0
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, progress: Progress) -> None:
        if (self._clock.now_ns() - self._last_ns) / NS_PER_S < REFRESH_EVERY_S:
            return
        self._last_ns = self._clock.now_ns()
        table = Table.grid(padding=(0, 1))
        table.add_row(ProgressBar(total=progress.total_steps, completed=progress.steps, width=40))
        table.add_row(progress.words() if not progress.waiting else f"waiting for {progress.waiting}")
        self._live.update(table, refresh=True)

    def tell(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds as people write them."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def brief(value: object) -> str:
    """A value of an event in a line for people: digests as their first 12 characters, long lists as their beginning."""
    match value:
        case str():
            return value[:BRIEF_DIGEST] if DIGEST.fullmatch(value) else value
        case Mapping():
            return "{" + ", ".join(f"{key}: {brief(item)}" for key, item in value.items()) + "}"
        case list() | tuple() | set() | frozenset():
            shown = [brief(item) for item in islice(value, BRIEF_ITEMS)]
            more = [f"and {len(value) - BRIEF_ITEMS} more"] if len(value) > BRIEF_ITEMS else []
            return f"[{', '.join(shown + more)}]"
        case _:
            return str(value)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"
