"""The sections on pace: throughput, where the time went, and how far behind the policy was that collected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from common.runs import STARVED
from deploy.reporting.blocks import Figure, Key, Section, Table
from deploy.reporting.charts import line_chart
from deploy.reporting.curves import per_update
from deploy.reporting.driving import drivings
from deploy.reporting.facts import RunFacts
from deploy.reporting.happenings import verdict_bands
from deploy.reporting.headline import prefix
from deploy.reporting.history import Flow, flow_of
from deploy.reporting.plots import SIDES, Along, Chart, Series
from deploy.reporting.scale import clock_words
from deploy.reporting.stacked import Layer, Stack, share_bar, shares, stacked_chart
from deploy.reporting.svg import Array

STRETCHES = 80  # of driving, along a chart of rates
LEARNER_LAYERS = (  # phase, name, style
    ("learn", "learning", "layer0"),
    ("intake", "taking fragments in", "layer1"),
    ("close", "agreeing on the update", "layer2"),
    ("publish", "publishing weights", "layer3"),
)
ACTOR_LAYERS = (
    ("env", "environments", "layer0"),
    ("policy", "policy", "layer1"),
    ("rollout", "the rest of collecting", "layer2"),
)
SYNC_PHASES = {
    "reduce": "adding gradients up, and waiting for the others",
    "exchange": "agreeing on digests and verdicts",
    "verify": "computing digests and sums",
    "audit": "doing a sampled step again",
    "backup": "remembering the update's start",
}


def pace_section(runs: Sequence[RunFacts]) -> Section:
    """Throughput, and where the time of learner and actors went."""
    flows = [flow_of(run.history, drivings(run.moments) or [0.0], STRETCHES) for run in runs]
    figures = [_throughput(runs, flows)]
    for side, (run, flow) in enumerate(zip(runs, flows, strict=True)):
        figures.append(_stacked(f"{prefix(runs, side)}Time of the learner", _learner(flow)))
        figures.append(_stacked(f"{prefix(runs, side)}Actors at work", _actors(run, flow)))
    verdicts = [_verdicts(runs, side) for side in range(len(runs))]
    return Section(
        anchor="time",
        title="Throughput and time",
        words=(
            "By seconds of driving, over all resumes. The learner's share is that of its first rank; what it did not "
            "spend on updates it waited, for fragments or for the driver."
        ),
        figures=tuple(figures),
        tables=tuple(table for table in (*verdicts, _sync_cost(runs)) if table.rows),
    )


def lag_section(runs: Sequence[RunFacts]) -> Section:
    """Lag of what was trained, what was in flight, what was dropped."""
    pieces = [
        ("Policy lag", "versions behind", [run.history.lag for run in runs], "mean of the update"),
        ("In flight", "transitions", [run.history.in_flight for run in runs], "neither trained nor dropped"),
    ]
    if any(run.history.dropped for run in runs):
        pieces.append(("Dropped", "transitions, total", [_dropped(run) for run in runs], "all reasons"))
    if any(STARVED in run.history.statistics for run in runs):
        starved = [_starved(run) for run in runs]
        pieces.append(("Learner starved", "updates, total", starved, "had nothing to do before"))
    figures = []
    for title, unit, columns, name in pieces:
        chart = per_update(runs, title, unit, columns, name, from_zero=True)
        figures.append(Figure(title=title, unit=unit, picture=line_chart(chart)))
    return Section(
        anchor="lag",
        title="Lag and flow",
        words="How many versions behind the weights were that collected what was trained, and what became of the rest.",
        figures=tuple(figures),
        tables=tuple(table for table in (_reasons(runs),) if table.rows),
    )


def _throughput(runs: Sequence[RunFacts], flows: Sequence[Flow]) -> Figure:
    series = [Series(name="steps/s", side=side, x=flow.seconds, y=flow.steps_per_s) for side, flow in enumerate(flows)]
    chart = Chart(
        title="Throughput",
        unit="environment steps per second",
        along=Along.TIME,
        series=tuple(series),
        from_zero=True,
        two_runs=len(runs) > 1,
    )
    return Figure(title=chart.title, unit=chart.unit, picture=line_chart(chart))


def _learner(flow: Flow) -> Stack:
    layers = [Layer(name=name, style=style, y=flow.learner[phase]) for phase, name, style in LEARNER_LAYERS]
    busy = sum((layer.y for layer in layers), np.zeros(len(flow.seconds)))
    layers.append(Layer(name="waiting", style="rest", y=np.maximum(0.0, 1.0 - busy - flow.starting)))
    return Stack(
        title="Time of the learner",
        unit="share of the time",
        seconds=flow.seconds,
        counted=1.0 - flow.starting,
        layers=tuple(layers),
        top=1.0,
        percent=True,
    )


def _actors(run: RunFacts, flow: Flow) -> Stack:
    layers = tuple(Layer(name=name, style=style, y=flow.actors[phase]) for phase, name, style in ACTOR_LAYERS)
    wanted = float(run.record.config.get("actors", {}).get("num", 0))
    peak = max((float(y) for y in sum((each.y for each in layers), np.zeros(len(flow.seconds)))), default=0.0)
    return Stack(
        title="Actors at work",
        unit=f"actors, of {wanted:g}",
        seconds=flow.seconds,
        counted=1.0 - flow.starting,
        layers=layers,
        top=max(1.05 * peak, wanted) or 1.0,
    )


def _stacked(title: str, stack: Stack) -> Figure:
    legend = tuple(Key(style=style, shape="layer", name=name, value=value) for name, style, value in shares(stack))
    return Figure(
        title=title,
        unit=stack.unit,
        picture=stacked_chart(stack),
        below=share_bar(stack) if len(stack.seconds) else None,
        legend=legend,
        note="Means over the run, but for the time in which processes were being started.",
    )


def _dropped(run: RunFacts) -> Array:
    return sum(run.history.dropped.values(), np.zeros(len(run.history)))


def _starved(run: RunFacts) -> Array:
    starved = run.history.statistic(STARVED)
    total: Array = np.cumsum(np.where(np.isfinite(starved), starved, 0.0))
    return total


def _reasons(runs: Sequence[RunFacts]) -> Table:
    reasons = sorted({reason for run in runs for reason in run.summary["dropped"]})
    dropped = [run.summary["dropped"] for run in runs]
    rows = [(reason.replace("_", " "), *(f"{each.get(reason, 0):,}" for each in dropped)) for reason in reasons]
    head = ("reason", *_columns(runs, "transitions"))
    return Table(caption="Dropped transitions by reason", head=head, rows=tuple(rows), numeric=True)


def _verdicts(runs: Sequence[RunFacts], side: int) -> Table:
    """Seconds under each verdict of stall attribution, and the figures that led to it the last time."""
    seconds: dict[str, float] = {}
    details: dict[str, str] = {}
    for band in verdict_bands(runs[side]):
        seconds[band.words] = seconds.get(band.words, 0.0) + band.end - band.begin
        details[band.words] = band.detail or details.get(band.words, "")
    rows = [(name, clock_words(round(spent, 1)), details[name]) for name, spent in seconds.items()]
    caption = f"{prefix(runs, side)}Held up by"
    return Table(caption=caption, head=("verdict", "time", "in words"), rows=tuple(rows))


def _sync_cost(runs: Sequence[RunFacts]) -> Table:
    """What verified sync took of the time that the learner worked."""
    worked = [_worked(run) for run in runs]
    rows = []
    for phase, words in SYNC_PHASES.items():
        spent = [run.history.total(f"seconds_sync_{phase}") for run in runs]
        if any(spent):
            told = [_spent(part, whole) for part, whole in zip(spent, worked, strict=True)]
            rows.append((words, *told))
    note = "Of the time that the first rank worked on updates. All but the first line is the price of verification."
    head = ("part", *_columns(runs, "time"))
    return Table(caption="Cost of verified sync", head=head, rows=tuple(rows), numeric=True, note=note)


def _worked(run: RunFacts) -> float:
    return sum(run.history.total(f"seconds_{phase}") for phase, _, _ in LEARNER_LAYERS)


def _spent(part: float, whole: float) -> str:
    return f"{part:.2f} s, {part / whole:.1%}" if whole else "–"


def _columns(runs: Sequence[RunFacts], one: str) -> Iterator[str]:
    """Heads of the columns: letters where there are two runs."""
    return iter(SIDES[: len(runs)] if len(runs) > 1 else (one,))
