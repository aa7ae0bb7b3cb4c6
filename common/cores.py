"""Recurrent cores: one cell for acting and for learning.

    features x [T, B, I] ──► one matrix product for all rows ──► gates [T, B, G·H]
                                                                    │
    state [B, S] ──► cell ──► cell ──► ... ──► cell ──► state       ▼   one step a row
                      └────────┴──────────────── └────► output [T, B, H]

The state is one float32 matrix [B, S]: GRU h (S = H); LSTM h and c side by side (S = 2H). It is zeroed before a row
whose predecessor was invalid, i.e. after the final observation of an episode, never before it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CoreKind = Literal["lstm", "gru"]


class Core(nn.Module):
    """A recurrent layer of H units over I features. `cell` is what the kinds differ in.

    Args:
        width: I.
        size: H.
        num_gates: G, blocks of H rows in the weights.
        state_size: S.
    """

    def __init__(self, width: int, size: int, *, num_gates: int, state_size: int) -> None:
        super().__init__()
        self.size = size
        self.num_gates = num_gates
        self.state_size = state_size
        self.input_weight = nn.Parameter(torch.zeros(num_gates * size, width))
        self.recurrent_weight = nn.Parameter(torch.zeros(num_gates * size, size))
        self.bias = nn.Parameter(torch.zeros(num_gates * size))

    def project(self, features: Tensor) -> Tensor:
        """What the features [N, I] add to the gates [N, G·H]: the part that needs no state."""
        return F.linear(features, self.input_weight, self.bias)

    def cell(self, projected: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One row: `projected` [B, G·H] and the state before it [B, S] to the output [B, H] and the state after it."""
        raise NotImplementedError

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One tick of features [B, I]: output [B, H] and the next state [B, S]."""
        return self.cell(self.project(features), state)

    def unroll(self, features: Tensor, state: Tensor, valid_before: Tensor) -> tuple[Tensor, Tensor]:
        """T ticks: features [T, B, I] to outputs [T, B, H] and the state after the last row [B, S].

        The state is zeroed before row t where `valid_before[t]` [T, B] is 0.
        """
        projected = self.project(features.flatten(0, 1)).view(*features.shape[:2], -1)
        fresh = valid_before == 0
        any_fresh = fresh.any(1).tolist()
        outputs = []
        for t, row in enumerate(projected.unbind(0)):
            if any_fresh[t]:
                state = state.masked_fill(fresh[t].unsqueeze(1), 0.0)
            output, state = self.cell(row, state)
            outputs.append(output)
        return torch.stack(outputs), state


class LSTM(Core):
    """Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000. Gates in the order i, f, g, o."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__(width, size, num_gates=4, state_size=2 * size)

    def cell(self, projected: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, memory = state.chunk(2, 1)
        i, f, g, o = torch.addmm(projected, hidden, self.recurrent_weight.t()).chunk(4, 1)
        memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(memory)
        return hidden, torch.cat((hidden, memory), 1)


class GRU(Core):
    """Cho et al., 2014, with the reset gate after the matrix product. Gates in the order r, z, n."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__(width, size, num_gates=3, state_size=size)
        self.candidate_bias = nn.Parameter(torch.zeros(size))

    def cell(self, projected: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        input_r, input_z, input_n = projected.chunk(3, 1)
        state_r, state_z, state_n = (state @ self.recurrent_weight.t()).chunk(3, 1)
        r, z = torch.sigmoid(input_r + state_r), torch.sigmoid(input_z + state_z)
        n = torch.tanh(input_n + r * (state_n + self.candidate_bias))
        hidden = n + z * (state - n)
        return hidden, hidden


def make_core(kind: CoreKind, width: int, size: int) -> Core:
    """The core of a kind, its parameters zero."""
    match kind:
        case "lstm":
            return LSTM(width, size)
        case "gru":
            return GRU(width, size)
