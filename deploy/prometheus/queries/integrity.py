"""Does everything add up: the books of transitions, the agreement of ranks."""

from __future__ import annotations

from deploy.prometheus.queries.query import Query, Unit, When, quantile

PRODUCED_RATE = Query(
    promql="sum by (run) (rate(truestep_driver_produced_transitions_total{$run}[$window]))",
    unit=Unit.TRANSITIONS_RATE,
    help="Valid transitions produced per second.",
    legend="{{run}} produced",
)
TRAINED_RATE = Query(
    promql="sum by (run) (rate(truestep_driver_trained_transitions_total{$run}[$window]))",
    unit=Unit.TRANSITIONS_RATE,
    help="Valid transitions trained on per second, each counted once.",
    legend="{{run}} trained",
)
DROPPED_RATE = Query(
    promql="sum by (run, reason) (rate(truestep_driver_dropped_transitions_total{$run}[$window]))",
    unit=Unit.TRANSITIONS_RATE,
    help="Valid transitions that will never be trained on, per second, by reason.",
    legend="{{run}}: {{reason}}",
)
DROPPED_SHARE = Query(
    promql=(
        "sum by (run) (rate(truestep_driver_dropped_transitions_total{$run}[$window]))"
        " / sum by (run) (rate(truestep_driver_produced_transitions_total{$run}[$window]) > 0)"
    ),
    unit=Unit.SHARE,
    help="Share of what is produced that will never be trained on.",
)
DAMAGED = Query(
    promql=(
        "sum by (run, reason) (increase(truestep_driver_dropped_transitions_total"
        '{$run, reason=~"corrupt|foreign_run|misplaced"}[$window]))'
    ),
    unit=Unit.TRANSITIONS,
    help="Transitions refused because their fragment was damaged, of another run or misplaced. 0 is usual.",
    legend="{{run}}: {{reason}}",
)
UNBALANCED = Query(
    promql=(
        "max by (run) (truestep_driver_produced_transitions_total{$run}"
        " + truestep_driver_undone_transitions_total{$run}"
        " - truestep_driver_trained_transitions_total{$run}"
        " - sum without (reason) (truestep_driver_dropped_transitions_total{$run})"
        " - truestep_driver_in_flight_transitions{$run})"
    ),
    unit=Unit.TRANSITIONS,
    help="produced + undone - trained - dropped - in flight. 0 in every scrape: each transition has one fate.",
)
MISSING = Query(
    promql="sum by (run) (increase(truestep_learner_missing_fragments_total{$run}[$window]))",
    unit=Unit.FRAGMENTS,
    help="Gaps: fragments of known incarnations that never arrived before a later one.",
    legend="{{run}} missing",
)
REFUSED = Query(
    promql="sum by (run, reason) (increase(truestep_learner_refused_fragments_total{$run}[$window]))",
    unit=Unit.FRAGMENTS,
    help="Fragments that intake refused, by reason.",
    legend="{{run}}: {{reason}}",
)
MISMATCHES = Query(
    promql="sum by (run, cause) (increase(truestep_driver_sync_mismatches_total{$run}[$window]))",
    unit=Unit.NUMBER,
    help="Attempts at an update on which ranks disagreed, by what they disagreed about. 0 is usual.",
    legend="{{run}}: {{cause}}",
)
VERIFIED_SHARE = Query(
    promql=(
        "max by (run) (truestep_driver_verified_updates_total{$run})"
        " / (max by (run) (truestep_driver_updates_total{$run}) > 0)"
    ),
    unit=Unit.SHARE,
    help="Share of all updates that were committed with a digest of the state on which their ranks agreed.",
)
RETRIES = Query(
    promql="sum by (run) (increase(truestep_driver_sync_retries_total{$run}[$window]))",
    unit=Unit.UPDATES,
    help="Updates committed after an attempt at them was disputed or failed.",
    legend="{{run}} made again",
)
FAILURES = Query(
    promql="sum by (run) (increase(truestep_driver_sync_failures_total{$run}[$window]))",
    unit=Unit.NUMBER,
    help="Attempts at an update, or to form the group, that failed or ran past their deadline. 0 is usual.",
    legend="{{run}} failed",
)
AUDITED_RATE = Query(
    promql="sum by (run, index) (rate(truestep_learner_audited_steps_total{$run}[$window]))",
    unit=Unit.STEPS_RATE,
    help="Gradient steps per second whose local gradient was computed again and compared.",
    legend="{{run}} rank {{index}}",
)
VERIFIED_STEPS = Query(
    promql="sum by (run, index) (rate(truestep_learner_verified_steps_total{$run}[$window]))",
    unit=Unit.STEPS_RATE,
    help="Gradient steps per second on which the ranks were found to agree.",
    legend="{{run}} rank {{index}}",
)
SYNC_SHARE = Query(
    promql=(
        "sum by (run, phase) (rate(truestep_learner_sync_seconds_sum{$run}[$window]))"
        " / on (run) group_left () sum by (run) (rate(truestep_learner_phase_seconds_sum{$run}[$window]) > 0)"
    ),
    unit=Unit.SHARE,
    help="Share of the time of updates that sync takes, by phase. Reduce is waiting for the other ranks.",
    legend="{{run}}: {{phase}}",
)
REDUCED_BYTES = Query(
    promql="sum by (run, index) (rate(truestep_learner_reduced_bytes_total{$run}[$window]))",
    unit=Unit.BYTES_RATE,
    help="Bytes that each rank puts into reduces, per second.",
    legend="{{run}} rank {{index}}",
)
LOCAL_NORM = Query(
    promql="max by (run, index) (truestep_learner_local_gradient_norm{$run})",
    unit=Unit.NUMBER,
    help="Norm of each rank's own gradients, before they are reduced. Ranks see samples of the same data: alike.",
    legend="{{run}} rank {{index}}",
)
RANK_RESTARTS = Query(
    promql="sum by (run) (increase(truestep_driver_rank_restarts_total{$run}[$window]))",
    unit=Unit.PROCESSES,
    help="Learner processes lost and started again. 0 is usual.",
)
RECOVERY_P90 = Query(
    promql=quantile(0.9, "truestep_driver_recovery_seconds", by="run, cause"),
    unit=Unit.SECONDS,
    help="Nine of ten recoveries take less, from what went wrong to the next commit of the whole group.",
    legend="{{run}}: {{cause}}",
    when=When.RECOVERED,
)
