"""What an update leaves behind once several ranks make it: the state they agreed on, and the run's chain of digests."""

from __future__ import annotations

STATEMENTS = (
    "ALTER TABLE runs ADD COLUMN chain TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE updates ADD COLUMN chain TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE updates ADD COLUMN state_digest TEXT NOT NULL DEFAULT ''",
)
