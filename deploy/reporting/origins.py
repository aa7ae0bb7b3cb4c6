"""The sections on what happened when, on what the run was made, and how to make it again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deploy.compare import Comparison, Difference
from deploy.display import brief, duration
from deploy.reporting.blocks import Command, Figure, Key, Section, Table
from deploy.reporting.facts import RunFacts
from deploy.reporting.happenings import event_facts, timeline_rows
from deploy.reporting.headline import prefix
from deploy.reporting.plots import SIDES
from deploy.reporting.scale import clock_words
from deploy.reporting.timeline import NARROW_TIMELINE, WIDE_TIMELINE, timeline

SHOWN_EVENTS = 120  # of each run; the first and the last are shown
FACTS = {  # what a run was made on and with: words, path in the facts
    "Host": "system.host",
    "Kernel": "system.kernel",
    "Processor": "cpu.model",
    "CPUs allowed": "cpu.allowed",
    "GPU": "gpu.models",
    "Python": "python.version",
    "torch": "torch.version",
    "numpy": "distributions.numpy.version",
    "gymnasium": "distributions.gymnasium.version",
    "ray": "distributions.ray.version",
    "Threads of torch": "torch.threads",
    "truestep commit": "git.commit",
    "Fingerprint": "fingerprint",
}


def timeline_section(runs: Sequence[RunFacts]) -> Section:
    """Pictures of what happened, and the events in words."""
    figures = []
    for side, run in enumerate(runs):
        rows = timeline_rows(run)
        figures.append(
            Figure(
                title=f"{prefix(runs, side)}{run.name}" if len(runs) > 1 else "By time of driving",
                picture=timeline(rows, run.end_s, WIDE_TIMELINE),
                narrow=timeline(rows, run.end_s, NARROW_TIMELINE),
                legend=(
                    Key(style="bad", shape="bad", name="something went wrong"),
                    Key(style="good", shape="good", name="it is mended"),
                    Key(style="plain", shape="plain", name="something happened"),
                    Key(style="saved", shape="saved", name="a checkpoint that is there"),
                ),
            )
        )
    tables = [_events(runs, side) for side in range(len(runs))]
    return Section(anchor="timeline", title="Timeline", wide=tuple(figures), tables=tuple(tables))


def environment_section(runs: Sequence[RunFacts], comparison: Comparison | None) -> Section:
    """Configuration, machine and versions; of two runs what differs comes first."""
    tables = []
    if comparison is not None:
        tables.append(_differences("Configuration that differs", comparison.config))
        tables.append(_differences("Code, versions and machine that differ", comparison.facts))
    tables.append(_made_with(runs))
    tables += [_changed(runs, side) for side, run in enumerate(runs) if run.remake.changed]
    tables += [_configuration(runs, side) for side in range(len(runs))]
    return Section(anchor="environment", title="Environment", tables=tuple(tables))


def remake_section(runs: Sequence[RunFacts]) -> Section:
    """Commands."""
    commands, words = [], []
    for side, run in enumerate(runs):
        who = prefix(runs, side)
        commands.append(
            Command(about=f"{who}made again from its ledger, compared bit for bit", text=run.remake.reproduce)
        )
        if run.remake.train:
            commands.append(Command(about=f"{who}trained anew, same configuration and seed", text=run.remake.train))
        else:
            words.append(f"{who}No command trains it anew: {run.remake.why_not}.")
        words += [f"{who}{line}" for line in _code(run)]
    return Section(anchor="again", title="Make it again", words=" ".join(words), commands=tuple(commands))


def _code(run: RunFacts) -> Iterator[str]:
    """With which code, as far as that is on record."""
    commit = run.fact("git.commit")
    if commit is None:
        yield "The commit of the code is not on record; the digests of its sources are."
        return
    yield f"Made with commit {str(commit)[:12]}"
    if run.fact("git.dirty"):
        digest = str(run.fact("git.diff_sha256") or "")[:12]
        yield f"and changes that were not committed (difference {digest}; the registry keeps it)"
    yield "on the machine named above; equal fingerprints promise equal bits."


def _events(runs: Sequence[RunFacts], side: int) -> Table:
    run = runs[side]
    shown = list(run.moments)
    if left_out := max(0, len(shown) - SHOWN_EVENTS):
        half = SHOWN_EVENTS // 2
        shown = shown[:half] + shown[-half:]
    counts = Counter(moment.event.kind for moment in run.moments)
    rows = [(clock_words(round(m.seconds, 1)), m.event.wall, m.event.kind, event_facts(m)) for m in shown]
    told = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
    note = f"By kind: {told}." + (
        f" Left out: {left_out:,} in the middle; `truestep show` has all." if left_out else ""
    )
    return Table(
        caption=f"{prefix(runs, side)}Events ({len(run.moments):,})",
        head=("driven", "wall clock", "event", "facts"),
        rows=tuple(rows),
        folded=True,
        note=note if run.moments else "",
    )


def _made_with(runs: Sequence[RunFacts]) -> Table:
    rows: list[tuple[str, ...]] = [
        ("Run", *(run.name for run in runs)),
        ("Environment", *(run.record.env for run in runs)),
        ("Stepping", *(_stepping(run) for run in runs)),
        ("Collection", *(_collection(run) for run in runs)),
        ("Actors", *(_actors(run) for run in runs)),
        ("Learner ranks", *(str(run.summary["learners"]) for run in runs)),
        ("Made", *(f"{run.record.created_wall}, {duration(run.record.wall_s)}" for run in runs)),
        ("Memory", *(_memory(run) for run in runs)),
    ]
    rows += [(words, *(_fact(run, path) for run in runs)) for words, path in FACTS.items()]
    head = ("", *(SIDES[: len(runs)] if len(runs) > 1 else ("value",)))
    return Table(caption="Made with", head=head, rows=tuple(rows))


def _fact(run: RunFacts, path: str) -> str:
    value = run.fact(path)
    if path == "git.commit" and value is not None and run.fact("git.dirty"):
        return f"{value} with changes"
    return "–" if value is None else str(value) if isinstance(value, str) else brief(value)


def _stepping(run: RunFacts) -> str:
    told = next((m.event.data for m in run.moments if m.event.kind == "ENVIRONMENT"), None)
    if told is None:
        return "–"
    restores = told.get("restores") or ("state" if told.get("restorable") else "nothing")
    return f"vectorised: {told.get('vectorised')}, autoreset: {told.get('autoreset')}, restores: {restores}"


def _collection(run: RunFacts) -> str:
    if run.summary["collection"] == "asynchronous":
        return f"asynchronous, dropped when more than {run.summary['max_lag']} behind"
    return f"synchronous, policy lag {run.summary['policy_lag']}"


def _actors(run: RunFacts) -> str:
    actors = run.record.config.get("actors", {})
    return f"{actors.get('num', '?')} × {actors.get('lanes', '?')} lanes × {actors.get('rows', '?')} rows"


def _memory(run: RunFacts) -> str:
    total = run.fact("memory.total_bytes")
    return "–" if total is None else f"{total / 2**30:.1f} GiB"


def _changed(runs: Sequence[RunFacts], side: int) -> Table:
    rows = [(key, _json(value)) for key, value in runs[side].remake.changed.items()]
    return Table(caption=f"{prefix(runs, side)}Not as in the recipe", head=("key", "value"), rows=tuple(rows))


def _configuration(runs: Sequence[RunFacts], side: int) -> Table:
    rows = tuple(flat(runs[side].record.config))
    return Table(caption=f"{prefix(runs, side)}Configuration, all of it", head=("key", "value"), rows=rows, folded=True)


def flat(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Nested values by dotted path.

    >>> list(flat({"seed": 1, "env": {"id": "x"}}))
    [('seed', '1'), ('env.id', '"x"')]
    """
    for key, value in values.items():
        path = f"{within}.{key}" if within else str(key)
        if isinstance(value, Mapping) and value:
            yield from flat(value, path)
        else:
            yield path, _json(value)


def _differences(caption: str, found: Sequence[Difference]) -> Table:
    rows = [(each.key, _json(each.a), _json(each.b)) for each in found]
    note = "" if rows else "No difference."
    return Table(caption=caption, head=("key", *SIDES), rows=tuple(rows), note=note)


def _json(value: Any) -> str:
    return "–" if value is None else json.dumps(value, ensure_ascii=False, default=str)
