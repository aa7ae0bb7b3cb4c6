"""The clipped objective of PPO (Schulman et al., 2017, eq. 7) as one node of the autograd graph instead of eight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float, num_rows: int) -> Tensor:
    """-Σ min(ρ A, clamp(ρ, 1 - ε, 1 + ε) A) / num_rows, a scalar, for log ρ and A of one shape."""
    surrogate: Tensor = _ClippedSurrogate.apply(log_ratio, advantage, clip, num_rows)  # type: ignore[no-untyped-call]
    return surrogate


class _ClippedSurrogate(torch.autograd.Function):
    """Where the clipped term is the smaller one it does not depend on ρ: no gradient."""

    @staticmethod
    def forward(ctx: Any, log_ratio: Tensor, advantage: Tensor, clip: float, num_rows: int) -> Tensor:
        ratio = log_ratio.exp()
        free = ratio * advantage
        clipped = ratio.clamp_(1.0 - clip, 1.0 + clip).mul_(advantage)
        ctx.save_for_backward(free, free <= clipped)
        ctx.num_rows = num_rows
        return torch.minimum(free, clipped).sum().div_(-num_rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        free, counts = ctx.saved_tensors  # d(ρ A) / d log ρ = ρ A
        return (free * counts).mul_(gradients[0] / -ctx.num_rows), None, None, None
