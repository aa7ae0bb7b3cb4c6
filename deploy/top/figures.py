"""What the view shows, worked out from scrapes: a pure function of a window of them.

A figure is None where it is not known (yet). Totals are the driver's own and go on over resumes; rates are over the
window, and only of processes that were there at both of its ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.metrics_reading import Reading
from deploy.top.rows import ActorRow, RankRow, actor_row, rank_row
from deploy.top.scraping import Rates, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the run is.

    Attributes:
        run, env, algo: names.
        steps, updates, episodes: so far.
        steps_per_s, updates_per_s: over the window.
        term, version: of the learner, and of its newest weights.
        return_mean: of training episodes that ended lately, over the actors.
        evaluation: mean return and episodes of the newest one.
    """

    run: str
    env: str
    algo: str
    steps: float | None
    updates: float | None
    episodes: float | None
    steps_per_s: float | None
    updates_per_s: float | None
    term: float | None
    version: float | None
    return_mean: float | None
    evaluation: tuple[float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """What holds the run up.

    Attributes:
        verdict: of stall attribution; "" where it is not told.
        shares: of this driving under each verdict.
        stages: state of each stage of the ring, in words, in the order of the ring.
        commit_age_s: since the last commit.
    """

    verdict: str
    shares: Mapping[str, float]
    stages: Mapping[str, str]
    commit_age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Fragments between actors and learner.

    Attributes:
        lag: updates between acting and learning, in the latest update.
        queued, in_flight, capacity: fragments, in asynchronous collection.
        oldest_s: age of the oldest fragment that is undecided.
        starved: share of the window's updates before which the learner had nothing to do.
        trained, dropped: transitions so far.
    """

    lag: float | None
    queued: float | None
    in_flight: float | None
    capacity: float | None
    oldest_s: float | None
    starved: float | None
    trained: float | None
    dropped: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Integrity:
    """What went wrong, and what was checked.

    Attributes:
        verified: updates on which all ranks agreed.
        mismatches, failures: attempts at updates that came to nothing: ranks disagreed, or a collective failed.
        retries, rollbacks: updates that were made again, and states that were gone back to.
        skipped_steps: gradient steps that were not finite, since the ranks started.
        restarts: actor and rank processes started again.
        checkpoints, checkpoints_failed: written in this driving, and not.
        checkpoint_age_s: since the last one.
    """

    verified: float | None
    mismatches: float
    failures: float
    retries: float
    rollbacks: float
    skipped_steps: float
    restarts: float
    checkpoints: float
    checkpoints_failed: float
    checkpoint_age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A run at one moment.

    Attributes:
        actors_by_state, wanted_actors: as the driver counts them.
        ranks_by_state: likewise.
        cpu, memory_bytes: of the driver: cores used, resident.
        host_memory: used share of the fullest machine.
        actors, ranks: the processes that the driver lists, by index.
    """

    progress: Progress
    stall: Stall
    flow: Flow
    integrity: Integrity
    actors_by_state: Mapping[str, float]
    wanted_actors: float | None
    ranks_by_state: Mapping[str, float]
    cpu: float | None
    memory_bytes: float | None
    host_memory: float | None
    actors: tuple[ActorRow, ...]
    ranks: tuple[RankRow, ...]


STAGE_STATES = ("moving", "starved", "blocked", "stuck")


def figures_of(window: Window) -> Figures | None:
    """The run as the window's newest scrape has it; None before the first."""
    scrape = window.newest
    if scrape is None:
        return None
    driver = scrape.driver.reading
    rates = window.rates(lambda each: each.driver if each.driver_instance == scrape.driver_instance else None)
    everybody = [driver, *(seen.reading for seen in scrape.seen.values())]
    listed = sorted(scrape.listed, key=lambda process: process.index)
    full = [each.value("truestep_process_host_memory_used_ratio") for each in everybody]
    return Figures(
        progress=_progress(driver, rates, everybody),
        stall=_stall(driver),
        flow=_flow(driver, rates),
        integrity=_integrity(driver, everybody),
        actors_by_state=driver.by("truestep_driver_actors", "state"),
        wanted_actors=driver.value("truestep_driver_wanted_actors"),
        ranks_by_state=driver.by("truestep_driver_ranks", "state"),
        cpu=rates.per_second("process_cpu_seconds_total"),
        memory_bytes=driver.value("process_resident_memory_bytes"),
        host_memory=max((ratio for ratio in full if ratio is not None), default=None),
        actors=tuple(actor_row(process, scrape, window) for process in listed if process.role == "actor"),
        ranks=tuple(rank_row(process, scrape, window) for process in listed if process.role == "learner"),
    )


def _progress(driver: Reading, rates: Rates, everybody: Sequence[Reading]) -> Progress:
    facts = driver.facts("truestep_driver_run_info")
    mean = driver.value("truestep_driver_evaluation_return_mean")
    episodes = driver.value("truestep_driver_evaluation_episodes")
    return Progress(
        run=facts.get("run", ""),
        env=facts.get("env", ""),
        algo=facts.get("algo", ""),
        steps=driver.value("truestep_driver_env_steps_total"),
        updates=driver.value("truestep_driver_updates_total"),
        episodes=driver.value("truestep_driver_episodes_total"),
        steps_per_s=rates.per_second("truestep_driver_env_steps_total"),
        updates_per_s=rates.per_second("truestep_driver_updates_total"),
        term=driver.value("truestep_driver_term"),
        version=driver.value("truestep_driver_weights_version"),
        return_mean=_mean([each.value("truestep_actor_episode_return_mean") for each in everybody]),
        evaluation=None if mean is None or episodes is None else (mean, episodes),
    )


def _stall(driver: Reading) -> Stall:
    seconds = driver.by("truestep_driver_stall_seconds_total", "verdict")
    total = sum(seconds.values())
    verdicts = driver.by("truestep_driver_stall", "verdict")
    return Stall(
        verdict=next((verdict for verdict, value in verdicts.items() if value == 1), ""),
        shares={name: value / total for name, value in seconds.items() if value > 0} if total else {},
        stages={stage: _state(value) for stage, value in driver.by("truestep_driver_stage_state", "stage").items()},
        commit_age_s=driver.value("truestep_driver_last_commit_age_seconds"),
    )


def _flow(driver: Reading, rates: Rates) -> Flow:
    updates = rates.per_second("truestep_driver_updates_total")
    starved = rates.per_second("truestep_driver_starved_updates_total")
    return Flow(
        lag=driver.value("truestep_driver_policy_lag_updates"),
        queued=driver.value("truestep_driver_queued_fragments"),
        in_flight=driver.value("truestep_driver_in_flight_fragments"),
        capacity=driver.value("truestep_driver_in_flight_capacity_fragments"),
        oldest_s=driver.value("truestep_driver_oldest_fragment_age_seconds"),
        starved=starved / updates if starved is not None and updates else None,
        trained=driver.value("truestep_driver_trained_transitions_total"),
        dropped=_number(driver, "truestep_driver_dropped_transitions_total"),
    )


def _integrity(driver: Reading, everybody: Sequence[Reading]) -> Integrity:
    return Integrity(
        verified=driver.value("truestep_driver_verified_updates_total"),
        mismatches=_number(driver, "truestep_driver_sync_mismatches_total"),
        failures=_number(driver, "truestep_driver_sync_failures_total"),
        retries=_number(driver, "truestep_driver_sync_retries_total"),
        rollbacks=_number(driver, "truestep_driver_rollbacks_total"),
        skipped_steps=max(_number(each, "truestep_learner_skipped_gradient_steps_total") for each in everybody),
        restarts=_number(driver, "truestep_driver_actor_restarts_total", "truestep_driver_rank_restarts_total"),
        checkpoints=driver.value("truestep_driver_checkpoints_total", result="ok") or 0,
        checkpoints_failed=driver.value("truestep_driver_checkpoints_total", result="failed") or 0,
        checkpoint_age_s=driver.value("truestep_driver_last_checkpoint_age_seconds"),
    )


def _state(value: float) -> str:
    return STAGE_STATES[int(value)] if 0 <= value < len(STAGE_STATES) else "unknown"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _number(reading: Reading, *names: str) -> float:
    return sum(reading.total(name) or 0.0 for name in names)
