"""What a learner rank has to say of an order to a tracing system.

begun ── backup ── intake ── learn ── close ── publish ── ended
[                        update                               ]
...── transfer ──────────]
                              [   sync    ]
                                          [ publish ]
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from common.clock import NS_PER_S
from common.fragment import FragmentHeader
from common.spans import SpanIdentity, SpanName, SpanRecord, SpanRef
from learner.reporting import PHASES, Timeline
from learner.reports import OrderStatus, UpdateReport

BEFORE_INTAKE = "backup"  # the only phase of sync that is over before the fragments are looked at


def update_spans(
    identity: SpanIdentity, report: UpdateReport, timeline: Timeline, *, clock_id: str, published: bool
) -> Iterator[SpanRecord]:
    """One order on one rank: its update, and if it was made, sync, publish and the transfers of its share.

    Args:
        report, timeline: of the order.
        clock_id: of the timeline's readings.
        published: whether this rank made the weights document.
    """
    ref = identity.update(
        term=report.term,
        update=report.update,
        version=report.version,
        attempt=report.attempt,
        rank=report.rank,
    )
    links = tuple(_rollout(identity, header) for header in timeline.fragments)
    yield _update(ref, links, report, timeline)
    if report.status is not OrderStatus.MADE:
        return
    phases = dict(zip(PHASES, pairwise(timeline.marks_ns), strict=True))
    yield _sync(ref, report, not_before_ns=phases["learn"][0], end_ns=phases["close"][1])
    if published:
        yield _publish(ref, report, phases["publish"])
    for header, rollout in zip(timeline.fragments, links, strict=True):
        yield _transfer(rollout, ref, header, timeline, clock_id, end_ns=phases["intake"][1])


def _update(ref: SpanRef, links: tuple[SpanRef, ...], report: UpdateReport, timeline: Timeline) -> SpanRecord:
    """The whole order, from the moment that this rank took it up until it had its report."""
    failure = "" if report.status is OrderStatus.MADE else report.sync.failure or report.status.value
    return SpanRecord(
        name=SpanName.UPDATE,
        ref=ref,
        links=links,
        start_ns=timeline.begun_ns,
        end_ns=timeline.ended_ns,
        attributes={
            "truestep.rank": report.rank,
            "truestep.update": report.update,
            "truestep.term": report.term,
            "truestep.version": report.version,
            "truestep.attempt": report.attempt,
            "truestep.status": report.status.value,
            "truestep.valid": sum(verdict.num_valid for verdict in report.verdicts),
            "truestep.fragments": len(links),
            "truestep.refused": sum(bool(verdict.refusal) for verdict in report.verdicts),
            "truestep.lag": report.lag,
            "truestep.steps": report.steps,
            "truestep.skipped_steps": report.skipped_steps,
        },
        failure=failure,
    )


def _sync(ref: SpanRef, report: UpdateReport, *, not_before_ns: int, end_ns: int) -> SpanRecord:
    """As long as this rank spent on sync, in one piece that ends with the agreement on the state after the update.

    In truth it lies between the gradient steps; its phases are attributes. The backup, before intake, is left out.
    """
    seconds = report.sync.seconds
    spent_s = sum(value for phase, value in seconds.items() if phase != BEFORE_INTAKE)
    return SpanRecord(
        name=SpanName.SYNC,
        ref=ref.part(SpanName.SYNC),
        parent=ref,
        start_ns=max(not_before_ns, end_ns - round(spent_s * NS_PER_S)),
        end_ns=end_ns,
        attributes={f"truestep.sync.{phase}_seconds": value for phase, value in seconds.items()}
        | {
            "truestep.rank": report.rank,
            "truestep.sync.verified_steps": report.sync.verified_steps,
            "truestep.sync.reduced_bytes": report.sync.reduced_bytes,
            "truestep.sync.audited": report.sync.audited,
        },
    )


def _publish(ref: SpanRef, report: UpdateReport, interval_ns: tuple[int, int]) -> SpanRecord:
    """The weights become a document. Its way to the actors is the driver's, and their next rollout's version tells."""
    start_ns, end_ns = interval_ns
    return SpanRecord(
        name=SpanName.PUBLISH,
        ref=ref.part(SpanName.PUBLISH),
        parent=ref,
        start_ns=start_ns,
        end_ns=end_ns,
        attributes={"truestep.rank": report.rank, "truestep.version": report.version},
    )


def _transfer(
    rollout: SpanRef, update: SpanRef, header: FragmentHeader, timeline: Timeline, clock_id: str, *, end_ns: int
) -> SpanRecord:
    """From the last step of a fragment until its rank had decoded and checked it, with the rest of the rank's share.

    In between it was sealed, put into the object store, announced to the driver, waited for its update, and was fetched
    by the rank. Clocks of two hosts are not compared: of a fragment from another host the span shows the end of that
    way only, from the moment that the rank took up the order, with `truestep.transfer.other_host` true.
    """
    here = header.clock_id == clock_id
    return SpanRecord(
        name=SpanName.TRANSFER,
        ref=rollout.part(SpanName.TRANSFER),
        parent=rollout,
        links=(update,),
        start_ns=min(header.end_ns if here else timeline.begun_ns, end_ns),
        end_ns=end_ns,
        attributes={
            "truestep.actor": header.actor,
            "truestep.sequence": header.sequence,
            "truestep.transfer.other_host": not here,
        },
    )


def _rollout(identity: SpanIdentity, header: FragmentHeader) -> SpanRef:
    return identity.rollout(
        actor=header.actor,
        incarnation=header.incarnation,
        lease=header.lease,
        sequence=header.sequence,
        term=header.term,
        update=header.update,
    )
