"""The numbers behind the metrics: plain Python values, one lock, copied as a whole for a scrape.

    record:  with values.recording(): counter.add(3); histogram.observe(0.2)      one lock, CPU time accounted
    sample:  values.sample(gauge, age_s)                                          asked by each scrape
    scrape:  values.snapshot()                                                    all numbers of one moment

Not prometheus_client's own Counter and Histogram, for one reason: their values are read one by one during a scrape, so
what adds up in the process (produced = trained + dropped + in flight) would not add up in the scrape.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.clock import NS_PER_S, thread_cpu_ns
from common.metric_catalogue import PROCESS_METRICS_CPU
from common.metric_kinds import Kind, Metric

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Counter:
    """A total that only grows."""

    name: str
    value: float = 0

    def add(self, amount: float) -> None:
        """Raises ValueError for a negative amount."""
        if amount < 0:
            raise ValueError(f"{self.name}: got {amount} to add, allowed: 0 or more; totals never go back")
        self.value += amount

    def read(self) -> float:
        return self.value


@dataclass(slots=True)
class Gauge:
    """A value that comes and goes; without a sample until it is first set."""

    name: str
    value: float | None = None

    def set(self, value: float | None) -> None:
        """Any float, NaN and infinities included; None takes the sample away."""
        self.value = value

    def read(self) -> float | None:
        return self.value


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at one moment: observations at or below each bound and below +Inf, and their sum."""

    cumulative: tuple[int, ...]
    sum: float


@dataclass(slots=True)
class Histogram:
    """Counts by bucket. NaN is counted above every bound."""

    name: str
    bounds: tuple[float, ...]
    sum: float = 0.0
    counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[-1 if math.isnan(value) else bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: NDArray[Any]) -> None:
        """Count many observations at once: thousands cost what ten calls of `observe` do."""
        where = np.searchsorted(self.bounds, values)  # NaN sorts last, so it is counted above every bound here too
        for bucket, count in enumerate(np.bincount(where, minlength=len(self.counts)).tolist()):
            self.counts[bucket] += count
        self.sum += float(values.sum())

    def read(self) -> Distribution:
        return Distribution(tuple(accumulate(self.counts)), self.sum)


@dataclass(slots=True)
class Info:
    """One series of value 1 whose labels are facts; absent until set, replaced when set again."""

    name: str
    facts: dict[str, str] | None = None

    def set(self, facts: Mapping[str, str]) -> None:
        self.facts = dict(facts)

    def read(self) -> dict[str, str] | None:
        return self.facts


