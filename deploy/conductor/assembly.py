"""Forming the group of ranks: at the start, after a loss or a failure, after a rollback. Always the same procedure.

    SETTLING ─► FETCHING ─► ADOPTING ─► JOINING ─► JOINED
    all are     a donor's   who is      all meet
    idle        state       behind

A loss or a failed meeting leads back to SETTLING. There every process that is there has answered everything it was
told, so its standing is where it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from common.errors import RunFailedError
from deploy.conductor import rank_notes as notes
from deploy.conductor.group import Group
from deploy.conductor.messages import (
    AdoptState,
    GroupJoined,
    Handle,
    JoinFailed,
    JoinGroup,
    LearnerSnapshot,
    Note,
    RankCommand,
)
from deploy.conductor.orders import Order
from deploy.conductor.outcomes import Astray, Ended, Joined, Made, Outcome, Voided
from deploy.conductor.plan import Plan
from deploy.conductor.ranks import RankSeat, RankStatus, Task

BACKOFF_S = 0.5  # before the second attempt to meet after a failure, doubled with each further one
MAX_BACKOFF_S = 8.0


class Origin(StrEnum):
    """Where the state of the group comes from."""

    START = "start"  # each rank's own seed, or what the run begins with
    SURVIVORS = "survivors"  # the ranks that are left
    SAFE = "safe"  # a rollback: what the driver holds


class Stage(StrEnum):
    """How far it is."""

    SETTLING = "settling"
    FETCHING = "fetching"
    ADOPTING = "adopting"
    JOINING = "joining"
    JOINED = "joined"


class Assembly:
    """One forming of the group, with as many attempts as it takes.

    Args:
        group: the ranks.
        plan: how often and how long ranks may fail to meet.
        origin: where the state comes from.
        source: what ranks adopt; None where they bring their own, or one of them has to hand it over first.
    """

    def __init__(
        self,
        group: Group,
        plan: Plan,
        *,
        origin: Origin,
        source: Handle | None = None,
    ) -> None:
        self.origin = origin
        self.stage = Stage.SETTLING
        self._group = group
        self._plan = plan
        self._source = source
        self._unsettled: Order | None = None
        self._donor: int | None = None
        self._not_met: dict[int, str] = {}
        for seat in group.seats:
            seat.current = self.brings_its_own and seat.started

    @property
    def brings_its_own(self) -> bool:
        """Whether a process that has just started needs no state from elsewhere."""
        return self.origin is Origin.START and self._source is None

    @property
    def joined(self) -> bool:
        """Whether all have met."""
        return self.stage is Stage.JOINED

    def settle_first(self, order: Order) -> None:
        """Only some ranks could close this update. It is committed once the driver holds a state with it, so that the
        loss of those ranks costs a repetition and no more."""
        self._unsettled = order

    def disturb(self) -> None:
        """A rank was lost: begin again, with what has been reached."""
        self.stage = Stage.SETTLING

    def advance(self) -> Iterator[RankCommand | Note | Outcome]:
        """Everything that has become possible."""
        if self.stage is Stage.SETTLING and self._group.idle:
            yield from self._settle()
        if self.stage is Stage.ADOPTING:
            yield from self._adopt()
        if self.stage is Stage.JOINING and not any(seat.awaits(Task.JOIN) for seat in self._group.live):
            yield from self._judge_meeting()

    # ---- events ----------------------------------------------------------------------------------------------------

    def take_state(self, event: LearnerSnapshot) -> Iterator[Outcome]:
        """The donor's state, if it is that."""
        if event.rank != self._donor:
            return
        self._donor, self._source = None, event.state
        self.stage = Stage.ADOPTING
        if self._unsettled is not None:
            order, self._unsettled = self._unsettled, None
            yield Made(order=order)

    def take_joined(self, event: GroupJoined) -> None:
        """A rank has met the others; one that answers for an earlier forming has met nobody."""
        if event.formation == self._group.formation:
            seat = self._group.seats[event.rank]
            seat.answer(Task.JOIN)
            seat.status = RankStatus.JOINED
            seat.hold(event.standing)

    def take_not_met(self, event: JoinFailed) -> None:
        """A rank has not met the others."""
        if event.formation == self._group.formation:
            self._group.seats[event.rank].answer(Task.JOIN)
            self._not_met[event.rank] = event.cause

    # ---- stages ----------------------------------------------------------------------------------------------------

    def _settle(self) -> Iterator[RankCommand | Outcome]:
        if self.origin is not Origin.SURVIVORS or self._source is not None:
            self.stage = Stage.ADOPTING
            return
        survivors = [seat for seat in self._group.started if not seat.fresh and seat.standing is not None]
        leaders = self._leaders(survivors)
        if self._unsettled is not None and self._updates(leaders) == self._group.updates:
            yield self._give_up_unsettled()
        wanted = self._group.updates + (self._unsettled is not None)
        if self._updates(leaders) != wanted:
            if self._unsettled is not None:
                yield self._give_up_unsettled()
            yield Astray(reason=self._nobody(survivors))
        elif len({seat.standing.state_digest for seat in leaders if seat.standing}) > 1:
            who = ", ".join(str(seat.rank) for seat in leaders)
            yield Astray(reason=f"ranks {who} hold different states after update {wanted}")
        else:
            yield from self._follow(leaders, wanted)

    def _follow(self, leaders: list[RankSeat], updates: int) -> Iterator[RankCommand | Outcome]:
        """All go on from where `leaders` stand; if anybody is behind, one of them hands its state over."""
        for seat in self._group.seats:
            seat.current = seat in leaders
        if len(leaders) < len(self._group.live):
            self._donor = leaders[0].rank
            self.stage = Stage.FETCHING
            yield self._group.snapshot(self._donor, updates)
            return
        self.stage = Stage.ADOPTING
        if self._unsettled is not None:  # who could not close it is no longer of the group
            order, self._unsettled = self._unsettled, None
            yield Made(order=order)

    def _leaders(self, survivors: list[RankSeat]) -> list[RankSeat]:
        most = self._updates(survivors)
        return [seat for seat in survivors if seat.standing is not None and seat.standing.updates == most]

    @staticmethod
    def _updates(seats: list[RankSeat]) -> int:
        return max((seat.standing.updates for seat in seats if seat.standing is not None), default=-1)

    def _give_up_unsettled(self) -> Voided:
        assert self._unsettled is not None
        update, self._unsettled = self._unsettled.update, None
        return Voided(update=update)

    def _nobody(self, survivors: list[RankSeat]) -> str:
        if not survivors:
            return f"no rank is left that holds the state after update {self._group.updates}"
        stand = ", ".join(f"{seat.rank} at {seat.standing.updates}" for seat in survivors if seat.standing)
        return f"no rank that is left stands at update {self._group.updates}, the last that was committed: {stand}"

    def _adopt(self) -> Iterator[RankCommand]:
        """Tell who is behind; once all hold the state, have them meet."""
        for seat in self._group.started:
            if not seat.current and not seat.awaits(Task.ADOPT):
                seat.tell(Task.ADOPT)
                yield AdoptState(rank=seat.rank, state=self._source)
        if all(seat.started and seat.current and not seat.awaited for seat in self._group.live):
            yield self._meet()

    def _meet(self) -> JoinGroup:
        self._group.formation += 1
        self.stage = Stage.JOINING
        self._not_met = {}
        for seat in self._group.live:
            seat.status = RankStatus.READY
            seat.tell(Task.JOIN, self._group.formation)
        failures = self._group.failures
        delay_s = min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (failures - 1)) if failures else 0.0
        return JoinGroup(formation=self._group.formation, ranks=self._group.ranks, delay_s=delay_s)

    def _judge_meeting(self) -> Iterator[RankCommand | Note | Outcome]:
        if self._not_met:
            yield from self._meet_again()
            return
        standings = [seat.standing for seat in self._group.live if seat.standing is not None]
        alike = {(standing.updates, standing.state_digest) for standing in standings}
        if len(alike) != 1 or standings[0].updates != self._group.updates:
            verdict = f"ranks that form a group after update {self._group.updates} do not stand alike"
            got = ", ".join(f"rank {s.rank} at update {s.updates} with state {s.state_digest[:12]}" for s in standings)
            fix = (
                "resume the run from its newest checkpoint; if this comes again, check memory and versions of each rank"
            )
            yield Ended(error=RunFailedError(verdict, got=got, fix=fix))
            return
        self.stage = Stage.JOINED
        yield Joined()

    def _meet_again(self) -> Iterator[RankCommand | Note | Outcome]:
        group = self._group
        group.failures += 1
        yield notes.join_failed(group.formation, group.updates, self._not_met)
        if group.failures >= self._plan.max_sync_failures:
            rank, cause = min(self._not_met.items())
            verdict = (
                f"the learner ranks failed {group.failures} times in a row to sync, last to meet; rank {rank}: {cause}"
            )
            fix = "check that the ranks reach each other (address, firewall), then resume the run"
            yield Ended(error=RunFailedError(verdict, fix=fix))
            return
        self.stage = Stage.SETTLING
        yield from self.advance()
