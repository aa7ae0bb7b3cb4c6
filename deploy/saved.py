"""A cut of the run as a checkpoint on disk, and back. The only place that knows both forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actors.evaluate import EvaluationResult
from common.checkpoints import Checkpoint, CheckpointStore
from common.errors import CheckpointError
from common.fragment import FragmentSummary
from common.manifest import CheckpointInfo
from common.wire import pack_plain, unpack_plain
from deploy.conductor.accounts import Accounts
from deploy.conductor.messages import Cut, Handle, Held, SeatState
from deploy.engines import Engine
from learner.state import LearnerState

SCHEMA = 3
READABLE = (1, 2, SCHEMA)  # 1 knows no chain and no rollbacks: none had happened; 2 names frames by update and actor
MAX_DOCUMENT_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedRun:
    """A checkpoint read back.

    Attributes:
        info: which checkpoint.
        learner: the learner's state.
        cut: everything else; its frames are bytes, its `learner` is `learner`.
    """

    info: CheckpointInfo
    learner: LearnerState
    cut: Cut


def save_cut(store: CheckpointStore, cut: Cut, engine: Engine) -> CheckpointInfo:
    """Fetch what the cut refers to and write it. Runs on the writer's thread; raises CheckpointError."""
    learner = engine.get_state(cut.learner)
    if learner.updates != cut.update:
        raise CheckpointError("learner state of another update", got=learner.updates, allowed=cut.update)
    documents = {"learner": learner.document(), "conductor": pack_plain(_conductor(cut), max_bytes=MAX_DOCUMENT_BYTES)}
    for seat in cut.seats:
        if seat.snapshot is not None:
            documents[f"actor-{seat.actor}"] = seat.snapshot
    for number, held in enumerate(cut.frames):
        documents[f"frame-{number}"] = engine.get_frame(held.frame)
    meta = {
        "parameter_digest": cut.parameter_digest,
        "env_steps": cut.env_steps,
        "final": cut.final,
        "evaluation_mean": cut.score,
    }
    return store.save(cut.update, tensors=learner.tensors(), documents=documents, meta=meta, score=cut.score)


def _conductor(cut: Cut) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "update": cut.update,
        "term": cut.term,
        "version": cut.version,
        "env_steps": cut.env_steps,
        "parameter_digest": cut.parameter_digest,
        "chain": cut.chain,
        "accounts": cut.accounts.to_plain(),
        "seats": [
            {"actor": s.actor, "incarnation": s.incarnation, "restarts": s.restarts, "quarantined": s.quarantined}
            for s in cut.seats
        ],
        "frames": [{"summary": dataclasses.asdict(held.summary), "weights": held.weights} for held in cut.frames],
        "evaluation": _evaluation(cut.evaluation),
        "final_evaluation": _evaluation(cut.final_evaluation),
        "final": cut.final,
    }


def _evaluation(result: EvaluationResult | None) -> dict[str, Any] | None:
    return None if result is None else dataclasses.asdict(result)


def read_saved(checkpoint: Checkpoint) -> SavedRun:
    """The run behind a verified checkpoint. Raises CheckpointError and WireError: another schema, or not a whole run.

    Nothing else comes of it, whoever wrote the checkpoint: values of other types and shapes are told as such.
    """
    name = checkpoint.info.name
    try:
        return _read(checkpoint)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"checkpoint {name} has other parts than its schema says", got=f"{type(error).__name__}: {error}"
        ) from error


def _read(checkpoint: Checkpoint) -> SavedRun:
    plain = unpack_plain(checkpoint.documents["conductor"], what="conductor state", max_bytes=MAX_DOCUMENT_BYTES)
    if plain.get("schema") not in READABLE:
        raise CheckpointError(
            f"checkpoint {checkpoint.info.name}: schema",
            got=plain.get("schema"),
            allowed=" or ".join(str(schema) for schema in READABLE),
            fix="resume with the release that wrote it",
        )
    learner = LearnerState.read(checkpoint.tensors, checkpoint.documents["learner"])
    documents = checkpoint.documents
    cut = Cut(
        update=plain["update"],
        term=plain["term"],
        version=plain["version"],
        env_steps=plain["env_steps"],
        parameter_digest=plain["parameter_digest"],
        accounts=Accounts(**plain["accounts"]),
        learner=learner,
        seats=tuple(SeatState(**seat, snapshot=documents.get(f"actor-{seat['actor']}")) for seat in plain["seats"]),
        frames=_frames(plain["frames"], documents) if plain["schema"] == SCHEMA else _old_frames(plain, documents),
        evaluation=_read_evaluation(plain["evaluation"]),
        final_evaluation=_read_evaluation(plain["final_evaluation"]),
        final=plain["final"],
        chain=plain.get("chain", ""),
    )
    return SavedRun(info=checkpoint.info, learner=learner, cut=cut)


def _frames(plain: list[dict[str, Any]], documents: dict[str, bytes]) -> tuple[Held, ...]:
    return tuple(
        Held(summary=FragmentSummary(**each["summary"]), frame=documents[f"frame-{number}"], weights=each["weights"])
        for number, each in enumerate(plain)
    )


def _old_frames(plain: dict[str, Any], documents: dict[str, bytes]) -> tuple[Held, ...]:
    """Of schemas 1 and 2; which weights made them is not known."""
    frames: list[Held] = []
    for update, summaries in sorted(plain["frames"].items(), key=lambda each: int(each[0])):
        held = [FragmentSummary(**summary) for summary in summaries]
        frames += [Held(summary=s, frame=documents[f"frame-{update}-{s.actor}"]) for s in held]
    return tuple(frames)


def _read_evaluation(plain: dict[str, Any] | None) -> EvaluationResult | None:
    return None if plain is None else EvaluationResult(**plain)


def with_frames(cut: Cut, put: Callable[[bytes], Handle]) -> Cut:
    """The cut with its frames as an engine's handles."""
    frames = tuple(dataclasses.replace(held, frame=put(held.frame)) for held in cut.frames)
    return dataclasses.replace(cut, frames=frames)
