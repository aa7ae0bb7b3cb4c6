"""`truestep evaluate`: greedy episodes of a checkpoint, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from actors.env.make import make_lanes
from actors.evaluate import EvaluationResult, evaluate
from actors.policy import Policy
from common.checkpoints import Checkpoint
from common.clock import MonotonicClock
from common.errors import CheckpointError, ConfigError
from common.process import intra_op_threads, keep_freed_memory
from common.rng import GlobalGenerators, Purpose, Role, Streams
from deploy.compose import ACTOR_THREADS, Composition, compose
from deploy.config import RunConfig, parse_config
from deploy.outputs import checkpoint_store, open_registry
from deploy.saved import read_saved
from learner.rank import LearnerRank
from learner.state import LearnerState

EVALUATOR = 2  # index of this evaluator's streams: 0 and 1 are those of a run


def evaluate_run(
    run: str, *, out: Path | str = "runs", episodes: int = 100, seed: int = 0, checkpoint: str = "newest"
) -> dict[str, Any]:
    """Play `episodes` fresh greedy episodes; returns plain values.

    Args:
        seed: root of the episodes' own streams, independent of the run's.
        checkpoint: newest, best, or a name.

    Raises:
        UserError: no such run; CheckpointError: no such checkpoint, or a damaged one.
    """
    if episodes < 1:
        raise ConfigError("--episodes", got=episodes, allowed="1 or more")
    out = Path(out)
    with open_registry(out) as registry:
        config = parse_config(registry.run(run).config)
    chosen = _choose(out, run, checkpoint)
    saved = read_saved(chosen)
    keep_freed_memory()
    with intra_op_threads(ACTOR_THREADS):
        result = _play(run, config, saved.learner, episodes=episodes, seed=seed)
    return {
        "run": run,
        "checkpoint": chosen.info.name,
        "update": saved.cut.update,
        "parameter_digest": saved.learner.parameter_digest,
        "episodes": len(result.returns),
        "unfinished": result.unfinished,
        "mean": result.mean,
        "std": float(np.std(result.returns)),
        "minimum": min(result.returns),
        "maximum": max(result.returns),
        "returns": list(result.returns),
        "lengths": list(result.lengths),
        "seed": seed,
    }


def _choose(out: Path, run: str, checkpoint: str) -> Checkpoint:
    store = checkpoint_store(out, run)
    if checkpoint == "newest":
        newest = store.newest_good(lambda name, error: None)
        if newest is None:
            raise CheckpointError(f"run {run!r} has no checkpoint yet")
        return newest
    if checkpoint == "best":
        best = store.best()
        if best is None:
            raise CheckpointError(f"run {run!r} has no evaluated checkpoint", fix="use --checkpoint newest")
        return store.load(best.name)
    if checkpoint not in store.names():
        raise ConfigError("--checkpoint", got=checkpoint, allowed=", ".join(("newest", "best", *store.names())))
    return store.load(checkpoint)


def policy_of(composition: Composition, state: LearnerState) -> Policy:
    """The policy of a checkpoint, with the weights that the learner published in that state."""
    rank = LearnerRank(composition.rank(), MonotonicClock())
    rank.adopt(state)
    policy = Policy(composition.layout.observation, composition.layout.action, composition.config.net)
    policy.follow(rank.publish(version=state.version, term=state.term))
    return policy


def _play(run: str, config: RunConfig, state: LearnerState, *, episodes: int, seed: int) -> EvaluationResult:
    policy = policy_of(compose(run, config), state)
    streams = Streams(seed)
    sequence = streams.sequence(Role.EVALUATOR, EVALUATOR, purpose=Purpose.GLOBALS)
    with GlobalGenerators(sequence).installed():
        lanes = make_lanes(
            config.env,
            min(episodes, config.evaluation.lanes),
            streams=streams,
            role=Role.EVALUATOR,
            index=EVALUATOR,
            incarnation=0,
            who="evaluation",
        )
        try:
            return evaluate(
                lanes, policy, episodes=episodes, max_ticks=config.evaluation.max_ticks, beat=lambda tick: None
            )
        finally:
            lanes.close()
