"""A run in which a fragment was damaged on its way is made again: there it is sound, and is refused all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.worker import ActorWorker
from deploy.config import parse_config
from deploy.outputs import open_registry
from deploy.reproduce import reproduce
from deploy.reproduction import Verdict
from deploy.session import train


@pytest.mark.parametrize(("algo", "ranks"), [("ppo", 1), ("impala", 1), ("ppo", 2)])
def test_what_was_refused_in_its_place_is_refused_again(
    algo: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flipped bit in the fourth frame: the run made again without it has the same bits, whoever shares it out."""
    sound, made = ActorWorker.collect, []

    def collect(self: ActorWorker, order: Any, weights: Any) -> Any:
        frame, summary = sound(self, order, weights)
        made.append(summary)
        if len(made) == 4:
            frame = np.array(frame)
            frame[len(frame) // 2] ^= 1
        return frame, summary

    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "algo": algo,
        "engine": "inline",
        "seed": 4,
        "steps": 900,
        "actors": {"num": 3, "lanes": 4, "rows": 16},
        "learner": {"ranks": ranks},
        "flow": {"fragments": 2},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 32},
        "evaluation": {"every": 0, "final_episodes": 2, "lanes": 2},
        "metrics": {"enabled": False},
    }
    with monkeypatch.context() as patch:
        patch.setattr(ActorWorker, "collect", collect)
        assert train(parse_config(plain), out=tmp_path, run="r").status == "finished"
    with open_registry(tmp_path) as registry:
        refused = [each.name for each in registry.ledger("r").fragments if each.fate == "corrupt"]
    assert refused == [(made[3].actor, made[3].incarnation, made[3].sequence)]
    found = reproduce("r", out=tmp_path)
    assert (found.verdict, found.why) == (Verdict.IDENTICAL, "")
