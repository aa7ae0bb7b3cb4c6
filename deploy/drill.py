"""Drills: short trainings in which one named thing goes wrong on purpose, and what came of it.

a run without a fault ──► digests of every update
a run with the fault  ──► its record: detected after, located at, recovered in, updates lost, the same bits?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.clock import NS_PER_S
from common.runs import EventRecord, RunRegistry
from deploy.config import RunConfig, parse_config
from deploy.display import Display, Silent
from deploy.drill_faults import Drill
from deploy.drills import AT_UPDATE, DrillPlan
from deploy.outputs import open_registry
from deploy.session import Outcome, train
from deploy.sync_tally import RECOVERED, SyncEvent

NUM_RANKS = 2
NUM_ACTORS = 2
UPDATES = 20
ROWS = 32
LANES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """What one drill came to.

    Attributes:
        name: of the drill.
        run: its run.
        passed: everything that was to happen did, and nothing else.
        detected_s: from the fault to the event that tells of it; None if it was never told.
        located: where, in words; "" if the wrong place or none was named.
        recovered_s: from the detection to the next commit of the whole group; None if nothing had to recover.
        updates_lost: committed updates that had to be given up.
        same_bits: whether every update has the digest of the run without a fault; None where it cannot.
        why: what was not as it should be; "" if it passed.
    """

    name: str
    run: str
    passed: bool
    detected_s: float | None
    located: str
    recovered_s: float | None
    updates_lost: int
    same_bits: bool | None
    why: str

    def to_plain(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


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


def run_drills(plans: Sequence[DrillPlan], *, out: Path, display: Display | None = None) -> Iterator[DrillResult]:
    """Carry the drills out one after the other, each result as soon as it is known.

    Raises:
        TruestepError: the run without a fault, by which the others are judged, did not finish.
    """
    tell = (display or Silent()).tell
    with open_registry(out, create=True) as registry, _one_ray():
        expected: dict[int, str] = {}
        if any(plan.same_bits for plan in plans):
            tell("reference    a run without a fault")
            outcome = _train(registry, out, "reference", Drill())
            if outcome.error is not None:
                raise outcome.error
            expected = _digests(registry, outcome.run)
        for plan in plans:
            tell(f"{plan.name:<15} {plan.about}")
            mark = out / f"{registry.unused_name(f'drill-{plan.name}')}.mark"
            outcome = _train(registry, out, plan.name, plan.fault(str(mark.absolute())))
            yield _judge(plan, registry, outcome, mark, expected)
            mark.unlink(missing_ok=True)


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


def _train(registry: RunRegistry, out: Path, name: str, drill: Drill) -> Outcome:
    return train(drill_config(), out=out, run=registry.unused_name(f"drill-{name}"), drill=drill)


def _digests(registry: RunRegistry, run: str) -> dict[int, str]:
    return {row.update: row.parameter_digest for row in registry.updates(run)}


def _judge(
    plan: DrillPlan, registry: RunRegistry, outcome: Outcome, mark: Path, expected: dict[int, str]
) -> DrillResult:
    records = registry.events(outcome.run)
    events = [(record.kind, record.data) for record in records]
    detected = next((r for r in records if r.kind == plan.kind and plan.detected(r.data)), None)
    located = plan.located(events)
    recovered = [data["seconds"] for kind, data in events if kind == RECOVERED]
    lost = sum(data["from_update"] - data["to_update"] for kind, data in events if kind == SyncEvent.ROLLBACK)
    same = _digests(registry, outcome.run) == expected if plan.same_bits else None
    checks = {
        f"the run {outcome.status}: {outcome.verdict}": outcome.status == "finished",
        "the fault never happened": mark.exists(),
        f"no {plan.kind} tells of it": detected is not None,
        "it was located wrongly or not at all": bool(located),
        "nothing recovered": bool(recovered) or not plan.recovers,
        f"{lost} committed updates were lost": lost == 0,
        "parameters differ from those of the run without a fault": same is not False,
    }
    return DrillResult(
        name=plan.name,
        run=outcome.run,
        passed=all(checks.values()),
        detected_s=_seconds_since(mark, detected),
        located=located,
        recovered_s=max(recovered) if recovered else None,
        updates_lost=lost,
        same_bits=same,
        why="; ".join(words for words, good in checks.items() if not good),
    )


def _seconds_since(mark: Path, event: EventRecord | None) -> float | None:
    """All processes of a drill are on one host, so the mark and the event are readings of one clock."""
    if event is None or not mark.exists():
        return None
    return (event.monotonic_ns - int(mark.read_text(encoding="ascii"))) / NS_PER_S
