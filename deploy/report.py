"""One run as one JSON object: what `show --json`, `train --json` and the tests read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.process_identity import Liveness, ProcessIdentity
from common.runs import EvaluationRecord, EventRecord, RunRecord, RunRegistry, UpdateRecord
from deploy.conductor.accounts import Accounts
from deploy.config_sections import collects_asynchronously
from deploy.display import brief
from deploy.record import ACCOUNTS
from deploy.sync_tally import SyncTally

NAME_WIDTH = 17
LONG = frozenset({"detail", "figures"})  # of events: --json has them


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
        "learners": record.config["learner"].get("ranks", 1),
        **_collection(record),
        "updates": record.updates,
        "env_steps": record.env_steps,
        "version": record.version,
        "term": record.term,
        "parameter_digest": record.parameter_digest,
        "chain": record.chain,
        **_accounts(record, last, events),
        "starved_updates": registry.starved_updates(run),
        "sync": _sync(registry, run),
        "ledger": _ledger(registry, run),
        "evaluation": _evaluation(newest),
        "best_evaluation": _evaluation(best),
        "checkpoints": [{"name": c.name, "update": c.update, "best": c.best} for c in checkpoints],
        "wall_s": record.wall_s,
        "fingerprint": record.facts.get("fingerprint", ""),
        "out": record.out,
        "events": [{"sequence": e.sequence, "wall": e.wall, "kind": e.kind, "data": e.data} for e in events],
    }


def _collection(record: RunRecord) -> dict[str, Any]:
    """Who may collect ahead of whom, and by how many updates. A run made before there was a choice has no flow."""
    flow = record.config.get("flow", {"mode": "sync"})
    if collects_asynchronously(flow["mode"], record.algo):
        return {"collection": "asynchronous", "policy_lag": None, "max_lag": flow["max_lag"]}
    return {"collection": "synchronous", "policy_lag": record.config["policy_lag"], "max_lag": None}


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


def _sync(registry: RunRegistry, run: str) -> dict[str, int]:
    """What the ranks' verification came to; updates are those that stand, everything else is over the whole run."""
    tally = SyncTally.of_run(registry, run)
    return {
        "verified_updates": registry.verified_updates(run),
        "mismatches": tally.mismatches,
        "failures": tally.failures,
        "retries": tally.retries,
        "rollbacks": tally.rollbacks,
        "ranks_lost": tally.ranks_lost,
        "ranks_quarantined": tally.ranks_quarantined,
    }


def _ledger(registry: RunRegistry, run: str) -> dict[str, Any]:
    """What the run can be made again from: fragments by fate, and about how many bytes that takes."""
    tally = registry.ledger_tally(run)
    return {"made": tally.made, "trained": tally.trained, "dropped": tally.dropped, "bytes": tally.num_bytes}


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """A report of `run_report` for people: a line for each fact, then one for each event."""
    lines = [f"{name:<{NAME_WIDTH}} {_words(value)}" for name, value in report.items() if name != "events"]
    for event in report["events"]:
        facts = "  ".join(f"{key}={brief(value)}" for key, value in event["data"].items() if key not in LONG)
        lines.append(f"{event['wall']}  {event['kind']:<20} {facts}")
    return lines


def _words(value: Any) -> str:
    """Digests stay whole here: people compare them."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key.replace('_', ' ')} {_words(item)}" for key, item in value.items()) or "–"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "; ".join(_words(item) for item in value) or "–"
    return "–" if value is None else str(value)


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
