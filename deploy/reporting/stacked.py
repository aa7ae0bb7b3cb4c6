"""Where time went: areas on top of each other along the driving, and one bar over all of it.

Each layer has a hatch of its own, and the bar names its parts, so that nothing hangs on colour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from deploy.reporting.charts import COLUMNS, picture, x_axis
from deploy.reporting.plots import SMALL, Along, Frame
from deploy.reporting.sampling import chunks
from deploy.reporting.scale import Scale, clock_words, ticks
from deploy.reporting.svg import Array, band_path, element, group

WORD_PIXELS = 6.6  # that a letter takes, about
BAR = Frame(width=380, height=30, left=0, right=0, top=2, bottom=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One part of the whole.

    Attributes:
        name: what it is.
        style: class of its fill and hatch.
        y: a value for each stretch.
    """

    name: str
    style: str
    y: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What is drawn.

    Attributes:
        title: what is shown.
        unit: of the vertical axis, in words.
        seconds: end of each stretch of driving.
        counted: share of each stretch that means are over.
        layers: from the bottom up.
        top: upper end of the axis; None = as high as the stack is.
        percent: values are shares, written as percentages.
    """

    title: str
    unit: str
    seconds: Array
    counted: Array
    layers: tuple[Layer, ...]
    top: float | None = None
    percent: bool = False


def stacked_chart(stack: Stack, frame: Frame = SMALL) -> Markup:
    """The areas as an `<svg>`."""
    left, right, top, bottom = frame.plot
    end = float(stack.seconds[-1]) if len(stack.seconds) else 1.0
    x = Scale(low=0.0, high=end, start=left, end=right)
    y = Scale(low=0.0, high=_top(stack), start=bottom, end=top)
    parts = [*_layers(stack, x, y), *_axis(stack, y, frame), *x_axis(x, frame, Along.TIME)]
    parts.append(element("line", class_="axis", x1=left, x2=right, y1=bottom, y2=bottom))
    if len(stack.seconds):
        parts.append(_columns(stack, x, frame))
    else:
        middle = {"x": (left + right) / 2, "y": (top + bottom) / 2}
        parts.append(element("text", "nothing on record", class_="nothing", text_anchor="middle", **middle))
    return picture(parts, frame, label=_words(stack))


def share_bar(stack: Stack) -> Markup:
    """The means of the layers as one bar; parts that are wide enough bear their names."""
    means = _means(stack)
    total = sum(means.values()) or 1.0
    left, right, top, bottom = BAR.plot
    parts, x = [], left
    for layer in stack.layers:
        share = means[layer.name] / total
        width = share * (right - left)
        told = f"{layer.name} {share:.0%}"
        inside = {"x": x, "y": top, "width": width, "height": bottom - top}
        parts.append(element("rect", element("title", told), class_=f"layer {layer.style}", **inside))
        parts.append(element("rect", class_=f"hatch {layer.style}", **inside))
        if width > len(told) * WORD_PIXELS + 14:
            middle = x + width / 2
            plate = {"x": middle - len(told) * WORD_PIXELS / 2 - 4, "width": len(told) * WORD_PIXELS + 8}
            parts.append(element("rect", class_="plate", y=top + 5, height=bottom - top - 10, rx=3, **plate))
            parts.append(element("text", told, class_="inside", x=middle, y=bottom - 9, text_anchor="middle"))
        x += width
    return picture(parts, BAR, label=_words(stack))


def shares(stack: Stack) -> list[tuple[str, str, str]]:
    """Of each layer its name, style and mean in words, for the legend."""
    return [(layer.name, layer.style, _value(stack, _means(stack)[layer.name])) for layer in stack.layers]


def _means(stack: Stack) -> dict[str, float]:
    counted = float(stack.counted.sum()) or 1.0
    return {layer.name: float(layer.y.sum()) / counted for layer in stack.layers}


def _words(stack: Stack) -> str:
    told = ", ".join(f"{name} {value}" for name, _, value in shares(stack))
    return f"{stack.title}, {stack.unit}, on average: {told}."


def _value(stack: Stack, value: float) -> str:
    if stack.percent:
        return f"{value:.1%}"
    return f"{value:.2f}"


def _top(stack: Stack) -> float:
    if stack.top is not None:
        return stack.top
    whole = sum((layer.y for layer in stack.layers), np.zeros(len(stack.seconds)))
    return max(1e-9, 1.05 * float(whole.max())) if len(whole) else 1.0


def _layers(stack: Stack, x: Scale, y: Scale) -> Iterator[Markup]:
    """Each stretch is level: an area has two corners for it."""
    edges = np.concatenate([[0.0], stack.seconds])
    along = x.place(np.repeat(edges, 2)[1:-1])
    floor = np.zeros(len(stack.seconds))
    for layer in stack.layers:
        ceiling = np.minimum(floor + layer.y, y.high)
        low, high = (y.place(np.repeat(level, 2)) for level in (floor, ceiling))
        if path := band_path(along, low, high):
            yield element("path", class_=f"layer {layer.style}", d=path)
            yield element("path", class_=f"hatch {layer.style}", d=path)
        floor = ceiling


def _axis(stack: Stack, y: Scale, frame: Frame) -> Iterator[Markup]:
    left, right, _, _ = frame.plot
    for value, text in ticks(y, most=4):
        place = y.at(value)
        yield element("line", class_="grid", x1=left, x2=right, y1=place, y2=place)
        words = f"{value:.0%}" if stack.percent else text
        yield element("text", words, class_="tick", x=left - 6, y=place + 4, text_anchor="end")


def _columns(stack: Stack, x: Scale, frame: Frame) -> Markup:
    _, _, top, bottom = frame.plot
    edges = x.place(np.concatenate([[0.0], stack.seconds]))
    strips = []
    for run in chunks(len(stack.seconds), COLUMNS):
        told = [f"{each.name}: {_value(stack, float(each.y[run].mean()))}" for each in reversed(stack.layers)]
        title = element("title", "\n".join([f"up to {clock_words(float(stack.seconds[run[-1]]))}", *told]))
        left, right = float(edges[run[0]]), float(edges[run[-1] + 1])
        strips.append(element("rect", title, x=left, y=top, width=right - left, height=bottom - top))
    return group(strips, class_="columns")
