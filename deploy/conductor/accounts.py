"""Where every valid transition went. Always true: produced = trained + dropped (by reason) + in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from common.fragment import FragmentSummary

SKIPPED = "skipped"  # every gradient step of the update was skipped for a non-finite gradient
OLD_LEASE = "old_lease"  # made by a process that is no longer the actor


@dataclass(slots=True, kw_only=True)
class Accounts:
    """Counts of valid transitions, carried on over resumes.

    Attributes:
        produced: counted when a fragment's summary reaches the driver.
        trained: counted once, at commit.
        dropped: by reason, counted at commit or at refusal.
        fragments_lost: fragments that an actor was making when it died; their transitions were never produced.
        voided: transitions of broken episodes, taken back before they were produced.
        episodes: episodes ended in produced fragments.
    """

    produced: int = 0
    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    fragments_lost: int = 0
    voided: int = 0
    episodes: int = 0

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
        }
