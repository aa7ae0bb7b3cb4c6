"""Every metric that truestep exports, once: name, kind, help, labels, buckets. Data only.

    truestep_<room>_<what>_<unit>[_total]      room: actor | learner | driver | process

Label values come from the enums of common.metric_labels, so the number of series of a process is a constant; only
`truestep_driver_run_info` has free label values, and it is one series. `python -m common.metrics` prints the table of
docs/metrics.md.
"""

from __future__ import annotations

from common.metric_kinds import Kind, Label, Metric
from common.metric_labels import (
    ActorState,
    DropReason,
    Phase,
    RankState,
    RecoveryCause,
    SaveResult,
    Statistic,
    SyncFault,
    SyncPhase,
)

# Undiscounted returns: CartPole 500, Pendulum -1600, LunarLander ±300, MuJoCo 10 000; finest near zero.
RETURN_BUCKETS = (
    *(-10_000.0, -5_000.0, -2_000.0, -1_000.0, -500.0, -200.0, -100.0, -50.0, -20.0, -10.0, -5.0, -2.0, -1.0),
    *(0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0),
)
LENGTH_BUCKETS = (
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0, 20_000.0),
    *(50_000.0, 100_000.0),
)
COLLECT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # one fragment
PHASE_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PAUSE_BUCKETS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1)  # goal: p99 1 ms
CHECKPOINT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # 1 MB to many GB
RECOVERY_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)  # a redo to a restart
EVALUATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)

PHASE = Label(name="phase", values=Phase)
STATISTIC = Label(name="statistic", values=Statistic)
REASON = Label(name="reason", values=DropReason)
STATE = Label(name="state", values=ActorState)
SYNC_PHASE = Label(name="phase", values=SyncPhase)
FAULT = Label(name="cause", values=SyncFault)
CAUSE = Label(name="cause", values=RecoveryCause)
RANK_STATE = Label(name="state", values=RankState)
RESULT = Label(name="result", values=SaveResult)

# ---- actor: of the actors in this process, since it started ----------------------------------------------------------

ACTOR_FRAGMENTS = Metric(
    name="truestep_actor_fragments_total", kind=Kind.COUNTER, help="Fragments collected by this process."
)
ACTOR_ENV_STEPS = Metric(
    name="truestep_actor_env_steps_total", kind=Kind.COUNTER, help="Valid transitions collected by this process."
)
ACTOR_VOIDED = Metric(
    name="truestep_actor_voided_transitions_total",
    kind=Kind.COUNTER,
    help="Transitions of broken episodes, taken back before they left the actor.",
)
ACTOR_BYTES = Metric(
    name="truestep_actor_fragment_bytes_total", kind=Kind.COUNTER, help="Bytes of the frames collected."
)
ACTOR_EPISODES = Metric(
    name="truestep_actor_episodes_total", kind=Kind.COUNTER, help="Training episodes that ended in collected fragments."
)
ACTOR_RETURN = Metric(
    name="truestep_actor_episode_return",
    kind=Kind.HISTOGRAM,
    help="Undiscounted return of training episodes. No sum: returns may be negative; see the mean.",
    buckets=RETURN_BUCKETS,
)
ACTOR_RETURN_MEAN = Metric(
    name="truestep_actor_episode_return_mean",
    kind=Kind.GAUGE,
    help="Mean undiscounted return of the episodes that ended in the latest fragment in which any did.",
)
ACTOR_LENGTH = Metric(
    name="truestep_actor_episode_length_transitions",
    kind=Kind.HISTOGRAM,
    help="Transitions of training episodes.",
    buckets=LENGTH_BUCKETS,
)
ACTOR_COLLECT_SECONDS = Metric(
    name="truestep_actor_collect_seconds",
    kind=Kind.HISTOGRAM,
    help="Time to collect one fragment, on the monotonic clock.",
    buckets=COLLECT_BUCKETS,
)
ACTOR_POLICY_SECONDS = Metric(
    name="truestep_actor_policy_seconds_total", kind=Kind.COUNTER, help="Time spent in forward passes of the policy."
)
ACTOR_ENVIRONMENT_SECONDS = Metric(
    name="truestep_actor_environment_seconds_total", kind=Kind.COUNTER, help="Time spent in the environments."
)
ACTOR_GC_PAUSE_SECONDS = Metric(
    name="truestep_actor_gc_pause_seconds",
    kind=Kind.HISTOGRAM,
    help="Pauses of the cyclic garbage collector between fragments.",
    buckets=PAUSE_BUCKETS,
)
ACTOR_WEIGHTS_VERSION = Metric(
    name="truestep_actor_weights_version",
    kind=Kind.GAUGE,
    help="Version of the weights that acted in the latest fragment.",
)
ACTOR_EVALUATION_SECONDS = Metric(
    name="truestep_actor_evaluation_seconds",
    kind=Kind.HISTOGRAM,
    help="Time of one greedy evaluation.",
    buckets=EVALUATION_BUCKETS,
)
ACTOR_EVALUATION_EPISODES = Metric(
    name="truestep_actor_evaluation_episodes_total",
    kind=Kind.COUNTER,
    help="Evaluation episodes played by this process.",
)

