"""From the record to rows: where an evaluation stands, what rollbacks and resumes undo, what is said at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.checkpoints import CheckpointStore
from common.clock import ManualClock, MonotonicClock
from common.runs import RunRegistry
from deploy.conductor.messages import RollBack
from deploy.record import Record
from deploy.writers import feed as feeds
from deploy.writers.feed import Feed
from deploy.writers.outbox import Outbox
from deploy.writers.tensorboard_writer import TensorBoardWriter
from deploy.writers.writer import NOTHING_STANDS, Writer
from tests.deploy.standing import Standing
from tests.deploy.test_record import commit, evaluated
from tests.deploy.writers.reading import board, recorded, same, texts
from tests.deploy.writers.told import Blocked, Heard, Keeping


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunRegistry]:
    with RunRegistry.open(tmp_path / "runs.sqlite") as registry:
        fields = {"env": "CartPole-v1", "algo": "ppo", "seed": 0, "engine": "ray", "out": str(tmp_path)}
        registry.create_run(run="r", config={}, facts={}, **fields)
        yield registry


def feed_to(writer: Writer, heard: Heard) -> Feed:
    return Feed([Outbox("W", lambda: writer, heard.tell)], MonotonicClock(), heard.tell, remedy="see there")


def recording(registry: RunRegistry, tmp_path: Path, feed: Feed) -> Record:
    store = CheckpointStore(tmp_path / "checkpoints")
    return Record(registry, store, "r", ManualClock(), wall_before_s=0.0, listeners=[feed])


def test_rows_stand_at_the_steps_of_their_update(registry: RunRegistry, tmp_path: Path) -> None:
    """An evaluation that ends two updates later stands at its own; 100 steps an update."""
    keeping, heard, standing = Keeping(), Heard(), Standing()
    with feed_to(keeping, heard) as feed:
        record = recording(registry, tmp_path, feed)
        for update in range(3):
            commit(record, standing, update)
        record.observe(evaluated(1, 2), standing.conductor)
    assert [(step, "evaluation/mean" in values) for step, values in keeping.rows] == [
        *((100, False), (200, False), (300, False)),
        (100, True),
    ]
    assert feed.left_out() == {} and heard.lines == []


def test_after_a_rollback_tensorboard_has_what_the_registry_has(registry: RunRegistry, tmp_path: Path) -> None:
    """No row of what was undone: neither of updates nor of an evaluation; what was made again is there once."""
    standing, heard = Standing(), Heard()
    writer = TensorBoardWriter(tmp_path / "r" / "tensorboard", "its configuration")
    with feed_to(writer, heard) as feed:
        record = recording(registry, tmp_path, feed)
        for update in range(5):
            commit(record, standing, update)
            record.observe(evaluated(update + 1, update + 2), standing.conductor)
        record.roll_back(RollBack(update=2, term=1, reason="why"))
        standing.term = 1
        for update in (2, 3):
            commit(record, standing, update)
        record.flush()
    shown = board(tmp_path / "r" / "tensorboard")
    assert same(shown, recorded(tmp_path, "r"))
    assert shown["run/term"] == [(100, 0.0), (200, 0.0), (300, 1.0), (400, 1.0)]
    assert [step for step, _ in shown["evaluation/mean"]] == [100, 200]
    assert texts(tmp_path / "r" / "tensorboard") == [(0, "its configuration")]  # once a driving


def test_a_rollback_to_the_beginning_and_back_again(registry: RunRegistry, tmp_path: Path) -> None:
    """Nothing stands, not even a row at step 0."""
    keeping, standing = Keeping(), Standing()
    with feed_to(keeping, Heard()) as feed:
        record = recording(registry, tmp_path, feed)
        commit(record, standing, 0)
        record.roll_back(RollBack(update=0, term=1, reason="why"))
    assert keeping.calls[1] == ("undo_after", NOTHING_STANDS)


def test_a_resume_is_undone_to_where_it_goes_on(registry: RunRegistry, tmp_path: Path) -> None:
    """First of all; an evaluation of the update that the run goes on from has its place."""
    keeping, standing = Keeping(), Standing(version=9)
    feed = feed_to(keeping, Heard())
    feed.resumed(7, 700)
    with feed:
        recording(registry, tmp_path, feed).observe(evaluated(7, 8), standing.conductor)
    assert keeping.calls == [("undo_after", 700), ("scalars", 700), ("close", 0)]


def test_an_evaluation_of_an_update_nobody_remembers_is_left_out_and_counted(
    registry: RunRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when that many updates have been made since."""
    monkeypatch.setattr(feeds, "REMEMBERED", 2)
    keeping, heard, standing = Keeping(), Heard(), Standing()
    with feed_to(keeping, heard) as feed:
        record = recording(registry, tmp_path, feed)
        for update in range(4):
            commit(record, standing, update)
        record.observe(evaluated(1, 2), standing.conductor)
    assert len(keeping.rows) == 4 and feed.left_out() == {"W": 1}
    assert heard.lines == ["WARNING: writer W left out 1 of the rows; see there"]


def test_all_writers_share_one_deadline_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that hang are left behind together; the third has all its rows."""
    monkeypatch.setattr(feeds, "CLOSE_S", 0.05)
    blocked, keeping, heard = [Blocked(), Blocked()], Keeping(), Heard()
    names: dict[str, Writer] = {"one": blocked[0], "two": blocked[1], "three": keeping}
    boxes = [Outbox(name, lambda writer=writer: writer, heard.tell) for name, writer in names.items()]  # type: ignore[misc]
    feed = Feed(boxes, MonotonicClock(), heard.tell, remedy="see there")
    with feed:
        for step in range(3):
            feed._put(step, {})
    assert feed.left_out() == {"one": 3, "two": 3} and len(keeping.rows) == 3
    why = "it was not done at the end of the run"
    assert heard.lines == [
        f"WARNING: writer {name} left out 3 of the rows ({why}); see there" for name in ("one", "two")
    ]
    for each in blocked:
        each.free.set()
