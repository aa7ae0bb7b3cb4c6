"""The ledger: every fragment of a run with its fate, and how many ranks made each update.

Fates are words of a set that may grow, so each is written once and named by a number; everything else is an integer.
Rows are decided in ascending order of term and update, which is the order of their key: a file grows at its end.
"""

from __future__ import annotations

STATEMENTS = (
    "ALTER TABLE updates ADD COLUMN num_ranks INTEGER NOT NULL DEFAULT 0",
    """
    CREATE TABLE fates (
        code INTEGER PRIMARY KEY,
        fate TEXT NOT NULL UNIQUE
    )
    """,
    "INSERT INTO fates VALUES (0, 'trained')",
    """
    CREATE TABLE fragments (
        run_id        INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        decided_in    INTEGER NOT NULL,
        update_number INTEGER NOT NULL,
        actor         INTEGER NOT NULL,
        incarnation   INTEGER NOT NULL,
        sequence      INTEGER NOT NULL,
        place         INTEGER NOT NULL,
        term          INTEGER NOT NULL,
        weights       INTEGER NOT NULL,
        num_valid     INTEGER NOT NULL,
        fate          INTEGER NOT NULL REFERENCES fates (code),
        digest        INTEGER NOT NULL,
        PRIMARY KEY (run_id, decided_in, update_number, actor, incarnation, sequence)
    ) WITHOUT ROWID
    """,
)
