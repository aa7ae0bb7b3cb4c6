"""Where every valid transition went. Always true: produced = trained + dropped (by reason) + in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from common.fragment import FragmentSummary

SKIPPED = "skipped"  # every gradient step of the update was skipped for a non-finite gradient
STALE = "stale"  # its weights were further behind the update than the run allows
OLD_LEASE = "old_lease"  # made by a process that is no longer the actor
OLD_TERM = "old_term"  # ordered before a rollback, arrived after it
ROLLED_BACK = "rolled_back"  # trained in updates that a rollback has undone, or waiting when it came


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What became of the transitions of one committed update.

    Attributes:
        trained: trained on.
        dropped: refused or skipped, by reason.
    """

    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Accounts:
    """Counts of valid transitions, carried on over resumes.

    Attributes:
        produced: counted when a fragment's summary reaches the driver.
        trained: counted once, at commit; taken back by a rollback.
        dropped: by reason, counted at commit or at refusal.
        fragments_lost: fragments that an actor was making when it died; their transitions were never produced.
        voided: transitions of broken episodes, taken back before they were produced.
        episodes: episodes ended in produced fragments.
        undone: transitions that rollbacks have taken out of `trained`. Only grows, as the next two do, so that sums
            with what they are taken from never go back: trained + undone, committed + updates_undone,
            env_steps + steps_undone.
        updates_undone: committed updates that rollbacks have undone.
        steps_undone: environment steps of those.
    """

    produced: int = 0
    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    fragments_lost: int = 0
    voided: int = 0
    episodes: int = 0
    undone: int = 0
    updates_undone: int = 0
    steps_undone: int = 0

    @property
    def dropped_total(self) -> int:
        """All reasons together."""
        return sum(self.dropped.values())

    @property
    def in_flight(self) -> int:
        """Produced, and neither trained nor dropped yet."""
        return self.produced - self.trained - self.dropped_total

    def produce(self, summary: FragmentSummary) -> None:
        """Count a fragment whose summary has reached the driver."""
        self.produced += summary.num_valid
        self.voided += summary.num_voided
        self.episodes += len(summary.episode_returns)

    def drop(self, reason: str, transitions: int) -> None:
        """Count transitions that will not be trained on."""
        if transitions:
            self.dropped[reason] = self.dropped.get(reason, 0) + transitions

    def settle(self, settlement: Settlement) -> None:
        """Count a committed update."""
        self.trained += settlement.trained
        for reason, transitions in settlement.dropped.items():
            self.drop(reason, transitions)

    def undo(self, *, trained: int, updates: int, steps: int) -> None:
        """A rollback: `updates` committed updates of `steps` steps, `trained` of them trained on, never happened."""
        self.trained -= trained
        self.drop(ROLLED_BACK, trained)
        self.undone += trained
        self.updates_undone += updates
        self.steps_undone += steps

    def copy(self) -> Accounts:
        """The counts as they are now."""
        return Accounts(**self.to_plain())

    def to_plain(self) -> dict[str, Any]:
        """Plain values for checkpoints and records."""
        return {
            "produced": self.produced,
            "trained": self.trained,
            "dropped": dict(self.dropped),
            "fragments_lost": self.fragments_lost,
            "voided": self.voided,
            "episodes": self.episodes,
            "undone": self.undone,
            "updates_undone": self.updates_undone,
            "steps_undone": self.steps_undone,
        }
