"""Schedules: factors on a base value as functions of the update index, never of time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, assert_never

from common.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How a value changes over the updates of a run.

    Attributes:
        kind: constant; linear to `final`; cosine to `final`; cosine_restarts, back to 1 every `period` updates
            (Loshchilov & Hutter, 2017).
        final: factor at the end of the horizon.
        warmup: updates over which the factor first rises linearly from 0 (factor (u + 1) / warmup at update u).
        period: updates between restarts (cosine_restarts).
    """

    kind: Literal["constant", "linear", "cosine", "cosine_restarts"] = "constant"
    final: float = 0.0
    warmup: int = 0
    period: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.final <= 1.0:
            raise ConfigError("schedule.final", got=self.final, allowed="0 to 1")
        if self.warmup < 0:
            raise ConfigError("schedule.warmup", got=self.warmup, allowed="0 or more updates")
        if self.kind == "cosine_restarts" and self.period < 1:
            raise ConfigError("schedule.period", got=self.period, allowed="1 or more updates with cosine_restarts")

    def factor(self, update: int, horizon: int) -> float:
        """The factor for update number `update` (from 0) of `horizon`.

        Past the horizon linear and cosine stay at `final`; restarts go on.
        """
        if update < self.warmup:
            return (update + 1) / self.warmup
        done, length = update - self.warmup, max(1, horizon - self.warmup)
        match self.kind:
            case "constant":
                return 1.0
            case "linear":
                return 1.0 - (1.0 - self.final) * min(1.0, done / length)
            case "cosine":
                return self._cosine(min(1.0, done / length))
            case "cosine_restarts":
                return self._cosine((done % self.period) / self.period)
            case other:
                assert_never(other)

    def _cosine(self, progress: float) -> float:
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * progress))
