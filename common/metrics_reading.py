"""What a process serves at `/metrics`, read again by name: the other direction of common.metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """The series of one process at one moment; no buckets of histograms.

    Attributes:
        series: value by name of the series and its labels.
    """

    series: Mapping[str, Mapping[Labels, float]]

    def value(self, name: str, **labels: str) -> float | None:
        """One series; None if it is not there."""
        return self.series.get(name, {}).get(frozenset(labels.items()))

    def total(self, name: str) -> float | None:
        """The sum over all labels; None if there is no such series."""
        found = self.series.get(name)
        return sum(found.values()) if found else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """All series of a name, by the value of one label."""
        return {
            dict(labels)[label]: value for labels, value in self.series.get(name, {}).items() if label in dict(labels)
        }

    def facts(self, name: str) -> dict[str, str]:
        """The labels of an info metric, which has one series; empty if it is not there."""
        return dict(next(iter(self.series.get(name, {})), frozenset()))


def read_metrics(text: str) -> Reading:
    """Take in Prometheus text. Raises ValueError where it is none."""
    series: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                series.setdefault(sample.name, {})[frozenset(sample.labels.items())] = float(sample.value)
    return Reading(series)
