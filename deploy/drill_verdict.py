"""What a drill came to, from the record of its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from common.clock import NS_PER_S
from common.ledger import TRAINED, Ledger
from common.runs import EventRecord, RunRegistry
from deploy.drill_faults import Drill, back_file
from deploy.drill_plan import DROPPED, DrillPlan, Event
from deploy.record import ACCOUNTS
from deploy.reproduction import Reproduction, Verdict
from deploy.session import Outcome
from deploy.sync_tally import RECOVERED, SyncEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """What one drill came to.

    Attributes:
        name: of the drill.
        run: its run.
        passed: everything that was to happen did, and nothing else.
        detected_s: from the fault to the event that tells of it; None if it was never told, or by the ledger alone.
        located: where, in words; "" if the wrong place or none was named.
        recovered_s: from the detection to the next commit of the whole group, or to the first fragment of the last
            actor that came back; None if nothing had to recover.
        updates_lost: committed updates that had to be given up.
        same_bits: whether every update has the digest of the run without a fault, or where timing decides, that of the
            run made again from its ledger; None where it cannot.
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


class Fault(NamedTuple):
    """What was to go wrong, and the mark that it did."""

    drill: Drill
    mark: Path


def judge(
    plan: DrillPlan,
    registry: RunRegistry,
    outcome: Outcome,
    fault: Fault,
    *,
    expected: dict[int, str],
    again: Reproduction | None,
) -> DrillResult:
    """Hold the record of a run against its plan.

    Args:
        expected: digests of the run without a fault.
        again: the run, made again from its ledger; None where it was not.
    """
    records, ledger = registry.events(outcome.run), registry.ledger(outcome.run)
    events: list[Event] = [*((record.kind, record.data) for record in records), *_dropped(ledger)]
    detected = next((r for r in records if r.kind == plan.kind and plan.detected(r.data)), None)
    recovered = _recovered(plan, events, detected, fault)
    lost = sum(data["from_update"] - data["to_update"] for kind, data in events if kind == SyncEvent.ROLLBACK)
    same = _same_bits(plan, registry, outcome.run, expected, again)
    checks = {
        f"the run {outcome.status}: {outcome.verdict}": outcome.error is None,
        "the fault never happened": fault.mark.exists(),
        f"no {plan.kind} tells of it": any(kind == plan.kind and plan.detected(data) for kind, data in events),
        "it was located wrongly or not at all": bool(located := plan.located(events)),
        "nothing recovered": recovered is not None or not plan.recovers,
        f"{lost} committed updates were lost": lost == 0,
        "the accounts and the ledger disagree": not plan.of_actors or agree(events, ledger),
        _other_bits(again): same is not False,
    }
    return DrillResult(
        name=plan.name,
        run=outcome.run,
        passed=all(checks.values()),
        detected_s=_seconds_since(fault.mark, detected),
        located=located,
        recovered_s=recovered,
        updates_lost=lost,
        same_bits=same,
        why="; ".join(words for words, good in checks.items() if not good),
    )


def digests(registry: RunRegistry, run: str) -> dict[int, str]:
    """By update, of the parameters after it."""
    return {row.update: row.parameter_digest for row in registry.updates(run)}


def agree(events: Sequence[Event], ledger: Ledger) -> bool:
    """Whether every transition and every lost fragment that was counted is one of the record, and the other way round.

    The ledger names fragments one by one, the accounts only count; neither is made from the other.
    """
    accounts = [data for kind, data in events if kind == ACCOUNTS][-1]
    fates = Counter[str]()
    for fragment in ledger.fragments:
        fates[fragment.fate] += fragment.num_valid
    trained = fates.pop(TRAINED, 0)
    lost = sum(data["fragments_lost"] for kind, data in events if kind == "ACTOR_LOST")
    dropped = {reason: number for reason, number in fates.items() if number}
    return (accounts["trained"], accounts["dropped"], accounts["fragments_lost"]) == (trained, dropped, lost)


def _dropped(ledger: Ledger) -> list[Event]:
    """Fragments that no update has taken, as if they were events."""
    return [
        (DROPPED, {"actor": f.actor, "incarnation": f.incarnation, "sequence": f.sequence, "reason": f.fate})
        for f in ledger.fragments
        if f.fate != TRAINED and f.place < 0
    ]


def _recovered(plan: DrillPlan, events: Sequence[Event], detected: EventRecord | None, fault: Fault) -> float | None:
    """Seconds to the last that came back."""
    if not plan.of_actors:
        return max((data["seconds"] for kind, data in events if kind == RECOVERED), default=None)
    victims = [actor for each in fault.drill.of_actors for actor in each.victims]
    files = [Path(back_file(str(fault.mark.absolute()), actor)) for actor in victims]
    if detected is None or not plan.recovers or not all(file.exists() for file in files):
        return None
    back_ns = max(int(file.read_text(encoding="ascii")) for file in files)
    return (back_ns - detected.monotonic_ns) / NS_PER_S


def _same_bits(
    plan: DrillPlan, registry: RunRegistry, run: str, expected: dict[int, str], again: Reproduction | None
) -> bool | None:
    if again is not None:
        return again.verdict is Verdict.IDENTICAL
    return digests(registry, run) == expected if plan.same_bits else None


def _other_bits(again: Reproduction | None) -> str:
    if again is None:
        return "parameters differ from those of the run without a fault"
    return f"made again from its ledger it is {again.verdict}: {again.why}"


def _seconds_since(mark: Path, event: EventRecord | None) -> float | None:
    """All processes of a drill are on one host, so the mark and the event are readings of one clock."""
    if event is None or not mark.exists():
        return None
    return (event.monotonic_ns - int(mark.read_text(encoding="ascii"))) / NS_PER_S