Cell = Counter | Gauge | Histogram | Info
Reading = float | Distribution | dict[str, str]
CellT = TypeVar("CellT", Counter, Gauge, Histogram, Info)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series at the moment of a snapshot.

    Attributes:
        label: value of the metric's label; "" if it has none.
        reading: its number, distribution or facts.
    """

    label: str
    reading: Reading


class Values:
    """All cells of one process. Cells are made once and shared: two actors of one process add to the same totals."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cells: dict[tuple[Metric, str], Cell] = {}
        self._metrics: dict[str, Metric] = {}
        self._samplers: list[tuple[Gauge, Callable[[], float | None]]] = []
        self._told: set[str] = set()
        self._withheld: frozenset[Metric] = frozenset()
        self._cpu_seconds = self.counter(PROCESS_METRICS_CPU)

    def counter(self, metric: Metric, label: str = "") -> Counter:
        """The total of `metric`; starts at 0, exported from now on."""
        assert metric.kind is Kind.COUNTER, metric
        return self._shared(metric, label, Counter(_series_name(metric, label)))

    def gauge(self, metric: Metric, label: str = "") -> Gauge:
        """The value of `metric`."""
        assert metric.kind is Kind.GAUGE, metric
        return self._shared(metric, label, Gauge(_series_name(metric, label)))

    def histogram(self, metric: Metric, label: str = "") -> Histogram:
        """The distribution of `metric`."""
        assert metric.kind is Kind.HISTOGRAM, metric
        return self._shared(metric, label, Histogram(_series_name(metric, label), metric.buckets))

    def info(self, metric: Metric) -> Info:
        """The facts of `metric`."""
        assert metric.kind is Kind.INFO, metric
        return self._shared(metric, "", Info(metric.name))

    def sample(self, gauge: Gauge, read: Callable[[], float | None]) -> None:
        """Ask `read` for the value of `gauge` before each snapshot, from the thread that wants one.

        None is no sample. What it raises is logged once, and is no sample either.
        """
        with self._lock:
            self._samplers.append((gauge, read))

    @property
    def cpu_seconds(self) -> float:
        """CPU time spent in `recording` and reported to `account`, by all threads."""
        return self._cpu_seconds.value

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Cells may be changed inside, and no snapshot sees half of it."""
        start_ns = thread_cpu_ns()
        with self._lock:
            try:
                yield
            finally:
                self._cpu_seconds.value += (thread_cpu_ns() - start_ns) / NS_PER_S

    def account(self, cpu_ns: int) -> None:
        """Add CPU time spent on metrics outside `recording`."""
        with self._lock:
            self._cpu_seconds.value += cpu_ns / NS_PER_S

    def snapshot(self) -> dict[Metric, list[Sample]]:
        """Every series that has a value, by metric, all of one moment."""
        self._ask_samplers()
        with self._lock:
            cells, withheld = self._cells.items(), self._withheld
            readings = [(m, label, cell.read()) for (m, label), cell in cells if not withheld or m not in withheld]
        samples: dict[Metric, list[Sample]] = {}
        for metric, label, reading in readings:
            if reading is not None:
                samples.setdefault(metric, []).append(Sample(label=label, reading=reading))
        return samples

    def withhold(self, metrics: Iterable[Metric]) -> None:
        """Leave `metrics` out of snapshots until `show`: a total that is carried on must not be seen at 0 first."""
        with self._lock:
            self._withheld = frozenset(metrics)

    def show(self) -> None:
        """Withhold nothing any more."""
        self.withhold(())

    def _ask_samplers(self) -> None:
        """Outside the lock: a reading may take its time, and recorders must not wait for it."""
        for gauge, read in tuple(self._samplers):
            try:
                gauge.set(read())
            except Exception:  # noqa: BLE001 - told, once: a scrape every second must not fill the log
                gauge.set(None)
                self._tell_once(gauge.name, "metrics: %s could not be read and is left out", gauge.name)

    def _tell_once(self, key: str, message: str, *arguments: object) -> None:
        if key not in self._told:
            self._told.add(key)
            logger.error(message + "; told once", *arguments, exc_info=sys.exception())

    def _shared(self, metric: Metric, label: str, fresh: CellT) -> CellT:
        """The cell of one series. A second metric under a name that is taken counts into a cell that nobody exports:
        a scrape with two families of one name is refused as a whole."""
        with self._lock:
            known = self._metrics.setdefault(metric.name, metric)
        if known != metric:
            self._tell_once(metric.name, "metrics: two metrics are named %s; the second is not exported", metric.name)
            return fresh
        with self._lock:
            cell = self._cells.setdefault((metric, label), fresh)
        assert isinstance(cell, type(fresh)), metric
        return cell


class HasValues(Protocol):
    """What holds the cells of a process: `common.metrics.Registry`."""

    @property
    def values(self) -> Values:
        """The cells."""
        ...


def set_totals(totals: Iterable[tuple[Counter, float]]) -> None:
    """Set counters to exact totals, all or none. Raises ValueError if one would go back."""
    pairs = list(totals)
    for counter, total in pairs:
        if not total >= counter.value:
            raise ValueError(f"{counter.name}: got {total}, allowed: {counter.value} or more; totals never go back")
    for counter, total in pairs:
        counter.value = total


def _series_name(metric: Metric, label: str) -> str:
    return metric.name if metric.label is None else f"{metric.name}{{{metric.label.name}={label!r}}}"
