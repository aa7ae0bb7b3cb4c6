"""What the catalogue of metrics is written in: kinds, labels, metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What Prometheus may do with the numbers: rate a counter, read a gauge, take quantiles of a histogram."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One label and every value it can have.

    Attributes:
        name: as exported.
        values: the closed set.
    """

    name: str
    values: type[StrEnum]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        name: as exported, `_total` and `_info` included.
        kind: what it is.
        help: what is counted or measured; ends up beside the series.
        label: what it is broken down by; None for a single series.
        buckets: upper bounds of a histogram, rising, without +Inf.
        facts: label names of an info metric, whose values are free.
    """

    name: str
    kind: Kind
    help: str
    label: Label | None = None
    buckets: tuple[float, ...] = ()
    facts: tuple[str, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels, as exported."""
        return self.facts if self.label is None else (self.label.name,)

    @property
    def num_series(self) -> int:
        """Samples in a scrape at most; a histogram has one per bucket, +Inf, count and sum."""
        children = 1 if self.label is None else len(self.label.values)
        return children * (len(self.buckets) + 3 if self.kind is Kind.HISTOGRAM else 1)
