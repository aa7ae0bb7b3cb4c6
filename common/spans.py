"""Spans: what happened when in a run, for a tracing system (OpenTelemetry). Records, their identity, and where they go.

    synchronous     one trace an update:    rollout ──► transfer     update ──┬─ sync      (update: one of each rank)
                                                                              └─ publish
    asynchronous    one trace a fragment:   rollout ──► transfer
                    one trace an update:    update ──┬─ sync
                                                     └─ publish

An update links to the rollouts that it trained on, a transfer to the update that took the fragment.

No context travels with fragments or orders. Ids are hashes of what both sides know of a fragment or an update anyway:
a learner rank names the span of an actor on another host without having heard of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import xxhash

from common.clock import Clock
from common.errors import UserError
from common.harmless import harmless

MASK_64 = 2**64 - 1
logger = logging.getLogger(__name__)


class SpanName(StrEnum):
    """All that there are."""

    ROLLOUT = "rollout"
    TRANSFER = "transfer"
    UPDATE = "update"
    SYNC = "sync"
    PUBLISH = "publish"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRef:
    """Names a span: 128 bits of its trace, 64 of its own, never 0."""

    trace_id: int
    span_id: int

    def part(self, name: SpanName) -> SpanRef:
        """The only part of that name."""
        return SpanRef(trace_id=self.trace_id, span_id=_span_id("part", f"{self.span_id:016x}", name.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """One span.

    Attributes:
        name: what it was.
        ref: which one it is.
        parent: the span that it is part of or follows from; None begins a tree.
        links: others that it has to do with.
        start_ns, end_ns: readings of this process's clock.
        attributes: under the names that a tracing system shows.
        failure: what it failed of; "" if it did not.
    """

    name: SpanName
    ref: SpanRef
    parent: SpanRef | None = None
    links: tuple[SpanRef, ...] = ()
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanIdentity:
    """Derives the ids of a run's spans; the same on every process.

    Attributes:
        run: its name.
        synchronous: a fragment is made for one update and no other, so both share a trace.
    """

    run: str
    synchronous: bool

    def rollout(self, *, actor: int, incarnation: int, lease: str, sequence: int, term: int, update: int) -> SpanRef:
        """Of one fragment. No two have the same lease and sequence: what is made again is made by another process."""
        fragment = ("rollout", self.run, actor, incarnation, lease, sequence)
        trace_id = self._trace_of_update(term, update) if self.synchronous else _trace_id(*fragment)
        return SpanRef(trace_id=trace_id, span_id=_span_id(*fragment))

    def update(self, *, term: int, update: int, version: int, attempt: int, rank: int) -> SpanRef:
        """Of one order on one rank. An update that is made again has another version; its trace is the same."""
        span_id = _span_id("update", self.run, term, update, version, attempt, rank)
        return SpanRef(trace_id=self._trace_of_update(term, update), span_id=span_id)

    def _trace_of_update(self, term: int, update: int) -> int:
        return _trace_id("update", self.run, term, update)


class Spans(Protocol):
    """Where the spans of a process go."""

    def send(self, instance: str, make: Callable[[SpanIdentity], Iterable[SpanRecord]]) -> None:
        """Have spans of `instance` (actor-3) sent some time later; `make` is called at once, if at all. Never waits."""
        ...

    def close(self) -> str:
        """Send what is left, for a few seconds at most; returns what was wrong with the collector, "" if nothing."""
        ...


class NoSpans:
    """A run without spans: nothing is made, nothing is sent."""

    def send(self, instance: str, make: Callable[[SpanIdentity], Iterable[SpanRecord]]) -> None:
        return None

    def close(self) -> str:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpansConfig:
    """What every process of a run is told of its spans.

    Attributes:
        endpoint: base address of a collector that takes OTLP/HTTP, such as http://collector:4318.
        identity: of the run.
    """

    endpoint: str
    identity: SpanIdentity


def open_spans(config: SpansConfig | None, clock: Clock, *, who: str) -> Spans:
    """Where the spans of this process go; nowhere without a `config`, or where OpenTelemetry is not installed.

    The latter costs a log record: the driver has it or had it, and one node that lacks it is no reason to end the run.
    """
    if config is None:
        return NoSpans()
    try:
        require_opentelemetry()
    except UserError as error:
        logger.warning("%s; no spans of %s are sent", error, who)
        return NoSpans()
    from common.spans_otlp import OtlpSpans

    return harmless(OtlpSpans(config.endpoint, config.identity, clock), who=f"{who} (spans)")


def require_opentelemetry() -> None:
    """Raises UserError where spans could not be sent for want of a package."""
    try:
        import common.spans_otlp  # noqa: F401
    except ImportError as error:
        raise UserError(
            "metrics.spans needs OpenTelemetry's SDK and its OTLP/HTTP exporter, which are not installed",
            got=error,
            fix="pip install 'truestep[otel]', or leave metrics.spans empty",
        ) from None


def _trace_id(*parts: str | int) -> int:
    return xxhash.xxh3_128_intdigest(_canonical(parts)) or 1


def _span_id(*parts: str | int) -> int:
    return xxhash.xxh3_128_intdigest(_canonical(parts)) & MASK_64 or 1


def _canonical(parts: Iterable[str | int]) -> bytes:
    """One text for each sequence of parts: no part holds the separator, and numbers are told from words by position."""
    return "\0".join(str(part) for part in parts).encode()
