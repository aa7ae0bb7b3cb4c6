"""The run registry: what is recorded, who may write, what survives (C49, D3)."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import runs, runs_database
from common.clock import ManualClock
from common.errors import ConfigError, OutputError, RegistryError, RunNotFoundError
from common.migrations import APPLICATION_ID, MIGRATIONS
from common.process_identity import Liveness, ProcessIdentity
from common.run_records import unused_run_name
from common.runs import CheckpointRecord, EvaluationRecord, RunRegistry, UpdateRecord

OWN = ProcessIdentity.current()
DEAD = replace(OWN, start_ticks=OWN.start_ticks + 1)
ELSEWHERE = replace(OWN, host="another-host")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "runs.sqlite"


@pytest.fixture
def registry(path: Path):
    with RunRegistry.open(path, clock=ManualClock(5)) as registry:
        yield registry


def create(registry: RunRegistry, run: str = "pong", **changes: Any) -> runs.RunRecord:
    fields: dict[str, Any] = {"env": "CartPole-v1", "algo": "ppo", "seed": 2**63 - 1, "engine": "inline", "out": "/o"}
    return registry.create_run(run=run, **{**fields, "config": {}, "facts": {}, **changes})


def update(number: int, run: str = "pong", **changes: Any) -> UpdateRecord:
    fields: dict[str, Any] = {
        "run": run,
        "update": number,
        "term": 1,
        "version": number + 1,
        "env_steps": 128 * number,
        "parameter_digest": f"digest-{number}",
        "state_digest": f"state-{number}",
        "chain": f"chain-{number}",
        "produced": 130 * number,
        "trained": 120 * number,
        "in_flight": 4,
        "dropped": {"stale": 6},
        "fragments_lost": 0,
        "lag": 0.5,
        "statistics": {"loss": 0.25},
        "num_ranks": 2,
    }
    return UpdateRecord(**{**fields, **changes})


def evaluation(number: int, run: str = "pong", **changes: Any) -> EvaluationRecord:
    fields: dict[str, Any] = {"mean": 2.0, "std": 1.0, "minimum": 1.0, "maximum": 3.0, "episodes": 2}
    return EvaluationRecord(**{"run": run, "update": number, "version": 1, "returns": (1.0, 3.0), **fields, **changes})


# What goes in comes out


def test_a_new_run_is_running_with_nothing_done(registry: RunRegistry) -> None:
    """All fields of a fresh run; config and facts keep infinities, tuples become lists."""
    record = create(registry, config={"clip": math.inf, "sizes": (64, 64)}, facts={"cpus": 2})
    assert record == registry.run("pong")
    assert record.config == {"clip": math.inf, "sizes": [64, 64]}
    assert (record.seed, record.facts, record.status) == (2**63 - 1, {"cpus": 2}, "running")
    assert (record.updates, record.env_steps, record.version, record.term, record.wall_s) == (0, 0, 0, 0, 0.0)
    assert (record.ended_wall, record.verdict, record.parameter_digest, record.chain) == (None, "", "", "")


def test_updates_come_back_equal_and_move_the_run_along(registry: RunRegistry) -> None:
    """A batch of updates; the run's row shows the last; `after` skips."""
    create(registry)
    batch = [update(number) for number in (1, 2, 3)]
    registry.record_updates(batch, wall_s=1.5)
    assert registry.updates("pong") == batch
    assert registry.updates("pong", after=2) == batch[2:]
    record = registry.run("pong")
    assert (record.updates, record.env_steps, record.version, record.term) == (3, 384, 4, 1)
    assert (record.parameter_digest, record.chain, record.wall_s) == ("digest-3", "chain-3", 1.5)


def test_a_batch_is_recorded_whole_or_not_at_all(registry: RunRegistry) -> None:
    """An update recorded twice is refused with its remedy, and nothing of its batch stays."""
    create(registry)
    registry.record_updates([update(2)])
    with pytest.raises(RegistryError, match=r"updates 1 to 2 of run 'pong'.*recorded already"):
        registry.record_updates([update(1), update(2)])
    assert [record.update for record in registry.updates("pong")] == [2]
    registry.record_updates([])
    with pytest.raises(ValueError, match="one run at a time"):
        registry.record_updates([update(3), update(3, run="other")])


