"""The catalogue of queries: what it names exists, and what it becomes is PromQL."""

from __future__ import annotations

import re

import pytest

from common.metric_catalogue import CATALOGUE as METRICS
from common.metric_kinds import Kind, Metric
from deploy.prometheus.alerts import ALERTS
from deploy.prometheus.queries import CATALOGUE, Query, Unit, overview
from deploy.prometheus.queries.query import mean, quantile

# Series that no metric of ours makes: Prometheus's own of each target, and those of a process.
GIVEN = {
    *("up", "scrape_duration_seconds", "scrape_samples_scraped", "ALERTS"),
    *("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"),
}
TARGET_LABELS = {"run", "role", "index", "instance"}  # those of /targets
BY_NAME = {metric.name: metric for metric in METRICS}
SELECTOR = re.compile(r"([a-zA-Z_]+)\{\$run(?:, ([^}]*))?\}")
MATCHER = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')
GROUPING = re.compile(r"by \(([\w, ]+)\)")


def metric_of(series: str) -> Metric | None:
    """The metric that makes a series; None if it is given."""
    if series in GIVEN:
        return None
    base = re.sub(r"_(bucket|count|sum)$", "", series)
    found = BY_NAME.get(base, BY_NAME.get(series))
    assert found is not None, f"no metric makes {series}"
    assert (found.kind is Kind.HISTOGRAM) == (series != found.name), f"{series} of a {found.kind}"
    return found


@pytest.mark.parametrize("name", CATALOGUE)
def test_what_a_query_selects_exists(name: str) -> None:
    """Metrics, labels, and every value that a label is compared with."""
    selected = SELECTOR.findall(CATALOGUE[name].promql)
    assert selected, "selects nothing"
    for series, matchers in selected:
        metric = metric_of(series)
        for label, _, wanted in MATCHER.findall(matchers):
            if metric is None or metric.label is None or label != metric.label.name:
                assert label in TARGET_LABELS or series == "ALERTS", f"{series} has no label {label}"
                continue
            assert set(wanted.split("|")) <= set(metric.label.values), f"{series}: {label}={wanted}"


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_query_follows_the_rules(name: str) -> None:
    """Every series selects the run, ranges are the window, only counters have rates, the answer says the run."""
    query = CATALOGUE[name]
    assert query.help.endswith("."), query.help
    for series in re.findall(r"\b(?:truestep|process|scrape)_\w+", query.promql):
        assert f"{series}{{$run" in query.promql, f"{series} is taken of all runs"
    assert set(re.findall(r"\[(.*?)\]", query.promql)) <= {"$window", "1h"}
    for series in re.findall(r"(?:rate|increase)\((\w+)\{", query.promql):
        metric = metric_of(series)
        assert metric is None or metric.kind in (Kind.COUNTER, Kind.HISTOGRAM), f"rate of {series}"
    assert all("run" in grouping.split(", ") for grouping in GROUPING.findall(query.promql))
    assert "run" in query.legend or "instance" in query.legend


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric.kind is Kind.COUNTER])
def test_a_counter_is_looked_at_as_a_rate(metric: Metric) -> None:
    """Or as the total of the whole run, which only the driver's are."""
    bare = re.compile(rf"(?<!rate\()(?<!increase\(){metric.name}\{{")
    drawn_bare = [name for name, query in CATALOGUE.items() if bare.search(query.promql)]
    assert metric.name.startswith("truestep_driver_") or drawn_bare == []


def test_a_query_on_a_board_is_of_the_runs_chosen() -> None:
    """The worked example of the module."""
    assert overview.UPDATES_RATE.on_board() == (
        'sum by (run) (rate(truestep_driver_updates_total{run=~"$run"}[$__rate_interval]))'
    )
    assert overview.UPDATES_RATE.asked(window="5m") == "sum by (run) (rate(truestep_driver_updates_total[5m]))"


@pytest.mark.parametrize(
    ("promql", "matcher", "expected"),
    [
        ("x{$run}", "", "x"),
        ("x{$run}", 'run="r"', 'x{run="r"}'),
        ('x{$run, a="b"}', "", 'x{a="b"}'),
        ('x{$run, a="b"}', 'run="r"', 'x{run="r", a="b"}'),
        ('x{$run} - y{$run, a="b"}', 'run="r"', 'x{run="r"} - y{run="r", a="b"}'),
    ],
)
def test_a_matcher_joins_those_that_are_there(promql: str, matcher: str, expected: str) -> None:
    """Alone, before others, and left out."""
    query = Query(promql=promql, unit=Unit.NUMBER, help="x.")
    assert query.asked(matcher=matcher) == expected


def test_quantile_and_mean_are_of_each_group() -> None:
    """The labels asked for, and the run at least."""
    assert (
        quantile(0.5, "x_seconds")
        == "histogram_quantile(0.5, sum by (run, le) (rate(x_seconds_bucket{$run}[$window])))"
    )
    assert mean("x_seconds", by="run, role") == (
        "sum by (run, role) (rate(x_seconds_sum{$run}[$window]))"
        " / sum by (run, role) (rate(x_seconds_count{$run}[$window]) > 0)"
    )


def test_every_alert_has_a_window_exactly_where_its_query_has_rates() -> None:
    """Else it would ask for a range of nothing, or name one that it does not use."""
    assert all(bool(alert.window) == ("$window" in alert.query.promql) for alert in ALERTS)


def test_every_metric_is_drawn_or_is_on_the_list() -> None:
    """So that nobody adds one that nobody sees."""
    drawn = {
        metric.name
        for query in CATALOGUE.values()
        for series, _ in SELECTOR.findall(query.promql)
        if (metric := metric_of(series)) is not None
    }
    assert set(BY_NAME) - drawn == set(NOT_DRAWN)


NOT_DRAWN = {
    "truestep_actor_episodes_total": "the driver's is exact",
    "truestep_actor_voided_transitions_total": "the driver's is exact",
    "truestep_actor_evaluation_episodes_total": "a configured number",
    "truestep_driver_evaluation_episodes": "a configured number",
    "truestep_driver_env_steps_per_second": "boards take the rate of the exact total",
    "truestep_driver_policy_lag_updates": "the histogram of all fragments says more",
    "truestep_learner_policy_lag_updates": "the histogram of all fragments says more",
    "truestep_learner_updates_total": "the driver's is exact",
    "truestep_learner_weights_version": "the driver's is what actors are compared with",
}
