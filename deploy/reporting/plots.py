"""What a line chart shows, and how large it is; values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from deploy.reporting.scale import exact
from deploy.reporting.svg import Array

SIDES = ("A", "B")
EMPTY = np.zeros(0)


class Along(StrEnum):
    """What the horizontal axis shows."""

    STEPS = "environment steps"
    TIME = "time of driving"
    SHARE = "share of episodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Size of a picture in pixels, and the margins around its plot."""

    width: float
    height: float
    left: float = 46.0
    right: float = 14.0
    top: float = 10.0
    bottom: float = 38.0

    @property
    def plot(self) -> tuple[float, float, float, float]:
        """Left, right, top and bottom edge of the plot."""
        return self.left, self.width - self.right, self.top, self.height - self.bottom


SMALL = Frame(width=380, height=220)
WIDE = Frame(width=1120, height=320)
NARROW = Frame(width=380, height=280)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """An area around a line.

    Attributes:
        low, high: its edges, a value for each point of the line.
        style: class in the style sheet.
    """

    low: Array
    high: Array
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line, or points that stand alone.

    Attributes:
        name: what it is.
        side: 0 or 1: of which run.
        x, y: its points; x ascends, y may be NaN or infinite.
        bands: areas around it.
        points: draw markers with bars from `bars.low` to `bars.high`, and no line.
        bars: of the markers.
        gaps: a value that is not finite breaks the line and is marked; else there just was nothing to tell.
    """

    name: str
    side: int
    x: Array
    y: Array
    bands: tuple[Band, ...] = ()
    points: bool = False
    bars: Band | None = None
    gaps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What is drawn.

    Attributes:
        title: what is shown.
        unit: of the vertical axis, in words.
        along: horizontal axis.
        series: in order of drawing.
        from_zero: the vertical axis begins at 0.
        two_runs: the lines bear the letters of their runs.
        line_at: a value that is marked across, with its words.
    """

    title: str
    unit: str
    along: Along
    series: tuple[Series, ...]
    from_zero: bool = False
    two_runs: bool = False
    line_at: tuple[float, str] | None = None

    @property
    def values(self) -> Array:
        """All that the vertical axis must hold."""
        parts = [EMPTY if self.line_at is None else np.asarray([self.line_at[0]])]
        for each in self.series:
            parts += [each.y, *(edge for band in each.bands for edge in (band.low, band.high))]
            parts += [] if each.bars is None else [each.bars.low, each.bars.high]
        return np.concatenate(parts)


def words(chart: Chart) -> str:
    """A chart in words: of each line where it begins, ends, and its bounds."""
    told = []
    for each in chart.series:
        finite = each.y[np.isfinite(each.y)]
        who = f"{SIDES[each.side]}, {each.name}" if chart.two_runs else each.name
        if not len(finite):
            told.append(f"{who}: nothing to show")
            continue
        first, last, low, high = (exact(float(value)) for value in (finite[0], finite[-1], finite.min(), finite.max()))
        told.append(f"{who}: from {first} to {last}, lowest {low}, highest {high}")
    return f"{chart.title}, {chart.unit}, by {chart.along.value}. {'; '.join(told)}."
