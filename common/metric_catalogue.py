"""Every metric that truestep exports, once: name, kind, help, labels, buckets. Data only; the driver's have a file.

    truestep_<room>_<what>_<unit>[_total]      room: actor | learner | driver | process

Label values come from the enums of common.metric_labels, so the number of series of a process is a constant; only
`truestep_driver_run_info` has free label values, and it is one series. `python -m common.metrics` prints the table of
docs/metrics.md.
"""

from __future__ import annotations

from common import driver_catalogue
from common.driver_catalogue import REASON
from common.metric_kinds import Kind, Label, Metric
from common.metric_labels import LayerGroup, Phase, Statistic, SyncPhase

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
STEP_BUCKETS = (  # one tick: CartPole 50 µs for 8 lanes, Pong 4 ms, robots and games over the network up to seconds
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 5.0, 30.0),
)
EPISODE_BUCKETS = (0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0)
PAUSE_BUCKETS = (  # of a collection by appointment; the goal is a p99 of 1 ms
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1, 1.0),
)
EVALUATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)

PHASE = Label(name="phase", values=Phase)
STATISTIC = Label(name="statistic", values=Statistic)
LAYER_GROUP = Label(name="group", values=LayerGroup)
SYNC_PHASE = Label(name="phase", values=SyncPhase)

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
ACTOR_ENV_STEP_SECONDS = Metric(
    name="truestep_actor_env_step_seconds",
    kind=Kind.HISTOGRAM,
    help="Time of one tick, that is one step of all lanes of an actor, in the environments.",
    buckets=STEP_BUCKETS,
)
ACTOR_EPISODE_SECONDS = Metric(
    name="truestep_actor_episode_seconds",
    kind=Kind.HISTOGRAM,
    help="Duration of training episodes, waits for weights included; not of those under way when the process began.",
    buckets=EPISODE_BUCKETS,
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
LEARNER_GRADIENT_NORM = Metric(
    name="truestep_learner_gradient_norm",
    kind=Kind.GAUGE,
    help="Norm by layer group, before clipping, of the reduced gradient of the first step of the latest update.",
    label=LAYER_GROUP,
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

# ---- process ---------------------------------------------------------------------------------------------------------

PROCESS_METRICS_CPU = Metric(
    name="truestep_process_metrics_cpu_seconds_total",
    kind=Kind.COUNTER,
    help="CPU time that recording and rendering metrics has cost this process.",
)

PROCESS_GC_PAUSE_SECONDS = Metric(
    name="truestep_process_gc_pause_seconds",
    kind=Kind.HISTOGRAM,
    help="Pauses of the cyclic garbage collector; those of actors and ranks lie between fragments and updates.",
    buckets=PAUSE_BUCKETS,
)
PROCESS_HOST_MEMORY = Metric(
    name="truestep_process_host_memory_used_ratio",
    kind=Kind.GAUGE,
    help="How full the memory is that this process lives in, 0 to 1: of the container or the machine, the fuller one.",
)
PROCESS_GPU_UTILIZATION = Metric(
    name="truestep_process_gpu_utilization_ratio",
    kind=Kind.GAUGE,
    help="Share of time, 0 to 1, in which the GPU of this process computed, whoever for.",
)
PROCESS_GPU_MEMORY_USED = Metric(
    name="truestep_process_gpu_memory_used_bytes",
    kind=Kind.GAUGE,
    help="Memory in use on the GPU of this process, whoever by.",
)
PROCESS_GPU_MEMORY_TOTAL = Metric(
    name="truestep_process_gpu_memory_total_bytes",
    kind=Kind.GAUGE,
    help="Memory of the GPU of this process.",
)
PROCESS_GPU_MISPLACED = Metric(
    name="truestep_process_gpu_misplaced",
    kind=Kind.GAUGE,
    help="Whether this process computes on a GPU that it was not given (CUDA_VISIBLE_DEVICES): 1 if so, else 0.",
)

CATALOGUE: tuple[Metric, ...] = tuple(
    value for value in (*vars().values(), *vars(driver_catalogue).values()) if isinstance(value, Metric)
)


def markdown_table() -> str:
    """The catalogue as the Markdown table of docs/metrics.md."""
    lines = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{m.name}` | {m.kind} | {_labels_in_words(m)} | {m.help} |" for m in CATALOGUE]
    return "\n".join(lines)


def _labels_in_words(metric: Metric) -> str:
    if metric.label is None:
        return ", ".join(f"`{fact}`" for fact in metric.facts)
    return f"`{metric.label.name}`: {', '.join(metric.label.values)}"
