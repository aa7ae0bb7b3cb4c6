"""Snapshots as text: Prometheus's own format and OpenMetrics, which differ in heads only.

    # HELP truestep_actor_fragments_total Fragments collected by this process.
    # TYPE truestep_actor_fragments_total counter
    truestep_actor_fragments_total 3

What a series begins with never changes, so it is made once: a scrape costs one formatted number a line. (A third of the
CPU time of prometheus_client's writers, which make a record of each sample and format its labels anew.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from common.metric_kinds import Kind, Metric
from common.metric_values import Distribution, Sample


class Exposition:
    """Writes snapshots of one process; remembers the heads and the beginnings of their lines."""

    def __init__(self) -> None:
        self._heads: dict[tuple[Metric, bool], str] = {}
        self._beginnings: dict[tuple[Metric, str], tuple[str, ...]] = {}

    def write(self, snapshot: Mapping[Metric, Sequence[Sample]], *, open_metrics: bool) -> bytes:
        """The text of `snapshot`, without an end mark."""
        parts: list[str] = []
        for metric, samples in snapshot.items():
            parts.append(self._head(metric, open_metrics))
            for sample in samples:
                self._write_sample(metric, sample, parts)
        return "".join(parts).encode()

    def _head(self, metric: Metric, open_metrics: bool) -> str:
        key = (metric, open_metrics)
        if key not in self._heads:
            self._heads[key] = _head(metric, open_metrics)
        return self._heads[key]

    def _write_sample(self, metric: Metric, sample: Sample, parts: list[str]) -> None:
        match sample.reading:
            case dict() as facts:
                parts.append(f"{metric.name}{_labels(facts)} 1\n")
            case Distribution(cumulative, total):
                beginnings = self._beginnings_of(metric, sample.label)
                numbers = [*map(str, cumulative), str(cumulative[-1]), number(total)]
                parts += [f"{begin}{value}\n" for begin, value in zip(beginnings, numbers, strict=False)]
            case value:
                parts.append(f"{self._beginnings_of(metric, sample.label)[0]}{number(value)}\n")

    def _beginnings_of(self, metric: Metric, label: str) -> tuple[str, ...]:
        key = (metric, label)
        if key not in self._beginnings:
            self._beginnings[key] = _beginnings(metric, label)
        return self._beginnings[key]


def number(value: float) -> str:
    """A value as both formats have it."""
    if isinstance(value, int):
        return str(value)
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _head(metric: Metric, open_metrics: bool) -> str:
    """Help and type. OpenMetrics names the family, without `_total` and `_info`, and knows a kind for facts."""
    kind = metric.kind.value
    if open_metrics:
        name = metric.name.removesuffix("_total").removesuffix("_info")
        return f"# HELP {name} {_escaped(metric.help)}\n# TYPE {name} {kind}\n"
    kind = "gauge" if metric.kind is Kind.INFO else kind
    return f"# HELP {metric.name} {_help(metric.help)}\n# TYPE {metric.name} {kind}\n"


def _beginnings(metric: Metric, label: str) -> tuple[str, ...]:
    """What each line of a series begins with; of a histogram those of its buckets, and of count and sum."""
    labels = {} if metric.label is None else {metric.label.name: label}
    if metric.kind is not Kind.HISTOGRAM:
        return (f"{metric.name}{_labels(labels)} ",)
    bounds = [*map(number, metric.buckets), "+Inf"]
    buckets = [f"{metric.name}_bucket{_labels(labels | {'le': bound})} " for bound in bounds]
    if metric.buckets[0] < 0:  # OpenMetrics: no count and sum where observations may be negative
        return tuple(buckets)
    return (*buckets, f"{metric.name}_count{_labels(labels)} ", f"{metric.name}_sum{_labels(labels)} ")


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return _help(text).replace('"', '\\"')


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
