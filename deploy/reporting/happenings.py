"""Which events stand in which row of the timeline, and as what."""

from __future__ import annotations

import math
from collections.abc import Iterator

from deploy.display import brief
from deploy.record import ACCOUNTS, DRIVING
from deploy.reporting.driving import Moment, drivings
from deploy.reporting.facts import RunFacts
from deploy.reporting.history import starts
from deploy.reporting.timeline import Mark, Row, Stretch

VERDICT = "VERDICT"  # kind of the event that says since when the run has been held up by what
HEALTHY = "healthy"
BAD, GOOD, PLAIN, SAVED = "bad", "good", "plain", "saved"
ACTORS, RANKS, LEARNING, CHECKPOINTS, EVALUATIONS, RUN = (
    *("actors", "ranks", "fragments", "checkpoints", "evaluations"),
    "run",
)
PLACES = {  # kind of event: row, style; what is not here goes by its name
    "ACTOR_NOT_RESTORED": (ACTORS, PLAIN),
    "RANK_SLOW": (RANKS, PLAIN),
    "SYNC_ATTRIBUTED": (RANKS, PLAIN),
    "GROUP_FORMED": (RANKS, GOOD),
    "RECOVERED": (RANKS, GOOD),
    "RANKS_CHANGED": (RANKS, PLAIN),
    "TRAINING_ROLLBACK": (RANKS, BAD),
    "FRAGMENT_REFUSED": (LEARNING, BAD),
    "STEPS_SKIPPED": (LEARNING, BAD),
    "CHECKPOINT_SKIPPED": (CHECKPOINTS, BAD),
    "CHECKPOINT_MISSED": (CHECKPOINTS, PLAIN),
    "FINGERPRINT_CHANGED": (RUN, BAD),
}
PREFIXES = {"ACTOR_": ACTORS, "RANK_": RANKS, "SYNC_": RANKS, "CHECKPOINT_": CHECKPOINTS, "EVALUATION_": EVALUATIONS}
BAD_ENDINGS = ("_LOST", "_FAILED", "_QUARANTINED", "_MISMATCH", "_REFUSED")
NOT_DRAWN = (ACCOUNTS, DRIVING, VERDICT, "ENVIRONMENT", "SERVING")  # in the table only, or as bands
STALL_STYLES = 4  # fills and hatches in the style sheet for verdicts; they repeat


def timeline_rows(facts: RunFacts) -> list[Row]:
    """Rows for one run; those in which nothing happened are left out, but for the run itself."""
    marks: dict[str, list[Mark]] = {name: [] for name in (ACTORS, RANKS, LEARNING, CHECKPOINTS, EVALUATIONS, RUN)}
    for moment in facts.moments:
        if moment.event.kind not in NOT_DRAWN:
            row, style = _place(moment.event.kind)
            marks[row].append(Mark(seconds=moment.seconds, style=style, words=event_words(moment)))
    marks[CHECKPOINTS] += _saved(facts)
    marks[EVALUATIONS] += _evaluated(facts)
    in_order = {name: tuple(sorted(found, key=lambda mark: mark.seconds)) for name, found in marks.items()}
    rows = [Row(name=RUN, marks=in_order.pop(RUN), stretches=tuple(_drivings(facts)))]
    if held_up := verdict_bands(facts):
        rows.append(Row(name="held up by", stretches=tuple(held_up)))
    return rows + [Row(name=name, marks=found) for name, found in in_order.items() if found]


def verdict_bands(facts: RunFacts) -> list[Stretch]:
    """When which verdict of stall attribution was in force, each until the next one or the end of its driving.

    The first event of a driving tells of the verdict before it too, and how long that one was in force.
    """
    edges = [*drivings(facts.moments)[1:], facts.end_s]
    told = [moment for moment in facts.moments if moment.event.kind == VERDICT]
    following = [*(moment.seconds for moment in told[1:]), facts.end_s]
    styles: dict[str, str] = {HEALTHY: "fine"}
    bands: list[Stretch] = []
    for moment, next_s in zip(told, following, strict=False):
        data, begin = moment.event.data, moment.seconds
        if (before := str(data.get("before", ""))) and (not bands or bands[-1].end < begin):
            since = max(bands[-1].end if bands else 0.0, begin - float(data.get("seconds", 0.0)))
            bands.append(_band(since, begin, before, "", styles))
        end = min([next_s, *(edge for edge in edges if edge > begin)])
        bands.append(_band(begin, end, str(data.get("verdict", "unknown")), str(data.get("words", "")), styles))
    return [band for band in bands if band.end > band.begin]


def _band(begin: float, end: float, verdict: str, detail: str, styles: dict[str, str]) -> Stretch:
    style = styles.setdefault(verdict, f"stall{(len(styles) - 1) % STALL_STYLES}")
    words = verdict.replace("_", " ").replace("cpu", "CPU").replace("gpu", "GPU")
    return Stretch(begin=begin, end=end, style=style, words=words, detail=detail)


def event_words(moment: Moment) -> str:
    """An event in a line."""
    words = event_facts(moment)
    return f"{moment.event.kind}  {words}" if words else moment.event.kind


def event_facts(moment: Moment) -> str:
    """The data of an event in a line; long material stays in the registry."""
    data = moment.event.data
    return "  ".join(f"{key}={brief(value)}" for key, value in data.items() if key != "detail" and value != "")


def _place(kind: str) -> tuple[str, str]:
    if kind in PLACES:
        return PLACES[kind]
    row = next((row for prefix, row in PREFIXES.items() if kind.startswith(prefix)), RUN)
    return row, BAD if kind.endswith(BAD_ENDINGS) else PLAIN


def _drivings(facts: RunFacts) -> Iterator[Stretch]:
    begun = drivings(facts.moments) or [0.0]
    starting = dict(starts(facts.history, begun))
    for number, (begin, end) in enumerate(zip(begun, [*begun[1:], facts.end_s], strict=True), start=1):
        words = f"driving {number}" if len(begun) > 1 else "driven"
        if number == len(begun):
            words += f", {facts.status}"
        started = min(starting.get(begin, begin), end)
        if started > begin:
            yield Stretch(begin=begin, end=started, style="starting", words="starting")
        yield Stretch(begin=started, end=end, style="driven", words=words)


def _saved(facts: RunFacts) -> Iterator[Mark]:
    """Checkpoints that are on record; the others have been pruned."""
    for checkpoint in facts.checkpoints:
        seconds = facts.seconds_at(checkpoint.update)
        if not math.isnan(seconds):
            words = f"checkpoint {checkpoint.name}, update {checkpoint.update}{', the best' if checkpoint.best else ''}"
            yield Mark(seconds=seconds, style=SAVED, words=words)


def _evaluated(facts: RunFacts) -> Iterator[Mark]:
    for evaluation in facts.evaluations:
        seconds = facts.seconds_at(evaluation.update)
        if not math.isnan(seconds):
            played = f"mean return {evaluation.mean:.4g} over {evaluation.episodes} episodes"
            yield Mark(seconds=seconds, style=PLAIN, words=f"evaluation of update {evaluation.update}: {played}")
