"""What actors do with their time, one line per actor where that tells them apart."""

from __future__ import annotations

from deploy.prometheus.queries.query import Query, Unit, When, mean, quantile

STEPS_RATE = Query(
    promql="sum by (run, index) (rate(truestep_actor_env_steps_total{$run}[$window]))",
    unit=Unit.STEPS_RATE,
    help="Valid transitions collected per second by each actor. Actors of one run should be alike.",
    legend="{{run}} actor {{index}}",
)
FRAGMENTS_RATE = Query(
    promql="sum by (run) (rate(truestep_actor_fragments_total{$run}[$window]))",
    unit=Unit.FRAGMENTS_RATE,
    help="Fragments collected per second.",
)
COLLECT_MEAN = Query(
    promql=mean("truestep_actor_collect_seconds", by="run, index"),
    unit=Unit.SECONDS,
    help="Mean time to collect a fragment. One actor far above the others holds synchronous updates up.",
    legend="{{run}} actor {{index}}",
)
COLLECT_P99 = Query(
    promql=quantile(0.99, "truestep_actor_collect_seconds"),
    unit=Unit.SECONDS,
    help="Time within which 99 of 100 fragments are collected.",
    legend="{{run}} p99",
)
BUSY_SHARE = Query(
    promql="sum by (run, index) (rate(truestep_actor_collect_seconds_sum{$run}[$window]))",
    unit=Unit.SHARE,
    help="Share of its time that each actor collects. The rest is waiting for weights or for room in the flow.",
    legend="{{run}} actor {{index}}",
)
ENVIRONMENT_SHARE = Query(
    promql=(
        "sum by (run) (rate(truestep_actor_environment_seconds_total{$run}[$window]))"
        " / sum by (run) (rate(truestep_actor_collect_seconds_sum{$run}[$window]) > 0)"
    ),
    unit=Unit.SHARE,
    help="Share of collecting that is spent in environments.",
    legend="{{run}} environment",
)
POLICY_SHARE = Query(
    promql=(
        "sum by (run) (rate(truestep_actor_policy_seconds_total{$run}[$window]))"
        " / sum by (run) (rate(truestep_actor_collect_seconds_sum{$run}[$window]) > 0)"
    ),
    unit=Unit.SHARE,
    help="Share of collecting that is spent in forward passes of the policy.",
    legend="{{run}} policy",
)
ENV_STEP_P50 = Query(
    promql=quantile(0.5, "truestep_actor_env_step_seconds"),
    unit=Unit.SECONDS,
    help="Half of all ticks take less: one step of all lanes of an actor.",
    legend="{{run}} p50",
)
ENV_STEP_P99 = Query(
    promql=quantile(0.99, "truestep_actor_env_step_seconds"),
    unit=Unit.SECONDS,
    help="99 of 100 ticks take less. Far above the half: resets, garbage collection, or an environment that waits.",
    legend="{{run}} p99",
)
EPISODES_RATE = Query(
    promql="sum by (run) (rate(truestep_driver_episodes_total{$run}[$window]))",
    unit=Unit.EPISODES_RATE,
    help="Training episodes ended per second.",
)
EPISODE_LENGTH = Query(
    promql=mean("truestep_actor_episode_length_transitions"),
    unit=Unit.TRANSITIONS,
    help="Mean length of training episodes.",
    when=When.EPISODE,
)
EPISODE_P90 = Query(
    promql=quantile(0.9, "truestep_actor_episode_seconds"),
    unit=Unit.SECONDS,
    help="Nine of ten training episodes take less time, on the monotonic clock.",
    legend="{{run}} p90",
    when=When.EPISODE,
)
RETURN_P10 = Query(
    promql=quantile(0.1, "truestep_actor_episode_return"),
    unit=Unit.RETURN,
    help="One of ten training episodes returns less, to the resolution of the buckets.",
    legend="{{run}} p10",
    when=When.EPISODE,
)
RETURN_P50 = Query(
    promql=quantile(0.5, "truestep_actor_episode_return"),
    unit=Unit.RETURN,
    help="Median return of training episodes, to the resolution of the buckets.",
    legend="{{run}} p50",
    when=When.EPISODE,
)
RETURN_P90 = Query(
    promql=quantile(0.9, "truestep_actor_episode_return"),
    unit=Unit.RETURN,
    help="Nine of ten training episodes return less, to the resolution of the buckets.",
    legend="{{run}} p90",
    when=When.EPISODE,
)
VERSIONS_BEHIND = Query(
    promql=(
        "max by (run) (truestep_driver_weights_version{$run})"
        " - on (run) group_right () max by (run, index) (truestep_actor_weights_version{$run})"
    ),
    unit=Unit.NUMBER,
    help="Versions of weights by which each actor's latest fragment is behind the newest.",
    legend="{{run}} actor {{index}}",
)
FRAGMENT_BYTES = Query(
    promql="sum by (run) (rate(truestep_actor_fragment_bytes_total{$run}[$window]))",
    unit=Unit.BYTES_RATE,
    help="Bytes of fragments that actors put into the object store, per second.",
)
RESTARTS = Query(
    promql="sum by (run) (increase(truestep_driver_actor_restarts_total{$run}[$window]))",
    unit=Unit.PROCESSES,
    help="Actors lost and started again. 0 is usual.",
)
LOST_FRAGMENTS = Query(
    promql="sum by (run) (increase(truestep_driver_lost_fragments_total{$run}[$window]))",
    unit=Unit.FRAGMENTS,
    help="Fragments that an actor was making when it died.",
    legend="{{run}} lost",
)
VOIDED = Query(
    promql="sum by (run) (increase(truestep_driver_voided_transitions_total{$run}[$window]))",
    unit=Unit.TRANSITIONS,
    help="Transitions of episodes that broke, taken back before they left the actor. 0 is usual.",
    legend="{{run}} voided",
)
EVALUATION_MEAN = Query(
    promql=mean("truestep_actor_evaluation_seconds"),
    unit=Unit.SECONDS,
    help="Mean time of one greedy evaluation; the actor that plays it collects nothing meanwhile. Empty between them.",
    when=When.EVALUATED,
)
