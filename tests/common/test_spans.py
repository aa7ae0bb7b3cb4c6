"""Ids of spans are derived: both sides know them without having talked. And a run without spans pays for none."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.clock import ManualClock
from common.errors import EXIT_BAD_INPUT, UserError
from common.spans import NoSpans, SpanIdentity, SpanName, SpansConfig, open_spans, require_opentelemetry

ROOT = Path(__file__).parents[2]
TOGETHER = SpanIdentity(run="cart-1", synchronous=True)
APART = SpanIdentity(run="cart-1", synchronous=False)
FRAGMENT: dict[str, Any] = {"actor": 3, "incarnation": 0, "lease": "9f2c", "sequence": 17, "term": 1, "update": 17}
ORDER = {"term": 1, "update": 17, "version": 20, "attempt": 19, "rank": 1}


def test_the_ids_are_these_for_ever() -> None:
    """Processes of two releases, and a collector that has seen both, go on agreeing."""
    rollout, update = TOGETHER.rollout(**FRAGMENT), TOGETHER.update(**ORDER)
    assert f"{rollout.trace_id:032x} {rollout.span_id:016x}" == "e67205633412deb0957a0c53c2999934 ee9a51b59891c5cc"
    assert f"{update.trace_id:032x} {update.span_id:016x}" == "e67205633412deb0957a0c53c2999934 a02229cef9451758"
    assert f"{update.part(SpanName.SYNC).span_id:016x}" == "43236cfe7f4096c0"
    assert f"{APART.rollout(**FRAGMENT).trace_id:032x}" == "0ed3ba67be21fe52ee9a51b59891c5cc"


def test_in_a_synchronous_run_a_fragment_is_in_the_trace_of_its_update() -> None:
    """Which is known when it is made. In an asynchronous one it is not, and the fragment has a trace of its own."""
    assert TOGETHER.rollout(**FRAGMENT).trace_id == TOGETHER.update(**ORDER).trace_id
    assert APART.rollout(**FRAGMENT).trace_id != APART.update(**ORDER).trace_id
    assert APART.rollout(**FRAGMENT).span_id == TOGETHER.rollout(**FRAGMENT).span_id


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("made again by another process, after a resume", {"lease": "77aa"}),
        ("the next one", {"sequence": 18}),
        ("of another actor", {"actor": 4}),
        ("of another life", {"incarnation": 1}),
    ],
)
def test_another_fragment_has_another_span(what: str, changes: dict[str, Any]) -> None:
    """Also where it has the same number in its actor's life."""
    assert TOGETHER.rollout(**FRAGMENT | changes).span_id != TOGETHER.rollout(**FRAGMENT).span_id


@pytest.mark.parametrize(
    ("what", "changes", "same_trace"),
    [
        ("made again for a dispute", {"attempt": 20, "version": 21}, True),
        ("made again after a resume, where attempts are counted from 0", {"version": 31}, True),
        ("on another rank", {"rank": 0}, True),
        ("made again after a rollback", {"term": 2}, False),
        ("the next one", {"update": 18}, False),
    ],
)
def test_another_order_has_another_span(what: str, changes: dict[str, int], same_trace: bool) -> None:
    """In the trace of its update in its term."""
    first, other = TOGETHER.update(**ORDER), TOGETHER.update(**ORDER | changes)
    assert other.span_id != first.span_id
    assert (other.trace_id == first.trace_id) is same_trace


NUMBERS = st.integers(0, 2**31)
IDENTITIES = st.builds(
    lambda run, fragment: (SpanIdentity(run=run, synchronous=False), fragment),
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=4),
    st.fixed_dictionaries(
        {
            "actor": NUMBERS,
            "incarnation": NUMBERS,
            "lease": st.text("0123456789abcdef", min_size=1, max_size=4),
            "sequence": NUMBERS,
        }
    ),
)


@given(IDENTITIES, IDENTITIES)
@settings(deadline=None, max_examples=200)
def test_ids_are_equal_only_for_equal_fragments(one: Any, other: Any) -> None:
    """No two ways to write parts one behind the other are the same text."""
    refs = [identity.rollout(**fragment, term=0, update=0) for identity, fragment in (one, other)]
    assert (refs[0] == refs[1]) == (one == other)
    assert all(0 < ref.trace_id < 2**128 and 0 < ref.span_id < 2**64 for ref in refs)


def test_without_a_collector_nothing_is_made() -> None:
    """Whoever has something to say is not asked."""
    spans = open_spans(None, ManualClock(), who="actor 0")
    spans.send("actor-0", lambda identity: pytest.fail("asked"))
    spans.close()
    assert isinstance(spans, NoSpans)


IMPORTS = """
import sys
import deploy.inline_engine, deploy.session, actors.spans, learner.spans
print([name for name in sys.modules if name.split(".")[0] == "opentelemetry"])
"""


def test_without_a_collector_opentelemetry_is_not_imported() -> None:
    """Neither by the modules that a run is made of nor by those that make spans."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry is not installed."""
    for name in [name for name in sys.modules if name.startswith(("opentelemetry", "common.spans_otlp"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)


def test_a_missing_package_is_told_with_the_extra_that_has_it(absent: None) -> None:
    """Bad input, before anything has started."""
    with pytest.raises(UserError, match=r"pip install 'truestep\[otel\]'") as caught:
        require_opentelemetry()
    assert caught.value.exit_code == EXIT_BAD_INPUT


def test_a_process_without_the_package_goes_without(absent: None, caplog: pytest.LogCaptureFixture) -> None:
    """On a node that lacks it, and in a run that is resumed: one log record."""
    config = SpansConfig(endpoint="http://127.0.0.1:9", identity=TOGETHER)
    assert isinstance(open_spans(config, ManualClock(), who="actor 3"), NoSpans)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "no spans of actor 3 are sent" in record.getMessage()
