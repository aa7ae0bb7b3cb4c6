"""Spans as a collector gets them; and a collector that is away, refuses or hangs, which costs one log record."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from common.clock import Clock, ManualClock, MonotonicClock, epoch_offset_ns, wait_until
from common.spans import SpanIdentity, SpanName, SpanRecord, SpanRef

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.sdk.trace import TracerProvider

from common import spans_otlp
from common.spans_otlp import OtlpSpans
from tests.collector import MISBEHAVING, Collector, Got, collecting

IDENTITY = SpanIdentity(run="cart-1", synchronous=True)
ROOT = SpanRef(trace_id=0xABC, span_id=0x1)
OTHER = SpanRef(trace_id=0xDEF, span_id=0x2)
LIMIT_S = 60.0
PATIENCE_S = 20.0  # far more than closing takes, and less than the SDK would wait by itself


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of whoever runs the tests decides."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


def record(ref: SpanRef = ROOT, **changes: Any) -> SpanRecord:
    return SpanRecord(**({"name": SpanName.ROLLOUT, "ref": ref, "start_ns": 1_000, "end_ns": 5_000} | changes))


def sent(*records: SpanRecord, instance: str = "actor-3", clock: Clock | None = None) -> list[Got]:
    """What a collector has got of them."""
    with collecting() as collector:
        with closing(OtlpSpans(collector.endpoint, IDENTITY, clock or ManualClock())) as spans:
            spans.send(instance, lambda identity: records)
        assert collector.paths == {"/v1/traces"}
        got: list[Got] = collector.spans
        return got


def test_a_span_arrives_under_the_ids_that_it_was_given() -> None:
    """With its name, its attributes, what it follows from and what it links to."""
    part = record(
        OTHER,
        name=SpanName.TRANSFER,
        parent=ROOT,
        links=(ROOT, SpanRef(trace_id=7, span_id=8)),
        attributes={"truestep.actor": 3, "truestep.transfer.other_host": False, "share": 0.5, "who": "x"},
    )
    first, second = sent(record(), part)
    assert (first.name, first.ids, first.parent) == ("rollout", (f"{0xABC:032x}", f"{1:016x}"), "")
    assert (second.name, second.parent) == ("transfer", f"{1:016x}")
    assert second.links == (first.ids, (f"{7:032x}", f"{8:016x}"))
    assert second.attributes == {
        "truestep.actor": 3,
        "truestep.transfer.other_host": False,
        "share": 0.5,
        "who": "x",
    }


def test_a_part_is_in_the_trace_of_what_it_is_part_of() -> None:
    """As the SDK has it; ids are made so that it never differs."""
    part = record(ROOT.part(SpanName.SYNC), name=SpanName.SYNC, parent=ROOT)
    assert [span.trace for span in sent(part)] == [f"{ROOT.trace_id:032x}"]


def test_a_failure_is_the_status() -> None:
    """In words; without one there is none."""
    assert [span.failure for span in sent(record(), record(OTHER, failure="reduce: rank 1 did not come"))] == [
        "",
        "reduce: rank 1 did not come",
    ]


def test_readings_of_the_clock_become_wall_clock_labels() -> None:
    """By one offset for all spans that are sent together, so that they nest as they were measured."""
    clock = ManualClock(start_ns=10_000)
    before_ns = epoch_offset_ns(clock)
    spans = sent(record(), record(OTHER, start_ns=2_000, end_ns=4_000), clock=clock)
    after_ns = epoch_offset_ns(clock)
    assert before_ns <= spans[0].start_ns - 1_000 <= after_ns
    assert [(span.start_ns - spans[0].start_ns, span.end_ns - spans[0].start_ns) for span in spans] == [
        (0, 4_000),
        (1_000, 3_000),
    ]


def test_the_offset_takes_a_reading_to_the_wall_clock() -> None:
    """Whatever the reading is."""
    reading_ns = 10**18
    before_ns = time.time_ns()
    labelled_ns = reading_ns + epoch_offset_ns(ManualClock(start_ns=reading_ns))
    assert before_ns <= labelled_ns <= time.time_ns()


def test_each_instance_has_a_resource_of_its_own() -> None:
    """Run, process and host are the same."""
    with collecting() as collector:
        with closing(OtlpSpans(collector.endpoint, IDENTITY, ManualClock())) as spans:
            spans.send("actor-3", lambda identity: [record()])
            spans.send("learner-0", lambda identity: [record(OTHER)])
        found = {span.ids[1]: span.resource for span in collector.spans}
    actor, learner = found[f"{1:016x}"], found[f"{2:016x}"]
    assert (actor["service.instance.id"], learner["service.instance.id"]) == ("actor-3", "learner-0")
    for resource in (actor, learner):
        assert (resource["service.name"], resource["truestep.run"]) == ("truestep", "cart-1")
        assert resource["process.pid"] > 0
        assert resource["host.name"]


def test_the_rest_is_said_by_opentelemetrys_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers, the name of the service, attributes of the resource."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "lab")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "zone=b")
    with collecting() as collector:
        with closing(OtlpSpans(collector.endpoint, IDENTITY, ManualClock())) as spans:
            spans.send("actor-3", lambda identity: [record()])
        assert [headers["x-team"] for headers in collector.headers] == ["blue"]
        (span,) = collector.spans
    assert (span.resource["service.name"], span.resource["zone"]) == ("lab", "b")


@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_a_trace_is_sampled_whole_or_not_at_all(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process decides for itself, by the id of the trace: a part is never there without what it is part of."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    rollouts = [
        IDENTITY.rollout(actor=0, incarnation=0, lease="x", sequence=number, term=0, update=number)
        for number in range(40)
    ]
    wholes = [record(ref) for ref in rollouts]
    parts = [record(ref.part(SpanName.TRANSFER), name=SpanName.TRANSFER, parent=ref) for ref in rollouts]
    traces = {name: {span.trace for span in sent(*records)} for name, records in (("a", wholes), ("b", parts))}
    assert traces["a"] == traces["b"]
    assert 5 < len(traces["a"]) < 35


def test_a_trace_around_the_run_is_left_alone() -> None:
    """Whoever calls `train` within a span of their own does not find the run's spans in it."""
    with TracerProvider(shutdown_on_exit=False).get_tracer("mine").start_as_current_span("experiment"):
        (span,) = sent(record())
    assert (span.parent, span.trace) == ("", f"{0xABC:032x}")


