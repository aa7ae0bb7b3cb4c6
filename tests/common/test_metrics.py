"""Metrics: conventions of the catalogue, exact numbers, scrapes of one moment, bounded series (E1, E2, C41)."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from common.driver_catalogue import LAG_BUCKETS
from common.fragment import FragmentSummary
from common.metric_catalogue import CATALOGUE, LENGTH_BUCKETS, RETURN_BUCKETS
from common.metric_kinds import Kind, Metric
from common.metric_labels import ActorState, DropReason, RankState, RecoveryCause, SaveResult, Statistic, SyncFault
from common.metric_values import Histogram
from common.metrics import ActorMetrics, DriverMetrics, LearnerMetrics, Registry, markdown_table, new_registry
from common.timings import FragmentTimings
from deploy.conductor.accounts import OLD_LEASE, OLD_TERM, ROLLED_BACK, SKIPPED, STALE
from deploy.conductor.policies.scripted import NOT_TAKEN
from deploy.conductor.ranks import RankStatus
from deploy.config_sections import FlowConfig
from learner.algorithms.outcome import MEANS, Record
from learner.intake import Refusal
from learner.reports import Fault, SyncReport

ROOT = Path(__file__).parents[2]
Series = dict[str, float]

SUMMARY = FragmentSummary(
    actor=3,
    lease="a1",
    incarnation=0,
    sequence=7,
    term=0,
    version=42,
    update=8,
    num_valid=1000,
    num_voided=24,
    num_bytes=4096,
    episode_returns=(-3.0, 500.0),
    episode_lengths=(11, 500),
    start_ns=1_000_000_000,
    end_ns=1_250_000_000,
    policy_ns=100_000_000,
    env_ns=120_000_000,
    gc_pause_ns=(900_000, 1_100_000),
)
TIMINGS = FragmentTimings(
    step_ns=np.array([10_000, 900_000, 1_100_000]), episode_ns=np.array([2_000_000_000], dtype=np.int64)
)
UPDATE: dict[str, Any] = {
    "seconds": {"intake": 0.001, "learn": 0.2, "close": 0.003, "publish": 0.002},
    "statistics": {"policy": -0.5, "value": 1.5},
    "learning_rate": 0.0003,
    "lag": 1,
    "version": 9,
    "rows": 2000,
    "steps": 15,
    "skipped_steps": 1,
    "gaps": 2,
    "refused": {"stale": 3},
    "layer_norms": {"policy": 0.5, "value": math.inf},
}
SYNC = SyncReport(
    verified_steps=15,
    audited=True,
    reduced_bytes=4096,
    gradient_norm=0.75,
    seconds={"reduce": 0.2, "verify": 0.003, "exchange": 0.001, "backup": 0.0005, "audit": 0.0},
)
VERIFICATION: dict[str, Any] = {
    "verified": 40,
    "mismatches": {Fault.DIGEST: 2},
    "failures": 3,
    "retries": 4,
    "rollbacks": 1,
}
ACCOUNTS: dict[str, Any] = {
    "produced": 100,
    "trained": 60,
    "undone": 7,
    "in_flight": 30,
    "dropped": {"stale": 8, "skipped": 2},
    "fragments_lost": 1,
    "voided": 5,
    "episodes": 4,
}


@pytest.fixture
def registry() -> Registry:
    return new_registry()


def scrape(registry: Registry) -> Series:
    """Series as Prometheus reads them: `name{label="value"}` to value."""
    text, _ = registry.render()
    return {_key(s.name, s.labels): s.value for family in parse_text(text.decode()) for s in family.samples}


def _key(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name


# ---- catalogue -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_names_and_help_follow_the_conventions(metric: Metric) -> None:
    """truestep_<room>_<what>: lower case, base units, `_total` on counters and nothing else, help is a sentence."""
    assert re.fullmatch(r"truestep_(actor|learner|driver|process)_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_info") == (metric.kind is Kind.INFO)
    assert not re.search(r"_(count|sum|bucket|created|ms|ns|us|milliseconds|kb|mb|percent|minutes)(_|$)", metric.name)
    assert re.fullmatch(r"[A-Z].+\.", metric.help)
    assert "|" not in metric.help and "\n" not in metric.help


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_only_histograms_have_buckets_and_only_info_has_free_values(metric: Metric) -> None:
    """Buckets rise strictly and are finite; label names are plain and never one that Prometheus sets."""
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert all(map(math.isfinite, metric.buckets))
    assert bool(metric.facts) == (metric.kind is Kind.INFO)
    assert not {"job", "instance", "le", "quantile"} & set(metric.label_names)


def test_each_metric_stands_once() -> None:
    """No name twice."""
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names) > 40


def test_return_buckets_are_symmetric() -> None:
    """Returns of -10 000 to 10 000 are resolved alike on both sides of zero."""
    assert tuple(-bound for bound in reversed(RETURN_BUCKETS)) == RETURN_BUCKETS
    assert RETURN_BUCKETS[-1] == 10_000


def test_lag_buckets_tell_fresh_from_late() -> None:
    """Lags of 0 and 1, all that synchronous collection has, are told apart; the usual bound is one of the buckets."""
    assert LAG_BUCKETS[:3] == (0.0, 1.0, 2.0)
    assert FlowConfig().max_lag in LAG_BUCKETS
    assert LAG_BUCKETS[-1] == 64


def test_the_closed_sets_cover_what_the_other_rooms_say() -> None:
    """Every refusal, drop, state, fault and statistic of the product has its label value."""
    assert {*Refusal, SKIPPED, STALE, OLD_LEASE, OLD_TERM, ROLLED_BACK, NOT_TAKEN} <= {*DropReason}
    assert {*RankStatus} == {*RankState}
    assert {*Fault} == {*SyncFault}
    assert {*MEANS, *Record().outcome(0.0).statistics} <= {*Statistic}


def test_the_documented_table_is_the_catalogue() -> None:
    """docs/metrics.md holds what `python -m common.metrics` prints, and importing it needs neither torch nor ray."""
    code = "import runpy, sys; runpy.run_module('common.metrics', run_name='__main__', alter_sys=True); "
    code += "sys.exit(bool({'torch', 'ray', 'gymnasium'} & sys.modules.keys()))"
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    document = (ROOT / "docs" / "metrics.md").read_text()
    begin, end = "<!-- catalogue: python -m common.metrics -->\n", "\n<!-- end of catalogue -->"
    assert printed == markdown_table() + "\n"
    assert document.partition(begin)[2].partition(end)[0] == markdown_table()


# ---- actor -----------------------------------------------------------------------------------------------------------


def test_a_fragment_is_exported_number_by_number(registry: Registry) -> None:
    """Two fragments of one summary: totals double, gauges stay, each observation lies in its bucket."""
    metrics = ActorMetrics(registry)
    metrics.observe(SUMMARY, TIMINGS)
    metrics.observe(SUMMARY, TIMINGS)
    series = scrape(registry)
    expected = {
        "truestep_actor_fragments_total": 2,
        "truestep_actor_env_steps_total": 2000,
        "truestep_actor_voided_transitions_total": 48,
        "truestep_actor_fragment_bytes_total": 8192,
        "truestep_actor_episodes_total": 4,
        "truestep_actor_episode_return_mean": 248.5,
        "truestep_actor_policy_seconds_total": 0.2,
        "truestep_actor_environment_seconds_total": 0.24,
        "truestep_actor_weights_version": 42,
        'truestep_actor_episode_return_bucket{le="-5.0"}': 0,
        'truestep_actor_episode_return_bucket{le="-2.0"}': 2,
        'truestep_actor_episode_return_bucket{le="200.0"}': 2,
        'truestep_actor_episode_return_bucket{le="500.0"}': 4,
        'truestep_actor_episode_return_bucket{le="+Inf"}': 4,
        'truestep_actor_episode_length_transitions_bucket{le="20.0"}': 2,
        "truestep_actor_episode_length_transitions_count": 4,
        "truestep_actor_episode_length_transitions_sum": 1022,
        'truestep_actor_collect_seconds_bucket{le="0.1"}': 0,
        'truestep_actor_collect_seconds_bucket{le="0.25"}': 2,
        "truestep_actor_collect_seconds_sum": 0.5,
        'truestep_actor_env_step_seconds_bucket{le="1e-05"}': 2,
        'truestep_actor_env_step_seconds_bucket{le="0.001"}': 4,
        'truestep_actor_env_step_seconds_bucket{le="0.0025"}': 6,
        "truestep_actor_env_step_seconds_count": 6,
        "truestep_actor_env_step_seconds_sum": 2 * (0.00001 + 0.0009 + 0.0011),
        'truestep_actor_episode_seconds_bucket{le="1.0"}': 0,
        'truestep_actor_episode_seconds_bucket{le="2.5"}': 2,
        "truestep_actor_episode_seconds_count": 2,
    }
    assert {name: series[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_a_fragment_without_an_episode_keeps_the_mean(registry: Registry) -> None:
    """The mean return is of the latest fragment in which an episode ended; before the first there is no series."""
    metrics = ActorMetrics(registry)
    quiet = FragmentSummary(**_fields(SUMMARY, episode_returns=(), episode_lengths=()))
    metrics.observe(quiet)
    assert "truestep_actor_episode_return_mean" not in scrape(registry)
    metrics.observe(SUMMARY)
    metrics.observe(quiet)
    assert scrape(registry)["truestep_actor_episode_return_mean"] == 248.5


def _fields(summary: FragmentSummary, **changes: Any) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in summary.__slots__} | changes


def test_an_evaluation_is_exported(registry: Registry) -> None:
    """Seconds and episodes of evaluations are kept apart from training."""
    metrics = ActorMetrics(registry)
    metrics.observe_evaluation(2.0, 10)
    series = scrape(registry)
    assert series["truestep_actor_evaluation_episodes_total"] == 10
    assert series['truestep_actor_evaluation_seconds_bucket{le="2.5"}'] == 1
    assert series["truestep_actor_episodes_total"] == 0


def test_two_actors_of_one_process_add_up(registry: Registry) -> None:
    """A second recorder of the same registry goes on where the first is: no duplicate, no restart at 0."""
    ActorMetrics(registry).observe(SUMMARY)
    ActorMetrics(registry).observe(SUMMARY)
    assert scrape(registry)["truestep_actor_env_steps_total"] == 2000


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats() | st.sampled_from(LENGTH_BUCKETS), max_size=30))
@example([math.nan, math.inf, -math.inf])
def test_buckets_count_what_is_at_or_below_their_bound(observed: list[float]) -> None:
    """For any floats; NaN is above every bound."""
    histogram = Histogram("h", LENGTH_BUCKETS)
    for value in observed:
        histogram.observe(value)
    *cumulative, everything = histogram.read().cumulative
    assert cumulative == [sum(value <= bound for value in observed) for bound in LENGTH_BUCKETS]
    assert everything == len(observed)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1e300, 1e300) | st.just(math.nan) | st.sampled_from(LENGTH_BUCKETS), max_size=30))
@example([math.nan, 1.0])
def test_many_observations_at_once_are_the_same_as_one_after_the_other(observed: list[float]) -> None:
    """For any durations, twice over: counts are equal, and so are sums up to rounding."""
    singly, at_once = Histogram("h", LENGTH_BUCKETS), Histogram("h", LENGTH_BUCKETS)
    for _ in range(2):
        at_once.observe_all(np.array(observed, dtype=np.float64))
        for value in observed:
            singly.observe(value)
    assert at_once.read().cumulative == singly.read().cumulative
    largest = max(map(abs, observed), default=0.0)
    assert at_once.sum == pytest.approx(singly.sum, rel=1e-9, abs=1e-9 * largest, nan_ok=True)


# ---- learner ---------------------------------------------------------------------------------------------------------


def test_an_update_is_exported_number_by_number(registry: Registry) -> None:
    """Two updates: totals double, phases are observed, statistics are the latest."""
    metrics = LearnerMetrics(registry)
    metrics.observe(**UPDATE)
    metrics.observe(**UPDATE | {"statistics": {"policy": -0.25}, "lag": 0, "version": 10})
    series = scrape(registry)
    expected = {
        "truestep_learner_updates_total": 2,
        "truestep_learner_accepted_transitions_total": 4000,
        "truestep_learner_gradient_steps_total": 30,
        "truestep_learner_skipped_gradient_steps_total": 2,
        "truestep_learner_missing_fragments_total": 4,
        'truestep_learner_refused_fragments_total{reason="stale"}': 6,
        'truestep_learner_refused_fragments_total{reason="corrupt"}': 0,
        'truestep_learner_phase_seconds_bucket{le="0.1",phase="learn"}': 0,
        'truestep_learner_phase_seconds_bucket{le="0.25",phase="learn"}': 2,
        'truestep_learner_phase_seconds_sum{phase="learn"}': 0.4,
        'truestep_learner_phase_seconds_count{phase="close"}': 2,
        'truestep_learner_statistic{statistic="policy"}': -0.25,
        'truestep_learner_statistic{statistic="value"}': 1.5,
        "truestep_learner_learning_rate": 0.0003,
        "truestep_learner_policy_lag_updates": 0,
        "truestep_learner_weights_version": 10,
        'truestep_learner_gradient_norm{group="policy"}': 0.5,
        'truestep_learner_gradient_norm{group="value"}': math.inf,
    }
    assert {name: series[name] for name in expected} == expected
    assert 'truestep_learner_gradient_norm{group="core"}' not in series
    assert 'truestep_learner_statistic{statistic="entropy"}' not in series


def test_what_sync_came_to_is_exported_with_its_update(registry: Registry) -> None:
    """Steps and bytes add up, phases are observed, a phase that did not happen is not observed as 0."""
    metrics = LearnerMetrics(registry)
    metrics.observe(**UPDATE, sync=SYNC)
    metrics.observe(**UPDATE, sync=replace(SYNC, audited=False, gradient_norm=0.5))
    series = scrape(registry)
    expected = {
        "truestep_learner_verified_steps_total": 30,
        "truestep_learner_audited_steps_total": 1,
        "truestep_learner_reduced_bytes_total": 8192,
        "truestep_learner_local_gradient_norm": 0.5,
        'truestep_learner_sync_seconds_bucket{le="0.1",phase="reduce"}': 0,
        'truestep_learner_sync_seconds_bucket{le="0.25",phase="reduce"}': 2,
        'truestep_learner_sync_seconds_sum{phase="verify"}': 0.006,
        'truestep_learner_sync_seconds_count{phase="exchange"}': 2,
        'truestep_learner_sync_seconds_bucket{le="0.0005",phase="backup"}': 2,
        'truestep_learner_sync_seconds_count{phase="audit"}': 0,
    }
    assert {name: series[name] for name in expected} == expected


def test_an_order_that_changed_nothing_is_no_update_but_has_its_cost(registry: Registry) -> None:
    """A disputed or failed attempt adds to sync and to nothing else; without sync nothing of it is exported."""
    metrics = LearnerMetrics(registry)
    metrics.observe(**UPDATE)
    before = scrape(registry)
    assert before["truestep_learner_verified_steps_total"] == 0
    assert "truestep_learner_local_gradient_norm" not in before
    metrics.observe_voided(SYNC)
    after = scrape(registry)
    changed = {name.partition("{")[0] for name in _without_cost(after) if after[name] != before.get(name)}
    sync = ("sync_seconds_bucket", "sync_seconds_count", "sync_seconds_sum", "reduced_bytes_total")
    sync += ("verified_steps_total", "audited_steps_total", "local_gradient_norm")
    assert changed == {f"truestep_learner_{name}" for name in sync}


def test_a_statistic_that_is_not_finite_is_seen_as_such(registry: Registry) -> None:
    """NaN and infinity are exported, not hidden and not an error."""
    LearnerMetrics(registry).observe(**UPDATE | {"statistics": {"policy": math.nan, "value": -math.inf}})
    series = scrape(registry)
    assert math.isnan(series['truestep_learner_statistic{statistic="policy"}'])
    assert series['truestep_learner_statistic{statistic="value"}'] == -math.inf


def test_an_unknown_statistic_or_phase_is_logged_once(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    """Names outside the closed sets make no series; the log tells of the first, whatever comes after."""
    metrics = LearnerMetrics(registry)
    for index in range(5):
        unknown = {"seconds": {f"phase {index}": 1.0}, "statistics": {f"statistic {index}": 1.0, "policy": 2.0}}
        metrics.observe(**UPDATE | unknown)
    assert [record.getMessage() for record in caplog.records] == [
        "metrics: Phase lacks ['phase 0']: not exported; told once",
        "metrics: Statistic lacks ['statistic 0']: not exported; told once",
    ]
    assert scrape(registry)['truestep_learner_statistic{statistic="policy"}'] == 2.0


# ---- driver ----------------------------------------------------------------------------------------------------------


def test_accounts_are_exported_exactly(registry: Registry) -> None:
    """Each account, each reason (0 where nothing was dropped), up to 2^53."""
    big = 2**53 - 100
    accounts = ACCOUNTS | {"produced": 100 + big, "trained": 60 + big}
    DriverMetrics(registry).set_accounts(**accounts)
    series = scrape(registry)
    dropped = {
        reason: series[f'truestep_driver_dropped_transitions_total{{reason="{reason}"}}'] for reason in DropReason
    }
    assert dropped == dict.fromkeys(DropReason, 0) | {DropReason.STALE: 8, DropReason.SKIPPED: 2}
    assert series["truestep_driver_produced_transitions_total"] == 2**53
    assert series["truestep_driver_trained_transitions_total"] == 60 + big
    assert series["truestep_driver_undone_transitions_total"] == 7
    assert series["truestep_driver_in_flight_transitions"] == 30
    assert series["truestep_driver_lost_fragments_total"] == 1
    assert series["truestep_driver_voided_transitions_total"] == 5
    assert series["truestep_driver_episodes_total"] == 4


@pytest.mark.parametrize(
    "change",
    [
        {"produced": 99},
        {"trained": 59},
        {"undone": 6},
        {"dropped": {"stale": 7, "skipped": 2}},
        {"dropped": {"stale": 8}},
        {"fragments_lost": 0},
        {"voided": 4},
        {"episodes": 3},
        {"episodes": math.nan},
    ],
    ids=str,
)
def test_totals_never_go_back(registry: Registry, change: dict[str, Any]) -> None:
    """A lower total is refused by name, and nothing of that call is exported (C41)."""
    metrics = DriverMetrics(registry)
    metrics.set_accounts(**ACCOUNTS)
    before = _without_cost(scrape(registry))
    raised = {name: value + 1 for name, value in ACCOUNTS.items() if name != "dropped"}
    with pytest.raises(ValueError, match=r"truestep_driver_\w+_total.*got .*allowed: \d+ or more; totals never go"):
        metrics.set_accounts(**ACCOUNTS | raised | change)
    assert _without_cost(scrape(registry)) == before


def _without_cost(series: Series) -> Series:
    """Without what every scrape changes: its own cost, and ages."""
    ours = {name: value for name, value in series.items() if name.startswith("truestep_") and "process" not in name}
    return {name: value for name, value in ours.items() if "age_seconds" not in name}


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.sampled_from([*DropReason, "new", "newer"]), st.integers(0, 1000)))
def test_dropped_transitions_add_up_whatever_the_reasons(dropped: dict[str, int]) -> None:
    """Unknown reasons count as "other", so no transition is lost from the sum."""
    registry = new_registry()
    DriverMetrics(registry).set_accounts(**ACCOUNTS | {"dropped": dropped})
    series = scrape(registry)
    exported = [value for name, value in series.items() if name.startswith("truestep_driver_dropped")]
    assert sum(exported) == sum(dropped.values())
    assert len(exported) == len(DropReason)


def test_a_scrape_is_one_moment(registry: Registry) -> None:
    """While another thread keeps setting accounts, produced = trained + dropped + in flight in every scrape."""
    metrics = DriverMetrics(registry)
    done = threading.Event()

    def record() -> None:
        for n in _until(done):
            dropped = {"stale": n, "skipped": 2 * n}
            metrics.set_accounts(
                **ACCOUNTS | {"produced": 10 * n, "trained": 6 * n, "in_flight": n, "dropped": dropped}
            )

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    recorder = threading.Thread(target=record)
    recorder.start()
    try:
        for _ in range(60):
            series = scrape(registry)
            dropped = sum(value for name, value in series.items() if name.startswith("truestep_driver_dropped"))
            trained = series["truestep_driver_trained_transitions_total"]
            in_flight = series.get("truestep_driver_in_flight_transitions", 0)
            assert series["truestep_driver_produced_transitions_total"] == trained + dropped + in_flight
    finally:
        done.set()
        recorder.join(10)
        sys.setswitchinterval(interval)


def _until(done: threading.Event) -> Iterator[int]:
    n = 0
    while not done.is_set():
        n += 1
        yield n


def test_progress_actors_evaluation_and_checkpoints(registry: Registry) -> None:
    """What else the driver tells; states without an actor are exported as 0."""
    metrics = DriverMetrics(registry)
    metrics.set_progress(updates=3, env_steps=3000, version=4, term=1, policy_lag=1, per_second=1234.5)
    metrics.set_progress(updates=4, env_steps=4000, version=5, term=1, policy_lag=0, per_second=None)
    metrics.set_actors(states={ActorState.RUNNING: 2, ActorState.CREATED: 1}, wanted=3, restarts=0)
    metrics.set_actors(states={ActorState.RUNNING: 2, ActorState.DEAD: 1}, wanted=4, restarts=2)
    metrics.set_evaluation(return_mean=-21.5, episodes=10)
    metrics.observe_checkpoint(seconds=0.03, result=SaveResult.OK)
    metrics.observe_checkpoint(seconds=0.7, result=SaveResult.FAILED)
    series = scrape(registry)
    expected = {
        "truestep_driver_updates_total": 4,
        "truestep_driver_env_steps_total": 4000,
        "truestep_driver_env_steps_per_second": 1234.5,
        "truestep_driver_weights_version": 5,
        "truestep_driver_term": 1,
        "truestep_driver_policy_lag_updates": 0,
        'truestep_driver_actors{state="created"}': 0,
        'truestep_driver_actors{state="running"}': 2,
        'truestep_driver_actors{state="blocked"}': 0,
        'truestep_driver_actors{state="dead"}': 1,
        "truestep_driver_wanted_actors": 4,
        "truestep_driver_actor_restarts_total": 2,
        "truestep_driver_evaluation_return_mean": -21.5,
        "truestep_driver_evaluation_episodes": 10,
        'truestep_driver_checkpoints_total{result="ok"}': 1,
        'truestep_driver_checkpoints_total{result="failed"}': 1,
        'truestep_driver_checkpoint_seconds_bucket{le="0.05"}': 1,
        "truestep_driver_checkpoint_seconds_count": 2,
    }
    assert {name: series[name] for name in expected} == expected


def test_progress_and_restarts_never_go_back(registry: Registry) -> None:
    """Updates, steps and restarts are totals too."""
    metrics = DriverMetrics(registry)
    progress: dict[str, Any] = {"version": 1, "term": 0, "policy_lag": 0, "per_second": None}
    metrics.set_progress(updates=3, env_steps=300, **progress)
    metrics.set_actors(states={}, wanted=1, restarts=2)
    with pytest.raises(ValueError, match="truestep_driver_updates_total: got 2"):
        metrics.set_progress(updates=2, env_steps=400, **progress)
    with pytest.raises(ValueError, match="truestep_driver_env_steps_total: got 299"):
        metrics.set_progress(updates=4, env_steps=299, **progress)
    with pytest.raises(ValueError, match="truestep_driver_actor_restarts_total: got 1"):
        metrics.set_actors(states={ActorState.RUNNING: 1}, wanted=1, restarts=1)
    assert scrape(registry)['truestep_driver_actors{state="running"}'] == 0


def test_the_flow_and_its_fragments_are_exported(registry: Registry) -> None:
    """Gauges as they stand, starvation in all, each fragment in its buckets; no series before there is a flow."""
    metrics = DriverMetrics(registry)
    assert not {"truestep_driver_queued_fragments", "truestep_driver_in_flight_fragments"} & scrape(registry).keys()
    metrics.set_flow(in_flight=12, capacity=16, queued=4, starved=3)
    metrics.set_oldest_fragment(age_s=1.5)
    metrics.observe_fragments(lags=[0, 1, 5, 65], waits_s=[0.02, 4.0])
    with pytest.raises(ValueError, match="truestep_driver_starved_updates_total: got 2"):
        metrics.set_flow(in_flight=0, capacity=1, queued=0, starved=2)
    series = scrape(registry)
    expected = {
        "truestep_driver_in_flight_fragments": 12,
        "truestep_driver_in_flight_capacity_fragments": 16,
        "truestep_driver_queued_fragments": 4,
        "truestep_driver_starved_updates_total": 3,
        "truestep_driver_oldest_fragment_age_seconds": 1.5,
        'truestep_driver_fragment_lag_updates_bucket{le="0.0"}': 1,
        'truestep_driver_fragment_lag_updates_bucket{le="4.0"}': 2,
        'truestep_driver_fragment_lag_updates_bucket{le="6.0"}': 3,
        'truestep_driver_fragment_lag_updates_bucket{le="64.0"}': 3,
        "truestep_driver_fragment_lag_updates_count": 4,
        "truestep_driver_fragment_lag_updates_sum": 71,
        'truestep_driver_fragment_wait_seconds_bucket{le="0.01"}': 0,
        'truestep_driver_fragment_wait_seconds_bucket{le="0.025"}': 1,
        "truestep_driver_fragment_wait_seconds_sum": 4.02,
    }
    assert {name: series[name] for name in expected} == expected


def test_what_verification_found_is_exported(registry: Registry) -> None:
    """Totals by fault (0 for those that never were), ranks by state, recoveries by what went wrong."""
    metrics = DriverMetrics(registry)
    metrics.set_sync(**VERIFICATION)
    metrics.set_ranks(states={"joined": 1, "starting": 1}, restarts=0)
    metrics.set_ranks(states={"joined": 2}, restarts=1)
    metrics.observe_recovery(seconds=3.0, cause=RecoveryCause.RANK_LOST)
    series = scrape(registry)
    expected = {
        "truestep_driver_verified_updates_total": 40,
        'truestep_driver_sync_mismatches_total{cause="digest"}': 2,
        'truestep_driver_sync_mismatches_total{cause="conservation"}': 0,
        'truestep_driver_sync_mismatches_total{cause="parameters"}': 0,
        'truestep_driver_sync_mismatches_total{cause="local_gradient"}': 0,
        "truestep_driver_sync_failures_total": 3,
        "truestep_driver_sync_retries_total": 4,
        "truestep_driver_rollbacks_total": 1,
        'truestep_driver_ranks{state="starting"}': 0,
        'truestep_driver_ranks{state="joined"}': 2,
        'truestep_driver_ranks{state="quarantined"}': 0,
        "truestep_driver_rank_restarts_total": 1,
        'truestep_driver_recovery_seconds_bucket{cause="rank_lost",le="2.5"}': 0,
        'truestep_driver_recovery_seconds_bucket{cause="rank_lost",le="5.0"}': 1,
        'truestep_driver_recovery_seconds_sum{cause="rank_lost"}': 3,
        'truestep_driver_recovery_seconds_count{cause="rollback"}': 0,
    }
    assert {name: series[name] for name in expected} == expected


@pytest.mark.parametrize(
    "change",
    [{"verified": 39}, {"mismatches": {}}, {"failures": 2}, {"retries": 3}, {"rollbacks": 0}],
    ids=str,
)
def test_what_verification_found_is_never_taken_back(registry: Registry, change: dict[str, Any]) -> None:
    """A lower total is refused, and nothing of that call is exported; so are fewer restarts of ranks."""
    metrics = DriverMetrics(registry)
    metrics.set_sync(**VERIFICATION)
    metrics.set_ranks(states={"joined": 2}, restarts=1)
    before = _without_cost(scrape(registry))
    with pytest.raises(ValueError, match="totals never go back"):
        metrics.set_sync(**{name: 50 for name in VERIFICATION if name != "mismatches"} | {"mismatches": {}} | change)
    with pytest.raises(ValueError, match="truestep_driver_rank_restarts_total: got 0"):
        metrics.set_ranks(states={}, restarts=0)
    assert _without_cost(scrape(registry)) == before


def test_the_run_is_one_series_whatever_its_names(registry: Registry) -> None:
    """Free label values are escaped, and set again they replace the series."""
    metrics = DriverMetrics(registry)
    metrics.set_run(run="first", env="CartPole-v1", algo="ppo")
    metrics.set_run(run='a"b\\c\nd', env="CartPole-v1", algo="ppo")
    runs = [f for f in parse_text(registry.render()[0].decode()) if f.name == "truestep_driver_run_info"]
    assert [sample.labels["run"] for sample in runs[0].samples] == ['a"b\\c\nd']


# ---- registry --------------------------------------------------------------------------------------------------------


def test_the_number_of_series_is_a_constant(registry: Registry) -> None:
    """Actors, leases, versions and unknown reasons come and go: no series is added beyond the catalogue's count."""
    actor, learner, driver = ActorMetrics(registry), LearnerMetrics(registry), DriverMetrics(registry)
    driver.set_run(run="r", env="e", algo="a")
    for index in range(50):
        actor.observe(FragmentSummary(**_fields(SUMMARY, actor=index, lease=f"lease{index}", version=index)))
        learner.observe(**UPDATE | {"refused": {f"reason {index}": 1}, "statistics": {f"statistic {index}": 1.0}})
        learner.observe_voided(replace(SYNC, seconds={f"phase {index}": 1.0, "verify": 1.0}))
        driver.set_sync(**VERIFICATION | {"mismatches": {f"fault {index}": 1}})
        driver.set_ranks(states={f"state {index}": 1}, restarts=index)
        driver.set_accounts(**ACCOUNTS | {"dropped": {f"reason {i}": 1 for i in range(index + 1)}})
        driver.set_run(run=f"run {index}", env="e", algo="a")
    ours = [name for name in scrape(registry) if name.startswith("truestep_")]
    assert len(ours) <= sum(metric.num_series for metric in CATALOGUE) < 1000


