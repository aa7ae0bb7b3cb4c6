"""Runs made by hand, in a registry of their own, whose clock the test moves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.clock import ManualClock
from common.runs import CheckpointRecord, EvaluationRecord, RunRegistry, UpdateRecord
from deploy.config import merge, parse_config, recipe
from deploy.record import ACCOUNTS, DRIVING
from tests.deploy.test_sync_tally import row

STEPS = 100  # environment steps of an update
STATISTICS = {
    "policy": -0.5,
    "value": 4.0,
    "entropy": 0.6,
    "learning_rate": 1e-3,
    "seconds_learn": 0.5,
    "seconds_intake": 0.1,
    "seconds_close": 0.0,
    "seconds_publish": 0.0,
    "seconds_sync_audit": 0.06,
    "verified_steps": 8.0,
    "episodes": 4.0,
    "episode_return": 20.0,
    "episode_return_std": 2.0,
    "episode_return_min": 15.0,
    "episode_return_max": 25.0,
    "seconds_collect": 0.8,
    "seconds_env": 0.4,
    "seconds_policy": 0.2,
}
FACTS = {"system": {"host": "somewhere"}, "fingerprint": "f" * 64, "git": {"commit": "c" * 40, "dirty": False}}


def update(number: int, *, run: str = "r", seconds: float | None = None, **statistics: float) -> UpdateRecord:
    """Update `number`, committed `number` seconds into the driving unless told otherwise."""
    steps = STEPS * number
    timed = {"seconds_driving": float(number) if seconds is None else seconds}
    counts = {"env_steps": steps, "produced": steps + STEPS, "trained": steps, "in_flight": STEPS}
    return replace(row(number), run=run, lag=1.0, num_ranks=1, **counts, statistics=STATISTICS | timed | statistics)


def evaluation(number: int, *returns: float, run: str = "r") -> EvaluationRecord:
    """Greedy episodes after update `number`."""
    mean = math.fsum(returns) / len(returns)
    std = math.sqrt(math.fsum((each - mean) ** 2 for each in returns) / len(returns))
    return EvaluationRecord(
        run=run,
        update=number,
        version=number,
        mean=mean,
        std=std,
        minimum=min(returns),
        maximum=max(returns),
        episodes=len(returns),
        returns=returns,
    )


@dataclass(slots=True)
class Made:
    """A registry under `out`, and the clock that stamps its events."""

    out: Path
    registry: RunRegistry
    clock: ManualClock

    @classmethod
    def under(cls, out: Path) -> Made:
        """A new one."""
        clock = ManualClock()
        return cls(out, RunRegistry.open(out / "runs.sqlite", clock=clock), clock)

    def run(
        self,
        run: str = "r",
        *,
        updates: Sequence[UpdateRecord] = (),
        changed: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] = FACTS,
        env: str = "CartPole-v1",
        config: Mapping[str, Any] | None = None,
    ) -> str:
        """A run that is driven by this process, with its beginning and updates on record."""
        if config is None:
            _, values = recipe("ppo", env)
            asked = merge({"env": {"id": env}, "engine": "inline"}, changed or {})
            config = parse_config(merge(values, asked)).to_plain()
        self.registry.create_run(
            run=run, env=env, algo="ppo", seed=0, engine="inline", config=config, facts=facts, out="o"
        )
        self.registry.acquire(run, lease="l")
        self.drive(run)
        self.registry.record_updates(
            list(updates), wall_s=updates[-1].statistics["seconds_driving"] if updates else 0.0
        )
        return run

    def drive(self, run: str, driving_s: float = 0.0) -> None:
        """Driving begins."""
        self.registry.record_event(run, DRIVING, {"driving_s": driving_s})

    def event(self, run: str, after_s: float, kind: str, **data: Any) -> None:
        """Something happens, `after_s` after what was recorded last."""
        self.clock.advance(after_s)
        self.registry.record_event(run, kind, data)

    def finish(self, run: str, *, wall_s: float = 10.0, verdict: str = "done") -> None:
        """The end, with accounts that add up."""
        last = self.registry.run(run)
        accounts = {"update": last.updates, "produced": last.env_steps + STEPS, "trained": last.env_steps}
        self.registry.record_event(run, ACCOUNTS, accounts)
        self.registry.finish(run, "finished", verdict=verdict, wall_s=wall_s)

    def checkpoint(self, run: str, number: int) -> None:
        """A checkpoint after update `number`."""
        record = CheckpointRecord(run=run, update=number, name=f"update-{number}", digest="d", best=False)
        self.registry.record_checkpoint(record)
