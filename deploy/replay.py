"""`truestep replay`: an episode of a recorded evaluation, played again and compared with its record.

    checkpoint ──► policy, record ──► the same evaluation's lanes ──► the episode ──► rows, pictures, verdict

An evaluation is a function of the run's seed, of its update and of the weights, and the checkpoint of that update holds
both the weights and what the evaluation gave. Everything happens in this process; nothing is written but pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from actors.env.rendering import Rendering, RenderMode, check_renders
from actors.evaluate import EvaluationResult, evaluation_lanes
from actors.replay import PlayedEpisode, play_episode
from common.errors import ConfigError
from common.process import intra_op_threads, keep_freed_memory
from deploy.compose import ACTOR_THREADS, compose
from deploy.config import RunConfig, parse_config
from deploy.evaluation import policy_of
from deploy.facts import fingerprint, gather_facts
from deploy.outputs import checkpoint_store, open_registry
from deploy.pictures import PngFiles
from deploy.replayed import Replayed
from deploy.saved import SavedRun, read_saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One that can be played again.

    Attributes:
        saved: the checkpoint of its update.
        result: what it gave.
        final: it ended the run.
        num_lanes: B, the environments that played it.
        num_episodes: how many of its episodes, from 0 on, are on record by their numbers.
    """

    saved: SavedRun
    result: EvaluationResult
    final: bool
    num_lanes: int
    num_episodes: int


def replay(
    run: str,
    *,
    episode: int,
    out: Path | str = "runs",
    update: int | None = None,
    render: Literal["human"] | None = None,
    frames: Path | None = None,
) -> Replayed:
    """Play an episode of an evaluation again.

    After its construction, which is tried in a child first, nothing can interrupt an environment that hangs in this
    process: deadlines hold where `env.vectorise` is `async`.

    Args:
        run: its name.
        episode: its number in the evaluation, from 0.
        out: the output directory it lies in.
        update: of the evaluation after this update; None = of the newest whose checkpoint is there.
        render: in the environment's own window.
        frames: a new or empty directory for pictures.

    Raises:
        UserError: no such run, evaluation or episode; an environment that cannot render; no Pillow.
        CheckpointError: the checkpoint is damaged.
        TruestepError: what the environment did.
    """
    mode = _mode(render, frames)
    out = Path(out)
    with open_registry(out) as registry:
        record, evaluations = registry.run(run), registry.evaluations(run)
    config = parse_config(record.config)
    name = _checkpoint(out, run, update, {each.update for each in evaluations})
    evaluation = _evaluation(read_saved(checkpoint_store(out, run).load(name)), config)
    if not 0 <= episode < evaluation.num_episodes:
        raise ConfigError("--episode", got=episode, allowed=_episodes_in_words(evaluation))
    files = None if frames is None else PngFiles.open(frames)
    keep_freed_memory()
    with intra_op_threads(ACTOR_THREADS):
        same_fingerprint = record.facts.get("fingerprint") == fingerprint(gather_facts())
        played = _play(run, config, evaluation, episode, mode, files)
    return Replayed(
        run=run,
        update=evaluation.saved.cut.update,
        final=evaluation.final,
        checkpoint=name,
        episode=episode,
        played=played,
        recorded_return=evaluation.result.returns[episode],
        recorded_length=evaluation.result.lengths[episode],
        same_fingerprint=same_fingerprint,
        frames="" if files is None else str(files.directory),
        num_frames=0 if files is None else files.count,
    )


def _mode(render: Literal["human"] | None, frames: Path | None) -> RenderMode | None:
    if frames is None:
        return render
    if render is not None:
        raise ConfigError("--render and --frames", got="both", allowed="one: an environment renders in one mode")
    return "rgb_array"


def _checkpoint(out: Path, run: str, update: int | None, recorded: set[int]) -> str:
    """Name of the checkpoint with the evaluation after `update`, or with the newest. Raises ConfigError if none is."""
    there = {info.update: info.name for info in checkpoint_store(out, run).infos() if info.score is not None}
    wanted = max(there, default=None) if update is None else update
    if wanted in there:
        return there[wanted]
    gone = "its checkpoint is gone: the newest are kept (checkpoint.keep_last), and the best"
    if update is None:
        what, got = f"run {run!r} has no evaluation to play again", f"{len(recorded)} on record"
    else:
        what, got = "--update", f"{update}, where {gone if update in recorded else 'no evaluation is on record'}"
    raise ConfigError(what, got=got, allowed=", ".join(map(str, sorted(there))) or "an evaluation with its checkpoint")


def _evaluation(saved: SavedRun, config: RunConfig) -> Evaluation:
    """The evaluation that is on record for its update: the final one, if there were two."""
    final = saved.cut.final_evaluation is not None
    result = saved.cut.final_evaluation or saved.cut.evaluation
    assert result is not None, "a checkpoint with a score was evaluated"
    asked = config.evaluation.final_episodes if final else config.evaluation.episodes
    num_lanes = min(asked, config.evaluation.lanes)
    num_episodes = asked if len(result.returns) == asked else num_lanes
    return Evaluation(saved=saved, result=result, final=final, num_lanes=num_lanes, num_episodes=num_episodes)


def _episodes_in_words(evaluation: Evaluation) -> str:
    words = f"0 to {evaluation.num_episodes - 1} of the evaluation after update {evaluation.saved.cut.update}"
    if evaluation.num_episodes < len(evaluation.result.returns):
        words += ", which was cut by evaluation.max_ticks: which others began is not on record"
    return words


def _play(
    run: str, config: RunConfig, evaluation: Evaluation, episode: int, mode: RenderMode | None, files: PngFiles | None
) -> PlayedEpisode:
    composition = compose(run, config)
    rendering = None
    if mode is not None:
        check_renders(config.env, mode)
        rendering = Rendering(mode=mode, lane=episode % evaluation.num_lanes)
    policy = policy_of(composition, evaluation.saved.learner)
    with evaluation_lanes(
        config.env,
        evaluation.num_lanes,
        seed=config.seed,
        update=evaluation.saved.cut.update,
        final=evaluation.final,
        who="replay",
        rendering=rendering,
    ) as lanes:
        return play_episode(lanes, policy, episode=episode, max_ticks=config.evaluation.max_ticks, pictures=files)
