"""What happened when, as SVG: a row for each kind of thing, one axis for all, bands where a run was held up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from deploy.reporting.charts import picture, x_axis
from deploy.reporting.plots import Along, Frame
from deploy.reporting.scale import Scale, clock_words
from deploy.reporting.svg import element

ROW_HEIGHT = 30.0
NEAR = 9.0  # pixels within which marks of one row are drawn as one, with their number
LETTER = 6.8  # pixels of a letter, about
WIDE_TIMELINE = Frame(width=1120, height=0, left=150, right=14, top=6)
NARROW_TIMELINE = Frame(width=380, height=0, left=84, right=12, top=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened.

    Attributes:
        seconds: of driving.
        style: class and shape: bad (a cross), good (a filled circle), plain (a ring), saved (a diamond).
        words: what it was.
    """

    seconds: float
    style: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Something that lasted.

    Attributes:
        begin, end: seconds of driving.
        style: class of fill and hatch.
        words: what it was; written inside where there is room.
        detail: a sentence on it.
    """

    begin: float
    end: float
    style: str
    words: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of thing.

    Attributes:
        name: of it.
        marks: in order of time.
        stretches: likewise.
    """

    name: str
    marks: tuple[Mark, ...] = ()
    stretches: tuple[Stretch, ...] = ()


def timeline(rows: Sequence[Row], end_s: float, frame: Frame) -> Markup:
    """Rows over one axis of driving time."""
    height = frame.top + ROW_HEIGHT * len(rows) + frame.bottom
    frame = Frame(width=frame.width, height=height, left=frame.left, right=frame.right, top=frame.top)
    left, right, _, bottom = frame.plot
    scale = Scale(low=0.0, high=end_s or 1.0, start=left + 6, end=right - 6)
    parts: list[Markup] = []
    for number, row in enumerate(rows):
        parts += _row(row, scale, frame, middle=frame.top + ROW_HEIGHT * (number + 0.5))
    parts += x_axis(scale, frame, Along.TIME)
    parts.append(element("line", class_="axis", x1=left, x2=right, y1=bottom, y2=bottom))
    return picture(parts, frame, label=_words(rows))


def _row(row: Row, scale: Scale, frame: Frame, *, middle: float) -> Iterator[Markup]:
    left, right, _, _ = frame.plot
    yield element("line", class_="grid", x1=left, x2=right, y1=middle, y2=middle)
    yield element("text", row.name, class_="row", x=left - 8, y=middle + 4, text_anchor="end")
    for stretch in row.stretches:
        yield from _stretch(stretch, scale, middle)
    for cluster in _clusters(row.marks, scale):
        yield _marked(cluster, scale, middle)


def _stretch(stretch: Stretch, scale: Scale, middle: float) -> Iterator[Markup]:
    begin, end = scale.at(stretch.begin), scale.at(stretch.end)
    box = {"x": begin, "y": middle - 9, "width": max(1.5, end - begin), "height": 18}
    when = f"{clock_words(stretch.begin)} to {clock_words(stretch.end)}"
    title = element("title", "\n".join(filter(None, (f"{stretch.words}, {when}", stretch.detail))))
    yield element("rect", title, class_=f"layer {stretch.style}", **box)
    yield element("rect", class_=f"hatch {stretch.style}", **box)
    wide = len(stretch.words) * LETTER
    if end - begin > wide + 12:
        x = (begin + end) / 2
        yield element("rect", class_="plate", x=x - wide / 2 - 3, y=middle - 7, width=wide + 6, height=14, rx=3)
        yield element("text", stretch.words, class_="inside", x=x, y=middle + 4, text_anchor="middle")


def _clusters(marks: Sequence[Mark], scale: Scale) -> Iterator[list[Mark]]:
    """Marks of one style that would cover each other, together."""
    cluster: list[Mark] = []
    for mark in marks:
        near = cluster and scale.at(mark.seconds) - scale.at(cluster[0].seconds) < NEAR
        if cluster and not (near and mark.style == cluster[0].style):
            yield cluster
            cluster = []
        cluster.append(mark)
    if cluster:
        yield cluster


def _marked(cluster: Sequence[Mark], scale: Scale, middle: float) -> Markup:
    first = cluster[0]
    x = scale.at((first.seconds + cluster[-1].seconds) / 2)
    told = [f"{clock_words(mark.seconds)}: {mark.words}" for mark in cluster[:5]]
    told += [f"and {len(cluster) - 5} more"] if len(cluster) > 5 else []
    parts = [element("title", "\n".join(told)), element("path", d=_shape(first.style, x, middle))]
    if len(cluster) > 1:
        parts.append(element("text", f"×{len(cluster)}", class_="count", x=x + 7, y=middle - 5))
    return element("g", *parts, class_=f"event {first.style}")


def _shape(style: str, x: float, y: float) -> str:
    match style:
        case "bad":
            return f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
        case "saved":
            return f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"
        case _:
            return f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"


def _words(rows: Sequence[Row]) -> str:
    told = [f"{row.name}: {len(row.marks) + len(row.stretches)}" for row in rows]
    return f"Timeline of the run. {', '.join(told)}. All events stand in the table below."
