"""What a page is made of. The template knows how these look, and nothing of runs."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A line of a legend.

    Attributes:
        style: class of what is drawn.
        shape: line, band, mark, layer, bad, good, plain or saved.
        name: what it is.
        value: its figure; "" for none.
    """

    style: str
    shape: str
    name: str
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A picture with a title.

    Attributes:
        title: of it; a heading.
        unit: what its vertical axis shows; "" where it has none.
        picture: SVG.
        narrow: another one for small screens; None = the same.
        below: one more, under it.
        legend: what is what.
        note: a sentence more.
    """

    title: str
    picture: Markup
    unit: str = ""
    narrow: Markup | None = None
    below: Markup | None = None
    legend: tuple[Key, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Words and figures in rows.

    Attributes:
        caption: what they are.
        head: of the columns.
        rows: a text for each column; the first names the row.
        folded: shown when asked for.
        numeric: columns but the first are figures, set flush right.
        note: a sentence more.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: bool = False
    numeric: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Something that was verified, and what came of it; the words say it as well as the sign does.

    Attributes:
        who: letter of the run; "" where there is one.
        good: True, False, or None where it is a fact without a verdict.
        words: a sentence.
    """

    who: str
    good: bool | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to be typed.

    Attributes:
        about: what it does.
        text: of it.
    """

    about: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page, under a heading of its own.

    Attributes:
        anchor: its id.
        title: heading.
        words: an introduction; "" for none.
        wide: pictures that take the whole width.
        figures: pictures beside one another.
        checks: what was verified.
        commands: to be typed.
        tables: below the pictures.
    """

    anchor: str
    title: str
    words: str = ""
    wide: tuple[Figure, ...] = ()
    figures: tuple[Figure, ...] = ()
    checks: tuple[Check, ...] = ()
    commands: tuple[Command, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A key figure.

    Attributes:
        name: what it is.
        values: of each run.
        notes: likewise, smaller.
    """

    name: str
    values: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """One run at the head of the page.

    Attributes:
        letter: of the run; "" where there is one.
        name: of it.
        status: running, finished, failed, interrupted or died.
        verdict: how it ended, or how far it is.
        about: environment, algorithm and so on.
    """

    letter: str
    name: str
    status: str
    verdict: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All of it.

    Attributes:
        title: of the window.
        headings: of each run.
        tiles: key figures.
        sections: in order.
        made: when and by what.
    """

    title: str
    headings: tuple[Heading, ...]
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    made: str
