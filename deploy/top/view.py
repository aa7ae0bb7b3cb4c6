"""Figures as a screen: every line says its words, colour only repeats them; narrow terminals get fewer columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deploy.display import brief, duration
from deploy.profiling.words import in_bytes
from deploy.top.figures import Figures, Flow, Integrity, Progress, Stall
from deploy.top.record import Recorded
from deploy.top.rows import ActorRow, RankRow

UNKNOWN = "–"
WIDE = 100  # columns from which every figure is shown
NARROW = 64  # below: names, rates and what is wrong
MOST_ROWS = 24  # of actors; the rest is summed up
LABEL = 12
NAME = 9  # learner-0
TIME = slice(11, 19)  # of an ISO 8601 label, UTC
PHASES = ("intake", "learn", "close", "publish")


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What is to be seen now; rich draws it.

    Attributes:
        run: name, as it was asked for.
        address: of the driver.
        figures: None before the driver has answered.
        recorded: None where the record is not to be had.
        trouble: why the figures are not of now; "" if they are.
        interactive: whether keys do something.
    """

    run: str
    address: str
    figures: Figures | None
    recorded: Recorded | None = None
    trouble: str = ""
    interactive: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Group(*self._parts(options.max_width))

    def _parts(self, width: int) -> Iterable[Text | Table]:
        figures = self.figures
        yield _title(self.run, self.address, figures)
        if self.trouble:
            yield Text(self.trouble, style="bold red")
        if figures is not None:
            yield _summary(figures, self.recorded, width)
            yield _actors(figures, width)
            yield _ranks(figures, width)
        if self.recorded is not None and self.recorded.events and width >= NARROW:
            yield from _events(self.recorded)
        if self.interactive:
            yield Text("q leaves; the run goes on", style="dim")


def _title(run: str, address: str, figures: Figures | None) -> Text:
    name = run or ("" if figures is None else figures.progress.run)
    title = Text(f"{name or 'run'}", style="bold", no_wrap=True, overflow="ellipsis")
    if figures is not None and figures.progress.env:
        title.append(f"  {figures.progress.env}, {figures.progress.algo}", style="not bold")
    return title.append(f"  driver {address}", style="not bold dim")


def _summary(figures: Figures, recorded: Recorded | None, width: int) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=LABEL, style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    total = 0 if recorded is None else recorded.total_steps
    if total and figures.progress.steps is not None:
        table.add_row("", ProgressBar(total=total, completed=figures.progress.steps, width=min(width - LABEL - 1, 60)))
    table.add_row("progress", _progress(figures.progress, total))
    table.add_row("returns", _returns(figures.progress))
    table.add_row("verdict", _verdict(figures.stall, ("", "") if recorded is None else recorded.finding))
    if figures.stall.stages and width >= NARROW:
        table.add_row("ring", _ring(figures.stall.stages))
    table.add_row("flow", _flow(figures.flow))
    table.add_row("integrity", _integrity(figures.integrity))
    table.add_row("checkpoints", _checkpoints(figures.integrity))
    table.add_row("driver", f"{_cores(figures.cpu)}, {_memory(figures.memory_bytes)}{_host(figures.host_memory)}")
    return table


def _progress(progress: Progress, total: int) -> str:
    of = f" of {total:,}" if total else ""
    parts = [f"{_count(progress.steps)}{of} steps", f"{_rate(progress.steps_per_s)} steps/s"]
    parts += [f"update {_count(progress.updates)}", f"{_rate(progress.updates_per_s)} updates/s"]
    if total and progress.steps is not None and progress.steps_per_s:
        parts.append(f"{duration(max(0.0, total - progress.steps) / progress.steps_per_s)} to go")
    if progress.term:
        parts.append(f"term {progress.term:.0f}")
    return ", ".join(parts)


def _returns(progress: Progress) -> str:
    training = f"training {_value(progress.return_mean)}, {_count(progress.episodes)} episodes"
    if progress.evaluation is None:
        return f"{training}; no evaluation yet"
    mean, episodes = progress.evaluation
    return f"{training}; evaluation {mean:,.1f} over {episodes:.0f} greedy episodes"


def _verdict(stall: Stall, finding: tuple[str, str]) -> Text:
    if not stall.verdict:
        return Text("none yet")
    words = finding[1] if finding[0] == stall.verdict else ""
    name, colon, why = (words or stall.verdict.replace("_", "-")).partition(":")
    text = Text(name, style="green" if stall.verdict == "healthy" else "bold yellow")
    text.append(f"{colon}{why}", style="not bold default")
    shares = sorted(stall.shares.items(), key=lambda item: -item[1])
    if len(shares) > 1:
        told = ", ".join(f"{name.replace('_', '-')} {share:.0%}" for name, share in shares[:4])
        text.append(f"  (so far: {told})", style="not bold dim")
    if stall.commit_age_s is not None:
        text.append(f"  last commit {_ago(stall.commit_age_s)}", style="not bold dim")
    return text


def _ring(stages: Mapping[str, str]) -> Text:
    text = Text()
    for number, (stage, state) in enumerate(stages.items()):
        text.append(" ─► " if number else "", style="dim")
        text.append(stage if state == "moving" else f"{stage} {state}", style="" if state == "moving" else "yellow")
    return text


