"""SVG as text: elements with everything escaped, and paths through points that may have gaps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

Array = NDArray[np.float64]


def element(name: str, *children: str, **attributes: object) -> Markup:
    """`<name ...>children</name>`; children and values that are no Markup are escaped.

    A trailing underscore of an attribute's name is left out (`class_`), others become hyphens; None is no attribute.

    >>> str(element("text", "a < b", x=1.25, class_="tick", text_anchor="end"))
    '<text x="1.2" class="tick" text-anchor="end">a &lt; b</text>'
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(escape(child) for child in children)
    return Markup(f"<{name}{words}>{inner}</{name}>")


def group(children: Iterable[str], **attributes: object) -> Markup:
    """`<g>` around children."""
    return element("g", *children, **attributes)


def line_path(x: Array, y: Array) -> str:
    """Path data through the points; where `y` is NaN, the line is broken."""
    words, pen_down = [], False
    for left, top in zip(x.tolist(), y.tolist(), strict=True):
        if top != top:
            pen_down = False
            continue
        words.append(f"{'L' if pen_down else 'M'}{_text(left)} {_text(top)}")
        pen_down = True
    return "".join(words)


def band_path(x: Array, low: Array, high: Array) -> str:
    """Path data of the area between two lines; points where either is NaN are left out."""
    kept = np.isfinite(low) & np.isfinite(high)
    if np.count_nonzero(kept) < 2:
        return ""
    x, low, high = x[kept], low[kept], high[kept]
    return f"{line_path(np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]]))}Z"


def _text(value: object) -> str:
    """Coordinates to a tenth of a pixel: more cannot be seen, and costs bytes."""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value)
