"""Metrics of a process: recorders for what happens, a registry that renders them, a server that Prometheus scrapes.

    summary ──► ActorMetrics ───┐
    report ───► LearnerMetrics ─┼─► Registry (plain numbers) ──► render ──► MetricsServer  /metrics /targets /healthz
    accounts ─► DriverMetrics ──┘

loop      consumes                         produces            waits for        unblocked by
record    one fragment, update or event    numbers             nothing          the caller
scrape    a request                        text of one moment  a recorder       it, within 0.1 ms

Recorders are called between fragments and updates, never inside. One registry per process (or several: nothing here is
global, so a second run in the same process starts from nothing). docs/metrics.md lists every metric.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from common.driver_metrics import DriverMetrics
from common.metric_catalogue import CATALOGUE, markdown_table
from common.metric_kinds import Metric
from common.metric_labels import (
    ActorState,
    DropReason,
    RankState,
    RecoveryCause,
    SaveResult,
    Stage,
    Stall,
    Statistic,
    SyncFault,
)
from common.metric_recorders import ActorMetrics, LearnerMetrics, SyncFigures
from common.metric_values import Distribution, Sample, Values
from common.metrics_server import MetricsServer, Target, serve
from common.ports import PortRange

__all__ = [
    "CATALOGUE",
    "ActorMetrics",
    "ActorState",
    "DriverMetrics",
    "DropReason",
    "LearnerMetrics",
    "MetricsServer",
    "PortRange",
    "RankState",
    "RecoveryCause",
    "Registry",
    "SaveResult",
    "Stage",
    "Stall",
    "Statistic",
    "SyncFault",
    "SyncFigures",
    "Target",
    "markdown_table",
    "new_registry",
    "serve",
]


class Registry:
    """All series of one process: what the recorders wrote, and memory, CPU and open files of the process itself.

    Attributes:
        values: the numbers; recorders make their cells there.
    """

    def __init__(self) -> None:
        self.values = Values()
        self._exposed = CollectorRegistry(auto_describe=False)
        self._exposed.register(_Snapshots(self.values))
        ProcessCollector(registry=self._exposed)

    @property
    def cpu_seconds(self) -> float:
        """CPU time that recording and answering scrapes has cost so far, by all threads."""
        return self.values.cpu_seconds

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Every series as text, and its content type: Prometheus text, or OpenMetrics where `accept` asks for it."""
        encode, content_type = choose_encoder(accept)
        return encode(self._exposed), content_type

    def account(self, cpu_ns: int) -> None:
        """Add CPU time that metrics have cost elsewhere."""
        self.values.account(cpu_ns)


def new_registry() -> Registry:
    """A registry that shares nothing with any other."""
    return Registry()


class _Snapshots(Collector):
    """What prometheus_client collects from: the families of one snapshot."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> list[Family]:
        return [_family(metric, samples) for metric, samples in self._values.snapshot().items()]


def _family(metric: Metric, samples: list[Sample]) -> Family:
    base = metric.name.removesuffix("_total").removesuffix("_info")
    family = Family(base, metric.help, metric.kind)
    for sample in samples:
        labels = {} if metric.label is None else {metric.label.name: sample.label}
        match sample.reading:
            case Distribution() as distribution:
                _add_distribution(family, metric, labels, distribution)
            case dict() as facts:
                family.add_sample(metric.name, facts, 1)
            case value:
                family.add_sample(metric.name, labels, value)
    return family


def _add_distribution(family: Family, metric: Metric, labels: dict[str, str], distribution: Distribution) -> None:
    bounds = [*map(floatToGoString, metric.buckets), "+Inf"]
    for bound, count in zip(bounds, distribution.cumulative, strict=True):
        family.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    if metric.buckets[0] >= 0:  # OpenMetrics: no count and sum where observations may be negative
        family.add_sample(f"{metric.name}_count", labels, distribution.cumulative[-1])
        family.add_sample(f"{metric.name}_sum", labels, distribution.sum)


if __name__ == "__main__":
    print(markdown_table())
