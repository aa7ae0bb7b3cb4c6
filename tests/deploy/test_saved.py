"""A cut on disk is the cut: saved and read back, it is equal in every field, and a run goes on from it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.evaluate import EvaluationResult
from common.checkpoints import Checkpoint, CheckpointStore
from common.errors import CheckpointError
from common.wire import pack_plain, unpack_plain
from deploy.conductor.accounts import Accounts
from deploy.conductor.messages import Cut, Held, SeatState
from deploy.saved import read_saved, save_cut, with_frames
from learner.state import LearnerState
from tests.deploy.simulation import summary_of

JUDGED = EvaluationResult(version=8, returns=(1.5, -2.0), lengths=(3, 4), unfinished=1)
LAST = EvaluationResult(version=8, returns=(7.0,), lengths=(9,), unfinished=0)


class Handles:
    """The part of an engine that saving needs: handles are names, what is behind them lies here."""

    def __init__(self, learner: LearnerState) -> None:
        self.learner = learner
        self.frames = {"handle-0": b"\x00frame of actor 0", "handle-2": b"frame of actor 2"}
        self.asked: list[Any] = []

    def get_state(self, handle: Any) -> LearnerState:
        self.asked.append(handle)
        return self.learner

    def get_frame(self, handle: Any) -> bytes:
        return self.frames[handle]


def learner_state(updates: int = 5) -> LearnerState:
    return LearnerState(
        updates=updates,
        version=8,
        term=1,
        parameters=np.arange(6, dtype=np.float32),
        optimiser={"step": np.array([5.0], np.float32), "moment": np.ones(6, np.float32)},
        manifest_fingerprint="fingerprint",
        intake={"last": [[0, 1, 4]], "versions": [[8, 5]]},
    )


def cut_of(**fields: Any) -> Cut:
    """A cut with everything in it: a quarantined seat, one that cannot be restored, fragments in flight."""
    summaries = [
        summary_of(actor=0, update=5, num_valid=11, episode_returns=(1.0, 2.5), episode_lengths=(4, 5)),
        summary_of(actor=2, update=5, num_valid=9, gc_pause_ns=(17,)),
    ]
    usual: dict[str, Any] = {
        "update": 5,
        "term": 1,
        "version": 8,
        "env_steps": 100,
        "parameter_digest": "digest",
        "chain": "0c4a1a",
        "accounts": Accounts(
            produced=120,
            trained=90,
            dropped={"stale": 10},
            fragments_lost=2,
            voided=3,
            episodes=4,
            undone=7,
            updates_undone=2,
            steps_undone=8,
        ),
        "learner": "learner-handle",
        "seats": (
            SeatState(actor=0, incarnation=1, restarts=1, quarantined=False, snapshot=b"state of actor 0"),
            SeatState(actor=1, incarnation=4, restarts=4, quarantined=True, snapshot=None),
            SeatState(actor=2, incarnation=0, restarts=0, quarantined=False, snapshot=None),
        ),
        "frames": tuple(Held(summary=s, frame=f"handle-{s.actor}", weights=3 + s.actor) for s in summaries),
        "evaluation": JUDGED,
        "final_evaluation": None,
        "final": False,
    }
    return Cut(**(usual | fields))


def saved(directory: Path, cut: Cut, learner: LearnerState | None = None) -> Checkpoint:
    """`cut`, written and read back from the disk."""
    engine: Any = Handles(learner or learner_state())
    store = CheckpointStore(directory)
    info = save_cut(store, cut, engine)
    assert engine.asked == ["learner-handle"]
    return store.load(info.name)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"frames": ()},
        {"evaluation": None},
        {"final": True, "final_evaluation": LAST},
    ],
)
def test_a_cut_read_back_is_the_cut(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Accounts, seats with their snapshots, summaries, evaluations; the frames as their bytes."""
    cut = cut_of(**fields)
    engine = Handles(learner_state())
    read = read_saved(saved(tmp_path, cut))
    assert dataclasses.replace(read.cut, learner="learner-handle") == with_frames(cut, engine.get_frame)
    assert read.cut.learner is read.learner


def test_the_learner_read_back_is_the_learner(tmp_path: Path) -> None:
    """Every array in every bit, and everything else."""
    state, read = learner_state(), read_saved(saved(tmp_path, cut_of())).learner
    assert (read.parameters == state.parameters).all()
    assert set(read.optimiser) == set(state.optimiser)
    for name, array in state.optimiser.items():
        assert (read.optimiser[name] == array).all()
        assert read.optimiser[name].dtype == array.dtype
    assert (read.document(), read.parameter_digest) == (state.document(), state.parameter_digest)


def test_frames_become_handles_of_the_engine_that_goes_on(tmp_path: Path) -> None:
    """with_frames puts each frame's bytes, once, in order; summaries stay with their frames."""
    read = read_saved(saved(tmp_path, cut_of())).cut
    put: list[bytes] = []

    def handle(frame: bytes) -> str:
        put.append(frame)
        return f"new-{len(put)}"

    going_on = with_frames(read, handle)
    assert put == [b"\x00frame of actor 0", b"frame of actor 2"]
    assert [(h.summary.actor, h.frame) for h in going_on.frames] == [(0, "new-1"), (2, "new-2")]