def test_threads_send_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of engine inline have one sender: a span is not given the ids of another that is made meanwhile."""
    send, entered = spans_otlp._Instance.send, []

    def slow_send(self: Any, each: SpanRecord, offset_ns: int) -> None:
        entered.append(each.ref.span_id)
        if each.ref == ROOT:
            other.start()
            other.join(0.2)
            assert entered == [ROOT.span_id]
        send(self, each, offset_ns)

    monkeypatch.setattr(spans_otlp._Instance, "send", slow_send)
    with collecting() as collector:
        with closing(OtlpSpans(collector.endpoint, IDENTITY, ManualClock())) as spans:
            other = threading.Thread(target=lambda: spans.send("learner-0", lambda identity: [record(OTHER)]))
            spans.send("learner-0", lambda identity: [record()])
            other.join()
        assert {span.ids for span in collector.spans} == {
            (f"{ref.trace_id:032x}", f"{ref.span_id:016x}") for ref in (ROOT, OTHER)
        }


# ── collectors that do not take what they are sent ───────────────────────────────────────────────────────────────


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Half a second instead of three to close in, and batches of one span."""
    monkeypatch.setattr(spans_otlp, "CLOSE_S", 0.5)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    yield


@pytest.mark.parametrize("kind", MISBEHAVING)
def test_closing_does_not_wait_for_a_collector(kind: str, quick: None, caplog: pytest.LogCaptureFixture) -> None:
    """Which still misbehaves when closing has returned. That spans are lost is told, however short the run was."""
    clock = MonotonicClock()
    with MISBEHAVING[kind]() as collector:
        spans = OtlpSpans(collector.endpoint, IDENTITY, clock)
        for number in range(1, 21):
            spans.send("actor-3", lambda identity, number=number: [record(SpanRef(trace_id=1, span_id=number))])
        start_ns = clock.now_ns()
        spans.close()
        assert (clock.now_ns() - start_ns) / 1e9 < PATIENCE_S
        assert len(collector.spans) == 0
    assert [each.name for each in caplog.records] == ["common.spans_otlp"]


@pytest.mark.parametrize("kind", ["absent", "refusing"])
def test_a_collector_that_does_not_take_spans_costs_one_log_record(
    kind: str, quick: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However many batches fail, and whatever does not fit the queue."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with MISBEHAVING[kind]() as collector:
        spans = OtlpSpans(collector.endpoint, IDENTITY, MonotonicClock())
        for number in range(1, 41):
            spans.send("actor-3", lambda identity, number=number: [record(SpanRef(trace_id=1, span_id=number))])
            if number == 20:
                assert wait_until(lambda: bool(caplog.records), clock=MonotonicClock(), seconds=LIMIT_S)
        spans.close()
    (told,) = caplog.records
    assert (told.name, told.levelno) == ("common.spans_otlp", logging.WARNING)
    assert f"spans do not reach {collector.endpoint}/v1/traces (" in told.getMessage()
    assert "no reason given" not in told.getMessage()


def test_others_who_use_the_sdk_still_read_what_it_says(quick: None, caplog: pytest.LogCaptureFixture) -> None:
    """What is kept from the log is what is said in sending our spans; and when all is closed, nothing is."""
    talkative = [logging.getLogger(name) for name in spans_otlp.TALKATIVE]
    before = [list(each.filters) for each in talkative]
    with Collector().listening() as collector:
        spans = OtlpSpans(collector.endpoint, IDENTITY, MonotonicClock())
        for each in talkative:
            each.warning("of somebody else's spans: %s", each.name)
        spans.close()
    assert [each.name for each in caplog.records] == [*spans_otlp.TALKATIVE]
    assert [list(each.filters) for each in talkative] == before
