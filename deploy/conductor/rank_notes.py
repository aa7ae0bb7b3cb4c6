"""Facts about the ranks, as notes for the run record: plain values only, ranks as text where they are keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from deploy.conductor.messages import Note, RankLost
from deploy.conductor.orders import Order
from deploy.conductor.ranks import RankSeat
from learner.reports import Attribution, Dispute, Fault, OrderStatus

REDUCE = "reduce"  # phase of a report's sync: waiting for the others


def mismatch(order: Order) -> Note:
    """The ranks disagree: about what, and where."""
    disputes = next((r.sync.disputes for r in order.reports.values() if r.sync.disputes), ()) or (diverged(order),)
    data = {"update": order.update, "attempt": order.told.attempt, "disputes": [_plain(each) for each in disputes]}
    return Note(kind="SYNC_MISMATCH", data=data)


def diverged(order: Order) -> Dispute:
    """Ranks closed the same update with different states, and none of them noticed."""
    digests = {rank: order.reports[rank].state_digest for rank in order.made_by}
    return Dispute(fault=Fault.PARAMETERS, step=-1, bucket=-1, chunks=(), parameters=(), digests=digests)


def _plain(dispute: Dispute) -> dict[str, Any]:
    digests = {str(rank): digest for rank, digest in dispute.digests.items()}
    plain = asdict(dispute) | {"fault": dispute.fault.value, "digests": digests}
    return plain | {"chunks": list(dispute.chunks), "parameters": list(dispute.parameters)}


def attributed(order: Order, attribution: Attribution) -> Note:
    """Who was wrong in a dispute, if that can be said."""
    dispute = _plain(attribution.dispute)
    where = {name: dispute[name] for name in ("fault", "step", "bucket", "chunks", "parameters")}
    data = {
        "update": order.update,
        "attempt": order.told.attempt,
        "ranks": list(attribution.ranks) or "unattributed",
        "sha256": {str(chunk): digest for chunk, digest in attribution.sha256.items()},
    }
    return Note(kind="SYNC_ATTRIBUTED", data=data | where)


def failed(order: Order) -> Note:
    """A collective failed: what each rank that noticed said."""
    failures = {
        str(rank): report.sync.failure or report.status.value
        for rank, report in sorted(order.reports.items())
        if report.status is not OrderStatus.MADE
    }
    data = {"update": order.update, "attempt": order.told.attempt, "failures": failures}
    return Note(kind="SYNC_FAILED", data=data | {"lost": sorted(order.lost)})


def join_failed(formation: int, update: int, causes: dict[int, str]) -> Note:
    """Ranks did not meet."""
    failures = {str(rank): cause for rank, cause in sorted(causes.items())}
    return Note(kind="SYNC_FAILED", data={"update": update, "formation": formation, "failures": failures})


def lost(seat: RankSeat, event: RankLost) -> Note:
    """A rank's process is gone."""
    data = {"rank": seat.rank, "cause": event.cause, "detail": event.detail, "restarts": seat.restarts}
    return Note(kind="RANK_LOST", data=data)


def quarantined(seat: RankSeat) -> Note:
    """A rank was wrong too often."""
    return Note(kind="RANK_QUARANTINED", data={"rank": seat.rank, "blamed": seat.blamed})


def formed(formation: int, ranks: tuple[int, ...], *, lost_updates: int) -> Note:
    """The ranks go on together, after a recovery."""
    data = {"formation": formation, "ranks": list(ranks), "lost_updates": lost_updates}
    return Note(kind="GROUP_FORMED", data=data)


def slowest(order: Order, *, above_s: float) -> Note | None:
    """The rank for which the others waited more than `above_s`: the one that waited least for them."""
    waited = {rank: report.sync.seconds.get(REDUCE, 0.0) for rank, report in order.reports.items()}
    if len(waited) < 2 or (difference := max(waited.values()) - min(waited.values())) <= above_s:
        return None
    rank = min(waited, key=lambda each: (waited[each], each))
    return Note(kind="RANK_SLOW", data={"rank": rank, "waited_s": round(difference, 1), "update": order.update})
