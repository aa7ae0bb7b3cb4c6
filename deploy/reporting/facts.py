"""Everything that the record knows of a run, read once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.runs import CheckpointRecord, EvaluationRecord, RunRecord, RunRegistry
from deploy.report import run_report
from deploy.reporting.driving import Moment, moments
from deploy.reporting.history import History, history_of
from deploy.reporting.remake import Remake, remake_of
from deploy.sync_tally import SyncTally


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One run, as the report tells it.

    Attributes:
        record: its row in the registry.
        summary: what `truestep show --json` tells, without events.
        tally: what verified sync came to.
        history: its updates that stand, as columns.
        evaluations: by update.
        checkpoints: that are on record, by update.
        moments: its events with the seconds of driving at which they happened.
        remake: how to make it again.
        out: the output directory that it was read from.
    """

    record: RunRecord
    summary: dict[str, Any]
    tally: SyncTally
    history: History
    evaluations: tuple[EvaluationRecord, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    moments: tuple[Moment, ...]
    remake: Remake
    out: Path

    @property
    def name(self) -> str:
        """Of the run."""
        return self.record.run

    @property
    def status(self) -> str:
        """running, finished, failed, interrupted or died."""
        return str(self.summary["status"])

    @property
    def end_s(self) -> float:
        """Seconds of driving at the last thing that is on record."""
        timed = self.history.seconds[np.isfinite(self.history.seconds)]
        ends = [moment.seconds for moment in self.moments[-1:]] + timed[-1:].tolist()
        return max(ends, default=0.0)

    def steps_at(self, update: int) -> float:
        """Environment steps after an update."""
        return self._along(update, self.history.env_steps)

    def seconds_at(self, update: int) -> float:
        """Seconds of driving at an update; NaN if that is not on record."""
        return self._along(update, self.history.seconds)

    def _along(self, update: int, column: np.typing.NDArray[np.float64]) -> float:
        known = np.isfinite(column)
        if update == 0 or not known.any():
            return 0.0 if update == 0 else float("nan")
        return float(np.interp(update, self.history.update[known], column[known]))

    def fact(self, path: str) -> Any:
        """A fact of the machine or the code by its dotted path; None if it is not on record."""
        value: Any = self.record.facts
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value


def read_facts(registry: RunRegistry, run: str, *, out: Path) -> RunFacts:
    """Read a run of the registry of `out`. Raises RunNotFoundError, RegistryError."""
    record = registry.run(run)
    summary = run_report(registry, run)
    del summary["events"]
    return RunFacts(
        record=record,
        summary=summary,
        tally=SyncTally.of_run(registry, run),
        history=history_of(registry.updates(run)),
        evaluations=tuple(registry.evaluations(run)),
        checkpoints=tuple(registry.checkpoints(run)),
        moments=tuple(moments(registry.events(run))),
        remake=remake_of(record, out),
        out=out,
    )
