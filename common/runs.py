"""The run registry: what was run, by whom it is driven, and what it did; one SQLite file under the output directory.

    driver (one per run) --writes--> runs.sqlite <--reads-- any number of readers, at any time

Ownership. A run is driven by the holder of its lease. Every write to a run checks, in the same transaction, that no one
else holds it: a driver that was taken for dead and comes back cannot write. Liveness is asked of the kernel (pid, start
tick, boot), never of a clock.

Versions. `publish_version` hands out 1, 2, 3, ... from blocks of `VERSION_BLOCK` whose upper end is on disk first. A
driver that dies leaves a gap, and the next one goes on above it: versions only grow, at one disk write per block.

Durability. Versions, ownership, status, checkpoints, truncation and rollbacks are durable against a power cut at
commit; updates, evaluations and events against the death of the process (a resume from a checkpoint makes the last
moments good).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from common import clock as clocks
from common import run_records as records
from common import runs_ledger
from common import runs_statements as statements
from common.clock import Clock
from common.errors import ConfigError, RegistryError
from common.ledger import Ledger, LedgerFragment, LedgerTally
from common.process_identity import ProcessIdentity
from common.run_records import (
    CheckpointRecord,
    EvaluationRecord,
    EventRecord,
    Owner,
    RunRecord,
    RunStatus,
    UpdateRecord,
)
from common.runs_database import Database, Row, Session

__all__ = [
    "CheckpointRecord",
    "EvaluationRecord",
    "EventRecord",
    "Owner",
    "RunRecord",
    "RunRegistry",
    "RunStatus",
    "UpdateRecord",
]

VERSION_BLOCK = 1000
ROLLBACK_EVENT = "TRAINING_ROLLBACK"  # kind of the event that `RunRegistry.roll_back` records
STARVED = "starved"  # statistic of an update: 1 if the learner had nothing to do before it, in asynchronous collection


class RunRegistry:
    """Runs and what they did. Made by `open`; a context manager; usable from several threads of one process.

    Every method raises RegistryError when the file cannot be read or written, and RunNotFoundError for an unknown run.
    """

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.RLock()
        self._leases: dict[str, str] = {}
        self._versions: dict[str, tuple[int, int]] = {}  # next and end of the block in hand

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False, clock: Clock | None = None) -> RunRegistry:
        """Open, and unless `read_only` create or migrate, the registry at `path`; see `Database.open` for errors."""
        return cls(Database.open(path, read_only=read_only), clock=clock or clocks.MonotonicClock())

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    def close(self) -> None:
        """Release the file. Runs that this registry drives stay owned until `release` or `finish`."""
        self._database.close()

    def __enter__(self) -> RunRegistry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Runs

    def create_run(
        self,
        *,
        run: str,
        env: str,
        algo: str,
        seed: int,
        engine: str,
        config: Mapping[str, Any],
        facts: Mapping[str, Any],
        out: str,
    ) -> RunRecord:
        """Add a run with status `running`. Raises ConfigError if the name is taken or no directory name."""
        records.check_run_name(run)
        row = {
            "run": run,
            "env": env,
            "algo": algo,
            "seed": seed,
            "engine": engine,
            "config": records.json_text(dict(config), f"config of run {run!r}"),
            "facts": records.json_text(dict(facts), f"facts of run {run!r}"),
            "out": out,
            "status": "running",
            "created_wall": clocks.wall_label(),
        }
        with self._database.transaction(f"run {run!r} created", durable=True) as session:
            if session.one("SELECT 1 FROM runs WHERE run = ?", run) is not None:
                raise ConfigError(f"run {run!r} exists already in {self.path}", fix="resume it or choose another name")
            session.insert("runs", row)
        return self.run(run)

    def run(self, name: str) -> RunRecord:
        """One run by name. Raises RunNotFoundError naming the closest ones."""
        with self._database.reading() as session:
            row = session.one("SELECT * FROM runs WHERE id = ?", self._run_id(session, name))
            assert row is not None
            return records.run_from_row(row)

    def runs(self, limit: int = 50) -> list[RunRecord]:
        """The newest runs, newest first."""
        with self._database.reading() as session:
            rows = session.rows("SELECT * FROM runs ORDER BY id DESC LIMIT ?", limit)
        return [records.run_from_row(row) for row in rows]

    def unused_name(self, base: str, taken: Collection[str] = ()) -> str:
        """`base` made fit for a directory name, with -2, -3, ... if the registry or `taken` has it already."""
        with self._database.reading() as session:
            used = {row["run"] for row in session.rows("SELECT run FROM runs")}
        return records.unused_run_name(base, used | set(taken))

    def set_status(self, run: str, status: RunStatus, *, verdict: str = "", wall_s: float | None = None) -> None:
        """Change the status. `running` clears the end; any other status sets it."""
        with self._writing(run, f"status {status}", durable=True) as (session, run_id):
            statements.set_status(session, run_id, status, verdict, wall_s)

    def finish(self, run: str, status: RunStatus, *, verdict: str, wall_s: float) -> None:
        """The end of driving: status, verdict and time, and the lease is given back, all in one transaction."""
        with self._writing(run, f"end ({status})", durable=True) as (session, run_id):
            statements.set_status(session, run_id, status, verdict, wall_s)
            session.change("DELETE FROM owners WHERE run_id = ?", run_id)
        self._forget(run)

    # Ownership and versions

    def acquire(
        self, run: str, *, lease: str, process: ProcessIdentity | None = None, take_over: bool = False
    ) -> Owner | None:
        """Become the driver of `run`; returns the dead owner whose place was taken, if there was one.

        A dead owner (killed, machine rebooted, container restarted) is replaced and an event TAKEN_OVER recorded.
        Raises OutputError if the owner is alive, or on another host where that cannot be known; `take_over` overrides
        the latter only.
        """
        own = process or ProcessIdentity.current()
        with self._database.transaction(f"lease of run {run!r}", durable=True) as session:
            run_id = self._run_id(session, run)
            previous = statements.owner(session, run_id)
            if previous is not None:
                records.check_replaceable(run, previous, own, take_over=take_over)
                data = {"host": previous.process.host, "pid": previous.process.pid, "lease": previous.lease}
                self._insert_event(session, run_id, "TAKEN_OVER", data)
            fields = {name: getattr(own, name) for name in ProcessIdentity.__slots__}
            session.insert("owners", {"run_id": run_id, "lease": lease, **fields}, replace=True)
        self._forget(run)
        self._leases[run] = lease
        return previous

    def release(self, run: str) -> None:
        """Stop driving `run` and leave its status as it is."""
        with self._writing(run, "release", durable=True) as (session, run_id):
            session.change("DELETE FROM owners WHERE run_id = ?", run_id)
        self._forget(run)

    def owner(self, run: str) -> Owner | None:
        """Who drives `run`; None if nobody does. Whether it still lives: `owner.process.liveness(...)`."""
        with self._database.reading() as session:
            return statements.owner(session, self._run_id(session, run))

    def publish_version(self, run: str) -> int:
        """The next version of `run`, never handed out before, not even by a driver that was killed. Starts at 1."""
        with self._lock:
            version, end = self._versions.get(run, (0, 0))
            if version >= end:
                version, end = self._reserve_versions(run)
            self._versions[run] = (version + 1, end)
            return version

    # What a run did

    def record_updates(
        self,
        updates: Sequence[UpdateRecord],
        fragments: Sequence[LedgerFragment] = (),
        *,
        wall_s: float | None = None,
    ) -> None:
        """Add updates of one run in one transaction and bring the run's own row up to the last of them.

        Raises RegistryError if one is recorded already (a resume calls `truncate_after` first).

        Args:
            updates: in order; nothing is done without one.
            fragments: whose fate was decided since the last time; in the same transaction.
            wall_s: seconds of driving so far.
        """
        if not updates and fragments:
            raise ValueError("record_updates takes fragments with updates only; see record_fragments")
        if not updates:
            return
        last = updates[-1]
        if any(update.run != last.run for update in updates):
            raise ValueError("record_updates takes updates of one run at a time")
        rows = [records.update_to_row(update) for update in updates]
        with self._writing(last.run, f"updates {updates[0].update} to {last.update}") as (session, run_id):
            for row in rows:
                session.insert("updates", {"run_id": run_id, **row})
            runs_ledger.insert(session, run_id, fragments)
            statements.set_progress(session, run_id, rows[-1], wall_s)

    def record_fragments(self, run: str, fragments: Sequence[LedgerFragment]) -> None:
        """Add fragments whose fate was decided without an update being committed since."""
        with self._writing(run, f"{len(fragments)} fragments") as (session, run_id):
            runs_ledger.insert(session, run_id, fragments)

    def ledger(self, run: str) -> Ledger:
        """Every fragment of the run with its fate, and the updates that stand. RegistryError if a row is damaged."""
        with self._database.reading() as session:
            return runs_ledger.read(session, self._run_id(session, run))

    def ledger_tally(self, run: str) -> LedgerTally:
        """The ledger in numbers."""
        with self._database.reading() as session:
            return runs_ledger.tally(session, self._run_id(session, run))

    def updates(self, run: str, *, after: int = -1) -> list[UpdateRecord]:
        """Updates later than `after`, in order."""
        rows = self._rows_of("updates", run, "update_number > ? ORDER BY update_number", after)
        return [records.update_from_row(row, run) for row in rows]

    def verified_updates(self, run: str) -> int:
        """How many recorded updates have a state digest, that is: were agreed on by every rank that made them."""
        rows = self._rows_of("updates", run, "state_digest != ''", columns="count(*) AS verified")
        return int(rows[0]["verified"])

    def starved_updates(self, run: str) -> int:
        """Before how many recorded updates the learner had nothing to do: the sum of their statistic `STARVED`."""
        total = f"total(json_extract(statistics, '$.{STARVED}')) AS starved"
        rows = self._rows_of("updates", run, "true", columns=total)
        return int(rows[0]["starved"])

    def record_evaluation(self, evaluation: EvaluationRecord) -> None:
        """Add an evaluation; another one of the same update replaces it."""
        row = records.evaluation_to_row(evaluation)
        with self._writing(evaluation.run, f"evaluation at update {evaluation.update}") as (session, run_id):
            session.insert("evaluations", {"run_id": run_id, **row}, replace=True)

    def evaluations(self, run: str) -> list[EvaluationRecord]:
        """All evaluations, by update."""
        rows = self._rows_of("evaluations", run, "1 ORDER BY update_number")
        return [records.evaluation_from_row(row, run) for row in rows]

    def record_event(self, run: str, kind: str, data: Mapping[str, Any]) -> None:
        """Add an event, stamped with this registry's clock and a wall-clock label."""
        with self._writing(run, f"event {kind}") as (session, run_id):
            self._insert_event(session, run_id, kind, data)

    def events(self, run: str, *, after: int = 0) -> list[EventRecord]:
        """Events with a sequence above `after`, in order."""
        rows = self._rows_of("events", run, "sequence > ? ORDER BY sequence", after)
        return [records.event_from_row(row, run) for row in rows]

    def record_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Add a checkpoint; if it is the best, no other one is any more."""
        with self._writing(checkpoint.run, f"checkpoint {checkpoint.name}", durable=True) as (session, run_id):
            row = {"name": checkpoint.name, "update_number": int(checkpoint.update), "digest": checkpoint.digest}
            session.insert("checkpoints", {"run_id": run_id, **row, "best": 0}, replace=True)
            if checkpoint.best:
                statements.set_best(session, run_id, checkpoint.name)

    def mark_best(self, run: str, name: str) -> None:
        """Make the checkpoint `name` the best and no other. Raises RegistryError if it was never recorded."""
        with self._writing(run, f"best checkpoint {name}", durable=True) as (session, run_id):
            if not statements.set_best(session, run_id, name):
                raise RegistryError(f"run {run!r} has no checkpoint {name!r}", fix="record it first")

    def prune_checkpoints(self, run: str, present: Collection[str]) -> None:
        """Forget checkpoints that the store no longer has; `present` are the names it has."""
        with self._writing(run, "checkpoints pruned", durable=True) as (session, run_id):
            for row in session.rows("SELECT name FROM checkpoints WHERE run_id = ?", run_id):
                if row["name"] not in present:
                    session.change("DELETE FROM checkpoints WHERE run_id = ? AND name = ?", run_id, row["name"])

    def checkpoints(self, run: str) -> list[CheckpointRecord]:
        """Checkpoints recorded and not pruned, by update."""
        rows = self._rows_of("checkpoints", run, "1 ORDER BY update_number, length(name), name")
        return [records.checkpoint_from_row(row, run) for row in rows]

    def truncate_after(self, run: str, update: int, *, term: int | None = None) -> None:
        """Go on from `update`: what was recorded of later updates is removed and an event RESUMED tells how much.

        The run's own row goes back to `update`, except for its version and term, which only grow. Events stay. Of the
        ledger goes what was decided after the cut that the run goes on from.

        Args:
            term: of that cut; None = the one in which `update` was made.
        """
        with self._writing(run, f"truncation after update {update}", durable=True) as (session, run_id):
            fragments = runs_ledger.remove_after(session, run_id, update, term=term)
            removed = statements.remove_after(session, run_id, update)
            data = {"after_update": update, **removed, "fragments_removed": fragments}
            self._insert_event(session, run_id, "RESUMED", data)

    def roll_back(self, run: str, update: int, *, term: int, reason: str) -> None:
        """The learner goes back to `update` under `term`: what was recorded of later updates is removed.

        An event TRAINING_ROLLBACK tells from where to where, why, and how much was removed; version and term of the
        run's own row only grow. Events and fragments of the updates taken back stay: they happened.
        """
        with self._writing(run, f"rollback to update {update}", durable=True) as (session, run_id):
            row = session.one("SELECT updates FROM runs WHERE id = ?", run_id)
            assert row is not None
            removed = statements.remove_after(session, run_id, update, term=term)
            data = {"from_update": row["updates"], "to_update": update, "term": term, "reason": reason, **removed}
            self._insert_event(session, run_id, ROLLBACK_EVENT, data)

    # Inside

    @contextmanager
    def _writing(self, run: str, what: str, *, durable: bool = False) -> Iterator[tuple[Session, int]]:
        """A transaction on one run, refused if somebody else drives it."""
        with self._database.transaction(f"{what} of run {run!r}", durable=durable) as session:
            run_id = self._run_id(session, run)
            owner = statements.owner(session, run_id)
            if (owner.lease if owner else None) != self._leases.get(run):
                raise RegistryError(
                    f"{what} of run {run!r} was not written: this process does not drive it",
                    got=f"owner: {owner.process.describe() if owner else 'nobody'}",
                    fix="stop this process; the run was taken over, or never acquired here",
                )
            yield session, run_id

    def _run_id(self, session: Session, run: str) -> int:
        return statements.run_id_of(session, run, self.path)

    def _rows_of(self, table: str, run: str, condition: str, *values: object, columns: str = "*") -> list[Row]:
        with self._database.reading() as session:
            run_id = self._run_id(session, run)
            sql = f"SELECT {columns} FROM {table} WHERE run_id = ? AND {condition}"
            return session.rows(sql, run_id, *values)

    def _insert_event(self, session: Session, run_id: int, kind: str, data: Mapping[str, Any]) -> None:
        statements.insert_event(session, run_id, kind, data, self._clock)

    def _reserve_versions(self, run: str) -> tuple[int, int]:
        with self._writing(run, "versions", durable=True) as (session, run_id):
            row = session.one("SELECT max(version, reserved_version) AS last FROM runs WHERE id = ?", run_id)
            assert row is not None
            end = int(row["last"]) + VERSION_BLOCK
            session.change("UPDATE runs SET reserved_version = ? WHERE id = ?", end, run_id)
        return end - VERSION_BLOCK + 1, end + 1

    def _forget(self, run: str) -> None:
        """After a change of ownership nothing in hand is ours any more: another driver may have gone further."""
        self._leases.pop(run, None)
        self._versions.pop(run, None)
