"""The health settings for clusters: what a shell makes of the file, and that Ray knows every one of them."""

from __future__ import annotations

import mmap
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

HEALTH = Path(__file__).resolve().parents[2] / "deploy" / "ray" / "health.env"
PREFIX = "RAY_"


def settings() -> dict[str, str]:
    """What `. health.env` puts into the environment of `ray start`."""
    script = f'set -a; . "{HEALTH}"; exec env'
    said = subprocess.run(["sh", "-c", script], env={}, capture_output=True, text=True, timeout=20, check=True).stdout
    pairs = dict(line.split("=", 1) for line in said.splitlines())
    return {name: value for name, value in pairs.items() if name != "PWD"}


def test_a_silent_node_is_given_up_within_seconds_and_ends_itself_later() -> None:
    """In that order: who is given up for dead is still to be told apart from who has noticed it."""
    found = settings()
    period_ms, timeout_ms, failures = (
        int(found[f"RAY_health_check_{name}"]) for name in ("period_ms", "timeout_ms", "failure_threshold")
    )
    noticed_s = failures * (period_ms + timeout_ms) / 1000
    assert noticed_s == 9.0
    assert int(found["RAY_gcs_rpc_server_reconnect_timeout_s"]) > noticed_s


def test_ray_knows_every_setting() -> None:
    """A name that it does not know it would pass over in silence."""
    spec = find_spec("ray")
    if spec is None or spec.origin is None:
        pytest.skip("needs ray")
    server = Path(spec.origin).parent / "core" / "src" / "ray" / "gcs" / "gcs_server"
    with server.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program:
        known = {name: program.find(name.removeprefix(PREFIX).encode()) >= 0 for name in settings()}
        assert program.find(b"health_check_of_nothing") < 0
    assert known and all(known.values()), known
    assert all(name.startswith(PREFIX) for name in known)
