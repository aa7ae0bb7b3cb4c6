"""Where a run can be watched, as its record has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import ConfigError, RunNotFoundError
from common.process_identity import ProcessIdentity
from common.runs import RunRegistry
from deploy.serving import driver_address, record_serving


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunRegistry]:
    with RunRegistry.open(tmp_path / "runs.sqlite") as registry:
        registry.create_run(run="r", env="e", algo="ppo", seed=0, engine="ray", config={}, facts={}, out="o")
        yield registry


def test_a_live_run_is_found_where_its_driver_serves_now(registry: RunRegistry) -> None:
    """The newest driver's address counts, not that of the one before it."""
    registry.acquire("r", lease="one")
    record_serving(registry, "r", address="10.0.0.1:9100", lease="one")
    assert driver_address(registry, "r") == "10.0.0.1:9100"
    registry.release("r")
    registry.acquire("r", lease="two")
    record_serving(registry, "r", address="10.0.0.2:9100", lease="two")
    assert driver_address(registry, "r") == "10.0.0.2:9100"


def test_a_driver_that_serves_nothing_is_not_taken_for_the_one_before_it(registry: RunRegistry) -> None:
    """An address of an earlier driver is nobody's now, or another run's."""
    registry.acquire("r", lease="one")
    record_serving(registry, "r", address="10.0.0.1:9100", lease="one")
    registry.release("r")
    registry.acquire("r", lease="two")
    with pytest.raises(ConfigError, match=r"'r' serves no metrics; got metrics.enabled = false.*--address"):
        driver_address(registry, "r")


def test_a_run_that_nobody_drives_says_so(registry: RunRegistry) -> None:
    """Ended in order, killed, or never there: three different sentences."""
    with pytest.raises(ConfigError, match=r"'r' is not running; got running; allowed: .*truestep resume r"):
        driver_address(registry, "r")
    dead = dataclasses.replace(ProcessIdentity.current(), start_ticks=1)
    registry.acquire("r", lease="one", process=dead)
    record_serving(registry, "r", address="10.0.0.1:9100", lease="one")
    with pytest.raises(ConfigError, match=r"'r' is not running; got its driver, process \d+ on host .*, is dead"):
        driver_address(registry, "r")
    with pytest.raises(RunNotFoundError, match="nope"):
        driver_address(registry, "nope")


def test_a_driver_on_another_host_is_taken_to_be_alive(registry: RunRegistry) -> None:
    """Nobody can tell from here; the connection will."""
    elsewhere = dataclasses.replace(ProcessIdentity.current(), host="elsewhere")
    registry.acquire("r", lease="one", process=elsewhere)
    record_serving(registry, "r", address="10.0.0.1:9100", lease="one")
    assert driver_address(registry, "r") == "10.0.0.1:9100"