def test_numpy_scalars_become_plain_numbers(registry: RunRegistry, path: Path) -> None:
    """sqlite3 stores a numpy integer as a blob; here it arrives as the number."""
    create(registry)
    counts = {"env_steps": np.int64(7), "dropped": {"stale": np.int32(3)}, "lag": np.float32(0.5)}
    registry.record_updates([update(np.int64(1), **counts, statistics={"loss": np.float32(0.25)})])
    record = registry.updates("pong")[0]
    assert (record.update, record.env_steps, record.dropped, record.lag) == (1, 7, {"stale": 3}, 0.5)
    assert record.statistics == {"loss": 0.25}
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT typeof(update_number), typeof(env_steps) FROM updates").fetchone() == (
            "integer",
            "integer",
        )
    connection.close()


def test_numbers_that_are_not_finite_survive(registry: RunRegistry) -> None:
    """NaN and infinities in statistics, lag, evaluations and returns come back as they went in."""
    create(registry)
    registry.record_updates([update(1, lag=math.nan, statistics={"a": math.nan, "b": -math.inf})])
    registry.record_evaluation(evaluation(1, mean=math.nan, maximum=math.inf, returns=(math.nan, -0.0, math.inf)))
    record, evaluated = registry.updates("pong")[0], registry.evaluations("pong")[0]
    assert math.isnan(record.lag)
    assert math.isnan(record.statistics["a"])
    assert record.statistics["b"] == -math.inf
    assert math.isnan(evaluated.mean)
    assert evaluated.maximum == math.inf
    assert [str(value) for value in evaluated.returns] == ["nan", "-0.0", "inf"]


def test_an_evaluation_of_the_same_update_replaces_the_former(registry: RunRegistry) -> None:
    """One evaluation per update."""
    create(registry)
    for mean in (1.0, 9.0):
        registry.record_evaluation(evaluation(4, mean=mean))
    registry.record_evaluation(evaluation(2))
    assert [(record.update, record.mean) for record in registry.evaluations("pong")] == [(2, 2.0), (4, 9.0)]


def test_events_are_numbered_and_stamped_by_the_monotonic_clock(path: Path) -> None:
    """Sequence 1, 2, 3 per run; times from the injected clock; wall time is a label only."""
    clock = ManualClock(5)
    with RunRegistry.open(path, clock=clock) as registry:
        create(registry, "a")
        create(registry, "b")
        registry.record_event("a", "STARTED", {"actors": 2})
        clock.advance(1.0)
        registry.record_event("b", "STARTED", {})
        registry.record_event("a", "STOPPED", {"why": math.nan})
        first, second = registry.events("a")
        assert (first.sequence, first.monotonic_ns, first.clock_id, first.kind) == (1, 5, "manual", "STARTED")
        assert (second.sequence, second.monotonic_ns, first.data) == (2, 1_000_000_005, {"actors": 2})
        assert [event.sequence for event in registry.events("b")] == [1]
        assert [event.sequence for event in registry.events("a", after=1)] == [2]


def test_at_most_one_checkpoint_is_the_best(registry: RunRegistry) -> None:
    """Recording a best one, or marking one, takes the mark from the others; pruning forgets."""
    create(registry)
    for number, best in ((1, True), (2, True), (3, False)):
        name = f"update-{number:09d}"
        registry.record_checkpoint(CheckpointRecord(run="pong", update=number, name=name, digest="d", best=best))
    assert [record.best for record in registry.checkpoints("pong")] == [False, True, False]
    registry.mark_best("pong", "update-000000003")
    assert [record.best for record in registry.checkpoints("pong")] == [False, False, True]
    with pytest.raises(RegistryError, match="no checkpoint 'update-000000009'"):
        registry.mark_best("pong", "update-000000009")
    assert [record.best for record in registry.checkpoints("pong")] == [False, False, True]
    registry.prune_checkpoints("pong", {"update-000000003"})
    assert [record.update for record in registry.checkpoints("pong")] == [3]


@pytest.mark.parametrize(
    ("config", "said"),
    [({"a": {"b": [np.int64(1)]}}, "$.a.b[0]: got int64"), ({"a": {1: 2}}, "key 1"), ({"o": object()}, "got object")],
)
def test_what_json_would_change_silently_is_refused_by_path(registry: RunRegistry, config: dict, said: str) -> None:
    """Nothing is recorded that would not come back as it was."""
    with pytest.raises(RegistryError) as caught:
        create(registry, config=config)
    assert "config of run 'pong'" in str(caught.value)
    assert said in str(caught.value)
    assert registry.runs() == []


