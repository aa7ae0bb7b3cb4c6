"""The alerts: a query, a limit, how long it must hold, and what the person who is woken up reads.

Limits are those of a run with the defaults of truestep; each has its reason beside it. Every alert has a page in
deploy/runbooks/ that bears its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from deploy.prometheus.queries import actors, integrity, learner, overview, stability
from deploy.prometheus.queries.query import Query

PREFIX = "Truestep"
RUNBOOKS_URL = "/public/runbooks"  # where Grafana serves deploy/runbooks, see deploy/docker/compose.yaml


class Severity(StrEnum):
    """How soon somebody should look."""

    CRITICAL = "critical"  # now: the run stands still, or its result is in doubt
    WARNING = "warning"  # today: it goes on, at a loss
    INFO = "info"  # when there is time: it is sound, and could be faster


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. In texts, `{{ $value }}` is what the query gives and `{{ $labels.x }}` a label of it.

    Attributes:
        topic: its name without the prefix that all have.
        query: what is watched.
        above: it fires while the query gives more than this.
        window: range of the query's rates; "" if it has none.
        hold: how long the limit must be passed before it fires; "0s" at once.
        severity: how soon somebody should look.
        summary: one line with the figure.
        description: what it means and what to look at first.
    """

    topic: str
    query: Query
    above: float
    window: str = ""
    hold: str
    severity: Severity
    summary: str
    description: str

    @property
    def name(self) -> str:
        """As Prometheus shows it."""
        return f"{PREFIX}{self.topic}"

    @property
    def runbook_url(self) -> str:
        """Its page, as an address within Grafana."""
        return f"{RUNBOOKS_URL}/{self.name}.md"

    @property
    def watched(self) -> str:
        """The query of every run, without the limit."""
        return self.query.asked(window=self.window)

    @property
    def expression(self) -> str:
        """What Prometheus evaluates."""
        watched = self.watched
        return (
            f"({watched}) > {self.above:g}" if " - " in watched or " / " in watched else f"{watched} > {self.above:g}"
        )


