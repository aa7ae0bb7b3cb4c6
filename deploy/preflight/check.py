"""One check and its outcome; how many of them read as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table

from common.errors import UserError

UNFOLDED = 10_000  # columns: no cell is broken over lines, so that what it says can be searched for


class Outcome(StrEnum):
    """Of a check."""

    OK = "ok"
    WARNING = "warning"
    SHORT = "short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Something that a run needs.

    Attributes:
        where: a node, "this machine" or "cluster".
        what: that is needed.
        found: what there is.
        needed: what there should be.
        outcome: how the two compare.
        fix: what to do where they do not fit.
    """

    where: str
    what: str
    found: str
    needed: str
    outcome: Outcome
    fix: str = ""

    def to_plain(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "outcome": self.outcome.value}


class PreflightError(UserError):
    """The run cannot be carried out with what there is. Exit code 2: nothing of it was started."""


def judged(
    where: str, what: str, *, found: object, needed: object, fits: bool, fix: str, otherwise: Outcome = Outcome.SHORT
) -> Check:
    """A check that is OK if it `fits`, else `otherwise`."""
    outcome = Outcome.OK if fits else otherwise
    return Check(where=where, what=what, found=str(found), needed=str(needed), outcome=outcome, fix="" if fits else fix)


def table(checks: Sequence[Check]) -> str:
    """As text, a row each; the column of remedies only where there is one."""
    fixes = any(check.fix for check in checks)
    drawn = Table(*("where", "check", "there is", "needed", ""), *(["what to do"] if fixes else []), box=None)
    drawn.pad_edge = False
    for check in checks:
        row = (check.where, check.what, check.found, check.needed, check.outcome.value)
        drawn.add_row(*row, *([check.fix] if fixes else []))
    text = StringIO()
    Console(file=text, width=UNFOLDED, color_system=None, highlight=False, markup=False).print(drawn)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def enforce(checks: Iterable[Check], tell: Callable[[str], None]) -> None:
    """Tell the warnings, a line each, and refuse if anything is short.

    Raises:
        PreflightError: with the table of all that is short.
    """
    checks = list(checks)
    for check in checks:
        if check.outcome is Outcome.WARNING:
            wanted = f", better {check.needed}" if check.needed else ""
            tell(f"WARNING: {check.what} of {check.where}: {check.found}{wanted}; {check.fix}")
    if short := [check for check in checks if check.outcome is Outcome.SHORT]:
        count = f"{len(short)} shortfall{'s' if len(short) > 1 else ''}"
        raise PreflightError(f"preflight found {count}, and nothing was started\n{table(short)}")
