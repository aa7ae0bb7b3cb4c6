"""What a board is made of: rows of panels, each of which draws queries of one unit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from deploy.prometheus.queries.query import Query, Unit

FULL_WIDTH = 24


class Look(StrEnum):
    """How a panel draws its queries."""

    LINES = "timeseries"
    STACKED = "timeseries, stacked"
    FIGURE = "stat"
    STATES = "state-timeline"
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        title: over it.
        queries: what it draws; all of one unit.
        look: how.
        width: of Grafana's 24 columns.
        height: in rows of 30 pixels.
        log_scale: values of several orders of magnitude.
        names: words for values, where numbers stand for states.
        row_link: address that a row of a table leads to; `${__data.fields.x}` is its label x.
    """

    title: str
    queries: tuple[Query, ...]
    look: Look = Look.LINES
    width: int = 8
    height: int = 8
    log_scale: bool = False
    names: tuple[tuple[int, str], ...] = ()
    row_link: str = ""

    @property
    def unit(self) -> Unit:
        """Of all its queries."""
        (unit,) = {query.unit for query in self.queries}
        return unit

    @property
    def description(self) -> str:
        """What the queries say, and when there is nothing to see."""
        helps = [query.help for query in self.queries]
        whens = [query.when.value for query in self.queries if query.when.value]
        return " ".join(dict.fromkeys([*helps, *whens]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard.

    Attributes:
        uid: names it in addresses; never changes.
        title: as listed.
        description: the question it answers.
        rows: from top to bottom.
    """

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Of all rows."""
        return tuple(panel for row in self.rows for panel in row.panels)
