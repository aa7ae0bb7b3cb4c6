"""Between a run and a writer: who calls, what waits, what is left out, and what a person hears of it."""

from __future__ import annotations

import logging
import threading

import pytest

from common.clock import Deadline, ManualClock, MonotonicClock
from deploy.writers.outbox import Outbox, Tally
from deploy.writers.writer import Writer
from tests.deploy.writers.told import LIMIT_S, Blocked, Heard, Keeping, Raising


def outbox(writer: Writer, heard: Heard, *, capacity: int = 100) -> Outbox:
    made = Outbox("W", lambda: writer, heard.tell, capacity=capacity)
    made.start()
    return made


def closed(outbox: Outbox, seconds: float = LIMIT_S) -> Tally:
    return outbox.close(Deadline(MonotonicClock(), seconds))


def test_rows_and_undoings_arrive_in_order_on_another_thread() -> None:
    """And the writer is closed behind the last."""
    keeping, heard = Keeping(), Heard()
    box = outbox(keeping, heard)
    box.put(1, {"a": 1.0})
    box.undo_after(0)
    box.put(2, {"a": 2.0})
    assert closed(box) == Tally(name="W", written=2, left_out=0, error="")
    assert keeping.calls == [("scalars", 1), ("undo_after", 0), ("scalars", 2), ("close", 0)]
    assert keeping.rows == [(1, {"a": 1.0}), (2, {"a": 2.0})]
    assert threading.get_ident() not in keeping.threads and heard.lines == []


def test_what_does_not_fit_is_left_out_and_counted_but_no_undoing_is() -> None:
    """One row in hand, two waiting: of seven that come four are too many. Said once."""
    blocked, heard = Blocked(), Heard()
    box = outbox(blocked, heard, capacity=2)
    box.put(0, {})
    assert blocked.entered.wait(LIMIT_S)
    for step in range(1, 7):
        box.put(step, {})
    box.undo_after(1)
    blocked.free.set()
    assert closed(box) == Tally(name="W", written=3, left_out=4, error="")
    assert blocked.calls == [("scalars", 0), ("scalars", 1), ("scalars", 2), ("undo_after", 1), ("close", 0)]
    assert heard.warnings == ["WARNING: writer W does not keep up: 2 rows wait, and what comes on top is left out"]


def test_a_writer_that_hangs_is_left_behind_with_all_that_it_has_not_taken() -> None:
    """The row in its hands and the one that waits; no second is lost on it once the deadline has passed."""
    blocked, heard = Blocked(), Heard()
    box = outbox(blocked, heard)
    box.put(0, {})
    box.put(1, {})
    assert blocked.entered.wait(LIMIT_S)
    tally = box.close(Deadline(ManualClock(), 0.0))
    assert tally == Tally(name="W", written=0, left_out=2, error="it was not done at the end of the run")
    blocked.free.set()


def test_what_a_writer_raises_costs_the_row_one_log_record_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """However often it raises."""
    raising, heard = Raising(), Heard()
    box = outbox(raising, heard)
    with caplog.at_level(logging.ERROR):
        for step in range(5):
            box.put(step, {})
        tally = closed(box)
    assert (tally.written, tally.left_out) == (0, 5)
    assert tally.error == "OSError: [Errno 28] No space left on device"
    assert heard.lines == [f"WARNING: writer W could not take a row: {tally.error}; the run goes on"]
    assert [record.getMessage() for record in caplog.records] == [
        "writer W could not take a row; the run goes on; told once"
    ]
    assert raising.calls == [("close", 0)]


def test_a_writer_that_cannot_begin_leaves_out_every_row(caplog: pytest.LogCaptureFixture) -> None:
    """Those that waited, and those that come when it is gone."""
    heard, begun = Heard(), threading.Event()

    def refuse() -> Writer:
        assert begun.wait(LIMIT_S)
        raise ConnectionError("no route")

    box = Outbox("W", refuse, heard.tell)
    box.start()
    box.put(0, {})
    begun.set()
    box._thread.join(LIMIT_S)
    box.put(1, {})
    assert closed(box) == Tally(name="W", written=0, left_out=2, error="ConnectionError: no route")
    assert heard.lines == ["WARNING: writer W could not begin: ConnectionError: no route; the run goes on"]
    assert len(caplog.records) == 1


def test_an_end_that_fails_is_told() -> None:
    """The rows were taken all the same."""

    class Failing(Keeping):
        def close(self) -> None:
            raise TimeoutError("uploading")

    heard = Heard()
    box = outbox(Failing(), heard)
    box.put(0, {})
    assert closed(box) == Tally(name="W", written=1, left_out=0, error="TimeoutError: uploading")
    assert heard.lines == ["WARNING: writer W could not finish: TimeoutError: uploading; the run goes on"]
