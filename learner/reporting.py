"""What a rank says of an order: an attempt and a standing become a report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from common.clock import NS_PER_S
from common.fragment import FragmentHeader
from learner.algorithms.outcome import UpdateOutcome
from learner.intake import Accepted, Refused
from learner.parallel.group import Closed, Effort
from learner.reports import FragmentVerdict, OrderStatus, Standing, SyncReport, UpdateOrder, UpdateReport

PHASES = ("intake", "learn", "close", "publish")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An update up to the shared verdict.

    Attributes:
        judged: this rank's documents.
        outcome: of the algorithm.
        closed: the verdict of all ranks.
        effort: what it cost this rank.
        backup_ns: of that, remembering the update's start.
        state_digest: that all ranks agreed on, if they did.
        rate: learning rate.
        processing: what the normaliser says of its statistics.
        marks: readings of the clock (ns) at the beginning and after each of `PHASES` so far; later ones are added.
    """

    judged: list[Accepted | Refused]
    outcome: UpdateOutcome
    closed: Closed
    effort: Effort
    backup_ns: int
    state_digest: int
    rate: float
    processing: dict[str, float]
    marks: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When the latest order of a rank was carried out, in readings of its clock (ns); for this process's spans.

    Attributes:
        begun_ns, ended_ns: of the whole order, whatever became of it.
        marks_ns: the beginning and the end of each of `PHASES`; empty unless the update was made.
        fragments: headers of what was accepted of this rank's share, in the order given; likewise.
    """

    begun_ns: int
    ended_ns: int
    marks_ns: tuple[int, ...] = ()
    fragments: tuple[FragmentHeader, ...] = ()


def report_made(order: UpdateOrder, attempt: Attempt, standing: Standing) -> UpdateReport:
    """All ranks agreed; the rank stands at the next update."""
    outcome, marks = attempt.outcome, attempt.marks
    accepted = [judgement for judgement in attempt.judged if isinstance(judgement, Accepted)]
    means = dict(zip(outcome.parts, attempt.closed.extra.sum(0).tolist(), strict=True)) if outcome.statistics else {}
    return UpdateReport(
        rank=standing.rank,
        status=OrderStatus.MADE,
        attempt=order.attempt,
        update=order.update,
        term=order.term,
        version=order.publish_as,
        updates=standing.updates,
        state_digest=standing.state_digest,
        trained=outcome.committed > 0,
        verdicts=tuple(_verdict(judgement) for judgement in attempt.judged),
        steps=outcome.committed,
        skipped_steps=outcome.skipped,
        skipped_at=outcome.skipped_at,
        lag=max((verdict.lag for verdict in accepted), default=0),
        gaps=sum(judgement.gap for judgement in attempt.judged),
        parameter_digest=standing.parameter_digest,
        learning_rate=attempt.rate,
        layer_norms=outcome.layer_norms,
        statistics=means | outcome.statistics | attempt.processing,
        seconds={name: (b - a) / NS_PER_S for name, a, b in zip(PHASES, marks, marks[1:], strict=False)},
        sync=sync_of(attempt),
    )


def report_not_made(order: UpdateOrder, status: OrderStatus, standing: Standing, sync: SyncReport) -> UpdateReport:
    """The order changed nothing."""
    return UpdateReport(
        rank=standing.rank,
        status=status,
        attempt=order.attempt,
        update=order.update,
        term=order.term,
        version=order.publish_as,
        updates=standing.updates,
        state_digest=standing.state_digest,
        trained=False,
        verdicts=(),
        steps=0,
        skipped_steps=0,
        skipped_at="",
        lag=0,
        gaps=0,
        parameter_digest=standing.parameter_digest,
        learning_rate=0.0,
        sync=sync,
    )


def sync_of(attempt: Attempt) -> SyncReport:
    """What sync came to in an attempt that was closed."""
    closed, effort = attempt.closed, attempt.effort
    spent = {
        "reduce": effort.reduce_ns,
        "exchange": effort.exchange_ns,
        "verify": effort.verify_ns,
        "audit": effort.audit_ns,
        "backup": attempt.backup_ns,
    }
    return SyncReport(
        verified_steps=closed.verified_steps,
        disputes=() if closed.dispute is None else (closed.dispute,),
        attribution=closed.attribution,
        audited=closed.audited,
        reduced_bytes=effort.reduced_bytes,
        gradient_norm=float(np.mean(effort.norms)) if effort.norms else 0.0,
        seconds={phase: ns / NS_PER_S for phase, ns in spent.items()},
    )


def _verdict(judgement: Accepted | Refused) -> FragmentVerdict:
    if isinstance(judgement, Refused):
        return FragmentVerdict(refusal=judgement.reason.value, detail=judgement.detail, num_valid=0)
    return FragmentVerdict(refusal="", detail="", num_valid=judgement.fragment.header.num_valid)
