"""What the learner does with its time, what the algorithm says of itself, and what waits for it."""

from __future__ import annotations

from deploy.prometheus.queries.query import Query, Unit, When, mean, quantile


def _statistic(name: str, help: str, *, unit: Unit = Unit.NUMBER) -> Query:
    """One statistic of the algorithm; ranks agree on it, so their greatest is that of each."""
    return Query(promql=f'max by (run) (truestep_learner_statistic{{$run, statistic="{name}"}})', unit=unit, help=help)


PHASE_MEAN = Query(
    promql=mean("truestep_learner_phase_seconds", by="run, phase"),
    unit=Unit.SECONDS,
    help="Mean time of an update by phase. Learn holds the gradient steps, close the agreement of the ranks.",
    legend="{{run}}: {{phase}}",
)
BUSY_SHARE = Query(
    promql="sum by (run, index) (rate(truestep_learner_phase_seconds_sum{$run}[$window]))",
    unit=Unit.SHARE,
    help="Share of its time that each rank works on updates. Near 1 the learner is what the run waits for.",
    legend="{{run}} rank {{index}}",
)
ACCEPTED_RATE = Query(
    promql="sum by (run) (rate(truestep_learner_accepted_transitions_total{$run}[$window]))",
    unit=Unit.TRANSITIONS_RATE,
    help="Valid transitions that intake accepts, per second.",
)
STEPS_RATE = Query(
    promql="max by (run) (rate(truestep_learner_gradient_steps_total{$run}[$window]))",
    unit=Unit.STEPS_RATE,
    help="Gradient steps committed per second.",
)
SKIPPED_STEPS = Query(
    promql="max by (run) (increase(truestep_learner_skipped_gradient_steps_total{$run}[$window]))",
    unit=Unit.STEPS,
    help="Gradient steps skipped because the gradient was not finite. 0 is usual.",
)
POLICY_LOSS = _statistic("policy", "Policy loss, mean over the gradient steps of the newest update.")
VALUE_LOSS = _statistic("value", "Value loss, mean over the gradient steps of the newest update.")
ENTROPY = _statistic(
    "entropy", "Entropy of the policy. It falls as the policy decides; a sudden fall to 0 ends exploration."
)
APPROXIMATE_KL = _statistic(
    "approximate_kl", "How far the policy is from the one that acted: KL divergence, by Schulman's estimate."
)
CLIP_FRACTION = _statistic("clip_fraction", "Share of rows whose importance weight was clipped.", unit=Unit.SHARE)
EXPLAINED_VARIANCE = _statistic(
    "explained_variance", "How much of the returns the value function explains: 1 all, 0 nothing, below 0 misleads."
)
GRADIENT_NORM = _statistic("gradient_norm", "Norm of the whole gradient before clipping, mean of the newest update.")
GROUP_NORM = Query(
    promql="max by (run, group) (truestep_learner_gradient_norm{$run})",
    unit=Unit.NUMBER,
    help="Norm of the gradient by part of the network. A part far above the others is where trouble begins.",
    legend="{{run}}: {{group}}",
)
LEARNING_RATE = Query(
    promql="max by (run) (truestep_learner_learning_rate{$run})",
    unit=Unit.NUMBER,
    help="Learning rate of the newest update.",
)
LAG_MEDIAN = Query(
    promql=quantile(0.5, "truestep_driver_fragment_lag_updates"),
    unit=Unit.UPDATES,
    help="Half of all fragments trained on are less updates old.",
    legend="{{run}} p50",
)
LAG_P99 = Query(
    promql=quantile(0.99, "truestep_driver_fragment_lag_updates"),
    unit=Unit.UPDATES,
    help="99 of 100 fragments trained on are less updates old. Beyond `flow.max_lag` they are dropped.",
    legend="{{run}} p99",
)
FRAGMENT_WAIT = Query(
    promql=quantile(0.9, "truestep_driver_fragment_wait_seconds"),
    unit=Unit.SECONDS,
    help="Nine of ten fragments are trained on within this time of their arrival.",
    legend="{{run}} p90",
)
OLDEST_FRAGMENT = Query(
    promql="max by (run) (truestep_driver_oldest_fragment_age_seconds{$run})",
    unit=Unit.SECONDS,
    help="Age of the oldest fragment that has no fate yet.",
    legend="{{run}} oldest",
)
QUEUED = Query(
    promql="max by (run) (truestep_driver_queued_fragments{$run})",
    unit=Unit.FRAGMENTS,
    help="Fragments that wait for an update.",
    legend="{{run}} queued",
    when=When.ASYNCHRONOUS,
)
IN_FLIGHT = Query(
    promql="max by (run) (truestep_driver_in_flight_fragments{$run})",
    unit=Unit.FRAGMENTS,
    help="Fragments told to actors whose update is not committed.",
    legend="{{run}} in flight",
    when=When.ASYNCHRONOUS,
)
CAPACITY = Query(
    promql="max by (run) (truestep_driver_in_flight_capacity_fragments{$run})",
    unit=Unit.FRAGMENTS,
    help="How many may be in flight; adapts itself.",
    legend="{{run}} capacity",
    when=When.ASYNCHRONOUS,
)
STARVED_SHARE = Query(
    promql=(
        "sum by (run) (rate(truestep_driver_starved_updates_total{$run}[$window]))"
        " / sum by (run) (rate(truestep_driver_updates_total{$run}[$window]) > 0)"
    ),
    unit=Unit.SHARE,
    help="Share of updates before which the learner had nothing to do.",
    when=When.ASYNCHRONOUS,
)
GPU_UTILISATION = Query(
    promql="max by (run, instance) (truestep_process_gpu_utilization_ratio{$run})",
    unit=Unit.SHARE,
    help="Share of the time that the process's GPU was computing.",
    legend="{{instance}}",
    when=When.GPU,
)
GPU_MEMORY_SHARE = Query(
    promql=(
        "max by (run, instance) (truestep_process_gpu_memory_used_bytes{$run})"
        " / max by (run, instance) (truestep_process_gpu_memory_total_bytes{$run})"
    ),
    unit=Unit.SHARE,
    help="Share of the GPU's memory that is in use, by whomever.",
    legend="{{instance}}",
    when=When.GPU,
)
