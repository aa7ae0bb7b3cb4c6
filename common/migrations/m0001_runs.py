"""Runs, who drives them, and what they did. JSON columns hold the strict form of `common/plain_json`."""

from __future__ import annotations

STATEMENTS = (
    """
    CREATE TABLE runs (
        id               INTEGER PRIMARY KEY,
        run              TEXT NOT NULL UNIQUE,
        status           TEXT NOT NULL CHECK (status IN ('running', 'finished', 'failed', 'interrupted')),
        env              TEXT NOT NULL,
        algo             TEXT NOT NULL,
        seed             INTEGER NOT NULL,
        engine           TEXT NOT NULL,
        config           TEXT NOT NULL,
        facts            TEXT NOT NULL,
        out              TEXT NOT NULL,
        created_wall     TEXT NOT NULL,
        ended_wall       TEXT,
        wall_s           REAL NOT NULL DEFAULT 0,
        updates          INTEGER NOT NULL DEFAULT 0,
        env_steps        INTEGER NOT NULL DEFAULT 0,
        version          INTEGER NOT NULL DEFAULT 0,
        term             INTEGER NOT NULL DEFAULT 0,
        parameter_digest TEXT NOT NULL DEFAULT '',
        verdict          TEXT NOT NULL DEFAULT '',
        reserved_version INTEGER NOT NULL DEFAULT 0
    )
    """,
    """
    CREATE TABLE owners (
        run_id        INTEGER PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
        lease         TEXT NOT NULL,
        host          TEXT NOT NULL,
        boot_id       TEXT NOT NULL,
        pid_namespace TEXT NOT NULL,
        pid           INTEGER NOT NULL,
        start_ticks   INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE updates (
        run_id           INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        update_number    INTEGER NOT NULL,
        term             INTEGER NOT NULL,
        version          INTEGER NOT NULL,
        env_steps        INTEGER NOT NULL,
        parameter_digest TEXT NOT NULL,
        produced         INTEGER NOT NULL,
        trained          INTEGER NOT NULL,
        in_flight        INTEGER NOT NULL,
        dropped          TEXT NOT NULL,
        fragments_lost   INTEGER NOT NULL,
        lag              REAL,
        statistics       TEXT NOT NULL,
        PRIMARY KEY (run_id, update_number)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE evaluations (
        run_id        INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        update_number INTEGER NOT NULL,
        version       INTEGER NOT NULL,
        mean          REAL,
        std           REAL,
        minimum       REAL,
        maximum       REAL,
        episodes      INTEGER NOT NULL,
        returns       TEXT NOT NULL,
        PRIMARY KEY (run_id, update_number)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE events (
        run_id       INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        sequence     INTEGER NOT NULL,
        monotonic_ns INTEGER NOT NULL,
        clock_id     TEXT NOT NULL,
        wall         TEXT NOT NULL,
        kind         TEXT NOT NULL,
        data         TEXT NOT NULL,
        PRIMARY KEY (run_id, sequence)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE checkpoints (
        run_id        INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        name          TEXT NOT NULL,
        update_number INTEGER NOT NULL,
        digest        TEXT NOT NULL,
        best          INTEGER NOT NULL CHECK (best IN (0, 1)),
        PRIMARY KEY (run_id, name)
    ) WITHOUT ROWID
    """,
)
