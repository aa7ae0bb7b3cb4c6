"""The checkpoint writer: in order, beside the run, and never silent about what it could not do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from actors.evaluate import EvaluationResult
from common.clock import ManualClock, MonotonicClock, wait_until
from common.errors import CheckpointError
from common.manifest import CheckpointInfo
from deploy.conductor.messages import CheckpointWritten, Cut
from deploy.writer import MOST_HELD, CheckpointWriter
from tests.deploy.test_saved import cut_of

DEADLINE_S = 60.0
ENOUGH_S = 30.0


def info(cut: Cut) -> CheckpointInfo:
    return CheckpointInfo(name=f"c{cut.update}", update=cut.update, score=None, digest=f"d{cut.update}", num_bytes=1)


@contextmanager
def writer_of(save: Callable[[Cut], CheckpointInfo], clock: ManualClock) -> Iterator[CheckpointWriter]:
    """A started writer, closed in the end."""
    writer = CheckpointWriter(save, clock, deadline_s=DEADLINE_S)
    writer.start()
    yield writer
    writer.close(ENOUGH_S)


def result(writer: CheckpointWriter) -> tuple[CheckpointWritten, float]:
    """The next result, waited for."""
    found: list[tuple[CheckpointWritten, float]] = []

    def came() -> bool:
        if (one := writer.result_nowait()) is not None:
            found.append(one)
        return bool(found)

    assert wait_until(came, clock=MonotonicClock(), seconds=ENOUGH_S)
    return found[0]


def test_cuts_are_written_one_by_one_in_the_order_given() -> None:
    """Each result names its cut and how long writing took on the clock; busy until the last has been fetched."""
    clock, order = ManualClock(), []

    def save(cut: Cut) -> CheckpointInfo:
        order.append(cut.update)
        clock.advance(2.0)
        return info(cut)

    with writer_of(save, clock) as writer:
        assert not writer.busy
        for update in (3, 4, 9):
            writer.write(cut_of(update=update))
        results = [result(writer) for _ in range(3)]
        assert not writer.busy
    assert order == [3, 4, 9]
    assert results == [(CheckpointWritten(update=u, name=f"c{u}", digest=f"d{u}"), 2.0) for u in (3, 4, 9)]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CheckpointError("c5 cannot be written", got="no space left"), "c5 cannot be written; got no space left"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (ZeroDivisionError("a bug of ours"), "checkpoint 5: ZeroDivisionError: a bug of ours"),
    ],
)
def test_whatever_goes_wrong_is_told(error: Exception, words: str) -> None:
    """A full disk and a bug alike: the result holds the error, and the next cut is written all the same."""
    clock = ManualClock()

    def save(cut: Cut) -> CheckpointInfo:
        if cut.update == 5:
            raise error
        return info(cut)

    with writer_of(save, clock) as writer:
        writer.write(cut_of(update=5))
        writer.write(cut_of(update=6))
        assert result(writer)[0] == CheckpointWritten(update=5, name="", digest="", error=words)
        assert result(writer)[0].error == ""


def test_a_write_that_hangs_is_given_up_at_its_deadline() -> None:
    """Not before; then it is reported as failed, and what it says later, when it comes after all, is not believed."""
    clock, gate = ManualClock(), threading.Event()

    def save(cut: Cut) -> CheckpointInfo:
        if cut.update == 5:
            assert gate.wait(ENOUGH_S)
        return info(cut)

    with writer_of(save, clock) as writer:
        writer.write(cut_of(update=5))
        clock.advance(DEADLINE_S - 1)
        writer.write(cut_of(update=6))
        assert writer.result_nowait() is None
        clock.advance(1)
        written, _ = result(writer)
        assert (written.update, written.name) == (5, "")
        assert written.error == "not written within 60 s: the disk hangs"
        assert writer.busy, "the cut behind it has a deadline of its own, from here on"
        assert writer.result_nowait() is None
        gate.set()
        assert result(writer)[0] == CheckpointWritten(update=6, name="c6", digest="d6")
        assert not writer.busy
        assert writer.result_nowait() is None


def test_a_disk_that_is_too_slow_piles_up_no_cuts() -> None:
    """Of those that wait the oldest is left out and told, but not the best of them, and never the newest."""
    clock, gate, begun, order = ManualClock(), threading.Event(), threading.Event(), []

    def save(cut: Cut) -> CheckpointInfo:
        order.append(cut.update)
        begun.set()
        assert gate.wait(ENOUGH_S)
        return info(cut)

    with writer_of(save, clock) as writer:
        writer.write(cut_of(update=1))
        assert begun.wait(ENOUGH_S)
        for update, score in ((2, 7.0), (3, None), (4, 9.0), (5, 8.0), (6, None)):
            writer.write(cut_of(update=update, evaluation=score and evaluated(score), final_evaluation=None))
        left_out = [result(writer) for _ in range(3)]
        assert [written.update for written, _ in left_out] == [3, 2, 5]
        assert all("left out for newer ones" in written.error and seconds == 0.0 for written, seconds in left_out)
        assert writer.busy
        gate.set()
        assert [result(writer)[0].name for _ in range(3)] == ["c1", "c4", "c6"]
        assert not writer.busy
    assert order == [1, 4, 6]


def test_a_disk_that_hangs_is_found_out_while_cuts_go_on_being_made() -> None:
    """Those that are left out meanwhile give it no more time."""
    clock, gate, begun = ManualClock(), threading.Event(), threading.Event()

    def save(cut: Cut) -> CheckpointInfo:
        begun.set()
        assert gate.wait(ENOUGH_S)
        return info(cut)

    with writer_of(save, clock) as writer:
        writer.write(cut_of(update=1))
        assert begun.wait(ENOUGH_S)
        for update in range(2, 8):
            writer.write(cut_of(update=update, evaluation=None))
            clock.advance(DEADLINE_S / 6)
            while (left_out := writer.result_nowait()) is not None and "left out" in left_out[0].error:
                pass
        assert left_out is not None and left_out[0].update == 1 and "the disk hangs" in left_out[0].error
        gate.set()


def evaluated(mean: float) -> EvaluationResult:
    return EvaluationResult(version=1, returns=(mean,), lengths=(1,), unfinished=0)


def test_nothing_expires_while_nothing_is_written() -> None:
    """An idle writer has no deadline, and the first cut after a long time has a whole one."""
    clock, gate = ManualClock(), threading.Event()

    def save(cut: Cut) -> CheckpointInfo:
        assert cut.update == 1 or gate.wait(ENOUGH_S)
        return info(cut)

    with writer_of(save, clock) as writer:
        writer.write(cut_of(update=1))
        result(writer)
        clock.advance(100 * DEADLINE_S)
        assert writer.result_nowait() is None
        writer.write(cut_of(update=2))
        assert writer.result_nowait() is None
        gate.set()
        assert result(writer)[0].error == ""


def test_close_writes_what_was_given_and_ends_the_thread() -> None:
    """Cuts that are queued when the run ends reach the disk."""
    clock, order = ManualClock(), []

    def save(cut: Cut) -> CheckpointInfo:
        order.append(cut.update)
        return info(cut)

    with writer_of(save, clock) as writer:
        for update in range(MOST_HELD):
            writer.write(cut_of(update=update))
    assert order == list(range(MOST_HELD))
    assert "checkpoint-writer" not in [thread.name for thread in threading.enumerate()]


def test_close_does_not_wait_for_a_write_that_hangs() -> None:
    """It is left to the end of the process: a daemon thread."""
    gate = threading.Event()

    def save(cut: Cut) -> CheckpointInfo:
        gate.wait()
        return info(cut)

    writer = CheckpointWriter(save, ManualClock(), deadline_s=DEADLINE_S)
    writer.start()
    writer.write(cut_of(update=1))
    writer.close(0.0)
    assert writer._thread.is_alive()
    assert writer._thread.daemon
    gate.set()
    writer._thread.join(ENOUGH_S)
    assert not writer._thread.is_alive()


def test_a_writer_that_never_started_can_be_closed() -> None:
    """A run may fail before its first checkpoint."""
    writer = CheckpointWriter(info, ManualClock(), deadline_s=DEADLINE_S)
    writer.close(ENOUGH_S)
    assert not writer.busy