@pytest.mark.parametrize(
    ("evaluation", "final", "score"),
    [(None, None, None), (JUDGED, None, -0.25), (JUDGED, LAST, 7.0), (None, LAST, 7.0)],
)
def test_the_best_is_chosen_by_the_larger_evaluation(
    tmp_path: Path, evaluation: EvaluationResult | None, final: EvaluationResult | None, score: float | None
) -> None:
    """The score of the checkpoint is the final evaluation's mean where there is one."""
    cut = cut_of(evaluation=evaluation, final_evaluation=final)
    checkpoint = saved(tmp_path, cut)
    assert checkpoint.info.score == score
    assert checkpoint.meta == {"parameter_digest": "digest", "env_steps": 100, "final": False, "evaluation_mean": score}


def test_a_learner_of_another_moment_is_not_saved(tmp_path: Path) -> None:
    """A cut whose parts do not belong together would be worse than none."""
    with pytest.raises(CheckpointError, match="learner state of another update") as caught:
        saved(tmp_path, cut_of(), learner_state(updates=6))
    assert (caught.value.got, caught.value.allowed) == ("6", "5")
    assert CheckpointStore(tmp_path).names() == []


def changed(checkpoint: Checkpoint, **fields: Any) -> Checkpoint:
    """With other fields in the conductor's document; a field of None is left out."""
    plain = unpack_plain(checkpoint.documents["conductor"]) | fields
    plain = {name: value for name, value in plain.items() if value is not None}
    return dataclasses.replace(checkpoint, documents=checkpoint.documents | {"conductor": pack_plain(plain)})


def test_a_checkpoint_of_another_schema_is_refused(tmp_path: Path) -> None:
    """It says which, and what to do."""
    checkpoint = saved(tmp_path, cut_of())
    with pytest.raises(CheckpointError, match="schema") as caught:
        read_saved(changed(checkpoint, schema=99))
    assert (caught.value.got, caught.value.allowed) == ("99", "1 or 2 or 3")
    assert checkpoint.info.name in caught.value.what
    assert "the release that wrote it" in caught.value.fix


def test_a_checkpoint_of_schema_1_is_read_as_a_run_without_a_chain_and_without_rollbacks(tmp_path: Path) -> None:
    """What the release before wrote: neither the chain nor the counts of what was undone."""
    plain = cut_of().accounts.to_plain()
    before = {name: plain[name] for name in plain if "undone" not in name}
    checkpoint = saved(tmp_path, cut_of(final_evaluation=LAST))
    read = read_saved(changed(checkpoint, schema=1, chain=None, accounts=before, frames={})).cut
    assert read.chain == ""
    assert (read.accounts.undone, read.accounts.updates_undone, read.accounts.steps_undone) == (0, 0, 0)
    assert (read.accounts.produced, read.accounts.trained) == (120, 90)


@pytest.mark.parametrize("missing", ["conductor", "learner", "frame-1"])
def test_a_checkpoint_without_one_of_its_documents_is_refused(tmp_path: Path, missing: str) -> None:
    """A sound file that is not a whole run is named, not a KeyError from inside."""
    checkpoint = saved(tmp_path, cut_of())
    documents = {name: data for name, data in checkpoint.documents.items() if name != missing}
    with pytest.raises(CheckpointError, match=checkpoint.info.name) as caught:
        read_saved(dataclasses.replace(checkpoint, documents=documents))
    assert missing in str(caught.value)


@pytest.mark.parametrize("fields", [{"accounts": None}, {"accounts": {"made": 1}}, {"seats": [{"actor": 0}]}])
def test_a_checkpoint_with_other_fields_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Likewise where a document has lost a field, or holds one that nobody knows."""
    checkpoint = changed(saved(tmp_path, cut_of()), **fields)
    with pytest.raises(CheckpointError, match=checkpoint.info.name):
        read_saved(checkpoint)


def test_frames_of_older_schemas_are_read(tmp_path: Path) -> None:
    """Schemas 1 and 2 hold frames by update and actor; they are in hand in that order, 2 before 10."""
    checkpoint = saved(tmp_path, cut_of())
    plain = unpack_plain(checkpoint.documents["conductor"], what="conductor state")
    summaries = {each["summary"]["actor"]: each["summary"] for each in plain["frames"]}
    old = plain | {"schema": 2, "frames": {"10": [summaries[0]], "2": [summaries[0], summaries[2]]}}
    documents = {
        **checkpoint.documents,
        "conductor": pack_plain(old),
        "frame-10-0": b"last",
        "frame-2-0": b"first",
        "frame-2-2": b"second",
    }
    read = read_saved(dataclasses.replace(checkpoint, documents=documents)).cut
    assert [(held.frame, held.weights) for held in read.frames] == [(b"first", -1), (b"second", -1), (b"last", -1)]