# ---- learner: of the rank in this process, since it started ----------------------------------------------------------

LEARNER_UPDATES = Metric(
    name="truestep_learner_updates_total", kind=Kind.COUNTER, help="Updates carried out by this process."
)
LEARNER_ROWS = Metric(
    name="truestep_learner_accepted_transitions_total", kind=Kind.COUNTER, help="Valid transitions accepted by intake."
)
LEARNER_STEPS = Metric(
    name="truestep_learner_gradient_steps_total", kind=Kind.COUNTER, help="Gradient steps committed."
)
LEARNER_SKIPPED_STEPS = Metric(
    name="truestep_learner_skipped_gradient_steps_total",
    kind=Kind.COUNTER,
    help="Gradient steps skipped for a non-finite gradient.",
)
LEARNER_REFUSED = Metric(
    name="truestep_learner_refused_fragments_total",
    kind=Kind.COUNTER,
    help="Fragments that intake refused.",
    label=REASON,
)
LEARNER_GAPS = Metric(
    name="truestep_learner_missing_fragments_total",
    kind=Kind.COUNTER,
    help="Fragments of known incarnations that never arrived before a later one.",
)
LEARNER_PHASE_SECONDS = Metric(
    name="truestep_learner_phase_seconds",
    kind=Kind.HISTOGRAM,
    help="Time of one update by phase, on the monotonic clock.",
    label=PHASE,
    buckets=PHASE_BUCKETS,
)
LEARNER_STATISTIC = Metric(
    name="truestep_learner_statistic",
    kind=Kind.GAUGE,
    help="Losses and diagnostics of the latest update; NaN where they were not finite.",
    label=STATISTIC,
)
LEARNER_RATE = Metric(
    name="truestep_learner_learning_rate", kind=Kind.GAUGE, help="Learning rate of the latest update."
)
LEARNER_LAG = Metric(
    name="truestep_learner_policy_lag_updates",
    kind=Kind.GAUGE,
    help="Largest lag among the fragments of the latest update.",
)
LEARNER_WEIGHTS_VERSION = Metric(
    name="truestep_learner_weights_version", kind=Kind.GAUGE, help="Version published latest by this process."
)
LEARNER_SYNC_SECONDS = Metric(
    name="truestep_learner_sync_seconds",
    kind=Kind.HISTOGRAM,
    help="Time that verified sync took of one order by phase, if it had it: reduce is waiting for the other ranks.",
    label=SYNC_PHASE,
    buckets=PHASE_BUCKETS,
)
LEARNER_REDUCED_BYTES = Metric(
    name="truestep_learner_reduced_bytes_total", kind=Kind.COUNTER, help="Bytes that this rank put into reduces."
)
LEARNER_VERIFIED_STEPS = Metric(
    name="truestep_learner_verified_steps_total",
    kind=Kind.COUNTER,
    help="Gradient steps on which every rank of the group was found to agree.",
)
LEARNER_AUDITED_STEPS = Metric(
    name="truestep_learner_audited_steps_total",
    kind=Kind.COUNTER,
    help="Gradient steps in whose audit this rank took part: the local gradient was computed again and compared.",
)
LEARNER_LOCAL_NORM = Metric(
    name="truestep_learner_local_gradient_norm",
    kind=Kind.GAUGE,
    help="Mean norm of this rank's own gradients in the latest update, before they were reduced.",
)

# ---- driver: of the run, exact, carried on over resumes --------------------------------------------------------------

