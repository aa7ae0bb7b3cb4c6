"""Spans over OTLP/HTTP, by OpenTelemetry's SDK. Only this module imports it, and it is imported where spans are wanted.

    send ──► tracer of the instance ──► bounded queue ──► the SDK's thread ──► collector

What `metrics.spans` does not say is left to OpenTelemetry's own variables: headers, certificates, compression and
time-outs (OTEL_EXPORTER_OTLP_*), size of the queue and of batches (OTEL_BSP_*), sampling (OTEL_TRACES_SAMPLER*), more
attributes of the resource (OTEL_RESOURCE_ATTRIBUTES) and another name of the service (OTEL_SERVICE_NAME).
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from common.clock import Clock, epoch_offset_ns
from common.spans import SpanIdentity, SpanRecord, SpanRef

CLOSE_S = 3.0  # for what is left in the queue
CLOSE_FAILING_S = 0.5  # the same, where the collector did not take what it was last sent
TALKATIVE = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")
"""Loggers that have a word on each batch that is not taken, and on a queue that is full."""
logger = logging.getLogger(__name__)


class OtlpSpans:
    """Sends the spans of one process, each with the resource of its instance. Safe to use from any thread.

    A collector that is away, refuses or hangs costs one log record, and what does not fit the queue; nobody waits.
    """

    def __init__(self, endpoint: str, identity: SpanIdentity, clock: Clock) -> None:
        self._identity = identity
        self._clock = clock
        self._lock = threading.Lock()
        self._instances: dict[str, _Instance] = {}
        self._exporter = _Exporter(f"{endpoint.rstrip('/')}/v1/traces")
        self._processor = BatchSpanProcessor(self._exporter)

    def send(self, instance: str, make: Callable[[SpanIdentity], Iterable[SpanRecord]]) -> None:
        records = list(make(self._identity))
        offset_ns = epoch_offset_ns(self._clock)
        with self._lock, self._exporter.hushed():
            sender = self._instances.get(instance)
            if sender is None:
                sender = self._instances[instance] = _Instance(self._processor, self._identity.run, instance)
            for record in records:
                sender.send(record, offset_ns)

    def close(self) -> str:
        """Send what is left, for little more than 3 s at most. What is not sent by then is lost."""
        ending = threading.Thread(target=self._processor.shutdown, name="spans-close", daemon=True)
        ending.start()
        ending.join(CLOSE_FAILING_S if self._exporter.failing else CLOSE_S)
        if ending.is_alive():
            self._exporter.shutdown()  # wakes an export that waits to try again
            ending.join(CLOSE_FAILING_S)
        if ending.is_alive():
            self._exporter.tell("no answer yet, and this process ends")
        else:
            self._exporter.unhush()
        return self._exporter.complaint


class _Instance:
    """One actor or learner rank: its resource, and spans under ids that are given."""

    def __init__(self, processor: BatchSpanProcessor, run: str, instance: str) -> None:
        self._ids = _GivenIds()
        provider = TracerProvider(resource=_resource(run, instance), id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(processor)
        self._sampler = provider.sampler
        self._tracer: Tracer = provider.get_tracer("truestep")

    def send(self, record: SpanRecord, offset_ns: int) -> None:
        self._ids.next = record.ref
        span = self._tracer.start_span(
            record.name.value,
            context=self._within(record.parent),
            links=[Link(self._context(ref)) for ref in record.links],
            attributes=record.attributes,
            start_time=record.start_ns + offset_ns,
        )
        if record.failure:
            span.set_status(Status(StatusCode.ERROR, record.failure))
        span.end(record.end_ns + offset_ns)

    def _within(self, parent: SpanRef | None) -> Context:
        """Never the context of whoever called: a user's own trace around a run is none of its spans' business."""
        if parent is None:
            return Context()
        return set_span_in_context(NonRecordingSpan(self._context(parent)), Context())

    def _context(self, ref: SpanRef) -> SpanContext:
        """A span may have been sent by another process; whether it was sampled follows from the id of its trace."""
        decision = self._sampler.should_sample(Context(), ref.trace_id, "").decision
        sampled = decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return SpanContext(ref.trace_id, ref.span_id, is_remote=True, trace_flags=flags)


class _GivenIds(IdGenerator):
    """Hands out the ids of the span that is made next."""

    next: SpanRef

    def generate_span_id(self) -> int:
        return self.next.span_id

    def generate_trace_id(self) -> int:
        return self.next.trace_id


class _Exporter(SpanExporter):
    """The SDK's exporter, which has its say on every batch that fails; this one speaks once."""

    def __init__(self, url: str) -> None:
        self.failing = False
        self._url = url
        self._exporter = OTLPSpanExporter(endpoint=url)
        self.complaint = ""
        self._hush = _Hush()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self.hushed() as said:
            result = self._exporter.export(spans)
        self.failing = result is not SpanExportResult.SUCCESS
        if self.failing:
            self.tell(said[0] if said else "no reason given")  # the first one names the cause, the last one gives up
        return result

    def tell(self, why: str) -> None:
        """Once."""
        if not self.complaint:
            self.complaint = f"spans do not reach {self._url} ({why})"
            logger.warning("%s; the run goes on, what cannot be sent is dropped; told once", self.complaint)

    def hushed(self) -> AbstractContextManager[list[str]]:
        """What the SDK says in this thread meanwhile is not logged; it is in the list."""
        return self._hush.here()

    def shutdown(self) -> None:
        with self.hushed():
            self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True

    def unhush(self) -> None:
        """Leave the SDK's loggers as they were."""
        self._hush.remove()


class _Hush(logging.Filter):
    """Keeps records of certain threads from the log: the user may use the SDK too, for ends that are none of ours."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[int, list[str]] = {}  # by thread
        for name in TALKATIVE:
            logging.getLogger(name).addFilter(self)

    @contextmanager
    def here(self) -> Iterator[list[str]]:
        """What is said in this thread meanwhile."""
        thread = threading.get_ident()
        said = self._said[thread] = []
        try:
            yield said
        finally:
            del self._said[thread]

    def remove(self) -> None:
        """Of no effect any more."""
        for name in TALKATIVE:
            logging.getLogger(name).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        said = self._said.get(record.thread or 0)
        if said is None:
            return True
        said.append(record.getMessage())
        return False


def _resource(run: str, instance: str) -> Resource:
    return Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", "truestep"),
            "service.instance.id": instance,
            "truestep.run": run,
            "process.pid": os.getpid(),
            "host.name": platform.node(),
        }
    )
