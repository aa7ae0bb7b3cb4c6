"""Same config and seed, same bits: whatever the engine, the timing and the number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.config import RunConfig, parse_config
from deploy.session import train
from tests.e2e.command import digests

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One embedded Ray for the module: a run joins what its process has started."""
    from deploy.ray_launch import connect, disconnect

    connect(num_processes=6, object_store_bytes=0)
    yield
    disconnect()


def config(**changes: Any) -> RunConfig:
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "seed": 11,
        "steps": 600,
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 32},
        "evaluation": {"every": 2, "episodes": 2, "final_episodes": 2, "lanes": 2},
        "metrics": {"enabled": False},
    }
    return parse_config(plain | changes)


def run(tmp_path: Path, name: str, **changes: Any) -> dict[int, str]:
    """Train and return the digest after each update."""
    outcome = train(config(**changes), out=tmp_path, run=name)
    assert outcome.status == "finished", outcome.verdict
    made = digests(tmp_path, name)
    assert len(made) >= 3
    return made


@pytest.mark.parametrize(
    ("num", "policy_lag"),
    [
        (2, 0),
        (4, 1),
        *(pytest.param(num, lag, marks=pytest.mark.slow) for num, lag in ((1, 0), (1, 1), (2, 1), (4, 0))),
    ],
)
def test_ray_twice_and_inline_give_the_same_digest_after_every_update(
    cluster: None, tmp_path: Path, num: int, policy_lag: int
) -> None:
    """Over Ray with 1, 2 and 4 actor processes, twice, and inline: equal after each update."""
    changes = {"actors": {"num": num, "lanes": 4, "rows": 16}, "policy_lag": policy_lag, "steps": 300 * num}
    first = run(tmp_path, "first", engine="ray", **changes)
    assert run(tmp_path, "inline", engine="inline", **changes) == first
    if num == 2:
        assert run(tmp_path, "second", engine="ray", **changes) == first


def test_actors_delayed_at_random_change_nothing(cluster: None, tmp_path: Path) -> None:
    """Environments that sleep at random (from the operating system's randomness) give the bits of prompt ones."""
    env = "tests.envs:truestep-tests/Jitter-v0"
    prompt = run(tmp_path, "prompt", engine="inline", env={"id": env, "kwargs": {"most_ms": 0}})
    late = run(tmp_path, "late", engine="ray", env={"id": env, "kwargs": {"most_ms": 3}})
    assert late == prompt


def test_the_lag_and_the_seed_matter(tmp_path: Path) -> None:
    """Another seed, and another policy lag, give other bits: the digests above do not agree by accident."""
    base = run(tmp_path, "base", engine="inline")
    assert run(tmp_path, "seed", engine="inline", seed=12)[1] != base[1]
    assert run(tmp_path, "lag", engine="inline", policy_lag=0)[2] != base[2]


def test_environments_that_draw_from_global_generators_are_reproducible(cluster: None, tmp_path: Path) -> None:
    """Actors sharing a process (inline) cannot disturb each other's global streams: Ray gives the same bits."""
    changes = {
        "env": {"id": "tests.envs:truestep-tests/GlobalRng-v0"},
        "evaluation": {"every": 2, "episodes": 2, "final_episodes": 2, "lanes": 2, "max_ticks": 50},
    }
    assert run(tmp_path, "inline", engine="inline", **changes) == run(tmp_path, "ray", engine="ray", **changes)
