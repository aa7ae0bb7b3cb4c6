"""Environments that do not close as they should cost a finished run nothing, and are told of with their traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.config import parse_config
from deploy.display import Silent
from deploy.session import train
from tests.e2e.in_process import children, wait_gone


class Heard(Silent):
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize(
    ("engine", "kind", "words"),
    [
        ("inline", "raise", ["lane 0", "close raised RuntimeError", "the simulator lost its licence"]),
        pytest.param("ray", "raise", ["lane 0", "close raised RuntimeError", "licence"], marks=pytest.mark.slow),
        pytest.param("ray", "exit", ["the process ended while it should close"], marks=pytest.mark.slow),
        pytest.param("ray", "hang", ["process ended", "close did not return within 2 s"], marks=pytest.mark.slow),
        pytest.param("ray", "hold_gil", ["process ended", "last seen in close"], marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_does_not_close_is_told_and_costs_nothing(
    engine: str, kind: str, words: list[str], tmp_path: Path
) -> None:
    """Both actors' fail; the run has finished all the same, each is named, and no process is left."""
    heard = Heard()
    fault = {"kind": kind, "where": "late_close", "at": 100}
    env = {"id": "tests.envs:truestep-tests/FaultyCartPole-v0", "kwargs": fault, "step_deadline_s": 2.0}
    plain = {
        "env": env,
        "engine": engine,
        "steps": 2000,
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "ppo": {"minibatch": 32},
        "net": {"hidden": [16]},
        "evaluation": {"every": 0, "final_episodes": 1, "lanes": 1, "max_ticks": 10},
        "metrics": {"enabled": False},
    }
    outcome = train(parse_config(plain), out=tmp_path, run="r", display=heard)
    assert outcome.status == "finished", outcome.verdict
    told = [line for line in heard.lines if line.startswith("WARNING: ")]
    assert [actor for actor in (0, 1) for line in told if f"actor {actor}" in line] == [0, 1]
    assert all(word in line for line in told for word in words), told
    wait_gone(children)
