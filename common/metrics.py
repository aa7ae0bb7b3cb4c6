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
from prometheus_client.exposition import choose_encoder

from common.driver_metrics import DriverMetrics, ObjectStoreMetrics
from common.metric_catalogue import CATALOGUE, markdown_table
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
from common.metric_values import Values
from common.metrics_server import MetricsServer, Target, serve
from common.metrics_text import Exposition
from common.ports import PortRange

__all__ = [
    "CATALOGUE",
    "ActorMetrics",
    "ActorState",
    "DriverMetrics",
    "DropReason",
    "LearnerMetrics",
    "MetricsServer",
    "ObjectStoreMetrics",
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
        self._exposition = Exposition()
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)

    @property
    def cpu_seconds(self) -> float:
        """CPU time that recording and answering scrapes has cost so far, by all threads."""
        return self.values.cpu_seconds

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Every series as text, and its content type: Prometheus text, or OpenMetrics where `accept` asks for it."""
        encode, content_type = choose_encoder(accept)
        text = self._exposition.write(self.values.snapshot(), open_metrics="openmetrics" in content_type)
        return text + encode(self._process), content_type  # which ends with OpenMetrics' end mark

    def account(self, cpu_ns: int) -> None:
        """Add CPU time that metrics have cost elsewhere."""
        self.values.account(cpu_ns)


def new_registry() -> Registry:
    """A registry that shares nothing with any other."""
    return Registry()


if __name__ == "__main__":
    print(markdown_table())
