"""How ranks keep in step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.errors import ConfigError

BYTES_PER_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncConfig:
    """Gradient sync of a group of ranks. Verification itself cannot be turned off.

    Attributes:
        collective_s: a rank that waits longer for the others gives the attempt up; below deadlines.update_s.
        bucket_mib: gradients are reduced in buckets of about this size, while the backward pass goes on.
        audit_every: updates between recomputations of one rank's gradient by itself and by another; 0 = never. One
            audited step costs its rank one more and its auditor two more, so with the default of 16 and 16 steps an
            update it is below 1 % of the steps.
    """

    collective_s: float = 30.0
    bucket_mib: float = 25.0
    audit_every: int = 16

    def __post_init__(self) -> None:
        for name in ("collective_s", "bucket_mib"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"learner.sync.{name}", got=getattr(self, name), allowed="above 0, finite")
        if self.audit_every < 0:
            raise ConfigError("learner.sync.audit_every", got=self.audit_every, allowed="0 (never) or more updates")

    @property
    def bucket_elements(self) -> int:
        """float32 elements of a full bucket: bucket_mib x 2^20 / 4."""
        return max(1, int(self.bucket_mib * BYTES_PER_MIB) // 4)