def test_a_number_beyond_64_bits_is_a_registry_error(registry: RunRegistry) -> None:
    """SQLite's integers end at 2**63 - 1; the error is ours."""
    with pytest.raises(RegistryError, match="run 'pong' created"):
        create(registry, seed=2**63)


# Names, status


def test_runs_are_listed_newest_first_and_found_by_near_names(registry: RunRegistry) -> None:
    """`runs(limit)`, and an error that names the closest and how many there are."""
    for name in ("pong-ppo", "pong-dqn", "walker"):
        create(registry, name)
    assert [record.run for record in registry.runs(limit=2)] == ["walker", "pong-dqn"]
    with pytest.raises(RunNotFoundError, match="got 'pong-pp'; allowed: closest of 3: pong-ppo"):
        registry.run("pong-pp")
    with pytest.raises(RunNotFoundError, match="3 runs, none alike"):
        registry.updates("zzz")


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "-rf", "a.", "ü", "x" * 101, "a\n"])
def test_a_run_name_must_be_a_directory_name(registry: RunRegistry, name: str) -> None:
    """Nothing that is a path, a flag or hidden."""
    with pytest.raises(ConfigError, match="run name"):
        create(registry, name)


def test_a_name_is_used_once(registry: RunRegistry) -> None:
    """A second run of the same name is the caller's mistake, not the registry's."""
    create(registry)
    with pytest.raises(ConfigError, match="'pong' exists already"):
        create(registry)


def test_unused_names_count_up(registry: RunRegistry) -> None:
    """base, base-2, base-3; unfit characters become '-'; names in `taken` count."""
    assert registry.unused_name("ALE/Pong v5") == "ALE-Pong-v5"
    create(registry, "a")
    create(registry, "a-2")
    assert registry.unused_name("a") == "a-3"
    assert registry.unused_name("a", taken={"a-3"}) == "a-4"
    assert registry.unused_name("///") == "run"
    assert registry.unused_name("x" * 200) == "x" * 90


@given(base=st.text(max_size=120), taken=st.integers(0, 3))
@settings(deadline=None, max_examples=100)
def test_an_unused_name_is_always_a_run_name(base: str, taken: int) -> None:
    """Whatever the base."""
    used: set[str] = set()
    for _ in range(taken + 1):
        name = unused_run_name(base, used)
        assert runs.records.RUN_NAME.fullmatch(name)
        assert name not in used
        used.add(name)


def test_status_and_end(registry: RunRegistry) -> None:
    """Interrupted has an end; running again has none; finish keeps time and verdict and gives the lease back."""
    create(registry)
    registry.acquire("pong", lease="L1")
    registry.set_status("pong", "interrupted", verdict="stopped by signal", wall_s=2.0)
    assert registry.run("pong").ended_wall is not None
    registry.set_status("pong", "running")
    record = registry.run("pong")
    assert (record.ended_wall, record.verdict, record.wall_s) == (None, "", 2.0)
    registry.finish("pong", "failed", verdict="the loss is NaN", wall_s=3.5)
    record = registry.run("pong")
    assert (record.status, record.verdict, record.wall_s) == ("failed", "the loss is NaN", 3.5)
    assert registry.owner("pong") is None
    with pytest.raises(RegistryError, match="CHECK"):
        registry.set_status("pong", "asleep")  # type: ignore[arg-type]


