"""The driver's metrics: of the run, exact, carried on over resumes. Data only; part of `metric_catalogue.CATALOGUE`."""

from __future__ import annotations

from common.metric_kinds import Kind, Label, Metric
from common.metric_labels import ActorState, DropReason, RankState, RecoveryCause, SaveResult, Stage, Stall, SyncFault

CHECKPOINT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # 1 MB to many GB
RECOVERY_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)  # a redo to a restart
LAG_BUCKETS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)  # flow.max_lag is 16 by default
WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

REASON = Label(name="reason", values=DropReason)
STATE = Label(name="state", values=ActorState)
FAULT = Label(name="cause", values=SyncFault)
CAUSE = Label(name="cause", values=RecoveryCause)
RANK_STATE = Label(name="state", values=RankState)
RESULT = Label(name="result", values=SaveResult)
VERDICT = Label(name="verdict", values=Stall)
STAGE = Label(name="stage", values=Stage)

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
    help="Updates between the weights that acted and those that were trained, in the latest update; its largest.",
)
DRIVER_FRAGMENT_LAG = Metric(
    name="truestep_driver_fragment_lag_updates",
    kind=Kind.HISTOGRAM,
    help="The same of every fragment trained on.",
    buckets=LAG_BUCKETS,
)
DRIVER_FRAGMENT_WAIT = Metric(
    name="truestep_driver_fragment_wait_seconds",
    kind=Kind.HISTOGRAM,
    help="From when the driver hears of a fragment to the commit of the update that trained on it.",
    buckets=WAIT_BUCKETS,
)
DRIVER_OLDEST_FRAGMENT = Metric(
    name="truestep_driver_oldest_fragment_age_seconds",
    kind=Kind.GAUGE,
    help="Since the driver heard of the oldest fragment that is neither trained nor dropped; 0 if there is none.",
)
DRIVER_IN_FLIGHT_FRAGMENTS = Metric(
    name="truestep_driver_in_flight_fragments",
    kind=Kind.GAUGE,
    help="Fragments told to actors whose update is not committed yet; asynchronous collection only.",
)
DRIVER_CAPACITY = Metric(
    name="truestep_driver_in_flight_capacity_fragments",
    kind=Kind.GAUGE,
    help="How many may be in flight; asynchronous collection only.",
)
DRIVER_QUEUE = Metric(
    name="truestep_driver_queued_fragments",
    kind=Kind.GAUGE,
    help="Fragments that have arrived and wait for an update; asynchronous collection only.",
)
DRIVER_STARVED = Metric(
    name="truestep_driver_starved_updates_total",
    kind=Kind.COUNTER,
    help="Updates before which the learner had nothing to do; asynchronous collection only.",
)
DRIVER_ACTORS = Metric(
    name="truestep_driver_actors",
    kind=Kind.GAUGE,
    help="Actors by state; one that the pool does without is in none.",
    label=STATE,
)
DRIVER_WANTED_ACTORS = Metric(
    name="truestep_driver_wanted_actors", kind=Kind.GAUGE, help="Actors that there should be: the size of the pool."
)
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
DRIVER_COMMIT_AGE = Metric(
    name="truestep_driver_last_commit_age_seconds",
    kind=Kind.GAUGE,
    help="Since an update was committed last, as of the scrape; before the first, since this driver began.",
)
DRIVER_CHECKPOINT_AGE = Metric(
    name="truestep_driver_last_checkpoint_age_seconds",
    kind=Kind.GAUGE,
    help="Since a checkpoint was written last, as of the scrape; before the first, since this driver began.",
)
DRIVER_STORE_USED = Metric(
    name="truestep_driver_object_store_used_bytes",
    kind=Kind.GAUGE,
    help="Bytes in use in Ray's object stores, all nodes together; engine ray only.",
)
DRIVER_STORE_CAPACITY = Metric(
    name="truestep_driver_object_store_capacity_bytes",
    kind=Kind.GAUGE,
    help="Bytes that Ray's object stores hold, all nodes together; engine ray only.",
)
DRIVER_CHECKPOINTS = Metric(
    name="truestep_driver_checkpoints_total",
    kind=Kind.COUNTER,
    help="Attempts to write a checkpoint since this driver began, by how they ended.",
    label=RESULT,
)
DRIVER_STALL = Metric(
    name="truestep_driver_stall",
    kind=Kind.GAUGE,
    help="What holds the run up: 1 for the verdict in force, 0 for the others; none before the first.",
    label=VERDICT,
)
DRIVER_STALL_SECONDS = Metric(
    name="truestep_driver_stall_seconds_total",
    kind=Kind.COUNTER,
    help="Time under each verdict since this driver began.",
    label=VERDICT,
)
DRIVER_STAGE_MARKS = Metric(
    name="truestep_driver_stage_marks_total",
    kind=Kind.COUNTER,
    help="What each stage of the ring has done since this driver began: ticks, fragments, updates, versions.",
    label=STAGE,
)
DRIVER_STAGE_STATE = Metric(
    name="truestep_driver_stage_state",
    kind=Kind.GAUGE,
    help="Each stage of the ring: 0 moving, 1 starved (no work), 2 blocked (no room downstream), 3 stuck (has both).",
    label=STAGE,
)
DRIVER_RUN = Metric(
    name="truestep_driver_run_info", kind=Kind.INFO, help="What is trained.", facts=("run", "env", "algo")
)
