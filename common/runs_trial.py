"""Whether a run registry can live in a directory: tried, with a database of two connections that is thrown away."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from common.errors import RegistryError

WAIT_S = 5.0


def try_directory(directory: Path) -> None:
    """Do there what a driver and a reader do: a write-ahead log, a durable write, and a reader beside the writer.

    Takes some milliseconds, and leaves nothing behind.

    Raises:
        RegistryError: SQLite cannot; says what it said.
        OSError: nothing can be written there.
    """
    with tempfile.TemporaryDirectory(prefix=".truestep-trial-", dir=directory) as made:
        file = Path(made) / "trial.sqlite"
        try:
            _try(file)
        except sqlite3.Error as error:
            raise _unfit(directory, str(error)) from error


def _try(file: Path) -> None:
    with closing(sqlite3.connect(file, timeout=WAIT_S, isolation_level=None)) as writer:
        mode = writer.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":  # SQLite says so, and goes on without
            raise _unfit(file.parent.parent, f"journal mode {mode!r} instead of 'wal'")
        writer.execute("PRAGMA synchronous = FULL")
        writer.execute("CREATE TABLE trial (number INTEGER)")
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=WAIT_S)) as reader:
            writer.execute("INSERT INTO trial VALUES (42)")
            seen = reader.execute("SELECT number FROM trial").fetchall()
        if seen != [(42,)]:
            raise _unfit(file.parent.parent, f"a second connection read {seen} where 42 had been written")


def _unfit(directory: Path, got: str) -> RegistryError:
    return RegistryError(
        f"no run registry can be kept in {directory}", got=got, fix="choose a directory on a local disk with --out"
    )