def test_a_resume_from_an_older_checkpoint_clears_the_way(registry: RunRegistry) -> None:
    """Later updates, evaluations and checkpoints go, events stay, RESUMED tells the counts; version only grows."""
    create(registry)
    registry.record_updates([update(number) for number in range(1, 6)], wall_s=9.0)
    for number in (2, 4, 5):
        registry.record_evaluation(evaluation(number))
        name = f"update-{number:09d}"
        registry.record_checkpoint(CheckpointRecord(run="pong", update=number, name=name, digest="d", best=number == 5))
    registry.truncate_after("pong", 3)
    assert [record.update for record in registry.updates("pong")] == [1, 2, 3]
    assert [record.update for record in registry.evaluations("pong")] == [2]
    assert [record.update for record in registry.checkpoints("pong")] == [2]
    event = registry.events("pong")[-1]
    removed = {"updates_removed": 2, "evaluations_removed": 2, "checkpoints_removed": 2, "fragments_removed": 0}
    assert (event.kind, event.data) == ("RESUMED", {"after_update": 3, **removed})
    record = registry.run("pong")
    assert (record.updates, record.env_steps, record.parameter_digest) == (3, 384, "digest-3")
    assert (record.chain, record.version, record.wall_s) == ("chain-3", 6, 9.0)
    registry.record_updates([update(4)])
    registry.truncate_after("pong", 0)
    record = registry.run("pong")
    assert (record.updates, record.env_steps, record.version, record.chain) == (0, 0, 6, "")


def test_a_rollback_takes_back_what_lies_behind_its_update(registry: RunRegistry) -> None:
    """Rows of later updates go, chain and digests are those of the update, the event tells from where to where."""
    create(registry)
    registry.record_updates([update(number) for number in range(1, 8)], wall_s=9.0)
    for number in (2, 4, 6, 7):
        registry.record_evaluation(evaluation(number))
        name = f"update-{number:09d}"
        registry.record_checkpoint(CheckpointRecord(run="pong", update=number, name=name, digest="d", best=number == 4))
    registry.roll_back("pong", 4, term=2, reason="update 7 was disputed twice")
    assert [record.update for record in registry.updates("pong")] == [1, 2, 3, 4]
    assert [record.update for record in registry.evaluations("pong")] == [2, 4]
    assert [(record.update, record.best) for record in registry.checkpoints("pong")] == [(2, False), (4, True)]
    event = registry.events("pong")[-1]
    removed = {"updates_removed": 3, "evaluations_removed": 2, "checkpoints_removed": 2}
    place = {"from_update": 7, "to_update": 4, "term": 2, "reason": "update 7 was disputed twice"}
    assert (event.kind, event.data) == (runs.ROLLBACK_EVENT, place | removed)
    record = registry.run("pong")
    assert (record.updates, record.env_steps, record.version, record.term) == (4, 512, 8, 2)
    assert (record.parameter_digest, record.chain, record.wall_s) == ("digest-4", "chain-4", 9.0)


def test_updates_go_on_under_the_next_term_after_a_rollback(registry: RunRegistry) -> None:
    """Numbers that were taken back are used again; the term of the run never goes back, not even by a resume."""
    create(registry)
    registry.record_updates([update(number) for number in (1, 2, 3)])
    registry.roll_back("pong", 1, term=2, reason="r")
    assert registry.run("pong").term == 2
    registry.record_updates([update(2, term=2, version=9)])
    assert [(record.update, record.term) for record in registry.updates("pong")] == [(1, 1), (2, 2)]
    registry.truncate_after("pong", 1)
    registry.roll_back("pong", 0, term=1, reason="of an older term than the one recorded")
    record = registry.run("pong")
    assert (record.updates, record.term, record.version, record.chain) == (0, 2, 9, "")


def test_verified_updates_are_those_with_a_state_digest(registry: RunRegistry) -> None:
    """Rows of a truestep that recorded none do not count."""
    create(registry)
    assert registry.verified_updates("pong") == 0
    registry.record_updates([update(1, state_digest="", chain=""), update(2), update(3)])
    assert registry.verified_updates("pong") == 2


def test_runs_do_not_touch_each_other(registry: RunRegistry) -> None:
    """Truncating, pruning and marking one run leaves the rows of another."""
    for name in ("a", "b"):
        create(registry, name)
        registry.record_updates([update(1, run=name), update(2, run=name)])
        registry.record_checkpoint(CheckpointRecord(run=name, update=2, name="u", digest="d", best=True))
    before = (registry.run("b"), registry.updates("b"), registry.checkpoints("b"), registry.events("b"))
    registry.truncate_after("a", 1)
    registry.prune_checkpoints("a", ())
    registry.record_checkpoint(CheckpointRecord(run="a", update=2, name="v", digest="d", best=True))
    assert (registry.run("b"), registry.updates("b"), registry.checkpoints("b"), registry.events("b")) == before


# Ownership


