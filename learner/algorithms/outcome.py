"""What an algorithm says of its steps and of an update: the same records for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from learner.gradient_step import Committed, Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """This rank's parts of one minibatch's means; `total` is differentiable, the others are numbers.

    The parts of all ranks add up to the means over the minibatch.

    Attributes:
        total: what is differentiated; None where this rank has no row of the minibatch.
        approximate_kl: between the policy that acted and the current one, by Schulman's low-variance estimate.
        clip_fraction: of rows at which the importance weight was clipped.
    """

    total: Tensor | None
    policy: float = 0.0
    value: float = 0.0
    entropy: float = 0.0
    approximate_kl: float = 0.0
    clip_fraction: float = 0.0


NO_ROWS = Losses(total=None)
MEANS = ("policy", "value", "entropy", "approximate_kl", "clip_fraction")


def summed(parts: Iterable[Losses]) -> Losses:
    """Of several fragments: one `total` to differentiate, and the sums of the numbers."""
    some = [part for part in parts if part.total is not None]
    if not some:
        return NO_ROWS
    total = some[0].total
    for part in some[1:]:
        assert total is not None and part.total is not None
        total = total + part.total
    return Losses(total=total, **{name: math.fsum(getattr(part, name) for part in some) for name in MEANS})


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateOutcome:
    """What one update did.

    Attributes:
        committed: gradient steps made.
        skipped: gradient steps that were not, their gradient being non-finite.
        skipped_at: first parameter whose gradient was non-finite.
        statistics: by name, alike on all ranks.
        parts: likewise, means over the committed and skipped steps of which this rank holds a part: those of all ranks
            add up.
        layer_norms: of the reduced gradient of the first step, by `LayerGroup`; alike on all ranks.
    """

    committed: int
    skipped: int
    skipped_at: str
    statistics: dict[str, float]
    parts: dict[str, float]
    layer_norms: dict[str, float] = field(default_factory=dict)


NO_STEPS = UpdateOutcome(committed=0, skipped=0, skipped_at="", statistics={}, parts=dict.fromkeys(MEANS, 0.0))


class Record:
    """What happened in one update, step by step."""

    def __init__(self) -> None:
        self._losses: list[Losses] = []
        self._steps: list[Committed | Skipped] = []

    @property
    def num_steps(self) -> int:
        """Steps made so far."""
        return len(self._steps)

    def add(self, losses: Losses, step: Committed | Skipped) -> None:
        """One more step."""
        self._losses.append(losses)
        self._steps.append(step)

    def outcome(self, explained_variance: float, *, stopped_early: bool = False) -> UpdateOutcome:
        """The sum of it."""
        committed = [step for step in self._steps if isinstance(step, Committed)]
        skipped = [step for step in self._steps if isinstance(step, Skipped)]
        return UpdateOutcome(
            committed=len(committed),
            skipped=len(skipped),
            skipped_at=skipped[0].parameter if skipped else "",
            statistics={
                "gradient_norm": _mean([step.gradient_norm for step in committed]),
                "clipped_steps": float(sum(step.clipped for step in committed)),
                "stopped_early": float(stopped_early),
                "explained_variance": explained_variance,
            },
            parts={name: _mean([getattr(losses, name) for losses in self._losses]) for name in MEANS},
        )


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values and all(map(math.isfinite, values)) else math.nan