DRIVER_PRODUCED = Metric(
    name="truestep_driver_produced_transitions_total",
    kind=Kind.COUNTER,
    help="Valid transitions produced. In every scrape produced + undone = trained + dropped + in flight.",
)
DRIVER_TRAINED = Metric(
    name="truestep_driver_trained_transitions_total",
    kind=Kind.COUNTER,
    help="Valid transitions in committed updates, each counted once; those of undone updates stay in it.",
)
DRIVER_UNDONE = Metric(
    name="truestep_driver_undone_transitions_total",
    kind=Kind.COUNTER,
    help="Valid transitions of updates that a rollback took back; counted in trained and in dropped as well.",
)
DRIVER_IN_FLIGHT = Metric(
    name="truestep_driver_in_flight_transitions",
    kind=Kind.GAUGE,
    help="Valid transitions produced and neither trained nor dropped yet.",
)
DRIVER_DROPPED = Metric(
    name="truestep_driver_dropped_transitions_total",
    kind=Kind.COUNTER,
    help="Valid transitions that will never be trained on.",
    label=REASON,
)
DRIVER_VOIDED = Metric(
    name="truestep_driver_voided_transitions_total",
    kind=Kind.COUNTER,
    help="Transitions of broken episodes; never part of produced.",
)
DRIVER_LOST = Metric(
    name="truestep_driver_lost_fragments_total",
    kind=Kind.COUNTER,
    help="Fragments that an actor was making when it died.",
)
DRIVER_EPISODES = Metric(
    name="truestep_driver_episodes_total", kind=Kind.COUNTER, help="Training episodes ended in produced fragments."
)
DRIVER_ENV_STEPS = Metric(
    name="truestep_driver_env_steps_total",
    kind=Kind.COUNTER,
    help="Environment steps of committed updates, undone ones included.",
)
DRIVER_UPDATES = Metric(
    name="truestep_driver_updates_total", kind=Kind.COUNTER, help="Updates committed, undone ones included."
)
DRIVER_ENV_STEPS_RATE = Metric(
    name="truestep_driver_env_steps_per_second",
    kind=Kind.GAUGE,
    help="Environment steps per second as the progress line shows it, on the monotonic clock.",
)
DRIVER_WEIGHTS_VERSION = Metric(
    name="truestep_driver_weights_version", kind=Kind.GAUGE, help="Version of the newest weights of the run."
)
DRIVER_TERM = Metric(
    name="truestep_driver_term", kind=Kind.GAUGE, help="Term of the learner: 0, and one more after each rollback."
)
DRIVER_LAG = Metric(
    name="truestep_driver_policy_lag_updates",
    kind=Kind.GAUGE,
    help="Updates between the weights that acted and those that were trained, in the latest update.",
)
DRIVER_ACTORS = Metric(name="truestep_driver_actors", kind=Kind.GAUGE, help="Actors by state.", label=STATE)
DRIVER_RESTARTS = Metric(
    name="truestep_driver_actor_restarts_total", kind=Kind.COUNTER, help="Actor processes lost and started again."
)
DRIVER_RANKS = Metric(name="truestep_driver_ranks", kind=Kind.GAUGE, help="Learner ranks by state.", label=RANK_STATE)
DRIVER_RANK_RESTARTS = Metric(
    name="truestep_driver_rank_restarts_total", kind=Kind.COUNTER, help="Learner processes lost and started again."
)
DRIVER_VERIFIED = Metric(
    name="truestep_driver_verified_updates_total",
    kind=Kind.COUNTER,
    help="Updates committed with a digest of the state on which all their ranks agreed, undone ones included.",
)
DRIVER_MISMATCHES = Metric(
    name="truestep_driver_sync_mismatches_total",
    kind=Kind.COUNTER,
    help="Attempts at an update that came to nothing because ranks disagreed.",
    label=FAULT,
)
DRIVER_SYNC_FAILURES = Metric(
    name="truestep_driver_sync_failures_total",
    kind=Kind.COUNTER,
    help="Attempts at an update, or to form the group, that failed or ran past their deadline.",
)
DRIVER_RETRIES = Metric(
    name="truestep_driver_sync_retries_total",
    kind=Kind.COUNTER,
    help="Updates committed after an attempt at them was disputed or failed.",
)
DRIVER_ROLLBACKS = Metric(
    name="truestep_driver_rollbacks_total", kind=Kind.COUNTER, help="Rollbacks of the learner to an earlier update."
)
DRIVER_RECOVERY_SECONDS = Metric(
    name="truestep_driver_recovery_seconds",
    kind=Kind.HISTOGRAM,
    help="Time from what went wrong first to the next commit of the whole group.",
    label=CAUSE,
    buckets=RECOVERY_BUCKETS,
)
DRIVER_EVALUATION_RETURN = Metric(
    name="truestep_driver_evaluation_return_mean",
    kind=Kind.GAUGE,
    help="Mean undiscounted return of the latest greedy evaluation.",
)
DRIVER_EVALUATION_EPISODES = Metric(
    name="truestep_driver_evaluation_episodes", kind=Kind.GAUGE, help="Episodes of the latest greedy evaluation."
)
DRIVER_CHECKPOINT_SECONDS = Metric(
    name="truestep_driver_checkpoint_seconds",
    kind=Kind.HISTOGRAM,
    help="Time to write one checkpoint, failed ones included.",
    buckets=CHECKPOINT_BUCKETS,
)
DRIVER_CHECKPOINTS = Metric(
    name="truestep_driver_checkpoints_total", kind=Kind.COUNTER, help="Checkpoints written.", label=RESULT
)
DRIVER_RUN = Metric(
    name="truestep_driver_run_info", kind=Kind.INFO, help="What is trained.", facts=("run", "env", "algo")
)

# ---- process ---------------------------------------------------------------------------------------------------------

PROCESS_METRICS_CPU = Metric(
    name="truestep_process_metrics_cpu_seconds_total",
    kind=Kind.COUNTER,
    help="CPU time that recording and rendering metrics has cost this process.",
)

CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(vars().values()) if isinstance(value, Metric))


def markdown_table() -> str:
    """The catalogue as the Markdown table of docs/metrics.md."""
    lines = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{m.name}` | {m.kind} | {_labels_in_words(m)} | {m.help} |" for m in CATALOGUE]
    return "\n".join(lines)


def _labels_in_words(metric: Metric) -> str:
    if metric.label is None:
        return ", ".join(f"`{fact}`" for fact in metric.facts)
    return f"`{metric.label.name}`: {', '.join(metric.label.values)}"
