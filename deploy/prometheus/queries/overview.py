"""Is the run well: how fast, how good, what holds it up, who is there."""

from __future__ import annotations

from common.metric_labels import Stall
from deploy.prometheus.queries.query import Query, Unit, When

# What holds a run up by a fault; the others say which half of a sound run is the slower one.
BALANCE = (Stall.ACTOR_BOUND, Stall.LEARNER_BOUND, Stall.FLOW_BOUND)
FAULTS = tuple(verdict for verdict in Stall if verdict not in (Stall.HEALTHY, *BALANCE))

RUNS = Query(
    promql="max by (run, env, algo) (truestep_driver_run_info{$run})",
    unit=Unit.NUMBER,
    help="Runs that are being driven, with environment and algorithm.",
    legend="{{run}}: {{algo}} on {{env}}",
)
STEPS_RATE = Query(
    promql="sum by (run) (rate(truestep_driver_env_steps_total{$run}[$window]))",
    unit=Unit.STEPS_RATE,
    help="Environment steps trained on, per second. Exact: from the driver's accounts.",
)
STEPS = Query(
    promql="max by (run) (truestep_driver_env_steps_total{$run})",
    unit=Unit.STEPS,
    help="Environment steps trained on since the run was made, over all its resumes.",
)
UPDATES = Query(
    promql="max by (run) (truestep_driver_updates_total{$run})",
    unit=Unit.UPDATES,
    help="Updates committed since the run was made, those included that a rollback took back.",
)
UPDATES_RATE = Query(
    promql="sum by (run) (rate(truestep_driver_updates_total{$run}[$window]))",
    unit=Unit.UPDATES_RATE,
    help="Updates committed per second.",
)
COMMIT_AGE = Query(
    promql="max by (run) (truestep_driver_last_commit_age_seconds{$run})",
    unit=Unit.SECONDS,
    help="Time since the newest update was committed. It falls with every update; a steady rise is a standstill.",
)
RETURN_MEAN = Query(
    promql="avg by (run) (truestep_actor_episode_return_mean{$run})",
    unit=Unit.RETURN,
    help="Mean undiscounted return of the newest training episodes, as the exploring policy plays them.",
    when=When.EPISODE,
)
RETURN_BY_MODEL = Query(
    promql=(
        "avg by (run, env, algo) (avg by (run) (truestep_actor_episode_return_mean{$run})"
        " * on (run) group_left (env, algo) max by (run, env, algo) (truestep_driver_run_info{$run}))"
    ),
    unit=Unit.RETURN,
    help="Mean return of the newest training episodes, told apart by environment and algorithm.",
    legend="{{algo}} on {{env}} ({{run}})",
    when=When.EPISODE,
)
EVALUATION_RETURN = Query(
    promql="max by (run) (truestep_driver_evaluation_return_mean{$run})",
    unit=Unit.RETURN,
    help="Mean undiscounted return of the newest greedy evaluation: what the policy is worth without exploring.",
    legend="{{run}} evaluation",
    when=When.EVALUATED,
)
VERDICT = Query(
    promql="max by (run, verdict) (truestep_driver_stall{$run}) == 1",
    unit=Unit.FLAG,
    help="What holds the run up, as the driver judges over the last seconds. One verdict is in force at a time.",
    legend="{{run}}: {{verdict}}",
)
VERDICT_SHARE = Query(
    promql="sum by (run, verdict) (rate(truestep_driver_stall_seconds_total{$run}[$window]))",
    unit=Unit.SHARE,
    help="Share of the time under each verdict.",
    legend="{{run}}: {{verdict}}",
)
STALL_FAULTS = Query(
    promql=f'max by (run, verdict) (truestep_driver_stall{{$run, verdict=~"{"|".join(FAULTS)}"}})',
    unit=Unit.FLAG,
    help="1 while the verdict is one that something outside the algorithm causes.",
    legend="{{run}}: {{verdict}}",
)
STALL_BALANCE = Query(
    promql=f'max by (run, verdict) (truestep_driver_stall{{$run, verdict=~"{"|".join(BALANCE)}"}})',
    unit=Unit.FLAG,
    help="1 while one half of a sound run waits for the other.",
    legend="{{run}}: {{verdict}}",
)
FIRING = Query(
    promql='max by (alertname, severity, run) (ALERTS{$run, alertname=~"Truestep.*", alertstate="firing"})',
    unit=Unit.NUMBER,
    help="Alerts that are firing. The name leads to its runbook.",
    legend="{{alertname}} {{run}}",
    when=When.FIRING,
)
ACTORS_BY_STATE = Query(
    promql="max by (run, state) (truestep_driver_actors{$run})",
    unit=Unit.PROCESSES,
    help="Actors by state. Blocked ones wait for weights or for room in the flow; dead ones are being replaced.",
    legend="{{run}}: {{state}}",
)
ACTORS_MISSING = Query(
    promql=(
        "max by (run) (truestep_driver_wanted_actors{$run})"
        ' - sum by (run) (max by (run, state) (truestep_driver_actors{$run, state=~"running|blocked"}))'
    ),
    unit=Unit.PROCESSES,
    help="Actors that there should be and that are not there. 0 is usual.",
    legend="{{run}} missing",
)
RANKS_BY_STATE = Query(
    promql="max by (run, state) (truestep_driver_ranks{$run})",
    unit=Unit.PROCESSES,
    help="Learner ranks by state. All of them joined is usual.",
    legend="{{run}}: {{state}}",
)
TARGETS_UP = Query(
    promql="sum by (run, role) (up{$run})",
    unit=Unit.PROCESSES,
    help="Processes whose metrics Prometheus can read, by role.",
    legend="{{run}}: {{role}}",
)
