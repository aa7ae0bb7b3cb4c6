"""What became of verified sync over a whole run: counted from its events, recorded ones and those that come in.

SYNC_MISMATCH, SYNC_FAILED     an attempt at an update has come to nothing, or ranks failed to meet
commit of that update          it was made again
TRAINING_ROLLBACK              it was not: training goes on from an earlier one
RANK_LOST ... GROUP_FORMED     the group is not whole
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from common.clock import NS_PER_S, Clock
from common.metrics import RecoveryCause
from common.runs import ROLLBACK_EVENT, RunRegistry

RECOVERED = "RECOVERED"  # the whole group has committed again: what had gone wrong, and how long ago


class SyncEvent(StrEnum):
    """Kinds of events that tell of ranks in trouble, and out of it."""

    MISMATCH = "SYNC_MISMATCH"
    FAILED = "SYNC_FAILED"
    RANK_LOST = "RANK_LOST"
    RANK_QUARANTINED = "RANK_QUARANTINED"
    GROUP_FORMED = "GROUP_FORMED"
    ROLLBACK = ROLLBACK_EVENT


@dataclass(slots=True, kw_only=True)
class SyncTally:
    """Totals of a run, over all resumes and rollbacks; they only grow.

    Attributes:
        verified: updates committed with a state digest, undone ones included.
        mismatches: attempts at which ranks disagreed.
        faults: the same by what they disagreed about; an attempt may count for several.
        failures: attempts that failed.
        retries: updates committed after an attempt at them was disputed or failed.
        rollbacks: of the learner.
        ranks_lost: processes.
        ranks_quarantined: ranks that were shut out.
        unsettled: updates of which an attempt was disputed or failed, not committed yet.
    """

    verified: int = 0
    mismatches: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    retries: int = 0
    rollbacks: int = 0
    ranks_lost: int = 0
    ranks_quarantined: int = 0
    unsettled: set[int] = field(default_factory=set)

    @classmethod
    def of_run(cls, registry: RunRegistry, run: str) -> SyncTally:
        """What the registry knows of `run`, updates that were rolled back included."""
        tally = cls(verified=registry.verified_updates(run))
        for event in registry.events(run):
            tally.count(event.kind, event.data)
            if event.kind == SyncEvent.ROLLBACK:
                tally.verified += event.data["updates_removed"]
        tally._settle(registry.run(run).updates)
        return tally

    def count(self, kind: str, data: Mapping[str, Any]) -> None:
        """Take an event; of kinds that tell nothing of sync, nothing is taken."""
        match kind:
            case SyncEvent.MISMATCH:
                self.mismatches += 1
                self.faults.update({str(dispute["fault"]) for dispute in data["disputes"]})
                self.unsettled.add(data["update"])
            case SyncEvent.FAILED:
                self.failures += 1
                if "attempt" in data:  # else ranks failed to meet: no attempt was under way
                    self.unsettled.add(data["update"])
            case SyncEvent.RANK_LOST:
                self.ranks_lost += 1
            case SyncEvent.RANK_QUARANTINED:
                self.ranks_quarantined += 1
            case SyncEvent.ROLLBACK:
                self.rollbacks += 1
                self._settle(data["from_update"])
                self.unsettled.clear()
            case _:
                pass

    def commit(self, updates: int, *, verified: bool) -> None:
        """`updates` updates are committed now; the last of them was `verified` if it has a state digest."""
        self.verified += int(verified)
        self._settle(updates)

    def _settle(self, updates: int) -> None:
        """Updates below `updates` are committed: those of which an attempt had come to nothing were made again."""
        again = {update for update in self.unsettled if update < updates}
        self.retries += len(again)
        self.unsettled -= again


CAUSES = {
    SyncEvent.RANK_LOST: RecoveryCause.RANK_LOST,
    SyncEvent.FAILED: RecoveryCause.SYNC_FAILED,
    SyncEvent.MISMATCH: RecoveryCause.MISMATCH,
    SyncEvent.ROLLBACK: RecoveryCause.ROLLBACK,
}


class Trouble:
    """From what goes wrong first to the next commit of the whole group.

    An update that some ranks had closed when others failed or were lost is committed before the group stands again:
    that does not end it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: tuple[RecoveryCause, int] | None = None
        self._broken = False

    def note(self, kind: str) -> None:
        """Something happened."""
        if self._first is None and kind in CAUSES:
            self._first = (CAUSES[SyncEvent(kind)], self._clock.now_ns())
        if kind in (SyncEvent.RANK_LOST, SyncEvent.FAILED):
            self._broken = True
        if kind in (SyncEvent.GROUP_FORMED, SyncEvent.ROLLBACK):
            self._broken = False

    def group_published(self) -> None:
        """A group that has just been formed has published: it is whole, at the start of a run as well."""
        self._broken = False

    def over_at_commit(self) -> tuple[RecoveryCause, float] | None:
        """An update is committed: what had gone wrong and how many seconds ago, if that is over now."""
        if self._first is None or self._broken:
            return None
        cause, since_ns = self._first
        self._first = None
        return cause, (self._clock.now_ns() - since_ns) / NS_PER_S
