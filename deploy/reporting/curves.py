"""The sections with curves of what was learned: returns and the numbers of the algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from common.runs import STARVED
from deploy.reporting.blocks import Figure, Key, Section, Table
from deploy.reporting.charts import line_chart
from deploy.reporting.facts import RunFacts
from deploy.reporting.headline import prefix
from deploy.reporting.history import pooled_returns
from deploy.reporting.plots import NARROW, WIDE, Along, Band, Chart, Series
from deploy.reporting.sampling import spread_out
from deploy.reporting.scale import exact, short
from deploy.reporting.svg import Array

POOLS = 60  # of updates, along a curve of returns
ROWS = 12  # of a table of numbers along the run
TITLES = {  # statistics that are known: title and unit
    "policy": ("Policy loss", "loss"),
    "value": ("Value loss", "loss, return squared"),
    "entropy": ("Entropy of the policy", "nats"),
    "approximate_kl": ("KL from the policy that collected", "nats"),
    "clip_fraction": ("Ratios clipped", "share of transitions"),
    "gradient_norm": ("Gradient norm before clipping", "norm"),
    "gradient_norm_torso": ("Gradient norm of the torso", "norm"),
    "gradient_norm_core": ("Gradient norm of the core", "norm"),
    "gradient_norm_policy": ("Gradient norm of the policy", "norm"),
    "gradient_norm_value": ("Gradient norm of the value", "norm"),
    "gradient_norm_other": ("Gradient norm of the rest", "norm"),
    "explained_variance": ("Variance explained by the value", "share, at most 1"),
    "learning_rate": ("Learning rate", "step size"),
}
NO_CURVE = ("episodes", "verified_steps", "reduced_bytes", "clipped_steps", "stopped_early", STARVED)
NO_CURVE_PREFIXES = ("seconds_", "episode_", "normaliser_")


def returns_section(runs: Sequence[RunFacts]) -> Section:
    """Training and greedy returns with their spread, by steps and by time."""
    chart = _returns(runs, Along.STEPS)
    figures = [Figure(title="Return by time", unit=chart.unit, picture=line_chart(_returns(runs, Along.TIME)))]
    figures += [_spread(runs)] if any(run.evaluations for run in runs) else []
    return Section(
        anchor="returns",
        title="Returns",
        words=(
            "Undiscounted returns of whole episodes: those of training, in which actions are drawn, "
            "and those of evaluations, in which they are greedy."
        ),
        wide=(
            Figure(
                title="Return by environment steps",
                unit=chart.unit,
                picture=line_chart(chart, WIDE),
                narrow=line_chart(chart, NARROW),
                legend=_returns_legend(runs),
            ),
        ),
        figures=tuple(figures),
        tables=(_evaluations(runs),),
    )


def learning_section(runs: Sequence[RunFacts]) -> Section:
    """A small chart for each number of the algorithm."""
    names = statistics_of(runs)
    figures = [_statistic(runs, name) for name in names]
    bad = [f"{prefix(runs, side)}{words}" for side, run in enumerate(runs) if (words := _not_finite(run, names))]
    note = "A cross at the foot of a chart marks updates whose value was not finite. " if bad else ""
    return Section(
        anchor="learning",
        title="Learning",
        words=f"Means over the gradient steps of each update. {note}{'; '.join(bad)}".strip(),
        figures=tuple(figures),
        tables=tuple(_numbers(runs, side, names) for side in range(len(runs))) if names else (),
    )


def statistics_of(runs: Sequence[RunFacts]) -> list[str]:
    """Statistics that have a curve: those that are known, in their order, then the others."""
    present = dict.fromkeys(name for run in runs for name in run.history.statistics)
    shown = [name for name in present if name not in NO_CURVE and not name.startswith(NO_CURVE_PREFIXES)]
    return [name for name in TITLES if name in shown] + [name for name in shown if name not in TITLES]


def per_update(
    runs: Sequence[RunFacts], title: str, unit: str, columns: Sequence[Array], name: str, *, from_zero: bool = False
) -> Chart:
    """One column of each run by environment steps."""
    series = [
        Series(name=name, side=side, x=run.history.env_steps, y=column)
        for side, (run, column) in enumerate(zip(runs, columns, strict=True))
    ]
    return Chart(
        title=title,
        unit=unit,
        along=Along.STEPS,
        series=tuple(series),
        from_zero=from_zero,
        two_runs=len(runs) > 1,
    )


def _returns(runs: Sequence[RunFacts], along: Along) -> Chart:
    series = [one for side, run in enumerate(runs) for one in _return_series(run, side, along, crowded=len(runs) > 1)]
    goals = {run.record.config.get("stop_at_return") for run in runs}
    goal = goals.pop() if len(goals) == 1 else None
    return Chart(
        title="Return",
        unit="return of an episode",
        along=along,
        series=tuple(series),
        two_runs=len(runs) > 1,
        line_at=None if goal is None else (float(goal), f"goal {short(float(goal))}"),
    )


def _return_series(run: RunFacts, side: int, along: Along, *, crowded: bool) -> Iterator[Series]:
    pooled = pooled_returns(run.history, POOLS)
    x = pooled.env_steps if along is Along.STEPS else pooled.seconds
    placed = np.isfinite(x)
    mean, std = pooled.mean[placed], pooled.std[placed]
    low, high = pooled.low[placed], pooled.high[placed]
    inner = Band(low=np.maximum(mean - std, low), high=np.minimum(mean + std, high), style="band")
    outer = Band(low=low, high=high, style="range")
    bands = (inner,) if crowded else (outer, inner)
    yield Series(name="training", side=side, x=x[placed], y=mean, bands=bands, gaps=False)
    at = run.steps_at if along is Along.STEPS else run.seconds_at
    places = np.asarray([at(each.update) for each in run.evaluations], np.float64)
    known = np.isfinite(places)
    yield _greedy(run, side, places, known)


def _greedy(run: RunFacts, side: int, places: Array, known: NDArray[np.bool_]) -> Series:
    """Evaluations as markers with bars."""
    figures = [(each.mean, each.std, each.minimum, each.maximum) for each in run.evaluations]
    mean, std, low, high = np.asarray(figures, np.float64).reshape(-1, 4)[known].T
    bars = Band(low=np.maximum(mean - std, low), high=np.minimum(mean + std, high), style="bar")
    return Series(name="greedy", side=side, x=places[known], y=mean, points=True, bars=bars, gaps=False)


def _returns_legend(runs: Sequence[RunFacts]) -> tuple[Key, ...]:
    keys = []
    band = "one standard deviation" if len(runs) > 1 else "one standard deviation; fainter, lowest to highest"
    for side in range(len(runs)):
        who = prefix(runs, side)
        keys += [
            Key(style=f"s{side}", shape="line", name=f"{who}training, mean"),
            Key(style=f"s{side}", shape="band", name=f"{who}{band}"),
            Key(style=f"s{side}", shape="mark", name=f"{who}greedy, mean and one standard deviation"),
        ]
    return tuple(keys)


def _spread(runs: Sequence[RunFacts]) -> Figure:
    """The returns of the newest evaluation, in order: what share of episodes was below which return."""
    series = []
    for side, run in enumerate(runs):
        returns = np.sort(np.asarray(run.evaluations[-1].returns if run.evaluations else (), np.float64))
        share = np.arange(1, len(returns) + 1) / max(1, len(returns))
        series.append(Series(name="newest evaluation", side=side, x=share, y=returns))
    chart = Chart(
        title="Returns of the newest evaluation",
        unit="return of an episode",
        along=Along.SHARE,
        series=tuple(series),
        two_runs=len(runs) > 1,
    )
    note = "Episodes in order of their returns: the middle of the axis is the median."
    return Figure(title=chart.title, unit=chart.unit, picture=line_chart(chart), note=note)


def _evaluations(runs: Sequence[RunFacts]) -> Table:
    rows = []
    for side, run in enumerate(runs):
        for index in spread_out(len(run.evaluations), ROWS):
            each = run.evaluations[index]
            figures = (each.mean, each.std, each.minimum, each.maximum)
            where = (exact(float(each.update)), exact(run.steps_at(each.update)), str(each.episodes))
            rows.append((f"{prefix(runs, side)}update {where[0]}", *where[1:], *(exact(value) for value in figures)))
    count = max(len(run.evaluations) for run in runs)
    return Table(
        caption="Evaluations in numbers" + (f", {ROWS} of {count}" if count > ROWS else ""),
        head=("after", "steps", "episodes", "mean", "deviation", "lowest", "highest"),
        rows=tuple(rows),
        folded=True,
        numeric=True,
    )


def _statistic(runs: Sequence[RunFacts], name: str) -> Figure:
    title, unit = TITLES.get(name, (name.replace("_", " ").capitalize(), "value"))
    chart = per_update(runs, title, unit, [run.history.statistic(name) for run in runs], "mean of the update")
    return Figure(title=title, unit=unit, picture=line_chart(chart))


def _not_finite(run: RunFacts, names: Sequence[str]) -> str:
    counts = {name: int(np.count_nonzero(~np.isfinite(run.history.statistic(name)))) for name in names}
    told = [f"{TITLES.get(name, (name,))[0]} {count:,}" for name, count in counts.items() if count]
    return f"not finite, of {len(run.history):,} updates: {', '.join(told)}" if told else ""


def _numbers(runs: Sequence[RunFacts], side: int, names: Sequence[str]) -> Table:
    """Each statistic at updates spread over the run."""
    history = runs[side].history
    rows = [
        (exact(history.update[at]), exact(history.env_steps[at]), *(exact(history.statistic(n)[at]) for n in names))
        for at in spread_out(len(history), ROWS)
    ]
    return Table(
        caption=f"{prefix(runs, side)}Learning in numbers",
        head=("update", "steps", *(TITLES.get(name, (name,))[0] for name in names)),
        rows=tuple(rows),
        folded=True,
        numeric=True,
    )
