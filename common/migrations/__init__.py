"""The schema of the run registry, as numbered steps that are only ever appended.

Step n brings a file from `user_version` n-1 to n, in one transaction. A released step is never edited: files that have
taken it exist. No SQL here depends on a feature younger than SQLite 3.24.
"""

from __future__ import annotations

from common.migrations.m0001_runs import STATEMENTS as M0001
from common.migrations.m0002_sync import STATEMENTS as M0002
from common.migrations.m0003_ledger import STATEMENTS as M0003

APPLICATION_ID = 0x54525354  # "TRST": tells our file from another program's

MIGRATIONS: tuple[tuple[str, ...], ...] = (M0001, M0002, M0003)
