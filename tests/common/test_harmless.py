"""Watching must never end what it watches."""

from __future__ import annotations

import logging

import pytest

from common.harmless import harmless


class Recorder:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def observe(self, number: int) -> None:
        if number < 0:
            raise ValueError(f"got {number}")
        self.seen.append(number)

    def note(self) -> None:
        raise KeyError("note")


def test_what_a_recorder_raises_costs_one_log_record_a_method(caplog: pytest.LogCaptureFixture) -> None:
    """The caller hears nothing; calls that go well are recorded as ever."""
    recorder = Recorder()
    guarded = harmless(recorder, who="actor 3")
    for number in (1, -1, -2, 2):
        guarded.observe(number)
    guarded.note()
    guarded.note()
    assert recorder.seen == [1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "metrics of actor 3: observe failed; the run goes on; told once",
        "metrics of actor 3: note failed; the run goes on; told once",
    ]
    assert all(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)


def test_what_is_not_the_recorders_fault_is_not_kept_from_the_caller() -> None:
    """An interrupt is no fault of metrics; a method that does not exist is one of the caller."""

    class Interrupted:
        def observe(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harmless(Interrupted(), who="actor 3").observe()
    with pytest.raises(AttributeError, match="observed"):
        harmless(Recorder(), who="actor 3").observed()  # type: ignore[attr-defined]
