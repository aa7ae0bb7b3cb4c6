"""What every benchmark prints: aligned tables for people, and one last line `RESULT {json}` for programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

RESULT = "RESULT "


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Several readings of one figure.

    Attributes:
        median: middle reading, or mean of the middle two.
        low, high: the extremes.
        count: how many readings.
    """

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, readings: Sequence[float]) -> Spread:
        """Raises ValueError without a reading."""
        if not readings:
            raise ValueError("spread of no readings; allowed: one or more")
        return cls(median=statistics.median(readings), low=min(readings), high=max(readings), count=len(readings))

    def to_plain(self, digits: int = 0) -> dict[str, float]:
        """Rounded, for a result line."""
        figures = {"median": self.median, "low": self.low, "high": self.high}
        return {name: round(value, digits) for name, value in figures.items()}

    def words(self, digits: int = 0) -> str:
        """`median (low to high)`."""
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """ours / theirs round by round: a neighbour's noise falls on both readings of a round.

    Raises:
        ValueError: the two have not met in the same rounds.
    """
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns, so that it reads well on a terminal and can be pasted into the docs."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    rule = ["-" * width for width in widths]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (padded[0], rule, *padded[1:]))


def mark(kept: bool | None) -> str:
    """Whether a promise was kept; None where that could not be judged."""
    return "not judged" if kept is None else "kept      " if kept else "NOT KEPT  "


def result_line(result: dict[str, Any]) -> str:
    """The last line of a benchmark."""
    return RESULT + json.dumps(result, allow_nan=False)


def read_result(output: str) -> dict[str, Any]:
    """The object of the last `RESULT` line of `output`.

    Raises:
        ValueError: there is none.
    """
    for line in reversed(output.splitlines()):
        if line.startswith(RESULT):
            value: dict[str, Any] = json.loads(line.removeprefix(RESULT))
            return value
    raise ValueError(f"no line begins with {RESULT!r}; got {output[-500:]!r}")
