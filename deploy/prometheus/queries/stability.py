"""What wears a run out: rollbacks, checkpoints, memory, processes that go away, and what watching costs."""

from __future__ import annotations

from deploy.prometheus.queries.query import Query, Unit, When, mean, quantile

ROLLBACKS = Query(
    promql="sum by (run) (increase(truestep_driver_rollbacks_total{$run}[$window]))",
    unit=Unit.NUMBER,
    help="Rollbacks of the learner to an earlier update. 0 is usual.",
)
TERM = Query(
    promql="max by (run) (truestep_driver_term{$run})",
    unit=Unit.NUMBER,
    help="Term of the learner: one more after each rollback.",
)
UNDONE = Query(
    promql="max by (run) (truestep_driver_undone_transitions_total{$run})",
    unit=Unit.TRANSITIONS,
    help="Transitions of updates that rollbacks took back, since the run was made.",
)
CHECKPOINTS_FAILED = Query(
    promql='sum by (run) (increase(truestep_driver_checkpoints_total{$run, result="failed"}[$window]))',
    unit=Unit.NUMBER,
    help="Checkpoints that could not be written. 0 is usual.",
    legend="{{run}} failed",
)
CHECKPOINTS_WRITTEN = Query(
    promql='sum by (run) (increase(truestep_driver_checkpoints_total{$run, result="ok"}[$window]))',
    unit=Unit.NUMBER,
    help="Checkpoints written.",
    legend="{{run}} written",
)
CHECKPOINT_MEAN = Query(
    promql=mean("truestep_driver_checkpoint_seconds"),
    unit=Unit.SECONDS,
    help="Mean time to write a checkpoint. The run goes on meanwhile. Empty between checkpoints.",
    when=When.CHECKPOINTED,
)
CHECKPOINT_AGE = Query(
    promql="max by (run) (truestep_driver_last_checkpoint_age_seconds{$run})",
    unit=Unit.SECONDS,
    help="Time since the newest checkpoint, or since the driver began: what a crash would cost.",
)
HOST_MEMORY = Query(
    promql="max by (run) (truestep_process_host_memory_used_ratio{$run})",
    unit=Unit.SHARE,
    help="Memory in use as a share of the limit of the container, else of the machine; the fullest host of the run.",
)
RESIDENT = Query(
    promql="max by (run, role, index) (process_resident_memory_bytes{$run})",
    unit=Unit.BYTES,
    help="Resident memory of each process. A steady rise over hours is a leak.",
    legend="{{run}} {{role}} {{index}}",
)
OBJECT_STORE = Query(
    promql=(
        "max by (run) (truestep_driver_object_store_used_bytes{$run})"
        " / max by (run) (truestep_driver_object_store_capacity_bytes{$run})"
    ),
    unit=Unit.SHARE,
    help="Share of Ray's object store that fragments and weights take. What does not fit is spilled to disk.",
    when=When.PROCESSES,
)
GPU_MISPLACED = Query(
    promql="max by (run, instance) (truestep_process_gpu_misplaced{$run})",
    unit=Unit.FLAG,
    help="1 where a process computes on another GPU than the one assigned to it.",
    legend="{{instance}}",
    when=When.GPU,
)
GC_P99 = Query(
    promql=quantile(0.99, "truestep_process_gc_pause_seconds", by="run, role"),
    unit=Unit.SECONDS,
    help="99 of 100 pauses of the garbage collector are shorter; between fragments, below 1 ms is the goal.",
    legend="{{run}} {{role}} p99",
)
CPU = Query(
    promql="sum by (run, role, index) (rate(process_cpu_seconds_total{$run}[$window]))",
    unit=Unit.CORES,
    help="CPU time per second of each process.",
    legend="{{run}} {{role}} {{index}}",
)
OPEN_FILES = Query(
    promql="max by (run, role, index) (process_open_fds{$run})",
    unit=Unit.NUMBER,
    help="Open files of each process. A steady rise is a leak.",
    legend="{{run}} {{role}} {{index}}",
)
METRICS_CPU = Query(
    promql=(
        "sum by (run) (rate(truestep_process_metrics_cpu_seconds_total{$run}[$window]))"
        " / sum by (run) (rate(process_cpu_seconds_total{$run}[$window]) > 0)"
    ),
    unit=Unit.SHARE,
    help="Share of all CPU time that recording metrics and answering scrapes takes. Below 1 % is promised.",
)
STAGES = Query(
    promql="max by (run, stage) (truestep_driver_stage_state{$run})",
    unit=Unit.NUMBER,
    help="Each stage of the ring: 0 moving, 1 starved (no work), 2 blocked (no room downstream), 3 stuck (has both).",
    legend="{{run}}: {{stage}}",
)
STAGE_RATE = Query(
    promql="sum by (run, stage) (rate(truestep_driver_stage_marks_total{$run}[$window]))",
    unit=Unit.NUMBER,
    help="What each stage of the ring does per second: ticks, fragments, updates, versions.",
    legend="{{run}}: {{stage}}",
)
SILENT_PROCESSES = Query(
    promql=(
        '(1 - max by (run, role, instance) (up{$run, role!="driver"}))'
        ' * on (run) group_left () max by (run) (up{$run, role="driver"})'
    ),
    unit=Unit.FLAG,
    help="1 for a process that its driver lists and that does not answer.",
    legend="{{instance}}",
    when=When.PROCESSES,
)
# A driver that ends in good order lists nobody in its last moment. If Prometheus asks then, `up` ends; if not, it keeps
# the list that it had, and `up` is 0.
_DRIVER_ANSWERED = 'max by (run) (max_over_time(up{$run, role="driver"}[1h]))'
DRIVER_GONE = Query(
    promql=f'{_DRIVER_ANSWERED} - (max by (run) (up{{$run, role="driver"}}) or 0 * {_DRIVER_ANSWERED})',
    unit=Unit.FLAG,
    help="1 where a driver answered within the last hour and does not now: its run has ended, or it died.",
)
SCRAPE_SECONDS = Query(
    promql="max by (run, role) (scrape_duration_seconds{$run})",
    unit=Unit.SECONDS,
    help="Time that Prometheus takes to read a process. The slowest of each role.",
    legend="{{run}} {{role}}",
)
SERIES = Query(
    promql="sum by (run) (scrape_samples_scraped{$run})",
    unit=Unit.NUMBER,
    help="Series that Prometheus reads; grows with the number of processes and with nothing else.",
)
