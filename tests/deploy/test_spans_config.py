"""`metrics.spans`: the base address of a collector, without a credential in it."""

from __future__ import annotations

import pytest

from common.errors import ConfigError
from deploy.config_sections import MetricsConfig


@pytest.mark.parametrize(
    "endpoint",
    ["", "http://collector:4318", "http://127.0.0.1:4318/", "https://traces.example.org/otlp", "http://[::1]:4318"],
)
def test_a_base_address_is_taken_as_it_is(endpoint: str) -> None:
    """Nothing, a host, a port, a path of the collector's own."""
    assert MetricsConfig(spans=endpoint).spans == endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        "collector:4318",
        "grpc://collector:4317",
        "http://",
        "http://me:password@collector:4318",
        "http://collector:4318/v1/traces",
        "http://collector:4318/v1/traces/",
        "http://collector:4318?token=x",
        "http://collector:4318/otlp#x",
        "http://collector :4318",
    ],
)
def test_what_is_none_is_refused(endpoint: str) -> None:
    """Credentials among it: a configuration is recorded."""
    with pytest.raises(ConfigError, match=r"metrics\.spans"):
        MetricsConfig(spans=endpoint)
