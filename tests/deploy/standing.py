"""A conductor that stands still: what record and watch read of one, and reports of the updates it committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from common.ledger import LedgerFragment
from deploy.conductor.accounts import Accounts
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import RecordUpdate
from deploy.conductor.plan import Plan
from deploy.conductor.policies.policy import FlowStatistics
from deploy.conductor.ranks import RankSeat, RankStatus
from deploy.conductor.seats import Seat, SeatStatus, ToldCollect
from learner.reports import SyncReport, UpdateReport


def ranks(*statuses: RankStatus) -> list[RankSeat]:
    """Ranks 0, 1, ... as they stand."""
    return [RankSeat(rank=rank, status=status) for rank, status in enumerate(statuses)]


def flow(**changes: Any) -> FlowStatistics:
    """A flow of which only some figures matter."""
    usual: dict[str, Any] = {"in_flight": 5, "capacity": 16, "queued": 2, "target": 2, "starved": 0, "starving": False}
    return FlowStatistics(**usual | changes)


def busy(actor: int) -> Seat:
    """An actor that has a fragment to make."""
    return Seat(actor=actor, status=SeatStatus.RUNNING, outstanding=[ToldCollect(0, 0, 0)])


@dataclass(slots=True)
class StandingPolicy:
    """What is read of a policy of collection: synchronous by default."""

    flow: FlowStatistics | None = None

    def statistics(self, seats: Sequence[Seat]) -> FlowStatistics | None:
        """As set."""
        return self.flow


@dataclass(slots=True, kw_only=True)
class Standing:
    """What is read of a conductor; tests move it."""

    committed: int = 0
    issued: int = 0
    env_steps: int = 0
    version: int = 0
    term: int = 0
    finish: Any = None
    policy: StandingPolicy = field(default_factory=StandingPolicy)
    accounts: Accounts = field(default_factory=Accounts)
    plan: Plan = field(default_factory=lambda: Plan(num_actors=2, policy_lag=1, total_steps=10_000))
    seats: list[Seat] = field(default_factory=lambda: [Seat(actor=0, status=SeatStatus.RUNNING), Seat(actor=1)])
    ranks: list[RankSeat] = field(default_factory=lambda: ranks(RankStatus.JOINED, RankStatus.JOINED))
    awaited: str = "nothing"

    def waiting_for(self) -> str:
        """What is awaited."""
        return self.awaited

    @property
    def conductor(self) -> Conductor:
        """Itself, as what it stands for."""
        return cast(Conductor, self)


def committed(update: int, *, ledger: tuple[LedgerFragment, ...] = (), **changes: Any) -> RecordUpdate:
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
    report = UpdateReport(**fields | changes)
    return RecordUpdate(report=report, chain=f"chain-{update + 1}", ledger=ledger)