def test_open_metrics_is_sound(registry: Registry) -> None:
    """The format that Prometheus asks for first passes its own strict parser, negative returns included."""
    ActorMetrics(registry).observe(SUMMARY)
    LearnerMetrics(registry).observe(**UPDATE)
    driver = DriverMetrics(registry)
    driver.set_accounts(**ACCOUNTS)
    driver.set_run(run="r", env="e", algo="a")
    text, content_type = registry.render("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    parsed = parse_openmetrics(text.decode())  # type: ignore[no-untyped-call]
    families = {family.name: family for family in parsed}
    assert content_type.startswith("application/openmetrics-text")
    assert families["truestep_driver_run"].type == "info"
    exported = {sample.name for family in families.values() for sample in family.samples}
    assert "truestep_driver_produced_transitions_total" in exported
    assert not [name for name in exported if name.endswith("_created")]
    assert "truestep_actor_episode_return_sum" not in exported


def test_a_registry_shares_nothing(registry: Registry) -> None:
    """A second one, as a second run in the process makes, starts from nothing; the process itself is in both (C40)."""
    ActorMetrics(registry).observe(SUMMARY)
    other = new_registry()
    ActorMetrics(other)
    assert scrape(other)["truestep_actor_fragments_total"] == 0
    assert scrape(other)["process_resident_memory_bytes"] > 0
    assert scrape(other)["process_open_fds"] > 0
    assert scrape(registry)["truestep_actor_fragments_total"] == 1


def test_the_cost_is_accounted_for(registry: Registry) -> None:
    """Recording adds its CPU time to a series of its own, readable as `cpu_seconds`."""
    metrics = ActorMetrics(registry)
    assert registry.cpu_seconds == 0
    metrics.observe(SUMMARY)
    after_one = registry.cpu_seconds
    assert after_one > 0
    registry.account(2_000_000_000)
    exported = scrape(registry)["truestep_process_metrics_cpu_seconds_total"]
    assert exported == registry.cpu_seconds == pytest.approx(after_one + 2.0)
