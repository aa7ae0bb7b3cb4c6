"""Line charts as SVG: a `Chart` tells what is drawn, a `Frame` how large; colours and dashes are the style sheet's.

    grid and axes ── bands ── lines and points ── what is not finite ── letters of the runs ── columns to point at

Two runs differ in dash, marker and the letter at the end of the line as well as in colour. A chart has words for those
who do not see it, and its columns have `<title>`s, which any browser shows without a script.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup

from deploy.reporting.plots import EMPTY, SIDES, SMALL, Along, Band, Chart, Frame, Series, words
from deploy.reporting.sampling import chunks, keep_extremes
from deploy.reporting.scale import Scale, bounds, clock_words, exact, short, ticks, time_ticks, wants_log
from deploy.reporting.svg import Array, band_path, element, group, line_path

BUCKETS = 100  # runs of points that a line is thinned out to, each drawn by up to four points
COLUMNS = 40  # that can be pointed at
RUG = 40  # marks for what is not finite, at most
LABEL_GAP = 13.0  # pixels between two labels at the ends of lines


@dataclass(slots=True, kw_only=True)
class _Plot:
    """A chart with its scales."""

    chart: Chart
    frame: Frame
    x: Scale
    y: Scale
    ends: list[tuple[float, float, int]] = field(default_factory=list)  # of lines: x, y, side


def line_chart(chart: Chart, frame: Frame = SMALL) -> Markup:
    """The chart as an `<svg>` with a role, words and a viewBox; as wide as its place allows."""
    plot = _planned(chart, frame)
    parts = [*_axes(plot)]
    if np.isfinite(chart.values).any():
        for each in chart.series:
            parts += [*_bands(plot, each)]
        for each in chart.series:
            parts += [*(_markers(plot, each) if each.points else _line(plot, each))]
        parts += [*_marked_value(plot), *_letters(plot), *_columns(plot)]
    else:
        parts.append(_nothing(plot))
    parts += [cross for each in chart.series for cross in _not_finite(plot, each)]
    return picture(parts, frame, label=words(chart))


def picture(parts: Sequence[str], frame: Frame, *, label: str) -> Markup:
    """An `<svg>` around parts, which says `label` to those who do not see it."""
    view = f"0 0 {frame.width:g} {frame.height:g}"
    return element("svg", *parts, viewBox=view, role="img", aria_label=label, class_="chart")


def _planned(chart: Chart, frame: Frame) -> _Plot:
    left, right, top, bottom = frame.plot
    x = np.concatenate([EMPTY, *(each.x for each in chart.series)])
    end = float(x.max()) if len(x) else 1.0
    log = not chart.from_zero and wants_log(chart.values)
    values = np.log10(chart.values) if log else chart.values
    low, high = bounds(values, from_zero=chart.from_zero)
    if log:
        low, high = 10.0**low, 10.0**high
    return _Plot(
        chart=chart,
        frame=frame,
        x=Scale(low=0.0, high=end if end > 0 else 1.0, start=left, end=right - 14.0 * chart.two_runs),
        y=Scale(low=low, high=high, start=bottom, end=top, log=log),
    )


def _axes(plot: _Plot) -> Iterator[Markup]:
    left, right, top, bottom = plot.frame.plot
    for value, text in ticks(plot.y):
        y = plot.y.at(value)
        yield element("line", class_="grid", x1=left, x2=right, y1=y, y2=y)
        yield element("text", text, class_="tick", x=left - 6, y=y + 4, text_anchor="end")
    yield from x_axis(plot.x, plot.frame, plot.chart.along)
    yield element("line", class_="axis", x1=left, x2=right, y1=bottom, y2=bottom)
    if plot.y.log:
        yield element("text", "log scale", class_="tick", x=right, y=top + 8, text_anchor="end")


def x_axis(scale: Scale, frame: Frame, along: Along) -> Iterator[Markup]:
    """Ticks and label below a plot."""
    left, right, _, bottom = frame.plot
    most = max(3, round(frame.width / 90))
    for value, text in _ticks_along(scale, along, most):
        x = scale.at(value)
        anchor = "end" if x > right - 8 else "middle"
        yield element("line", class_="axis", x1=x, x2=x, y1=bottom, y2=bottom + 4)
        yield element("text", text, class_="tick", x=x, y=bottom + 16, text_anchor=anchor)
    yield element("text", along.value, class_="label", x=(left + right) / 2, y=bottom + 32, text_anchor="middle")


def _ticks_along(scale: Scale, along: Along, most: int) -> list[tuple[float, str]]:
    match along:
        case Along.TIME:
            return time_ticks(scale, most=most)
        case Along.STEPS:
            return ticks(scale, most=most)
        case Along.SHARE:
            return [(value, f"{value:.0%}") for value, _ in ticks(scale, most=most)]


def _bands(plot: _Plot, series: Series) -> Iterator[Markup]:
    for band in series.bands:
        path = band_path(plot.x.place(series.x), *_clipped(plot, band))
        if path:
            yield element("path", class_=f"{band.style} s{series.side}", d=path)


def _clipped(plot: _Plot, band: Band) -> tuple[Array, Array]:
    """Edges of a band in pixels; on a logarithmic axis what is not above 0 lies at its foot."""
    low = np.maximum(band.low, plot.y.low) if plot.y.log else band.low
    return plot.y.place(low), plot.y.place(band.high)


def _line(plot: _Plot, series: Series) -> Iterator[Markup]:
    finite = np.isfinite(series.y)
    kept = np.flatnonzero(finite) if not series.gaps else np.arange(len(series.y))
    kept = kept[keep_extremes(series.y[kept], BUCKETS)]
    x, y = plot.x.place(series.x[kept]), plot.y.place(np.where(finite, series.y, np.nan)[kept])
    if path := line_path(x, y):
        yield element("path", class_=f"line s{series.side}", d=path)
    alone = np.isfinite(y) & ~np.isfinite(np.append(y[1:], np.nan)) & ~np.isfinite(np.insert(y[:-1], 0, np.nan))
    for left, top in zip(x[alone].tolist(), y[alone].tolist(), strict=True):  # between two gaps there is no line to see
        yield element("circle", class_=f"dot s{series.side}", cx=left, cy=top, r=2.5)
    shown = np.flatnonzero(np.isfinite(y))
    if len(shown):
        plot.ends.append((float(x[shown[-1]]), float(y[shown[-1]]), series.side))


def _markers(plot: _Plot, series: Series) -> Iterator[Markup]:
    """Circles for one run, squares for the other, each with a bar."""
    kept = keep_extremes(series.y, BUCKETS // 4)
    x, y = plot.x.place(series.x[kept]), plot.y.place(series.y[kept])
    style = f"mark s{series.side}"
    if series.bars is not None:
        low, high = (edge[kept] for edge in _clipped(plot, series.bars))
        for left, foot, head in zip(x.tolist(), low.tolist(), high.tolist(), strict=True):
            if foot == foot and head == head:
                yield element("line", class_=f"bar s{series.side}", x1=left, x2=left, y1=foot, y2=head)
    for left, top in zip(x.tolist(), y.tolist(), strict=True):
        if top == top:
            yield marker(series.side, left, top, style)


def marker(side: int, x: float, y: float, style: str) -> Markup:
    """A circle for the first run, a square for the second."""
    if side == 0:
        return element("circle", class_=style, cx=x, cy=y, r=4)
    return element("rect", class_=style, x=x - 3.5, y=y - 3.5, width=7, height=7)


def _not_finite(plot: _Plot, series: Series) -> Iterator[Markup]:
    """Crosses at the foot of the plot."""
    if not series.gaps:
        return
    bad = np.flatnonzero(~np.isfinite(series.y))
    y = plot.frame.plot[3] - 5 - 9 * series.side
    for run in chunks(len(bad), RUG):
        x = plot.x.at(float(series.x[bad[run[0]]]))
        cross = f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6"
        yield element("path", element("title", f"not finite: {len(run)}"), class_="nonfinite", d=cross)


def _marked_value(plot: _Plot) -> Iterator[Markup]:
    if plot.chart.line_at is None:
        return
    value, text = plot.chart.line_at
    left, right, top, _ = plot.frame.plot
    y = plot.y.at(value)
    yield element("line", class_="threshold", x1=left, x2=right, y1=y, y2=y)
    yield element("text", text, class_="tick", x=left + 4, y=y - 4 if y > top + 14 else y + 13)


def _letters(plot: _Plot) -> Iterator[Markup]:
    """The letter of each run at the end of its line, moved apart where they would cover each other."""
    if not plot.chart.two_runs:
        return
    ends = sorted(plot.ends, key=lambda end: end[1])
    places: list[float] = []
    for _, y, _ in ends:
        places.append(max(y, places[-1] + LABEL_GAP) if places else y)
    lift = max(0.0, places[-1] - plot.frame.plot[3]) if places else 0.0
    for (x, _, side), place in zip(ends, places, strict=True):
        yield element("text", SIDES[side], class_=f"letter s{side}", x=x + 5, y=place - lift + 4)


def _columns(plot: _Plot) -> Iterator[Markup]:
    """Upright strips that tell, when pointed at, what the lines are there."""
    left, _, top, bottom = plot.frame.plot
    edges = np.linspace(plot.x.low, plot.x.high, COLUMNS + 1)
    width = (plot.x.end - left) / COLUMNS
    strips = []
    for number, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        told = [text for each in plot.chart.series if (text := _within(plot.chart, each, low, high))]
        if told:
            title = element("title", "\n".join([f"up to {_where(high, plot.chart.along)}", *told]))
            x = left + number * width
            strips.append(element("rect", title, x=x, y=top, width=width, height=bottom - top))
    yield group(strips, class_="columns")


def _where(value: float, along: Along) -> str:
    match along:
        case Along.TIME:
            return clock_words(value)
        case Along.STEPS:
            return f"{short(float(f'{value:.4g}'))} steps"
        case Along.SHARE:
            return f"{value:.0%} of the episodes"


def _within(chart: Chart, series: Series, low: float, high: float) -> str:
    inside = (series.x > low) & (series.x <= high) if low else series.x <= high
    values = series.y[inside & np.isfinite(series.y)]
    if not len(values):
        return ""
    who = f"{SIDES[series.side]} {series.name}" if chart.two_runs else series.name
    mean = exact(float(values.mean()))
    if len(values) == 1:
        return f"{who}: {mean}"
    return f"{who}: {mean} ({exact(float(values.min()))} to {exact(float(values.max()))})"


def _nothing(plot: _Plot) -> Markup:
    left, right, top, bottom = plot.frame.plot
    text = "no finite value on record" if any(len(each.y) for each in plot.chart.series) else "nothing on record"
    return element("text", text, class_="nothing", x=(left + right) / 2, y=(top + bottom) / 2, text_anchor="middle")
