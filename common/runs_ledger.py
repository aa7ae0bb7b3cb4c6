"""The ledger in the run registry: how its rows are written, removed and read. Each is part of its caller's transaction.

A fragment takes about `BYTES_PER_FRAGMENT` bytes of the file: 5 KB for a million transitions in fragments of 256 x 32,
60 KB in fragments of 32 x 20.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from common.errors import RegistryError
from common.ledger import TRAINED, Ledger, LedgerFragment, LedgerTally, LedgerUpdate
from common.runs_database import Row, Session

BYTES_PER_FRAGMENT = 38  # as measured: eleven small integers, a digest of 8 bytes, and their share of the pages
UNDONE = "rolled_back"  # what has become of fragments trained in updates that do not stand any more
INTEGERS = (
    *("decided_in", "update_number", "actor", "incarnation", "sequence"),
    *("place", "term", "weights", "num_valid", "digest"),
)


def insert(session: Session, run_id: int, fragments: Sequence[LedgerFragment]) -> None:
    """Add fragments whose fate is decided. Numbers become Python's own: sqlite3 stores numpy scalars as blobs."""
    codes = _codes(session, {fragment.fate for fragment in fragments})
    for fragment in fragments:
        session.insert(
            "fragments",
            {
                "run_id": run_id,
                "decided_in": int(fragment.decided_in),
                "update_number": int(fragment.update),
                "actor": int(fragment.actor),
                "incarnation": int(fragment.incarnation),
                "sequence": int(fragment.sequence),
                "place": int(fragment.place),
                "term": int(fragment.term),
                "weights": int(fragment.weights),
                "num_valid": int(fragment.num_valid),
                "fate": codes[fragment.fate],
                "digest": _signed(int(fragment.digest)),
            },
            replace=fragment.place < 0,  # dropped behind a cut that it is part of, and again after a resume from there
        )


def remove_after(session: Session, run_id: int, update: int, *, term: int | None) -> int:
    """Remove what was decided after the cut behind `update`; returns how many rows.

    Args:
        term: of the cut; None = the one that `update` was made in. Rows of earlier terms stay, whatever their update:
            they moved environments before a rollback that lies before the cut.
    """
    if update == 0 and term is None:
        return session.change("DELETE FROM fragments WHERE run_id = ?", run_id)
    if term is None:
        row = session.one("SELECT term FROM updates WHERE run_id = ? AND update_number = ?", run_id, update)
        term = 0 if row is None else int(row["term"])
    return session.change(
        "DELETE FROM fragments WHERE run_id = ? AND decided_in >= ? AND (decided_in > ? OR update_number > ?)",
        run_id,
        term,
        term,
        update,
    )


def read(session: Session, run_id: int) -> Ledger:
    """The whole ledger, in the order of decisions. Of two decisions on one fragment, before and after a resume from a
    cut that it is part of, the later one. RegistryError if a row cannot have been written by `insert`.
    """
    fates = {row["code"]: row["fate"] for row in session.rows("SELECT code, fate FROM fates")}
    fragments = session.rows(
        "SELECT * FROM fragments WHERE run_id = ?"
        " ORDER BY decided_in, update_number, place, actor, incarnation, sequence",
        run_id,
    )
    updates = session.rows(
        "SELECT update_number, term, num_ranks FROM updates WHERE run_id = ? ORDER BY update_number", run_id
    )
    decided = {fragment.name: fragment for fragment in (_fragment(row, fates) for row in fragments)}
    return Ledger(
        fragments=tuple(decided.values()),
        updates=tuple(
            LedgerUpdate(update=row["update_number"], term=row["term"], num_ranks=row["num_ranks"]) for row in updates
        ),
    )


def tally(session: Session, run_id: int) -> LedgerTally:
    """How many fragments, by fate, and about how many bytes they take; counted by the database."""
    rows = session.rows(
        "SELECT CASE WHEN f.fate = 0 AND u.term IS NOT f.decided_in THEN ? ELSE fates.fate END AS fate,"
        " count(*) AS number FROM fragments AS f JOIN fates ON fates.code = f.fate"
        " LEFT JOIN updates AS u ON u.run_id = f.run_id AND u.update_number = f.update_number"
        " WHERE f.run_id = ? GROUP BY 1 ORDER BY 1",
        UNDONE,
        run_id,
    )
    by_fate = {row["fate"]: row["number"] for row in rows}
    made = sum(by_fate.values())
    return LedgerTally(
        made=made,
        trained=by_fate.pop(TRAINED, 0),
        dropped=by_fate,
        num_bytes=made * BYTES_PER_FRAGMENT,
    )


def _codes(session: Session, fates: Collection[str]) -> dict[str, int]:
    """The number of each fate; a new word gets the next one."""
    codes = {row["fate"]: row["code"] for row in session.rows("SELECT code, fate FROM fates")}
    for fate in sorted(set(fates) - codes.keys()):
        codes[fate] = 1 + max(codes.values())
        session.insert("fates", {"code": codes[fate], "fate": fate})
    return codes


def _fragment(row: Row, fates: Mapping[int, str]) -> LedgerFragment:
    for name in INTEGERS:
        value = row[name]
        least = {"place": -1, "weights": -1, "digest": -(2**63)}.get(name, 0)
        if not isinstance(value, int) or value < least:
            raise _damaged(row, name, allowed=f"an integer of {least} or more")
    if row["fate"] not in fates:
        raise _damaged(row, "fate", allowed=f"one of the codes {sorted(fates)}")
    return LedgerFragment(
        actor=row["actor"],
        incarnation=row["incarnation"],
        sequence=row["sequence"],
        term=row["term"],
        weights=row["weights"],
        num_valid=row["num_valid"],
        digest=row["digest"] % 2**64,
        decided_in=row["decided_in"],
        update=row["update_number"],
        place=row["place"],
        fate=fates[row["fate"]],
    )


def _damaged(row: Row, name: str, *, allowed: str) -> RegistryError:
    place = f"fragment {row['sequence']!r} of actor {row['actor']!r}, incarnation {row['incarnation']!r}"
    return RegistryError(
        f"the ledger is damaged: {name} of {place}",
        got=repr(row[name]),
        allowed=allowed,
        fix="restore the registry from a backup; the run can go on, but not be made again",
    )


def _signed(digest: int) -> int:
    """SQLite's integers are signed: the upper half of the unsigned ones is stored as the negative ones."""
    return digest - 2**64 if digest >= 2**63 else digest