def test_a_live_run_cannot_be_resumed_by_another(registry: RunRegistry, path: Path) -> None:
    """The second driver is told who drives; the first goes on; release lets the second in."""
    create(registry)
    assert registry.acquire("pong", lease="L1") is None
    with RunRegistry.open(path) as second:
        for take_over in (False, True):
            with pytest.raises(OutputError, match=f"'pong' is being driven by process {os.getpid()}"):
                second.acquire("pong", lease="L2", take_over=take_over)
        registry.record_updates([update(1)])
        registry.release("pong")
        assert second.acquire("pong", lease="L2") is None
        owner = second.owner("pong")
        assert owner is not None
        assert (owner.lease, owner.process) == ("L2", OWN)


def test_the_place_of_a_dead_driver_is_taken_and_said(registry: RunRegistry) -> None:
    """A reused pid does not count as alive; an event tells whose place it was."""
    create(registry)
    registry.acquire("pong", lease="L1", process=DEAD)
    previous = registry.acquire("pong", lease="L2")
    assert previous is not None
    assert (previous.lease, previous.process) == ("L1", DEAD)
    event = registry.events("pong")[-1]
    assert (event.kind, event.data) == ("TAKEN_OVER", {"host": OWN.host, "pid": OWN.pid, "lease": "L1"})


def test_a_driver_on_another_host_is_replaced_only_on_demand(registry: RunRegistry) -> None:
    """Nobody can look there: the error says what to make sure of."""
    create(registry)
    registry.acquire("pong", lease="L1", process=ELSEWHERE)
    with pytest.raises(OutputError, match=r"another-host, which cannot be looked at.*take-over"):
        registry.acquire("pong", lease="L2")
    assert registry.acquire("pong", lease="L2", take_over=True) is not None


def test_a_zombie_driver_cannot_write(registry: RunRegistry, path: Path) -> None:
    """A driver taken for dead that comes back is refused at its next write, whatever it is, and changes nothing."""
    create(registry)
    registry.acquire("pong", lease="L1", process=ELSEWHERE)
    registry.record_updates([update(1)])
    with RunRegistry.open(path) as heir:
        heir.acquire("pong", lease="L2", take_over=True)
        checkpoint = CheckpointRecord(run="pong", update=2, name="u", digest="d", best=True)
        for write in (
            lambda: registry.record_updates([update(2)]),
            lambda: registry.record_fragments("pong", []),
            lambda: registry.record_evaluation(evaluation(2)),
            lambda: registry.record_event("pong", "E", {}),
            lambda: registry.record_checkpoint(checkpoint),
            lambda: registry.mark_best("pong", "u"),
            lambda: registry.prune_checkpoints("pong", ()),
            lambda: registry.truncate_after("pong", 0),
            lambda: registry.roll_back("pong", 0, term=9, reason="r"),
            lambda: registry.set_status("pong", "failed"),
            lambda: registry.finish("pong", "failed", verdict="", wall_s=0.0),
            lambda: registry.release("pong"),
            lambda: registry.publish_version("pong"),
        ):
            with pytest.raises(RegistryError, match="this process does not drive it"):
                write()
        assert [record.update for record in heir.updates("pong")] == [1]
        assert heir.owner("pong") is not None
        assert heir.run("pong").status == "running"


DRIVER = """
import os, signal, sys
from pathlib import Path
from common.runs import RunRegistry
registry = RunRegistry.open(Path(sys.argv[1]))
registry.acquire("pong", lease="child")
versions = [registry.publish_version("pong") for _ in range(int(sys.argv[2]))]
registry.record_event("pong", "PUBLISHED", {"last": versions[-1]})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_kill_9_the_run_is_resumable_and_versions_only_grow(registry: RunRegistry, path: Path) -> None:
    """A really killed driver: its commits are there, its lock is taken over, no version comes twice."""
    create(registry)
    last = 0
    for published in (3, runs.VERSION_BLOCK + 1):
        killed = subprocess.run([sys.executable, "-c", DRIVER, str(path), str(published)], check=False, timeout=60)
        assert killed.returncode == -signal.SIGKILL
        owner = registry.owner("pong")
        assert owner is not None
        assert owner.process.liveness(OWN) is Liveness.DEAD
        child_last = registry.events("pong")[-1].data["last"]
        assert child_last == last + published
        registry.acquire("pong", lease="parent")
        version = registry.publish_version("pong")
        assert version > child_last
        assert version % runs.VERSION_BLOCK == 1
        last = version - 1 + runs.VERSION_BLOCK
        registry.release("pong")


def test_versions_start_at_1_without_gaps_and_cost_one_write_a_block(
    registry: RunRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, 2, 3, ... across blocks; 25 versions from blocks of 10 are three reservations."""
    monkeypatch.setattr(runs, "VERSION_BLOCK", 10)
    create(registry)
    reserved: list[str] = []
    reserve = registry._reserve_versions
    monkeypatch.setattr(registry, "_reserve_versions", lambda run: (reserved.append(run), reserve(run))[1])
    assert [registry.publish_version("pong") for _ in range(25)] == list(range(1, 26))
    assert reserved == ["pong"] * 3


