"""Recurrent cores: one cell for acting and for learning.

    features x [T, B, I] ──► addends of all rows in one matrix product
                                 │       │              │
    state [B, S] ──► (h, ...) ─► cell ─► cell ─► ... ─► cell ──► state [B, S]
                                 │       │              │
                                 └───────┴──────────────┴──────► outputs [T, B, H]

The state is one float32 matrix [B, S]: GRU h (S = H); LSTM h and c side by side (S = 2H). It is zeroed before a row
whose predecessor was invalid, i.e. after the final observation of an episode, never before it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CoreKind = Literal["lstm", "gru"]
Parts = tuple[Tensor, ...]


class Core(nn.Module, ABC):
    """A recurrent layer of H units over I features; a kind is its `addends` and its `cell`.

    Args:
        width: I.
        size: H.
        products: each product of h and a block of `recurrent_weight`, in units of H rows.
        num_parts: what the state consists of, [B, H] each; the first is h.

    Attributes:
        input_weight: [G·H, I], G gates.
        recurrent_weight: [G·H, H].
        bias: [G·H].
        state_size: S = H times `num_parts`.
    """

    def __init__(self, width: int, size: int, *, products: tuple[int, ...], num_parts: int) -> None:
        super().__init__()
        self.size = size
        self.num_gates = sum(products)
        self.state_size = num_parts * size
        self.input_weight = nn.Parameter(torch.zeros(self.num_gates * size, width))
        self.recurrent_weight = nn.Parameter(torch.zeros(self.num_gates * size, size))
        self.bias = nn.Parameter(torch.zeros(self.num_gates * size))
        self._blocks = [block * size for block in products]

    @abstractmethod
    def addends(self, features: Tensor) -> Parts:
        """What needs no state, [N, I] to [N, ...] each: first what each product is added to, then whatever else."""

    @abstractmethod
    def cell(self, sums: Parts, others: Parts, parts: Parts) -> Parts:
        """One row: the sums, the addends that belong to no product, the state before it; the state after it."""

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One tick of features [B, I]: output [B, H] and the next state [B, S]."""
        parts = self._advance(self.addends(features), self._split(state), self._transposed(self.recurrent_weight))
        return parts[0], _joined(parts)

    def unroll(self, features: Tensor, state: Tensor, valid_before: Tensor) -> tuple[Tensor, Tensor]:
        """T ticks: features [T, B, I] to outputs [T, B, H] and the state after the last row [B, S].

        The state is zeroed before row t where `valid_before[t]` [T, B] is 0.
        """
        num_rows, num_lanes = features.shape[:2]
        addends = self.addends(features.flatten(0, 1))
        before: list[Tensor] = []
        if torch.is_grad_enabled():
            addends = _WeightGradientOnce.apply(self.recurrent_weight, before, len(self._blocks), *addends)  # type: ignore[no-untyped-call]
        rows = zip(*(each.view(num_rows, num_lanes, -1).unbind(0) for each in addends), strict=True)
        weights = self._transposed(self.recurrent_weight.detach())
        fresh = (valid_before == 0).unsqueeze(-1)
        any_fresh = fresh.flatten(1).any(1).tolist()
        parts, outputs = self._split(state), []
        for t, row in enumerate(rows):
            if any_fresh[t]:
                parts = tuple(part.masked_fill(fresh[t], 0.0) for part in parts)
            before.append(parts[0].detach())
            parts = self._advance(row, parts, weights)
            outputs.append(parts[0])
        return torch.stack(outputs), _joined(parts)

    def _advance(self, row: Parts, parts: Parts, weights: Sequence[Tensor]) -> Parts:
        sums = tuple(torch.addmm(addend, parts[0], weight) for addend, weight in zip(row, weights, strict=False))
        return self.cell(sums, row[len(weights) :], parts)

    def _transposed(self, weight: Tensor) -> list[Tensor]:
        return [block.t() for block in torch.split(weight, self._blocks)]

    def _split(self, state: Tensor) -> Parts:
        return torch.split(state, self.size, 1)


class LSTM(Core):
    """Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000. Gates in the order i, f, g, o."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__(width, size, products=(4,), num_parts=2)

    def addends(self, features: Tensor) -> Parts:
        return (F.linear(features, self.input_weight, self.bias),)

    def cell(self, sums: Parts, others: Parts, parts: Parts) -> Parts:
        i, f, g, o = sums[0].chunk(4, 1)
        memory = torch.sigmoid(f) * parts[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(memory), memory


class GRU(Core):
    """Cho et al., 2014, with the reset gate after the matrix product, as in cuDNN. Gates in the order r, z, n.

    Attributes:
        candidate_bias: [H], added to the candidate's product before the reset gate.
    """

    def __init__(self, width: int, size: int) -> None:
        super().__init__(width, size, products=(2, 1), num_parts=1)
        self.candidate_bias = nn.Parameter(torch.zeros(size))

    def addends(self, features: Tensor) -> Parts:
        gates, candidate = torch.split(F.linear(features, self.input_weight, self.bias), self._blocks, 1)
        return gates, self.candidate_bias.expand(len(features), -1), candidate

    def cell(self, sums: Parts, others: Parts, parts: Parts) -> Parts:
        r, z = torch.sigmoid(sums[0]).chunk(2, 1)
        candidate = torch.tanh(others[0] + r * sums[1])
        return (torch.lerp(candidate, parts[0], z),)


def make_core(kind: CoreKind, width: int, size: int) -> Core:
    """The core of a kind, its parameters zero."""
    match kind:
        case "lstm":
            return LSTM(width, size)
        case "gru":
            return GRU(width, size)


class _WeightGradientOnce(torch.autograd.Function):
    """The recurrent weight's gradient as one product over all rows, instead of a sum of T products.

    A row's product is added to its addend, so both have one gradient, and the weight's is the sum over rows of that
    gradient times h before the row. Addends pass through this node; the steps use the weight as a constant and note
    their h in `before`. It saves a tenth (LSTM, 32 rows of 256 lanes, H = 128) to two thirds (GRU, 128 rows of 16
    lanes, H = 256) of forward and backward pass together.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, before: list[Tensor], num_products: int, *addends: Tensor) -> Parts:
        ctx.before, ctx.num_products, ctx.dtype = before, num_products, weight.dtype
        return tuple(addend.view_as(addend) for addend in addends)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        before = torch.cat(ctx.before).to(ctx.dtype)
        of_blocks = [each.t().to(ctx.dtype).mm(before) for each in gradients[: ctx.num_products]]
        return torch.cat(of_blocks), None, None, *gradients


def _joined(parts: Parts) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
