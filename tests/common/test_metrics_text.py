"""The text of a scrape: both formats by hand, and read back by the library that defines them."""

from __future__ import annotations

import math
from enum import StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from common.metric_kinds import Kind, Label, Metric
from common.metric_values import Values
from common.metrics_text import Exposition, number


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


COUNTER = Metric(name="shop_apples_total", kind=Kind.COUNTER, help='Apples "sold".')
GAUGE = Metric(name="shop_depth", kind=Kind.GAUGE, help="Depth.", label=Label(name="colour", values=Colour))
SECONDS = Metric(name="shop_seconds", kind=Kind.HISTOGRAM, help="Time.", buckets=(0.00001, 0.5))
RETURN = Metric(name="shop_return", kind=Kind.HISTOGRAM, help="Return.", buckets=(-1.0, 2.0))
INFO = Metric(name="shop_info", kind=Kind.INFO, help="What.", facts=("name",))

OWN_TEXT = r"""# HELP shop_apples_total Apples "sold".
# TYPE shop_apples_total counter
shop_apples_total 3
# HELP shop_depth Depth.
# TYPE shop_depth gauge
shop_depth{colour="red"} -0.25
shop_depth{colour="blue"} NaN
# HELP shop_seconds Time.
# TYPE shop_seconds histogram
shop_seconds_bucket{le="1e-05"} 0
shop_seconds_bucket{le="0.5"} 2
shop_seconds_bucket{le="+Inf"} 3
shop_seconds_count 3
shop_seconds_sum 2.75
# HELP shop_return Return.
# TYPE shop_return histogram
shop_return_bucket{le="-1.0"} 1
shop_return_bucket{le="2.0"} 1
shop_return_bucket{le="+Inf"} 1
# HELP shop_info What.
# TYPE shop_info gauge
shop_info{name="a\"b\\c\nd"} 1
"""


@pytest.fixture
def values() -> Values:
    values = Values()
    values.account(0)
    values.counter(COUNTER).add(3)
    values.gauge(GAUGE, Colour.RED).set(-0.25)
    values.gauge(GAUGE, Colour.BLUE).set(math.nan)
    for seconds in (0.25, 0.5, 2.0):
        values.histogram(SECONDS).observe(seconds)
    values.histogram(RETURN).observe(-5.0)
    values.info(INFO).set({"name": 'a"b\\c\nd'})
    return values


def text_of(values: Values, exposition: Exposition | None = None, *, open_metrics: bool = False) -> str:
    own = {metric: samples for metric, samples in values.snapshot().items() if metric.name.startswith("shop")}
    return (exposition or Exposition()).write(own, open_metrics=open_metrics).decode()


def test_prometheus_text_letter_by_letter(values: Values) -> None:
    """Heads, labels, numbers, quotes and new lines as the format has them; no sum where values may be negative."""
    assert text_of(values) == OWN_TEXT


def test_open_metrics_differs_in_heads_only(values: Values) -> None:
    """Families lose their suffix, facts have a kind of their own, quotes in help are escaped."""
    ours, theirs = text_of(values).splitlines(), text_of(values, open_metrics=True).splitlines()
    assert [line for line in ours if line[0] != "#"] == [line for line in theirs if line[0] != "#"]
    assert [line for line in theirs if line not in ours] == [
        r"# HELP shop_apples Apples \"sold\".",
        "# TYPE shop_apples counter",
        "# HELP shop What.",
        "# TYPE shop info",
    ]


def test_the_second_scrape_says_what_the_first_did(values: Values) -> None:
    """What is remembered of the first one is only what never changes."""
    exposition = Exposition()
    first = text_of(values, exposition)
    assert text_of(values, exposition) == first
    values.counter(COUNTER).add(1)
    assert text_of(values, exposition) == first.replace("shop_apples_total 3", "shop_apples_total 4")


@settings(deadline=None, max_examples=100)
@given(st.floats() | st.integers(0, 2**63), st.text())
def test_any_number_and_any_name_is_read_back(value: float, name: str) -> None:
    """By prometheus_client, in both formats: nothing is rounded, and no name can break a line."""
    values = Values()
    values.gauge(GAUGE, Colour.RED).set(value)
    values.info(INFO).set({"name": name})
    plain, opened = text_of(values), text_of(values, open_metrics=True) + "# EOF\n"
    for families in (parse_text(plain), parse_openmetrics(opened)):  # type: ignore[no-untyped-call]
        samples = {sample.name: sample for family in families for sample in family.samples}
        assert samples["shop_info"].labels == {"name": name}
        read = samples["shop_depth"].value
        assert read == value or (math.isnan(read) and math.isnan(value))


def test_numbers() -> None:
    """Infinities and NaN by Prometheus's names; counts stay whole."""
    assert [number(value) for value in (3, 0.1, 1e22, math.inf, -math.inf, math.nan)] == [
        *("3", "0.1", "1e+22", "+Inf", "-Inf", "NaN"),
    ]
