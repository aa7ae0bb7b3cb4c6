"""What both engines do around a learner rank: a join that may fail, answers as events, reports as metrics."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import CheckpointError, DeadlineError, RunFailedError, SyncError, UserError
from common.metrics import LearnerMetrics
from common.spans import Spans
from deploy.conductor.messages import Event, GroupJoined, JoinFailed, Update
from learner.rank import LearnerRank
from learner.reports import Formation, OrderStatus, Standing, UpdateOrder, UpdateReport
from learner.spans import update_spans

FATAL = (UserError, RunFailedError, CheckpointError)
"""Raised by a rank, these end the run: bad input, ranks that are not alike, a state that does not fit. A new process
would raise them again. Whatever else a rank raises costs it its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMet:
    """A rank did not meet the others; it is as it was, and can join again."""

    cause: str


def join(rank: LearnerRank, formation: Formation) -> Standing | NotMet:
    """Have `rank` join; the absence of others is a value. Raises RunFailedError where they are not alike."""
    try:
        return rank.join(formation)
    except (DeadlineError, SyncError) as error:
        return NotMet(cause=str(error))


def joined(answer: Standing | NotMet, *, formation: int, rank: int, lease: str) -> Event:
    """The event that a join came to."""
    if isinstance(answer, NotMet):
        return JoinFailed(formation=formation, rank=rank, lease=lease, cause=answer.cause)
    return GroupJoined(formation=formation, rank=rank, lease=lease, standing=answer)


def order_of(command: Update) -> UpdateOrder:
    """What every rank of the group is told of an update."""
    return UpdateOrder(
        update=command.update,
        term=command.term,
        publish_as=command.version,
        attempt=command.attempt,
        keys=command.keys,
        audit=command.audit,
    )


def send_spans(spans: Spans, rank: LearnerRank, report: UpdateReport, *, clock_id: str, published: bool) -> None:
    """What `rank` has to say of the order that it has just carried out. See `learner.spans.update_spans`."""
    spans.send(
        f"learner-{report.rank}",
        lambda identity: update_spans(identity, report, rank.timeline(), clock_id=clock_id, published=published),
    )


def observe(metrics: LearnerMetrics, report: UpdateReport) -> None:
    """Take an answer into the metrics of its process; what an order that changed nothing has cost counts too."""
    if report.status is not OrderStatus.MADE:
        metrics.observe_voided(report.sync)
        return
    refused: dict[str, int] = {}
    for verdict in report.verdicts:
        if verdict.refusal:
            refused[verdict.refusal] = refused.get(verdict.refusal, 0) + 1
    metrics.observe(
        seconds=report.seconds,
        statistics=report.statistics,
        learning_rate=report.learning_rate,
        lag=report.lag,
        version=report.version,
        rows=sum(verdict.num_valid for verdict in report.verdicts),
        steps=report.steps,
        skipped_steps=report.skipped_steps,
        gaps=report.gaps,
        refused=refused,
        layer_norms=report.layer_norms,
        sync=report.sync,
    )