def test_versions_never_fall_behind_another_driver(registry: RunRegistry, path: Path) -> None:
    """A registry that gave the run away and gets it back does not go on with its old block."""
    create(registry)
    registry.acquire("pong", lease="L1")
    first = registry.publish_version("pong")
    registry.release("pong")
    with RunRegistry.open(path) as second:
        second.acquire("pong", lease="L2")
        between = second.publish_version("pong")
        second.release("pong")
    registry.acquire("pong", lease="L3")
    assert first < between < registry.publish_version("pong")


# The file


def test_a_reader_sees_the_writer_at_work_and_cannot_write(registry: RunRegistry, path: Path) -> None:
    """WAL: readers neither block nor are blocked, not even by an open transaction."""
    create(registry)
    with RunRegistry.open(path, read_only=True) as reader:
        with reader._database.reading() as session:
            assert session.one("PRAGMA journal_mode") == {"journal_mode": "wal"}
        with registry._database.transaction("long") as session:
            session.change("UPDATE runs SET verdict = 'half'")
            assert reader.run("pong").verdict == ""
        assert reader.run("pong").verdict == "half"
        with pytest.raises(RegistryError, match="opened for reading only"):
            reader.record_event("pong", "E", {})
    with pytest.raises(RunNotFoundError, match="no run registry at"):
        RunRegistry.open(path.with_name("none.sqlite"), read_only=True)


