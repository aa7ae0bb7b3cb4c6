"""The head of the page: which run, how it ended, and the figures that are asked for first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from deploy.display import duration
from deploy.reporting.blocks import Heading, Tile
from deploy.reporting.driving import drivings
from deploy.reporting.facts import RunFacts
from deploy.reporting.history import starts
from deploy.reporting.plots import SIDES
from deploy.reporting.scale import counted, exact, short

Figures = tuple[str, str]  # a value and a note


def headings(runs: Sequence[RunFacts]) -> tuple[Heading, ...]:
    """One for each run."""
    return tuple(
        Heading(
            letter=letter_of(runs, side),
            name=run.name,
            status=run.status,
            verdict=_verdict(run),
            about=f"{run.record.algo.upper()} on {run.record.env}, seed {run.record.seed}, engine {run.record.engine}",
        )
        for side, run in enumerate(runs)
    )


def letter_of(runs: Sequence[RunFacts], side: int) -> str:
    """The letter of a run, where there are two."""
    return SIDES[side] if len(runs) > 1 else ""


def prefix(runs: Sequence[RunFacts], side: int) -> str:
    """The same before what is said of the run."""
    return f"{SIDES[side]}: " if len(runs) > 1 else ""


def tiles(runs: Sequence[RunFacts]) -> tuple[Tile, ...]:
    """Key figures of each run."""
    figures: dict[str, Callable[[RunFacts], Figures]] = {
        "greedy return": _greedy,
        "environment steps": _steps,
        "updates": _updates,
        "time": _time,
        "throughput": _throughput,
        "policy lag": _lag,
        "verified updates": _verified,
        "faults": _faults,
    }
    found = []
    for name, of in figures.items():
        told = [of(run) for run in runs]
        found.append(Tile(name=name, values=tuple(v for v, _ in told), notes=tuple(n for _, n in told)))
    return tuple(found)


def _verdict(run: RunFacts) -> str:
    if run.record.verdict:
        return run.record.verdict
    where = f"at update {run.record.updates:,}, {run.record.env_steps:,} environment steps"
    return f"under way, {where}" if run.status == "running" else f"its driver was killed {where}"


def _greedy(run: RunFacts) -> Figures:
    if not run.evaluations:
        return "–", "no evaluation on record"
    last = run.evaluations[-1]
    return f"{exact(last.mean)} ± {exact(last.std)}", f"{last.episodes} episodes, after update {last.update:,}"


def _steps(run: RunFacts) -> Figures:
    return exact(float(run.record.env_steps)), f"of {run.record.config.get('steps', 0):,} asked for"


def _updates(run: RunFacts) -> Figures:
    undone = run.tally.rollbacks
    return exact(float(run.record.updates)), counted(undone, "rollback", "rollbacks") if undone else "no rollback"


def _time(run: RunFacts) -> Figures:
    resumed = sum(moment.event.kind == "RESUMED" for moment in run.moments)
    return duration(run.record.wall_s), f"resumed {counted(resumed, 'time', 'times')}" if resumed else "in one go"


def _throughput(run: RunFacts) -> Figures:
    seconds = run.history.seconds
    timed = np.flatnonzero(np.isfinite(seconds))
    if not len(timed) or seconds[timed[-1]] <= 0:
        return "–", "not on record"
    starting = sum(end - begin for begin, end in starts(run.history, drivings(run.moments) or [0.0]))
    rate = float(run.history.env_steps[timed[-1]] / (seconds[timed[-1]] - starting))
    return short(float(f"{rate:.3g}")), f"steps per second, after {duration(starting)} of starting"


def _lag(run: RunFacts) -> Figures:
    lag = run.history.lag[np.isfinite(run.history.lag)]
    if not len(lag):
        return "–", "no update on record"
    return f"{lag.mean():.2f}", f"versions on average, {exact(float(lag.max()))} at most"


def _verified(run: RunFacts) -> Figures:
    verified, updates = run.summary["sync"]["verified_updates"], len(run.history)
    return (
        f"{verified:,} of {updates:,}",
        "every rank, one digest" if verified == updates else "the others have no digest",
    )


def _faults(run: RunFacts) -> Figures:
    lost = sum(moment.event.kind in ("ACTOR_LOST", "RANK_LOST") for moment in run.moments)
    sync = run.tally.mismatches + run.tally.failures
    return str(lost + sync), f"{counted(lost, 'process', 'processes')} lost, {counted(sync, 'sync', 'syncs')} voided"
