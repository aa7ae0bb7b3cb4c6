"""Runs with one thing wrong: a healthy one on loads that sleep, and seven slow-downs planted in it.

    4 actors, 20 fragments a second together ──► 2 ranks, 5 updates a second of 4 fragments, at work 75 % of the time

Environments and ranks sleep for most of their time, so that the healthy run leaves more than a third of two cores idle.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.envs import SLEEPY_CARTPOLE
from common.metrics import Stall
from deploy.config import RunConfig, merge, parse_config, recipe
from deploy.drill_faults import ActorFault, ActorFaultKind, Drill
from learner.parallel.faults import FaultKind, RankFault

NUM_ACTORS, NUM_RANKS = 4, 2
UPDATES = 400  # more than a run makes: each may be delayed
LEARN_S = 0.13  # that a rank sleeps in an update
VICTIM = 1  # the actor and the rank that are slow alone
HOGS_PER_CORE = 2

BASE: Mapping[str, Any] = {
    "env": {"id": SLEEPY_CARTPOLE, "kwargs": {"step_s": 0.0028}},
    "actors": {"num": NUM_ACTORS, "lanes": 2, "rows": 32},
    "learner": {"ranks": NUM_RANKS},
    "flow": {"mode": "async", "fragments": NUM_ACTORS},
    "evaluation": {"every": 0},
    "steps": 10_000_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to be slow.

    Attributes:
        name: of it.
        verdict: that it should get.
        settings: beyond `BASE`.
        learn_s: that every rank sleeps in an update.
        late_s: that rank `VICTIM` sleeps longer.
        slow_step_s: that environments of actor `VICTIM` sleep longer at each step.
        disk_s: that a checkpoint takes longer.
        hogs: processes on each core that do nothing but compute, from the first judgement on: a start is no stall.
    """

    name: str
    verdict: Stall
    settings: Mapping[str, Any] = field(default_factory=dict)
    learn_s: float = LEARN_S
    late_s: float = 0.0
    slow_step_s: float = 0.0
    disk_s: float = 0.0
    hogs: int = 0

    def config(self, seed: int) -> RunConfig:
        """Of a run."""
        values = merge(merge(recipe("impala", SLEEPY_CARTPOLE)[1], BASE), self.settings)
        return parse_config(merge(values, {"algo": "impala", "engine": "ray", "seed": seed}))

    def drill(self, scratch: Path) -> Drill:
        """What goes wrong in it; no mark is ever written in `scratch`, so it goes wrong again and again."""
        delays = [self.learn_s + (self.late_s if rank == VICTIM else 0.0) for rank in range(NUM_RANKS)]
        of_ranks = tuple(
            RankFault(kind=FaultKind.DELAY, rank=rank, update=update, seconds=seconds)
            for rank, seconds in enumerate(delays)
            for update in range(UPDATES)
        )
        slow = ActorFault(
            kind=ActorFaultKind.SLOW_ENV,
            actor=VICTIM,
            update=0,
            mark=str(scratch / "unmarked"),
            seconds=self.slow_step_s,
        )
        return Drill(of_ranks=of_ranks, of_actors=(slow,) if self.slow_step_s else (), disk_s=self.disk_s)


CASES = (
    Case(name="healthy", verdict=Stall.HEALTHY),
    Case(name="slow environment", verdict=Stall.ACTOR_BOUND, settings={"env": {"kwargs": {"step_s": 0.015}}}),
    Case(name="one slow actor", verdict=Stall.SLOW_ACTOR, slow_step_s=0.02),
    Case(name="slow learner", verdict=Stall.LEARNER_BOUND, learn_s=0.6),
    Case(name="slow disk", verdict=Stall.IO_BLOCKED, settings={"checkpoint": {"every": 4}}, disk_s=1.8),
    Case(name="CPU hog", verdict=Stall.CPU_OVERSUBSCRIBED, hogs=HOGS_PER_CORE),
    Case(
        name="tiny queue",
        verdict=Stall.FLOW_BOUND,
        settings={"flow": {"first_in_flight": NUM_ACTORS, "most_in_flight": NUM_ACTORS}},
    ),
    Case(name="delayed rank", verdict=Stall.SYNC_BOUND, late_s=0.3),
)


class Hogs:
    """Processes that do nothing but compute, from `start` to the end of the block."""

    def __init__(self, per_core: int) -> None:
        self._number = per_core * (os.cpu_count() or 1)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Unless they run."""
        if not self._processes:
            command = [sys.executable, "-c", "while True: pass"]
            self._processes = [subprocess.Popen(command) for _ in range(self._number)]

    def __enter__(self) -> Hogs:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
