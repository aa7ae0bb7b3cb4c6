"""The page: sections put together, rendered, and written at once or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from common.clock import wall_label
from common.errors import ConfigError, OutputError
from deploy.compare import Comparison, compare
from deploy.outputs import open_registry
from deploy.reporting.account import integrity_section
from deploy.reporting.blocks import Page
from deploy.reporting.curves import learning_section, returns_section
from deploy.reporting.facts import RunFacts, read_facts
from deploy.reporting.headline import headings, tiles
from deploy.reporting.origins import environment_section, remake_section, timeline_section
from deploy.reporting.pace import lag_section, pace_section

TEMPLATE, STYLE, SCRIPT = "report.html.j2", "report.css", "report.js"
DEFAULT_NAME = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A report that is there.

    Attributes:
        path: of the file.
        runs: that are in it.
        num_bytes: its size.
    """

    path: Path
    runs: tuple[str, ...]
    num_bytes: int


def write_report(a: str, b: str = "", *, out: Path, out_b: Path | None = None, output: Path | None = None) -> Written:
    """Write the report of run `a` of `out`, beside run `b` of `out_b` (`out` by default) if there is one.

    Args:
        output: the file; None = `report.html`, or `report-with-B.html`, in the directory of run `a`.

    Raises:
        RunNotFoundError: one of them is not there.
        ConfigError: both are the same one.
        OutputError: the file cannot be written; there is no half of it.
    """
    other = out if out_b is None else out_b
    if b == a and other == out:
        raise ConfigError("a report of two runs", got=f"{a} twice", allowed="two runs, or one name")
    runs, comparison = _read(a, b, out, other)
    path = output or out / a / (f"report-with-{b}.html" if b else DEFAULT_NAME)
    html = render(compose(runs, comparison, made=wall_label())).encode("utf-8")
    write_whole(path, html)
    return Written(path=path, runs=tuple(run.name for run in runs), num_bytes=len(html))


def compose(runs: Sequence[RunFacts], comparison: Comparison | None, *, made: str) -> Page:
    """The page of one run or two; `made` says when."""
    names = " and ".join(run.name for run in runs)
    return Page(
        title=f"{names}: report of truestep",
        headings=headings(runs),
        tiles=tiles(runs),
        sections=(
            returns_section(runs),
            learning_section(runs),
            pace_section(runs),
            lag_section(runs),
            integrity_section(runs, comparison),
            timeline_section(runs),
            environment_section(runs, comparison),
            remake_section(runs),
        ),
        made=made,
    )


def render(page: Page) -> str:
    """The page as HTML, in which style and script stand: nothing else is ever fetched."""
    environment = Environment(
        loader=PackageLoader("deploy.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loader = environment.loader
    assert loader is not None
    style, script = (Markup(loader.get_source(environment, name)[0]) for name in (STYLE, SCRIPT))
    return environment.get_template(TEMPLATE).render(page=page, style=style, script=script)


def write_whole(path: Path, data: bytes) -> None:
    """Write beside and rename: whoever reads `path` finds the old file or the new one, whole. Raises OutputError."""
    beside = path.with_name(f".{path.name}-{token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise OutputError(
            "the report cannot be written",
            got=f"{path} ({error.strerror or error})",
            fix="choose another file with --output",
        ) from None


def _read(a: str, b: str, out: Path, out_b: Path) -> tuple[list[RunFacts], Comparison | None]:
    with open_registry(out) as first:
        if not b:
            return [read_facts(first, a, out=out)], None
        with open_registry(out_b) as second:
            runs = [read_facts(first, a, out=out), read_facts(second, b, out=out_b)]
            return runs, compare(first, a, second, b)
