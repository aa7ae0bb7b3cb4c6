"""A run seen from outside: who is there, and what is said where nobody answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.errors import ConfigError, OutputError, UnreachableError
from common.runs import RunRegistry
from deploy.outputs import REGISTRY_FILE
from deploy.serving import record_serving
from deploy.watched import address_of_run, fetch, processes
from tests.deploy.live import live_run


@contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_the_driver_lists_every_process_by_name() -> None:
    """With host, process id and address."""
    with live_run() as run:
        found = {process.name: process for process in processes(run.address)}
        assert sorted(found) == ["actor-0", "driver", "learner-0"]
        target = run.targets[1]
        actor = found["actor-0"]
        assert (actor.address, actor.host, actor.pid) == (target.address, target.host, target.pid)
        assert actor.instance == "actor-0-abc"


def test_who_does_not_answer_is_named_with_what_happened() -> None:
    """Nobody listens; or somebody does, and says nothing within the time there is."""
    with pytest.raises(UnreachableError, match=r"actor-1 at 127.0.0.1:\d+ does not answer; got .*refused"):
        fetch(closed_port(), "/metrics", timeout_s=5, who="actor-1")
    with silent_server() as address, pytest.raises(UnreachableError, match=r"did not answer within 0\.05 s"):
        fetch(address, "/metrics", timeout_s=0.05, who="actor-1")


def test_a_process_that_is_no_driver_is_said_to_be_none() -> None:
    """An actor's address in the place of the driver's."""
    with live_run() as run, pytest.raises(UnreachableError, match=r"is no driver of a run; got .*404"):
        processes(run.targets[1].address)


@pytest.mark.parametrize("address", ["nonsense", ":9100", "host:", "host:port", "host:99999", "http://host:1", "h:1/x"])
def test_an_address_that_is_none_is_refused(address: str, tmp_path: Path) -> None:
    """Before anybody is asked."""
    with pytest.raises(ConfigError, match=r"--address; got .*; allowed: host:port"):
        address_of_run("r", tmp_path, address)


def test_the_address_is_the_recorded_one_unless_one_is_given(tmp_path: Path) -> None:
    """Given, the record is not even looked for."""
    assert address_of_run("r", tmp_path, "host:9100") == "host:9100"
    assert address_of_run("r", tmp_path, "[::1]:9100") == "[::1]:9100"
    with pytest.raises(OutputError, match="no runs there"):
        address_of_run("r", tmp_path, "")
    with RunRegistry.open(tmp_path / REGISTRY_FILE) as registry:
        registry.create_run(run="r", env="e", algo="ppo", seed=0, engine="ray", config={}, facts={}, out="o")
        registry.acquire("r", lease="one")
        record_serving(registry, "r", address="10.0.0.1:9100", lease="one")
    assert address_of_run("r", tmp_path, "") == "10.0.0.1:9100"
