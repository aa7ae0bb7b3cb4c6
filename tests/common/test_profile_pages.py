"""Profiles over HTTP: one at a time, within bounds, and never at the cost of the process."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import pytest

from common.clock import MonotonicClock, wait_until
from common.errors import DeadlineError, UnreachableError
from common.metrics import MetricsServer, PortRange, Registry, new_registry, serve
from common.profile_pages import ProfilePages
from tests.common.test_profiling import planted_spin, thread_of

ANY = PortRange(first=0, last=0)


class Traced:
    """A tracer that gives what it was made with."""

    def __init__(self, result: bytes | Exception) -> None:
        self._result = result

    def trace(self, seconds: float, *, stop: threading.Event) -> bytes:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


@contextmanager
def serving(tracer: Traced | None = None, registry: Registry | None = None) -> Iterator[MetricsServer]:
    pages = ProfilePages("actor 0", MonotonicClock(), tracer=tracer)
    with serve(registry or new_registry(), ports=ANY, pages=pages, who="actor 0") as server:
        yield server


def get(server: MetricsServer, path: str) -> tuple[int, Any]:
    """Status, and the JSON that came with it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_the_index_says_which_process_it_is_and_what_it_shows() -> None:
    """Enough to tell whether it is on the same machine; a trace is there where a learner is."""
    with serving() as server, serving(Traced(b"{}")) as learner:
        status, told = get(server, "/profile")
        assert (status, told["who"], told["process"]["pid"]) == (200, "actor 0", os.getpid())
        assert told["kinds"] == ["stacks", "flame", "memory"]
        assert get(learner, "/profile")[1]["kinds"] == ["stacks", "flame", "memory", "torch"]


def test_a_flame_names_the_planted_function() -> None:
    """Sampled by a thread of the process, while another works."""
    with serving() as server, thread_of(planted_spin, "worker"):
        status, told = get(server, "/profile/flame?seconds=0.3&rate=200")
    assert (status, told["unit"]) == (200, "us") and told["taken"] > 0
    assert max(told["counts"], key=lambda each: each[1])[0][0] == "worker"
    assert any("planted_spin (tests/common/test_profiling.py)" in stack for stack, _ in told["counts"])


@pytest.mark.parametrize("query", ["seconds=0", "seconds=-1", "seconds=301", "seconds=nan", "seconds=x", "rate=1001"])
def test_numbers_out_of_bounds_are_refused(query: str) -> None:
    """Before anything is begun, with the bounds in words."""
    with serving() as server:
        status, told = get(server, f"/profile/flame?{query}")
    assert status == HTTPStatus.BAD_REQUEST
    assert "allowed: above 0, up to" in told["error"]


def test_one_profile_at_a_time_and_stacks_at_any_time() -> None:
    """The second is refused and says why; closing ends the first, which is then none."""
    first: list[tuple[int, Any]] = []

    def ask_until_admitted(_: object) -> None:
        """One of the short ones may be under way."""
        while (answer := get(server, "/profile/flame?seconds=300"))[0] == HTTPStatus.CONFLICT:
            pass
        first.append(answer)

    pages = ProfilePages("actor 0", MonotonicClock())
    with serve(new_registry(), ports=ANY, pages=pages, who="actor 0") as server:
        with thread_of(ask_until_admitted, "client"):
            assert wait_until(
                lambda: get(server, "/profile/flame?seconds=0.01")[0] == HTTPStatus.CONFLICT,
                clock=MonotonicClock(),
                seconds=30,
            )
            assert "one at a time" in get(server, "/profile/memory?seconds=1")[1]["error"]
            assert any(each["thread"] == "client" for each in get(server, "/profile/stacks")[1]["threads"])
            pages.close()
        assert first[0][0] == HTTPStatus.SERVICE_UNAVAILABLE


def test_closing_ends_the_profile_that_is_being_made() -> None:
    """Within moments, not after its 300 s, and it is no profile any more."""
    pages = ProfilePages("actor 0", MonotonicClock())
    pages.close()
    answer = pages.answer("/profile/flame", "seconds=300")
    assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert b"actor 0 ended while it was profiled" in answer.body


def test_memory_is_profiled() -> None:
    """Plain values, the places in them."""
    with serving() as server:
        status, told = get(server, "/profile/memory?seconds=0.05")
    assert status == 200 and set(told) == {"seconds", "held_bytes", "peak_bytes", "places"}


def test_a_trace_is_passed_on_as_it_is() -> None:
    """Chrome trace JSON; a process without a learner has no such page."""
    with serving(Traced(b'{"traceEvents": []}')) as learner, serving() as actor:
        assert get(learner, "/profile/torch?seconds=1") == (200, {"traceEvents": []})
        with pytest.raises(json.JSONDecodeError):
            get(actor, "/profile/torch")


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (DeadlineError("no trace", got="no update"), 504, "no trace; got no update"),
        (UnreachableError("torch's profiler failed", got="why"), 500, "torch's profiler failed; got why"),
        (RuntimeError("boom"), 500, "RuntimeError: boom"),
    ],
)
def test_what_fails_costs_the_request_its_answer_and_nothing_else(
    error: Exception, status: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason travels; the next request is served."""
    with serving(Traced(error)) as server:
        got, told = get(server, "/profile/torch?seconds=1")
        assert (got, words in told["error"]) == (status, True)
        assert get(server, "/profile/stacks")[0] == 200


def test_profiles_are_no_cost_of_metrics() -> None:
    """The CPU time of sampling is not in the counter that says what metrics cost."""
    registry = new_registry()
    with serving(registry=registry) as server:
        get(server, "/profile/flame?seconds=0.2&rate=1000&idle=1")
        assert registry.cpu_seconds < 0.002
