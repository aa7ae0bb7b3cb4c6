"""What was exported is read again as what it was."""

from __future__ import annotations

import pytest

from common.metrics import DriverMetrics, new_registry
from common.metrics_reading import read_metrics

TEXT = """# HELP truestep_x_total Of things.
# TYPE truestep_x_total counter
truestep_x_total{kind="a"} 3
truestep_x_total{kind="b"} 4.5
# TYPE truestep_seconds histogram
truestep_seconds_bucket{le="1.0"} 1
truestep_seconds_bucket{le="+Inf"} 2
truestep_seconds_count 2
truestep_seconds_sum 5.5
# TYPE truestep_run_info gauge
truestep_run_info{run="a \\"b\\"",env="e"} 1
truestep_nan NaN
"""


def test_series_are_found_by_name_and_label() -> None:
    """One, all of a name, or their sum; what is not there is None, never 0."""
    reading = read_metrics(TEXT)
    assert reading.value("truestep_x_total", kind="b") == 4.5
    assert reading.value("truestep_x_total") is None
    assert reading.total("truestep_x_total") == 7.5
    assert reading.by("truestep_x_total", "kind") == {"a": 3, "b": 4.5}
    assert reading.value("truestep_seconds_sum") == 5.5
    assert reading.value("truestep_seconds_bucket", le="1.0") is None
    assert reading.facts("truestep_run_info") == {"run": 'a "b"', "env": "e"}
    missing = (reading.value("y"), reading.total("y"), reading.by("y", "z"), reading.facts("y"))
    assert missing == (None, None, {}, {})
    assert str(reading.value("truestep_nan")) == "nan"


def test_what_a_driver_exports_is_read_again() -> None:
    """By the names of the catalogue."""
    registry = new_registry()
    metrics = DriverMetrics(registry)
    metrics.set_run(run="r", env="CartPole-v1", algo="ppo")
    metrics.set_progress(updates=7, env_steps=700, version=8, term=1, policy_lag=1, per_second=10.0)
    reading = read_metrics(registry.render()[0].decode())
    assert reading.value("truestep_driver_env_steps_total") == 700
    assert reading.facts("truestep_driver_run_info") == {"run": "r", "env": "CartPole-v1", "algo": "ppo"}
    assert reading.by("truestep_driver_checkpoints_total", "result") == {"ok": 0, "failed": 0}


@pytest.mark.parametrize("text", ["<html>no</html>", "a b c d e"])
def test_what_is_no_metrics_is_said_so(text: str) -> None:
    """A web page is no process of a run."""
    with pytest.raises(ValueError):
        read_metrics(text)
