"""What a run leaves in the registry, update by update, and what a rollback takes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.evaluate import EvaluationResult
from common.checkpoints import CheckpointStore
from common.clock import NS_PER_S, ManualClock
from common.errors import RegistryError
from common.runs import ROLLBACK_EVENT, STARVED, RunRegistry
from deploy.conductor.messages import CheckpointWritten, EvaluationMade, FragmentMade, Note, RollBack
from deploy.record import DRIVING, FLUSH_EVERY_S, Record
from tests.deploy.simulation import summary_of
from tests.deploy.standing import Standing, committed, flow


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunRegistry]:
    with RunRegistry.open(tmp_path / "runs.sqlite") as registry:
        registry.create_run(
            run="r", env="CartPole-v1", algo="ppo", seed=0, engine="ray", config={}, facts={}, out=str(tmp_path)
        )
        yield registry


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep_last=100)


@pytest.fixture
def record(registry: RunRegistry, store: CheckpointStore, clock: ManualClock) -> Record:
    return Record(registry, store, "r", clock, wall_before_s=0.0)


def commit(record: Record, standing: Standing, update: int) -> None:
    """One update, as a driver records it."""
    standing.committed, standing.version, standing.env_steps = update + 1, update + 2, 100 * (update + 1)
    standing.accounts.produced = standing.accounts.trained = standing.env_steps
    record.commit(committed(update, term=standing.term), standing.conductor)


def checkpoint(record: Record, standing: Standing, store: CheckpointStore) -> None:
    """A checkpoint of where the run stands, written and told."""
    update = standing.committed
    info = store.save(update, tensors={"p": np.zeros(2, np.float32)}, documents={}, meta={}, score=None)
    written = CheckpointWritten(update=update, name=info.name, digest=info.digest)
    record.observe(written, standing.conductor)


def fragment_made(*returns: float) -> FragmentMade:
    """A fragment in which episodes of these returns ended; 3 s of work."""
    seconds = {"start_ns": 5 * NS_PER_S, "end_ns": 8 * NS_PER_S, "env_ns": NS_PER_S, "policy_ns": NS_PER_S // 2}
    return FragmentMade(summary=summary_of(episode_returns=returns, **seconds), frame=None)


def evaluated(update: int, version: int) -> EvaluationMade:
    result = EvaluationResult(version=version, returns=(1.0, 3.0), lengths=(1, 3), unfinished=0)
    return EvaluationMade(update=update, final=False, result=result)


def test_a_committed_update_is_recorded_with_its_digests_and_what_sync_cost(
    record: Record, registry: RunRegistry
) -> None:
    """Row, chain of the run, and seconds, steps and bytes of sync beside the statistics that were there before."""
    standing = Standing()
    commit(record, standing, 0)
    record.flush()
    (row,) = registry.updates("r")
    assert (row.update, row.version, row.env_steps, row.trained, row.lag) == (1, 2, 100, 100, 1.0)
    assert (row.parameter_digest, row.state_digest, row.chain) == ("parameters-1", "state-1", "chain-1")
    assert registry.run("r").chain == "chain-1"
    assert {name: value for name, value in row.statistics.items() if name != "episode_return"} == {
        "policy": -0.5,
        "seconds_learn": 0.2,
        "seconds_sync_reduce": 0.25,
        "seconds_sync_verify": 0.5,
        "verified_steps": 15.0,
        "reduced_bytes": 4096.0,
        "learning_rate": 0.001,
        "seconds_driving": 0.0,
        "seconds_collect": 0.0,
        "seconds_env": 0.0,
        "seconds_policy": 0.0,
        "episodes": 0.0,
    }


def test_an_update_says_what_actors_brought_since_the_one_before(record: Record, registry: RunRegistry) -> None:
    """Returns with their spread and the seconds of all fragments that came; the next update begins from nothing."""
    standing = Standing()
    record.observe(fragment_made(1.0, 4.0), standing.conductor)
    record.observe(fragment_made(1.0), standing.conductor)
    commit(record, standing, 0)
    commit(record, standing, 1)
    record.flush()
    first, second = (row.statistics for row in registry.updates("r"))
    assert (first["episodes"], first["episode_return"]) == (3.0, 2.0)
    assert (first["episode_return_min"], first["episode_return_max"]) == (1.0, 4.0)
    assert first["episode_return_std"] == pytest.approx(2**0.5, rel=1e-5)
    assert (first["seconds_collect"], first["seconds_env"], first["seconds_policy"]) == (6.0, 2.0, 1.0)
    assert (second["episodes"], second["seconds_collect"]) == (0.0, 0.0)
    assert np.isnan(second["episode_return"]) and "episode_return_std" not in second


def test_events_and_updates_can_be_placed_on_one_axis(
    tmp_path: Path, store: CheckpointStore, clock: ManualClock
) -> None:
    """A driving begins with its seconds so far, read together with the clock; every update tells its own."""
    with RunRegistry.open(tmp_path / "own.sqlite", clock=clock) as registry:
        registry.create_run(run="r", env="e", algo="ppo", seed=0, engine="ray", config={}, facts={}, out="o")
        record = Record(registry, store, "r", clock, wall_before_s=100.0)
        clock.advance(1.5)
        record.begin()
        begun_ns = clock.now_ns()
        clock.advance(0.5)
        commit(record, Standing(), 0)
        record.flush()
        (begun,) = registry.events("r")
        assert (begun.kind, begun.data) == (DRIVING, {"driving_s": 101.5})
        assert (begun.monotonic_ns, begun.clock_id) == (begun_ns, clock.clock_id)
        assert registry.updates("r")[-1].statistics["seconds_driving"] == 102.0


def test_each_update_says_whether_the_learner_starved_before_it(record: Record, registry: RunRegistry) -> None:
    """What the policy counts, update by update, so that a rollback takes it back; nothing in synchronous collection."""
    standing = Standing()
    for update, starved in enumerate((1, 1, 2)):
        standing.policy.flow = flow(starved=starved)
        commit(record, standing, update)
    standing.policy.flow = None
    commit(record, standing, 3)
    record.flush()
    rows = registry.updates("r")
    assert [row.statistics.get(STARVED) for row in rows] == [1, 0, 1, None]
    assert registry.starved_updates("r") == 2
    record.roll_back(RollBack(update=2, term=1, reason="why"))
    assert registry.starved_updates("r") == 1


def test_rows_are_gathered_and_written_together(record: Record, registry: RunRegistry, clock: ManualClock) -> None:
    """Nothing is written before its time; then all of it."""
    standing = Standing()
    for update in range(3):
        commit(record, standing, update)
    assert registry.updates("r") == []
    clock.advance(FLUSH_EVERY_S)
    commit(record, standing, 3)
    assert [row.update for row in registry.updates("r")] == [1, 2, 3, 4]


def test_a_rollback_takes_back_rows_written_and_gathered_and_checkpoints(
    record: Record, registry: RunRegistry, store: CheckpointStore
) -> None:
    """Behind update 2 nothing is left, on disk neither; update 2 is the newest of everything; one event says so."""
    standing = Standing()
    for update in range(5):
        commit(record, standing, update)
        if update in (1, 3):
            checkpoint(record, standing, store)
    record.note(Note(kind=ROLLBACK_EVENT, data={"from_update": 5, "to_update": 2, "term": 1, "reason": "why"}))
    record.roll_back(RollBack(update=2, term=1, reason="why"))
    assert [row.update for row in registry.updates("r")] == [1, 2]
    assert [info.update for info in store.infos()] == [2] == [row.update for row in registry.checkpoints("r")]
    assert (registry.run("r").chain, registry.run("r").term) == ("chain-2", 1)
    (event,) = registry.events("r")
    removed = {"updates_removed": 3, "evaluations_removed": 0, "checkpoints_removed": 1}
    assert (event.kind, event.data) == (
        ROLLBACK_EVENT,
        {"from_update": 5, "to_update": 2, "term": 1, "reason": "why", **removed},
    )


def test_updates_made_again_after_a_rollback_are_recorded_under_the_new_term(
    record: Record, registry: RunRegistry
) -> None:
    """Their numbers are free again."""
    standing = Standing()
    for update in range(3):
        commit(record, standing, update)
    record.roll_back(RollBack(update=1, term=1, reason="why"))
    standing.term = 1
    commit(record, standing, 1)
    record.flush()
    assert [(row.update, row.term) for row in registry.updates("r")] == [(1, 0), (2, 1)]


def test_returns_of_fragments_that_were_given_up_are_in_no_update(record: Record, registry: RunRegistry) -> None:
    """The mean return of an update is of the episodes that ended since the one before it, in this term."""
    standing = Standing()
    commit(record, standing, 0)
    record.observe(fragment_made(500.0), standing.conductor)
    record.roll_back(RollBack(update=1, term=1, reason="why"))
    record.observe(fragment_made(20.0), standing.conductor)
    commit(record, standing, 1)
    record.flush()
    assert registry.updates("r")[-1].statistics["episode_return"] == 20.0


def test_an_evaluation_that_ends_after_its_weights_were_given_up_is_not_recorded(
    record: Record, registry: RunRegistry
) -> None:
    """Of the given-up line nothing; of the update gone back to, and of the same numbers made again, all."""
    standing = Standing()
    for update in range(5):
        commit(record, standing, update)
        record.observe(evaluated(update + 1, update + 2), standing.conductor) if update == 0 else None
    standing.version = 9  # published again while a rank was replaced
    record.observe(CheckpointWritten(update=5, name="", digest="", error="disk full"), standing.conductor)
    record.roll_back(RollBack(update=2, term=1, reason="why"))
    standing.committed, standing.version, standing.term = 2, 10, 1
    record.observe(evaluated(2, 3), standing.conductor)
    record.observe(evaluated(5, 9), standing.conductor)
    assert [row.update for row in registry.evaluations("r")] == [1, 2]
    for update in (2, 3, 4):
        commit(record, standing, update)
    record.observe(evaluated(5, 6), standing.conductor)
    assert [row.update for row in registry.evaluations("r")] == [1, 2]
    record.observe(evaluated(5, 13), standing.conductor)
    assert [row.update for row in registry.evaluations("r")] == [1, 2, 5]


def test_a_driver_that_dies_in_a_rollback_leaves_no_checkpoint_that_was_given_up(
    record: Record, registry: RunRegistry, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails after it began, the newest checkpoint is one of the line that is gone on with."""
    standing = Standing()
    for update in range(3):
        commit(record, standing, update)
        checkpoint(record, standing, store)

    def died(*args: object, **kwargs: object) -> None:
        raise RegistryError("disk full")

    monkeypatch.setattr(registry, "roll_back", died)
    with pytest.raises(RegistryError):
        record.roll_back(RollBack(update=2, term=1, reason="why"))
    assert [info.update for info in store.infos()] == [1, 2]


def test_other_notes_are_events(record: Record, registry: RunRegistry) -> None:
    """With their data as it is."""
    data = {"rank": 1, "cause": "killed", "restarts": 1}
    record.note(Note(kind="RANK_LOST", data=data))
    (event,) = registry.events("r")
    assert (event.kind, event.data) == ("RANK_LOST", data)
