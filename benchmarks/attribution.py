"""Does stall attribution find what is wrong? Seven planted slow-downs and the healthy run, several times each.

    python -m benchmarks.attribution [--runs 5] [--cases CASE ...] [--seconds 12] [--record DIR]

Each run trains with engine ray for `--seconds` after its first judgement; its verdict is the last that came into
force, as the run's record has it. A healthy run counts as blamed if anything ever came into force. Prints what was
found of each run, the confusion matrix, and one last line `RESULT {json}`. `--record` keeps the last window of
snapshots of each case: tests/deploy/attribution/incidents holds some, which replay as unit tests.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import result_line, table
from benchmarks.stalls import CASES, Case, Hogs
from common.metrics import Stall
from deploy.attribution.attribution import VERDICT
from deploy.attribution.snapshot import Snapshot, to_plain
from deploy.attribution.verdict import Finding
from deploy.driver import StopFlag
from deploy.outputs import open_registry
from deploy.session import train

MOST_MISJUDGED = 1


@dataclass(slots=True, kw_only=True)
class Onlooker:
    """Watches one run, and ends it when it has seen enough.

    Attributes:
        seconds: of judgements.
        stop: asked then.
        hogs: started with the first.
        windows: what was judged, and what was found.
    """

    seconds: float
    stop: StopFlag
    hogs: Hogs
    windows: list[tuple[Sequence[Snapshot], Finding]] = field(default_factory=list)

    def __call__(self, window: Sequence[Snapshot], finding: Finding) -> None:
        """Shown a window."""
        self.hogs.start()
        self.windows.append((window, finding))
        if window[-1].at_s - self.windows[0][0][-1].at_s >= self.seconds:
            self.stop.ask("the benchmark has seen enough")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How one run was judged.

    Attributes:
        case: what was planted.
        verdict: the last in force; None if the run failed.
        history: those that came into force, in order.
        words: the last finding.
        window: the last that was judged.
    """

    case: Case
    verdict: Stall | None
    history: tuple[str, ...]
    words: str
    window: Sequence[Snapshot]

    @property
    def right(self) -> bool:
        """As planted; a healthy run must never have been blamed."""
        return self.verdict is self.case.verdict and (self.case.verdict is not Stall.HEALTHY or not self.history)


def run_case(case: Case, seed: int, *, seconds: float) -> Judged:
    """One run."""
    stop = StopFlag()
    with tempfile.TemporaryDirectory() as scratch, Hogs(case.hogs) as hogs:
        onlooker = Onlooker(seconds=seconds, stop=stop, hogs=hogs)
        out = Path(scratch)
        outcome = train(case.config(seed), out=out, stop=stop, drill=case.drill(out), onlooker=onlooker)
        with open_registry(out, create=False) as registry:
            events = [event.data for event in registry.events(outcome.run) if event.kind == VERDICT]
    if outcome.error is not None or not onlooker.windows:
        return Judged(case=case, verdict=None, history=(), words=outcome.verdict, window=())
    history = tuple(str(event["verdict"]) for event in events)
    window, finding = onlooker.windows[-1]
    verdict = Stall(history[-1]) if history else Stall.HEALTHY
    return Judged(case=case, verdict=verdict, history=history, words=finding.words, window=window)


def record(judged: Judged, directory: Path) -> None:
    """Keep the last window of a run, as an incident that can be judged again."""
    directory.mkdir(parents=True, exist_ok=True)
    incident = {
        "case": judged.case.name,
        "verdict": judged.case.verdict.value,
        "cores": os.cpu_count(),
        "snapshots": [to_plain(snapshot) for snapshot in judged.window],
    }
    path = directory / f"{judged.case.name.replace(' ', '_').lower()}.json"
    path.write_text(json.dumps(incident, separators=(",", ":")) + "\n", encoding="utf-8")


def confusion(runs: Sequence[Judged]) -> str:
    """A line for each case, a column for each verdict."""
    columns = [verdict for verdict in Stall if any(verdict in (each.verdict, each.case.verdict) for each in runs)]
    rows = []
    for case in dict.fromkeys(each.case.name for each in runs):
        counts = Counter(each.verdict for each in runs if each.case.name == case)
        failed = str(counts[None]) if counts[None] else "."
        rows.append([case, *(str(counts[verdict]) if counts[verdict] else "." for verdict in columns), failed])
    return table(["planted", *(verdict.value for verdict in columns), "failed"], rows)


def summary(runs: Sequence[Judged]) -> dict[str, Any]:
    """What is promised, in plain values: no healthy run is blamed, one other is misjudged at most."""
    healthy = [each for each in runs if each.case.verdict is Stall.HEALTHY]
    blamed = sum(not each.right for each in healthy)
    misjudged = sum(not each.right for each in runs if each.case.verdict is not Stall.HEALTHY)
    return {
        "runs": len(runs),
        "healthy_blamed": blamed,
        "misjudged": misjudged,
        "kept": blamed == 0 and misjudged <= MOST_MISJUDGED,
    }


def main() -> None:
    names = {case.name: case for case in CASES}
    parser = argparse.ArgumentParser(description="Planted slow-downs, and what stall attribution says of them.")
    parser.add_argument("--runs", type=int, default=5, help="of each case")
    parser.add_argument("--cases", nargs="+", choices=tuple(names), default=list(names), metavar="CASE")
    parser.add_argument("--seconds", type=float, default=12.0, help="of judgements in a run")
    parser.add_argument("--record", type=Path, help="directory for the last window of each case's first run")
    asked = parser.parse_args()
    if asked.runs < 1:
        parser.error(f"--runs: got {asked.runs}, allowed: 1 or more")
    runs = []
    for number in range(asked.runs):
        for name in asked.cases:
            judged = run_case(names[name], number, seconds=asked.seconds)
            runs.append(judged)
            found = "failed" if judged.verdict is None else judged.verdict.value
            print(f"{name}: {found} {list(judged.history)}  {judged.words}", file=sys.stderr, flush=True)
            if asked.record is not None and number == 0 and judged.window:
                record(judged, asked.record)
    print(confusion(runs))
    print(result_line({"benchmark": "attribution", **summary(runs)}))


if __name__ == "__main__":
    main()
