"""Drills: short trainings in which one named thing goes wrong on purpose, and what came of it.

of ranks    a run without a fault ──► digests of every update
            a run with the fault  ──► its record: detected after, located at, recovered in, updates lost, the same bits?
of actors   an asynchronous run with the fault, until who was struck is well ──► its record
            the same run, made again from its ledger                         ──► the same bits?
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from actors.env.sabotaged import SABOTAGED
from common.clock import MonotonicClock, wait_until
from common.runs import RunRegistry
from deploy.actor_drills import ROWS as ROWS_OF_AN_ACTOR
from deploy.config import RunConfig, parse_config
from deploy.display import Display, Silent
from deploy.drill_faults import LEARNER, Drill, well_file
from deploy.drill_plan import DrillPlan
from deploy.drill_verdict import DrillResult, Fault, digests, judge
from deploy.driver import StopFlag
from deploy.outputs import open_registry
from deploy.rank_drills import AT_UPDATE
from deploy.reproduce import reproduce
from deploy.session import Outcome, train

__all__ = ["DrillResult", "actor_drill_config", "drill_config", "run_drills"]

NUM_RANKS = 2
NUM_ACTORS = 2
UPDATES = 20
ROWS = 32
LANES = 8
MANY_ACTORS = 3
ENDLESS = 10**9
LIMIT_S = 120.0  # for an asynchronous run to be well again


def drill_config(seed: int = 1) -> RunConfig:
    """CartPole, two actors, two ranks, deadlines short enough that a hanging rank is missed soon."""
    return parse_config(
        {
            "env": {"id": "CartPole-v1"},
            "engine": "ray",
            "seed": seed,
            "steps": UPDATES * NUM_ACTORS * LANES * ROWS,
            "actors": {"num": NUM_ACTORS, "lanes": LANES, "rows": ROWS},
            "learner": {"ranks": NUM_RANKS, "sync": {"collective_s": 5.0, "audit_every": AT_UPDATE}},
            "net": {"hidden": [64, 64]},
            "ppo": {"minibatch": 128, "epochs": 4},
            "evaluation": {"every": 0, "final_episodes": 2, "lanes": 2, "max_ticks": 50},
            "checkpoint": {"every": 5},
            "deadlines": {"update_s": 60.0},
            "metrics": {"enabled": False},
        }
    )


def actor_drill_config(seed: int = 1) -> RunConfig:
    """CartPole, three actors at their own pace, updates of four fragments: so there is one actor with two."""
    return parse_config(
        {
            "env": {"id": SABOTAGED, "step_deadline_s": 4.0},
            "algo": "impala",
            "engine": "ray",
            "seed": seed,
            "steps": ENDLESS,
            "actors": {"num": MANY_ACTORS, "lanes": 4, "rows": ROWS_OF_AN_ACTOR},
            "flow": {"fragments": MANY_ACTORS + 1, "max_lag": 8},
            "net": {"hidden": [32]},
            "evaluation": {"every": 0, "final_episodes": 2, "lanes": 2, "max_ticks": 50},
            "checkpoint": {"every": 500},
            "metrics": {"enabled": False},
        }
    )


def run_drills(plans: Sequence[DrillPlan], *, out: Path, display: Display | None = None) -> Iterator[DrillResult]:
    """Carry the drills out one after the other, each result as soon as it is known.

    Raises:
        TruestepError: the run without a fault, by which the others are judged, did not finish.
    """
    tell = (display or Silent()).tell
    with open_registry(out, create=True) as registry, _one_ray():
        expected: dict[int, str] = {}
        if any(plan.same_bits and not plan.of_actors for plan in plans):
            tell("reference    a run without a fault")
            outcome = _train(registry, out, "reference", Drill())
            if outcome.error is not None:
                raise outcome.error
            expected = digests(registry, outcome.run)
        for plan in plans:
            tell(f"{plan.name:<18} {plan.about}")
            mark = out / f"{registry.unused_name(f'drill-{plan.name}')}.mark"
            drill = plan.fault(str(mark.absolute()))
            outcome = _train(registry, out, plan.name, drill, until_well=plan.of_actors)
            again = reproduce(outcome.run, out=out) if plan.of_actors and plan.same_bits else None
            yield judge(plan, registry, outcome, Fault(drill, mark), expected=expected, again=again)
            for file in out.glob(f"{mark.name}*"):
                file.unlink()


@contextmanager
def _one_ray() -> Iterator[None]:
    """All runs share one embedded Ray; each has processes of its own in it."""
    from deploy.ray_launch import connect, disconnect

    embedded = connect(num_processes=NUM_ACTORS + NUM_RANKS, num_spare=NUM_RANKS, object_store_bytes=0)
    try:
        yield
    finally:
        if embedded:
            disconnect()


def _train(registry: RunRegistry, out: Path, name: str, drill: Drill, *, until_well: bool = False) -> Outcome:
    run = registry.unused_name(f"drill-{name}")
    if not until_well:
        return train(drill_config(), out=out, run=run, drill=drill)
    with _stopped_once_well(drill) as stop:
        return train(actor_drill_config(), out=out, run=run, drill=drill, stop=stop)


@contextmanager
def _stopped_once_well(drill: Drill) -> Iterator[StopFlag]:
    """A run that ends when all who were struck have gone on for a while, or when it takes too long."""
    stop, over = StopFlag(), threading.Event()
    files = [Path(well_file(fault.mark, actor)) for fault in drill.of_actors for actor in fault.victims]
    files += [Path(well_file(fault.mark, LEARNER)) for fault in drill.at_border]

    def well() -> bool:
        return over.is_set() or all(file.exists() for file in files)

    def watch() -> None:
        wait_until(well, clock=MonotonicClock(), seconds=LIMIT_S)
        stop.ask("the drill is over")

    thread = threading.Thread(target=watch, name="drill-watch", daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        over.set()
        thread.join()