def _flow(flow: Flow) -> str:
    parts = [f"lag {_count(flow.lag)}"]
    if flow.capacity is not None:
        parts.append(f"queue {_count(flow.queued)}, in flight {_count(flow.in_flight)} of {_count(flow.capacity)}")
    if flow.oldest_s is not None:
        parts.append(f"oldest fragment {flow.oldest_s:.1f} s")
    if flow.starved is not None and flow.capacity is not None:
        parts.append(f"starved {flow.starved:.0%} of updates")
    return ", ".join([*parts, f"trained {_count(flow.trained)}", f"dropped {_count(flow.dropped)} transitions"])


def _integrity(integrity: Integrity) -> Text:
    text = Text(f"{_count(integrity.verified)} updates verified")
    troubles = {
        "mismatches": integrity.mismatches,
        "sync failures": integrity.failures,
        "retries": integrity.retries,
        "rollbacks": integrity.rollbacks,
        "steps skipped": integrity.skipped_steps,
        "restarts": integrity.restarts,
    }
    there = {name: count for name, count in troubles.items() if count}
    if not there:
        return text.append(", no faults")
    return text.append(", " + ", ".join(f"{count:,.0f} {name}" for name, count in there.items()), style="yellow")


def _checkpoints(integrity: Integrity) -> Text:
    text = Text(f"{integrity.checkpoints:,.0f} written in this driving")
    if integrity.checkpoint_age_s is not None:
        text.append(f", the last {_ago(integrity.checkpoint_age_s)}")
    if integrity.checkpoints_failed:
        text.append(f", {integrity.checkpoints_failed:,.0f} FAILED", style="bold red")
    return text


def _actors(figures: Figures, width: int) -> Table:
    states = ", ".join(f"{count:.0f} {state}" for state, count in figures.actors_by_state.items() if count)
    table = _table(f"actors: {states or UNKNOWN}, {_count(figures.wanted_actors)} wanted")
    names = ["actor", "steps/s", "environment", "policy", "waiting", "CPU", "memory", "version"]
    columns = _columns(names, width, least=2, middle=6)
    _add_columns(table, columns)
    shown = figures.actors[:MOST_ROWS]
    for row in shown:
        _add(table, _actor_cells(row), len(columns), row.silent)
    if len(shown) < len(figures.actors):
        table.add_row(Text(f"and {len(figures.actors) - len(shown)} more", style="dim"))
    return table


def _actor_cells(row: ActorRow) -> list[str]:
    shares = (row.environment, row.policy, row.waiting)
    return [
        row.name,
        _rate(row.steps_per_s),
        *(_share(share) for share in shares),
        _cores(row.cpu),
        _memory(row.memory_bytes),
        _count(row.version),
    ]


def _ranks(figures: Figures, width: int) -> Table:
    states = ", ".join(f"{count:.0f} {state}" for state, count in figures.ranks_by_state.items() if count)
    table = _table(f"learner ranks: {states or UNKNOWN}")
    has_gpu = any(row.gpu is not None for row in figures.ranks)
    names = ["rank", "updates/s", *PHASES, "waiting", "reduce", "CPU", "memory", *(["GPU"] if has_gpu else [])]
    columns = _columns(names, width, least=2, middle=7)
    _add_columns(table, columns)
    for row in figures.ranks:
        _add(table, _rank_cells(row), len(columns), row.silent)
        if row.misplaced:
            table.add_row(Text(f"{row.name} computes on another GPU than the one assigned to it", style="bold red"))
    return table


def _rank_cells(row: RankRow) -> list[str]:
    gpu = UNKNOWN if row.gpu is None else f"{row.gpu:.0%}"
    if row.gpu is not None and row.gpu_memory is not None:
        gpu += f", memory {row.gpu_memory:.0%}"
    return [
        row.name,
        _rate(row.updates_per_s),
        *(_share(row.phases.get(phase)) for phase in PHASES),
        _share(row.waiting),
        _share(row.reducing),
        _cores(row.cpu),
        _memory(row.memory_bytes),
        gpu,
    ]


def _events(recorded: Recorded) -> Iterable[Text]:
    yield Text("events", style="bold")
    for event in recorded.events:
        line = Text(f"{event.wall[TIME]}  ", style="dim", no_wrap=True, overflow="ellipsis")
        line.append(f"{event.kind:<20} ", style="not dim")
        facts = {key: value for key, value in event.data.items() if key != "detail" and value != ""}
        yield line.append("  ".join(f"{key}={brief(value)}" for key, value in facts.items()), style="not dim")


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")


def _columns(names: list[str], width: int, *, least: int, middle: int) -> list[str]:
    return names if width >= WIDE else names[: middle if width >= NARROW else least]


def _add_columns(table: Table, names: list[str]) -> None:
    """The first is the process's name, of which no letter goes."""
    table.add_column(names[0], no_wrap=True, min_width=NAME)
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)


def _add(table: Table, cells: list[str], count: int, silent: str) -> None:
    """A row; of a process that does not answer its name and why."""
    if silent:
        table.add_row(Text(cells[0], style="red"), Text(f"no answer: {silent}", style="red", overflow="ellipsis"))
    else:
        table.add_row(*cells[:count])


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _value(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.1f}"


def _rate(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _cores(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f} cores"


def _memory(value: float | None) -> str:
    return UNKNOWN if value is None else in_bytes(value)


def _host(ratio: float | None) -> str:
    return "" if ratio is None else f"; the fullest machine's memory is {ratio:.0%} used"


def _ago(seconds: float) -> str:
    return f"{seconds:.1f} s ago" if seconds < 10 else f"{duration(seconds)} ago"
