"""A conductor that stands still: what record and watch read of one, and reports of the updates it committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from deploy.conductor.accounts import Accounts
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import RecordUpdate
from deploy.conductor.plan import Plan
from deploy.conductor.ranks import RankSeat, RankStatus
from deploy.conductor.seats import Seat, SeatStatus
from learner.reports import SyncReport, UpdateReport


def ranks(*statuses: RankStatus) -> list[RankSeat]:
    """Ranks 0, 1, ... as they stand."""
    return [RankSeat(rank=rank, status=status) for rank, status in enumerate(statuses)]


@dataclass(slots=True, kw_only=True)
class Standing:
    """What is read of a conductor; tests move it."""

    committed: int = 0
    env_steps: int = 0
    version: int = 0
    term: int = 0
    finish: Any = None
    accounts: Accounts = field(default_factory=Accounts)
    plan: Plan = field(default_factory=lambda: Plan(num_actors=2, policy_lag=1, total_steps=10_000))
    seats: list[Seat] = field(default_factory=lambda: [Seat(actor=0, status=SeatStatus.RUNNING), Seat(actor=1)])
    ranks: list[RankSeat] = field(default_factory=lambda: ranks(RankStatus.JOINED, RankStatus.JOINED))

    def waiting_for(self) -> str:
        """What is awaited."""
        return "nothing"

    @property
    def conductor(self) -> Conductor:
        """Itself, as what it stands for."""
        return cast(Conductor, self)


def committed(update: int, **changes: Any) -> RecordUpdate:
    """The command that records update number `update`."""
    fields: dict[str, Any] = {
        "update": update,
        "updates": update + 1,
        "term": 0,
        "version": update + 2,
        "trained": True,
        "verdicts": (),
        "steps": 15,
        "skipped_steps": 0,
        "skipped_at": "",
        "lag": 1,
        "gaps": 0,
        "parameter_digest": f"parameters-{update + 1}",
        "state_digest": f"state-{update + 1}",
        "learning_rate": 0.001,
        "statistics": {"policy": -0.5},
        "seconds": {"learn": 0.2},
        "sync": SyncReport(verified_steps=15, reduced_bytes=4096, seconds={"reduce": 0.25, "verify": 0.5}),
    }
    return RecordUpdate(report=UpdateReport(**fields | changes), chain=f"chain-{update + 1}")
