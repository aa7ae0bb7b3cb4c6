"""One run as one JSON object: what `show --json`, `train --json` and the tests read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.process_identity import Liveness, ProcessIdentity
from common.runs import EvaluationRecord, EventRecord, RunRecord, RunRegistry, UpdateRecord
from deploy.conductor.accounts import Accounts
from deploy.record import ACCOUNTS


def run_report(registry: RunRegistry, run: str) -> dict[str, Any]:
    """Everything the record knows of a run, in plain values.

    `status` is running, finished, failed, interrupted, or died: said to be running, but its driver is gone.
    """
    record = registry.run(run)
    updates = registry.updates(run, after=record.updates - 1)
    evaluations = registry.evaluations(run)
    last = updates[-1] if updates else None
    newest = evaluations[-1] if evaluations else None
    best = max(evaluations, key=lambda evaluation: evaluation.mean, default=None)
    checkpoints = registry.checkpoints(run)
    events = registry.events(run)
    return {
        "run": run,
        "status": status_of(registry, record),
        "verdict": record.verdict,
        "env": record.env,
        "algo": record.algo,
        "seed": record.seed,
        "engine": record.engine,
        "policy_lag": record.config["policy_lag"],
        "updates": record.updates,
        "env_steps": record.env_steps,
        "version": record.version,
        "term": record.term,
        "parameter_digest": record.parameter_digest,
        **_accounts(record, last, events),
        "evaluation": None
        if newest is None
        else {"update": newest.update, "mean": newest.mean, "episodes": newest.episodes},
        "best_evaluation": None
        if best is None
        else {"update": best.update, "mean": best.mean, "episodes": best.episodes},
        "checkpoints": [{"name": c.name, "update": c.update, "best": c.best} for c in checkpoints],
        "wall_s": record.wall_s,
        "fingerprint": record.facts.get("fingerprint", ""),
        "out": record.out,
        "events": [{"sequence": e.sequence, "wall": e.wall, "kind": e.kind, "data": e.data} for e in events],
    }


def _accounts(record: RunRecord, last: UpdateRecord | None, events: Sequence[EventRecord]) -> dict[str, Any]:
    """Where every transition went: as of the end of driving if nothing was done since, else of the last update."""
    closed = next((e.data for e in reversed(events) if e.kind == ACCOUNTS and e.data["update"] == record.updates), None)
    accounts = Accounts()
    if closed is not None:
        accounts = Accounts(**{name: value for name, value in closed.items() if name != "update"})
    elif last is not None:
        dropped, lost = dict(last.dropped), last.fragments_lost
        accounts = Accounts(produced=last.produced, trained=last.trained, dropped=dropped, fragments_lost=lost)
    return {
        "produced": accounts.produced,
        "trained": accounts.trained,
        "dropped": accounts.dropped,
        "in_flight": accounts.in_flight,
        "fragments_lost": accounts.fragments_lost,
    }


def _evaluation(record: EvaluationRecord | None) -> dict[str, Any] | None:
    return None if record is None else {"update": record.update, "mean": record.mean, "episodes": record.episodes}


def status_of(registry: RunRegistry, record: RunRecord) -> str:
    """The status, or `died` where the registry still says running and the driver is gone."""
    if record.status != "running":
        return record.status
    owner = registry.owner(record.run)
    if owner is None or owner.process.liveness(ProcessIdentity.current()) is Liveness.DEAD:
        return "died"
    return "running"


def run_row(registry: RunRegistry, record: RunRecord) -> dict[str, Any]:
    """One line of `truestep runs`."""
    evaluations = registry.evaluations(record.run)
    return {
        "run": record.run,
        "status": status_of(registry, record),
        "env": record.env,
        "algo": record.algo,
        "seed": record.seed,
        "updates": record.updates,
        "env_steps": record.env_steps,
        "evaluation_mean": evaluations[-1].mean if evaluations else None,
        "wall_s": record.wall_s,
        "created": record.created_wall,
    }
