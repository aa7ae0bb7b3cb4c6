"""Calls in flight: whose time runs, how it is cut short, and what is said of a call that has no answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.clock import ManualClock
from common.errors import SyncError
from deploy.conductor.messages import Event, StopAsked

ray = pytest.importorskip("ray")

from deploy.ray_calls import Calls, Failure, Process  # noqa: E402 - imports ray


class FakeRay:
    """Answers that are there when a test says so; a wait without one lets the time pass."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.answers: dict[str, Any] = {}

    def wait(self, references: list[str], *, num_returns: int, timeout: float, fetch_local: bool) -> Any:
        ready = [reference for reference in references if reference in self.answers][:num_returns]
        if not ready:
            self.clock.advance(timeout)
        return ready, [reference for reference in references if reference not in ready]

    def get(self, reference: str, *, timeout: float) -> Any:
        answer = self.answers[reference]
        if isinstance(answer, BaseException):
            raise answer
        return answer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def fake(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay(clock)
    monkeypatch.setattr("deploy.ray_calls.ray", fake)
    return fake


def process(rank: int = 0, **facts: Any) -> Process:
    return Process(role="learner", index=rank, lease=f"lease-{rank}", who=f"learner rank {rank}", handle=rank, **facts)


def answered(answer: Any) -> Event:
    return StopAsked(reason=str(answer))


def failure(calls: Calls, timeout_s: float) -> Failure:
    outcome = calls.next_outcome(timeout_s)
    assert isinstance(outcome, Failure), outcome
    return outcome


def test_only_the_oldest_call_of_a_process_runs_out_of_time(clock: ManualClock, fake: FakeRay) -> None:
    """A second call that waits behind the first for 9 s still has all of its 5 s once the first is answered."""
    calls, one = Calls(clock), process()
    calls.expect(one, "first", "be first", 10.0, answered)
    calls.expect(one, "second", "be second", 5.0, answered)
    assert calls.next_outcome(9.0) is None
    fake.answers["first"] = "made"
    assert calls.next_outcome(1.0) == StopAsked(reason="made")
    assert calls.next_outcome(4.5) is None
    late = failure(calls, 1.0)
    assert late.call.reference == "second" and late.cause is None
    assert late.words() == ("learner rank 0 did not be second within 5 s", "")


def test_answers_of_one_process_come_in_the_order_told(clock: ManualClock, fake: FakeRay) -> None:
    """Even where both are there at once."""
    calls, one = Calls(clock), process()
    for name in ("first", "second"):
        calls.expect(one, name, name, 10.0, answered)
        fake.answers[name] = name
    assert [calls.next_outcome(1.0), calls.next_outcome(1.0)] == [StopAsked(reason=n) for n in ("first", "second")]
    assert calls.next_outcome(1.0) is None and one.calls == []


def test_a_hurried_process_has_less_time_for_its_oldest_call_and_never_more(clock: ManualClock, fake: FakeRay) -> None:
    """60 s become 10; another 30 change nothing; other processes keep their time."""
    calls, slow, other = Calls(clock), process(1), process(2)
    calls.expect(slow, "slow", "make update 7", 60.0, answered)
    calls.expect(other, "other", "make update 7", 60.0, answered)
    calls.hurry(slow, 10.0)
    calls.hurry(slow, 30.0)
    assert calls.next_outcome(9.0) is None
    late = failure(calls, 1.0)
    assert late.call.process is slow
    assert late.words()[0] == "learner rank 1 did not make update 7 within 10 s after the others had given up on it"
    calls.forget(slow)
    assert calls.next_outcome(49.0) is None
    assert failure(calls, 1.0).call.process is other


def test_hurrying_ends_with_the_call_it_was_meant_for(clock: ManualClock, fake: FakeRay) -> None:
    """The next call of the same process has its own deadline in full."""
    calls, one = Calls(clock), process()
    calls.expect(one, "first", "be first", 60.0, answered)
    calls.expect(one, "second", "be second", 60.0, answered)
    calls.hurry(one, 1.0)
    fake.answers["first"] = "made"
    calls.next_outcome(1.0)
    assert calls.next_outcome(59.0) is None
    assert not failure(calls, 1.0).hurried


def test_nobody_waits_for_a_process_that_was_forgotten(clock: ManualClock, fake: FakeRay) -> None:
    """Neither its answers nor its deadlines become anything."""
    calls, gone = Calls(clock), process()
    calls.expect(gone, "first", "be first", 1.0, answered)
    calls.expect(gone, "second", "be second", 1.0, answered)
    calls.forget(gone)
    fake.answers |= {"first": 1, "second": 2}
    assert calls.next_outcome(100.0) is None


def test_what_our_code_raised_there_is_the_cause_and_ray_s_wrapping_is_not(clock: ManualClock, fake: FakeRay) -> None:
    """The words of the error itself, and its long material."""
    calls, one = Calls(clock), process()
    calls.expect(one, "first", "be first", 1.0, answered)
    ours = SyncError("a reduce failed", detail="the whole story")
    fake.answers["first"] = ray.exceptions.RayTaskError("update", "traceback", ours)
    failed = failure(calls, 1.0)
    assert failed.cause is ours and failed.words() == ("a reduce failed", "the whole story")


def test_a_dead_process_is_described_with_the_words_its_watchdog_left(
    clock: ManualClock, fake: FakeRay, tmp_path: Path
) -> None:
    """What it should have done, and the file if there is one."""
    last_words = tmp_path / "words.txt"
    last_words.write_text("step did not return\n")
    calls, one = Calls(clock), process(last_words=last_words)
    calls.expect(one, "first", "collect for update 3", 1.0, answered)
    fake.answers["first"] = ray.exceptions.ActorDiedError()
    cause, detail = failure(calls, 1.0).words()
    assert cause == "learner rank 0: the process ended while it should collect for update 3"
    assert detail == "step did not return"


def test_a_process_that_cannot_be_reached_is_not_said_to_have_ended(clock: ManualClock, fake: FakeRay) -> None:
    """Its connection broke; Ray's reason is the long material."""
    calls, one = Calls(clock), process()
    calls.expect(one, "first", "collect for update 3", 1.0, answered)
    fake.answers["first"] = ray.exceptions.ActorUnavailableError("keepalive watchdog timeout", b"0" * 16)
    cause, detail = failure(calls, 1.0).words()
    assert cause == "learner rank 0 could not be reached while it should collect for update 3"
    assert "keepalive watchdog timeout" in detail
