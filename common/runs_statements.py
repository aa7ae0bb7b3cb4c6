"""Statements on one run that several operations of the registry share; each is part of its caller's transaction."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import clock as clocks
from common import run_records as records
from common.clock import Clock
from common.errors import RunNotFoundError
from common.run_records import Owner, RunStatus
from common.runs_database import Row, Session

_BY_UPDATE = ("updates", "evaluations", "checkpoints")  # what a run recorded of each update
_NOTHING_DONE: Row = {
    "update_number": 0,
    "version": 0,
    "term": 0,
    "env_steps": 0,
    "parameter_digest": "",
    "chain": "",
}


def run_id_of(session: Session, run: str, path: Path) -> int:
    """The key of a run in the registry at `path`. Raises RunNotFoundError naming the closest ones."""
    row = session.one("SELECT id FROM runs WHERE run = ?", run)
    if row is not None:
        return int(row["id"])
    names = [row["run"] for row in session.rows("SELECT run FROM runs ORDER BY id DESC")]
    close = difflib.get_close_matches(run, names, n=3, cutoff=0.5)
    known = f"closest of {len(names)}: {', '.join(close)}" if close else f"{len(names)} runs, none alike"
    raise RunNotFoundError(f"no run of that name in {path}", got=repr(run), allowed=known)


def insert_event(session: Session, run_id: int, kind: str, data: Mapping[str, Any], clock: Clock) -> None:
    """Add an event behind the last one, stamped by `clock`."""
    last = session.one("SELECT max(sequence) AS sequence FROM events WHERE run_id = ?", run_id)
    row = {
        "run_id": run_id,
        "sequence": 1 + ((last and last["sequence"]) or 0),
        "monotonic_ns": clock.now_ns(),
        "clock_id": clock.clock_id,
        "wall": clocks.wall_label(),
        "kind": kind,
        "data": records.json_text(dict(data), f"data of event {kind}"),
    }
    session.insert("events", row)


def owner(session: Session, run_id: int) -> Owner | None:
    """Who drives the run."""
    row = session.one("SELECT * FROM owners WHERE run_id = ?", run_id)
    return None if row is None else records.owner_from_row(row)


def set_status(session: Session, run_id: int, status: RunStatus, verdict: str, wall_s: float | None) -> None:
    """Change the status; `running` clears the end, any other one sets it. `wall_s` None keeps the time."""
    session.change(
        "UPDATE runs SET status = ?, verdict = ?, ended_wall = ?, wall_s = coalesce(?, wall_s) WHERE id = ?",
        status,
        verdict,
        None if status == "running" else clocks.wall_label(),
        wall_s,
        run_id,
    )


def set_progress(session: Session, run_id: int, row: Row, wall_s: float | None) -> None:
    """Bring a run's own row to a row of `updates`; version and term only grow."""
    session.change(
        "UPDATE runs SET updates = ?, env_steps = ?, version = max(version, ?), term = max(term, ?),"
        " parameter_digest = ?, chain = ?, wall_s = coalesce(?, wall_s) WHERE id = ?",
        row["update_number"],
        row["env_steps"],
        row["version"],
        row["term"],
        row["parameter_digest"],
        row["chain"],
        wall_s,
        run_id,
    )


def remove_after(session: Session, run_id: int, update: int, *, term: int = 0) -> dict[str, int]:
    """Remove what was recorded of updates later than `update`; the run's own row goes back to the last one left.

    Version and term of that row only grow: the term to `term` at least. Events stay. Returns how many rows were
    removed of each table, as `<table>_removed`.
    """
    removed = {
        f"{table}_removed": session.change(
            f"DELETE FROM {table} WHERE run_id = ? AND update_number > ?", run_id, update
        )
        for table in _BY_UPDATE
    }
    last = session.one("SELECT * FROM updates WHERE run_id = ? ORDER BY update_number DESC", run_id)
    stands_at = dict(last or _NOTHING_DONE)
    set_progress(session, run_id, stands_at | {"term": max(stands_at["term"], term)}, None)
    return removed


def set_best(session: Session, run_id: int, name: str) -> bool:
    """Make one checkpoint the best and no other. True if there is a checkpoint of that name."""
    session.change("UPDATE checkpoints SET best = (name = ?) WHERE run_id = ?", name, run_id)
    return session.one("SELECT 1 FROM checkpoints WHERE run_id = ? AND name = ?", run_id, name) is not None
