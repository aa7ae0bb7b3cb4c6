"""One SQLite file of ours: opened with care, migrated by numbered steps, written in transactions. Owns sqlite3.

    writer (one process) --BEGIN IMMEDIATE ... COMMIT--> file + WAL <--reads-- any number of readers, at any time

Every commit survives the death of the process. A `durable` one also survives a power cut (synchronous=FULL: the log is
synchronised at commit); the others may lose the last moments then, never consistency. The file must lie on a local file
system: SQLite's WAL does not work over NFS.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.errors import RegistryError, RunNotFoundError
from common.migrations import APPLICATION_ID, MIGRATIONS

BUSY_TIMEOUT_S = 10.0  # a writer's transaction lasts milliseconds; ten seconds means that something hangs
Row = Mapping[str, Any]


class Session:
    """What can be done inside `Database.reading` or `Database.transaction`; not to be kept beyond it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, *values: object) -> list[Row]:
        """All rows of a query, as mappings from column to value."""
        return [dict(row) for row in self._connection.execute(sql, values)]

    def one(self, sql: str, *values: object) -> Row | None:
        """The first row of a query, if there is one."""
        row = self._connection.execute(sql, values).fetchone()
        return None if row is None else dict(row)

    def change(self, sql: str, *values: object) -> int:
        """Run a statement that changes rows; returns how many."""
        return self._connection.execute(sql, values).rowcount

    def insert(self, table: str, row: Row, *, replace: bool = False) -> None:
        """Add a row; with `replace`, in place of one with the same key."""
        columns, places = ", ".join(row), ", ".join(f":{name}" for name in row)
        verb = "INSERT OR REPLACE" if replace else "INSERT"
        self._connection.execute(f"{verb} INTO {table} ({columns}) VALUES ({places})", dict(row))


class Database:
    """A file opened by `Database.open`; usable from several threads of one process, one transaction at a time."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
        self._connection = connection
        self.path = path
        self._read_only = read_only
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path, *, read_only: bool) -> Database:
        """Open, and unless `read_only` create or migrate, the file at `path`.

        Raises RunNotFoundError if a reader finds no file, RegistryError if the file is damaged, of another program, of
        a newer truestep (or, for a reader, of an older one), or locked for longer than `BUSY_TIMEOUT_S`.
        """
        if read_only and not path.is_file():
            raise RunNotFoundError(
                f"no run registry at {path}", fix="check the output directory; no run was made there"
            )
        with _reported(path, "opened"):
            connection = _connect(path, read_only=read_only)
            try:
                _identify(connection, path)
                _migrate(connection, path, MIGRATIONS, read_only=read_only)
                if not read_only:
                    _check_integrity(connection)
            except BaseException:
                connection.close()
                raise
        return cls(connection, path, read_only=read_only)

    def close(self) -> None:
        """Release the file; the last writer to close folds the log into it."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Queries. RegistryError if the file cannot be read."""
        with self._lock, _reported(self.path, "read"):
            yield Session(self._connection)

    @contextmanager
    def transaction(self, what: str, *, durable: bool = False) -> Iterator[Session]:
        """All of the block or nothing of it. `what` goes into the RegistryError if the file cannot be written."""
        if self._read_only:
            raise RegistryError(f"{what}: {self.path} was opened for reading only")
        with self._lock, _reported(self.path, f"written ({what})"):
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            with _begin_immediate(self._connection):
                yield Session(self._connection)


@contextmanager
def _reported(path: Path, doing: str) -> Iterator[None]:
    """Turn sqlite3's errors into ours."""
    try:
        yield
    except (sqlite3.Error, OSError, OverflowError) as error:
        text = str(error)
        fix = "see the SQLite documentation for that message"
        if "locked" in text:
            fix = f"another process has held the write lock for {BUSY_TIMEOUT_S:.0f} s: find and stop it"
        elif "malformed" in text or "not a database" in text:
            fix = "the file is damaged: restore it from a backup, or `sqlite3 FILE .recover` into a new one"
        elif "UNIQUE" in text:
            fix = "that row is recorded already; a resume truncates first"
        elif "full" in text:
            fix = "free space on that file system"
        raise RegistryError(f"run registry {path} could not be {doing}", got=text, fix=fix) from error


@contextmanager
def _begin_immediate(connection: sqlite3.Connection) -> Iterator[None]:
    """Take the write lock at once, so that a reader never has to be upgraded; commit, or roll back on any error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back on some errors, a full disk for one
            connection.execute("ROLLBACK")
        raise


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    if not read_only:
        path.parent.mkdir(parents=True, exist_ok=True)
    uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _identify(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a SQLite file of another program before anything is changed in it."""
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application_id != APPLICATION_ID and (application_id or tables):
        raise RegistryError(
            f"{path} is a SQLite file of another program",
            got=f"application id {application_id:#x} with {tables} tables",
            allowed=f"{APPLICATION_ID:#x}",
            fix="choose another output directory",
        )


def _migrate(
    connection: sqlite3.Connection, path: Path, migrations: Sequence[Sequence[str]], *, read_only: bool
) -> None:
    """Bring the schema to `len(migrations)`, one transaction per step."""
    _check_schema(connection, path, minimum=len(migrations) if read_only else 0, maximum=len(migrations))
    if read_only:
        return
    connection.execute("PRAGMA journal_mode = WAL")
    for number, statements in enumerate(migrations, start=1):
        with _begin_immediate(connection):
            # asked under the lock: another process may be migrating the same file
            if _check_schema(connection, path, minimum=0, maximum=len(migrations)) >= number:
                continue
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")


def _check_schema(connection: sqlite3.Connection, path: Path, *, minimum: int, maximum: int) -> int:
    schema = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if schema > maximum:
        raise RegistryError(
            f"run registry {path} is of a newer truestep",
            got=f"schema {schema}",
            allowed=f"up to {maximum}",
            fix="upgrade truestep",
        )
    if schema < minimum:
        raise RegistryError(
            f"run registry {path} is of an older truestep",
            got=f"schema {schema}",
            allowed=f"{minimum}",
            fix="any command that writes (train, resume) brings it up to date",
        )
    return schema


def _check_integrity(connection: sqlite3.Connection) -> None:
    """A driver must not build on a damaged file. About 0.3 s for 100 MB."""
    problems = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if problems != ["ok"]:
        raise sqlite3.DatabaseError(f"malformed: {'; '.join(problems)}")
