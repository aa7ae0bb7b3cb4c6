"""A trace of a rank's updates: it shows them, and leaves them as they are."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from common.clock import ManualClock, MonotonicClock, wait_until
from common.errors import DeadlineError, UnreachableError
from learner import tracing
from learner.tracing import UpdateTracer
from tests.learner.test_rank import order, rollout, started

LIMIT_S = 60.0


def updates(count: int, around: Callable[[int], Any] | None = None) -> list[str]:
    """Parameter digests after each of some updates of a fresh rank, each within what `around` gives."""
    rank, digests = started(), []
    for update in range(count):
        fragments = [rollout(update, actor=0), rollout(update, actor=1)]
        if around is None:
            report, _ = rank.update(order(update), fragments)
        else:
            with around(update):
                report, _ = rank.update(order(update), fragments)
        digests.append(report.parameter_digest)
    return digests


class Asking:
    """A request for a trace, from a thread of its own."""

    def __init__(self, tracer: UpdateTracer, seconds: float) -> None:
        self.answer: bytes = b""
        self.error: Exception | None = None
        self.stop = threading.Event()
        self._tracer = tracer
        self._thread = threading.Thread(target=self._ask, args=(seconds,), daemon=True)
        self._thread.start()
        assert wait_until(lambda: tracer._wanted is not None, clock=MonotonicClock(), seconds=LIMIT_S)

    def _ask(self, seconds: float) -> None:
        try:
            self.answer = self._tracer.trace(seconds, stop=self.stop)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def wait(self) -> None:
        """Until it is answered."""
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


def test_the_traced_updates_are_the_same_bits_and_their_operations_are_in_the_trace() -> None:
    """Three updates with a trace over two of them, and without."""
    clock = ManualClock()
    tracer = UpdateTracer(clock, patience_s=1e9)
    asking: list[Asking] = []

    def around(update: int) -> Any:
        if update == 1:
            asking.append(Asking(tracer, 5.0))
        if update == 2:
            clock.advance(6.0)
        return tracer.update()

    assert updates(3, around) == updates(3)
    asking[0].wait()
    assert asking[0].error is None
    names = {event.get("name", "") for event in json.loads(asking[0].answer)["traceEvents"]}
    assert {"aten::mm", "aten::addmm"} & names or "aten::linear" in names
    assert any("Backward" in name for name in names)


def test_without_a_request_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler is not even made."""
    monkeypatch.setattr(tracing, "profile", None)
    tracer = UpdateTracer(ManualClock())
    assert len(updates(2, lambda _: tracer.update())) == 2


def test_a_trace_ends_with_its_seconds_or_after_its_most_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that stands still the number of updates ends it."""
    monkeypatch.setattr(tracing, "MAX_UPDATES", 2)
    monkeypatch.setattr(tracing, "profile", Recorded)
    tracer = UpdateTracer(MonotonicClock())
    asking = Asking(tracer, 300.0)
    for number in range(3):
        with tracer.update():
            assert Recorded.running == (number < 2)
    asking.wait()
    assert asking.answer == b"{}"


class Recorded:
    """A profiler that notes whether it runs."""

    running = False

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        Recorded.running = True

    def stop(self) -> None:
        Recorded.running = False

    def export_chrome_trace(self, path: str) -> None:
        with open(path, "w") as file:  # noqa: PTH123 - as torch does
            file.write("{}")


class Broken(Recorded):
    def start(self) -> None:
        raise RuntimeError("no such counter")


def test_a_profiler_that_fails_costs_the_request_its_trace_and_the_run_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The update is made as without; the reason travels."""
    monkeypatch.setattr(tracing, "profile", Broken)
    tracer = UpdateTracer(MonotonicClock())
    asking = Asking(tracer, 1.0)
    assert updates(1, lambda _: tracer.update()) == updates(1)
    asking.wait()
    assert isinstance(asking.error, UnreachableError)
    assert "RuntimeError: no such counter" in str(asking.error)


def test_a_rank_that_makes_no_update_gives_no_trace() -> None:
    """Whoever asked is told so when the patience is over, or the process ends, and a later update begins none."""
    tracer = UpdateTracer(MonotonicClock(), patience_s=0.01)
    with pytest.raises(DeadlineError, match="no update that began and ended within"):
        tracer.trace(0.01, stop=threading.Event())
    stop = threading.Event()
    stop.set()
    with pytest.raises(DeadlineError, match="the process is ending"):
        UpdateTracer(MonotonicClock()).trace(300.0, stop=stop)
    with tracer.update():
        assert tracer._traced is None


def test_an_update_that_raises_ends_no_trace_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the update's own, and the trace still comes to its end."""
    monkeypatch.setattr(tracing, "MAX_UPDATES", 1)
    monkeypatch.setattr(tracing, "profile", Recorded)
    tracer = UpdateTracer(MonotonicClock())
    asking = Asking(tracer, 300.0)
    with pytest.raises(ZeroDivisionError), tracer.update():
        raise ZeroDivisionError
    asking.wait()
    assert (asking.answer, Recorded.running) == (b"{}", False)