ALERTS = (
    Alert(
        topic="NoProgress",
        query=overview.COMMIT_AGE,
        above=300,  # updates take seconds; starting takes up to deadlines.start_s, 180 s
        hold="1m",
        severity=Severity.CRITICAL,
        summary="{{ $labels.run }}: no update for {{ $value | humanizeDuration }}",
        description=(
            "The newest update of run {{ $labels.run }} was committed {{ $value | humanizeDuration }} ago. "
            "`truestep show {{ $labels.run }}` tells what happened last."
        ),
    ),
    Alert(
        topic="Stalled",
        query=overview.STALL_FAULTS,
        above=0,
        hold="5m",  # a checkpoint or an evaluation is over by then
        severity=Severity.WARNING,
        summary="{{ $labels.run }}: {{ $labels.verdict }}",
        description=(
            "For 5 minutes the driver of run {{ $labels.run }} has judged it to be {{ $labels.verdict }}: something "
            "outside the algorithm holds it up. The verdict's figures are among the events of the run."
        ),
    ),
    Alert(
        topic="Unbalanced",
        query=overview.STALL_BALANCE,
        above=0,
        hold="30m",  # one side is always the slower one for a while
        severity=Severity.INFO,
        summary="{{ $labels.run }}: {{ $labels.verdict }}",
        description=(
            "For 30 minutes run {{ $labels.run }} has been {{ $labels.verdict }}: one half of it waits for the other. "
            "It is sound; with another number of actors, or another flow, it would be faster."
        ),
    ),
    Alert(
        topic="ActorChurn",
        query=actors.RESTARTS,
        above=3,  # a node that goes takes a few actors with it once
        window="15m",
        hold="0s",
        severity=Severity.WARNING,
        summary="{{ $labels.run }}: {{ $value | humanize }} actors lost in 15 minutes",
        description=(
            "Run {{ $labels.run }} has lost and replaced {{ $value | humanize }} actors within 15 minutes. An actor "
            "that is lost too often is given up (`actors.max_restarts`)."
        ),
    ),
    Alert(
        topic="ActorsMissing",
        query=overview.ACTORS_MISSING,
        above=0,
        hold="5m",  # deadlines.start_s is 180 s
        severity=Severity.WARNING,
        summary="{{ $labels.run }}: {{ $value | humanize }} actors are missing",
        description=(
            "For 5 minutes run {{ $labels.run }} has had {{ $value | humanize }} actors less than it should have: they "
            "were given up, or there is no place for them."
        ),
    ),
    Alert(
        topic="LagHigh",
        query=learner.LAG_P99,
        above=12,  # three quarters of flow.max_lag, which is 16 by default
        window="5m",
        hold="5m",
        severity=Severity.WARNING,
        summary="{{ $labels.run }}: fragments are {{ $value | humanize }} updates old",
        description=(
            "One of 100 fragments that run {{ $labels.run }} trains on is older than {{ $value | humanize }} updates. "
            "Beyond `flow.max_lag` they are dropped."
        ),
    ),
    Alert(
        topic="DataDropped",
        query=integrity.DROPPED_SHARE,
        above=0.05,
        window="10m",
        hold="5m",
        severity=Severity.WARNING,
        summary="{{ $labels.run }}: {{ $value | humanizePercentage }} of what is collected is dropped",
        description=(
            "Run {{ $labels.run }} has dropped {{ $value | humanizePercentage }} of the transitions of the last 10 "
            "minutes. The panel of dropped transitions has the reasons."
        ),
    ),
    Alert(
        topic="DataDamaged",
        query=integrity.DAMAGED,
        above=0,
        window="15m",
        hold="0s",
        severity=Severity.CRITICAL,
        summary="{{ $labels.run }}: fragments arrived damaged ({{ $labels.reason }})",
        description=(
            "{{ $value | humanize }} transitions of run {{ $labels.run }} came in fragments that are "
            "{{ $labels.reason }}. They were refused; memory or a network card on the way may be at fault."
        ),
    ),
    Alert(
        topic="SyncMismatch",
        query=integrity.MISMATCHES,
        above=0,
        window="15m",
        hold="0s",
        severity=Severity.CRITICAL,
        summary="{{ $labels.run }}: learner ranks disagreed ({{ $labels.cause }})",
        description=(
            "Ranks of run {{ $labels.run }} disagreed {{ $value | humanize }} times within 15 minutes about "
            "{{ $labels.cause }}. The updates were made again; the events name rank, bucket and parameter."
        ),
    ),
    Alert(
        topic="Rollback",
        query=stability.ROLLBACKS,
        above=0,
        window="15m",
        hold="0s",
        severity=Severity.CRITICAL,
        summary="{{ $labels.run }}: rolled back",
        description=(
            "Run {{ $labels.run }} went back to an earlier update {{ $value | humanize }} times within 15 minutes, "
            "because an update could not be verified or its ranks were lost."
        ),
    ),
    Alert(
        topic="CheckpointFailing",
        query=stability.CHECKPOINTS_FAILED,
        above=0,
        window="30m",
        hold="0s",
        severity=Severity.CRITICAL,
        summary="{{ $labels.run }}: {{ $value | humanize }} checkpoints could not be written",
        description=(
            "Within 30 minutes {{ $value | humanize }} checkpoints of run {{ $labels.run }} could not be written. "
            "Earlier ones are untouched and the run goes on; what it learns from now on would be lost in a crash."
        ),
    ),
    Alert(
        topic="NanSkips",
        query=learner.SKIPPED_STEPS,
        above=0,
        window="10m",
        hold="0s",
        severity=Severity.WARNING,
        summary="{{ $labels.run }}: {{ $value | humanize }} gradient steps were not finite",
        description=(
            "Run {{ $labels.run }} skipped {{ $value | humanize }} gradient steps within 10 minutes, because their "
            "gradient was not finite. Three updates in a row without a committed step end the run."
        ),
    ),
    Alert(
        topic="MemoryHigh",
        query=stability.HOST_MEMORY,
        above=0.85,
        hold="1m",
        severity=Severity.WARNING,
        summary="{{ $labels.run }}: a host's memory is {{ $value | humanizePercentage }} full",
        description=(
            "A host of run {{ $labels.run }} uses {{ $value | humanizePercentage }} of its memory. Near 100 % the "
            "kernel ends processes, and Ray ends actors before that."
        ),
    ),
    Alert(
        topic="ObjectStoreFull",
        query=stability.OBJECT_STORE,
        above=0.9,
        hold="1m",
        severity=Severity.WARNING,
        summary="{{ $labels.run }}: the object store is {{ $value | humanizePercentage }} full",
        description=(
            "Ray's object store holds {{ $value | humanizePercentage }} of what it can in run {{ $labels.run }}. What "
            "does not fit is spilled to disk, and fragments wait for it."
        ),
    ),
    Alert(
        topic="GpuMemoryHigh",
        query=learner.GPU_MEMORY_SHARE,
        above=0.92,
        hold="1m",
        severity=Severity.WARNING,
        summary="{{ $labels.instance }}: GPU memory is {{ $value | humanizePercentage }} full",
        description=(
            "The GPU of {{ $labels.instance }} in run {{ $labels.run }} has {{ $value | humanizePercentage }} of its "
            "memory in use. The next larger minibatch may not fit."
        ),
    ),
    Alert(
        topic="GpuMisplaced",
        query=stability.GPU_MISPLACED,
        above=0,
        hold="0s",
        severity=Severity.CRITICAL,
        summary="{{ $labels.instance }}: computes on a GPU that is not its own",
        description=(
            "{{ $labels.instance }} of run {{ $labels.run }} was assigned one GPU and computes on another, so two "
            "processes may share one while another idles."
        ),
    ),
    Alert(
        topic="EndpointDown",
        query=stability.SILENT_PROCESSES,
        above=0,
        hold="1m",  # a process that has died leaves /targets within 2 s, and Prometheus asks every 5 s
        severity=Severity.WARNING,
        summary="{{ $labels.instance }}: does not answer",
        description=(
            "The driver of run {{ $labels.run }} lists {{ $labels.instance }}, and for a minute Prometheus could not "
            "read its metrics: it hangs, or a network lies between."
        ),
    ),
    Alert(
        topic="DriverGone",
        query=stability.DRIVER_GONE,
        above=0,
        hold="1m",
        severity=Severity.WARNING,
        summary="{{ $labels.run }}: its driver does not answer any more",
        description=(
            "The driver of run {{ $labels.run }} answered within the last hour and does not now. `truestep runs` says "
            "whether the run finished, stopped or died. This alert ends by itself an hour after the last answer."
        ),
    ),
)