def test_a_writer_that_hangs_is_named_as_the_reason(
    registry: RunRegistry, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for the lock has a deadline."""
    create(registry)
    monkeypatch.setattr(runs_database, "BUSY_TIMEOUT_S", 0.01)
    refused = pytest.raises(RegistryError, match=r"event E of run 'pong'.*locked.*find and stop it")
    with RunRegistry.open(path) as second, registry._database.transaction("long"), refused:
        second.record_event("pong", "E", {})


def test_threads_share_one_registry(registry: RunRegistry) -> None:
    """Transactions of several threads of the driver do not mix."""
    create(registry)
    threads = [
        threading.Thread(target=lambda: [registry.record_event("pong", "E", {}) for _ in range(20)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.sequence for event in registry.events("pong")] == list(range(1, 81))


def test_a_newer_schema_is_refused_naming_both_and_left_alone(path: Path) -> None:
    """An old truestep does not touch what a newer one wrote."""
    RunRegistry.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(RegistryError, match=f"newer truestep; got schema 99; allowed: up to {len(MIGRATIONS)}"):
            RunRegistry.open(path, read_only=read_only)
    assert path.read_bytes() == before


@pytest.mark.parametrize("schema", range(1, len(MIGRATIONS)))
def test_a_registry_of_an_older_schema_is_brought_up_to_date_with_what_is_in_it(path: Path, schema: int) -> None:
    """Runs and updates recorded before chains and ledgers were have empty ones and go on; a reader asks for a writer
    first."""
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute(
            "INSERT INTO runs (run, status, env, algo, seed, engine, config, facts, out, created_wall, updates)"
            " VALUES ('pong', 'interrupted', 'CartPole-v1', 'ppo', 0, 'ray', '{}', '{}', '/o', 'then', 1)"
        )
        connection.execute("INSERT INTO updates VALUES (1, 1, 0, 2, 128, 'digest-1', 128, 128, 0, '{}', 0, 0.0, '{}')")
        for step in MIGRATIONS[1:schema]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {schema}")
    connection.close()
    asked = rf"older truestep; got schema {schema}; allowed: {len(MIGRATIONS)}.*\(train, resume\)"
    with pytest.raises(RegistryError, match=asked):
        RunRegistry.open(path, read_only=True)
    with RunRegistry.open(path) as registry:
        assert (registry.run("pong").chain, registry.run("pong").updates) == ("", 1)
        (old,) = registry.updates("pong")
        assert (old.parameter_digest, old.state_digest, old.chain, old.num_ranks) == ("digest-1", "", "", 0)
        assert registry.ledger("pong").fragments == ()
        registry.record_updates([update(2)])
        assert (registry.run("pong").chain, registry.verified_updates("pong")) == ("chain-2", 1)
    with RunRegistry.open(path, read_only=True) as reader:
        assert reader.run("pong").updates == 2


def test_migrations_go_step_by_step_and_keep_the_data(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of today's schema opened by a truestep of the next; a reader of that asks for a writer first."""
    now, then = len(MIGRATIONS), len(MIGRATIONS) + 1
    with RunRegistry.open(path) as registry:
        create(registry)
    step = ("ALTER TABLE runs ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'",)
    monkeypatch.setattr(runs_database, "MIGRATIONS", (*MIGRATIONS, step))
    with pytest.raises(RegistryError, match=f"older truestep; got schema {now}; allowed: {then}"):
        RunRegistry.open(path, read_only=True)
    for _ in range(2):
        with RunRegistry.open(path) as registry, registry._database.reading() as session:
            assert session.rows("SELECT run, mood FROM runs") == [{"run": "pong", "mood": "calm"}]
            assert session.one("PRAGMA user_version") == {"user_version": then}


def test_a_migration_that_fails_leaves_the_schema_before_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a step is no step."""
    RunRegistry.open(path).close()
    broken = ("CREATE TABLE moods (mood TEXT)", "NONSENSE")
    with monkeypatch.context() as patch:
        patch.setattr(runs_database, "MIGRATIONS", (*MIGRATIONS, broken))
        with pytest.raises(RegistryError, match="could not be opened"):
            RunRegistry.open(path)
    with RunRegistry.open(path) as registry, registry._database.reading() as session:
        assert session.one("PRAGMA user_version") == {"user_version": len(MIGRATIONS)}
        assert session.rows("SELECT 1 FROM sqlite_master WHERE name = 'moods'") == []


def test_a_file_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    """Neither a foreign SQLite file nor a text file is written to."""
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(RegistryError, match="another program"):
        RunRegistry.open(path)
    assert path.read_bytes() == before
    path.write_bytes(b"these are not the runs you are looking for" * 100)
    with pytest.raises(RegistryError, match=r"not a database.*damaged: restore"):
        RunRegistry.open(path)


def test_damage_in_the_middle_of_the_file_is_seen_at_open(path: Path) -> None:
    """A driver does not go on with a registry in which the head of a page is overwritten, whichever page it is."""
    with RunRegistry.open(path) as registry:
        create(registry)
        registry.record_updates([update(number) for number in range(1, 200)])
    data = path.read_bytes()
    for page in range(1, len(data) // 4096):
        path.write_bytes(data[: page * 4096] + b"\xa5" * 64 + data[page * 4096 + 64 :])
        try:
            with RunRegistry.open(path) as registry:
                pytest.fail(f"page {page} of {len(data) // 4096} is damaged, and the registry opened")
        except RegistryError as error:
            assert "damaged: restore" in str(error)


def test_damage_inside_a_text_is_seen_when_it_is_read(registry: RunRegistry) -> None:
    """SQLite has no checksums, but a JSON column that is no JSON is a registry error that names the column."""
    create(registry)
    with registry._database.transaction("damage") as session:
        session.change("UPDATE runs SET config = '{\"a\":'")
    with pytest.raises(RegistryError, match="column config of the run registry is damaged"):
        registry.run("pong")


def test_a_path_with_odd_characters_is_taken_literally(tmp_path: Path) -> None:
    """The file name goes through a URI."""
    path = tmp_path / "a b?mode=memory#%41" / "runs.sqlite"
    with RunRegistry.open(path) as registry:
        create(registry)
    assert path.is_file()


def test_a_directory_in_the_way_is_a_registry_error(tmp_path: Path) -> None:
    """An unusable path is said as such."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryError, match="could not be opened"):
        RunRegistry.open(tmp_path / "file" / "runs.sqlite")
