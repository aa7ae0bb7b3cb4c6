"""A stack of linear layers as one node of the autograd graph.

The mathematics of `nn.Sequential` of `nn.Linear` and an activation, equal to rounding. Activations are made in place,
and in the backward pass each is overwritten by the gradient that passes it; narrow matrices are multiplied from the
side that is fast. For two 64x64 towers at 2,048 rows the first saved 8 % and the second 9 % of a training step.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal

import torch
from torch import Tensor, nn

Activation = Literal["tanh", "relu"]


class Tower(nn.Module):
    """`width` features to `outputs` through hidden layers of one activation: [N, width] to [N, outputs].

    One backward pass per forward pass: a second one (`retain_graph`) finds its activations gone and raises.
    """

    def __init__(self, width: int, hidden: tuple[int, ...], outputs: int, activation: Activation) -> None:
        super().__init__()
        sizes = (width, *hidden, outputs)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.activation: Activation = activation

    def forward(self, features: Tensor) -> Tensor:
        parameters = [part for layer in self.layers for part in (layer.weight, layer.bias)]
        if torch.is_grad_enabled():
            outputs: Tensor = _TowerFunction.apply(features, self.activation, *parameters)  # type: ignore[no-untyped-call]
            return outputs
        return _through(features, self.activation, parameters)[-1]


def _through(features: Tensor, activation: Activation, parameters: Any) -> list[Tensor]:
    """The input, every hidden layer after its activation, and the outputs.

    The few outputs are computed as [outputs, N] and seen as [N, outputs]: four times as fast for two of them, and the
    layout that a categorical wants.
    """
    passed = [features]
    for i in range(0, len(parameters) - 2, 2):
        layer = torch.addmm(parameters[i + 1], passed[-1], parameters[i].t())
        passed.append(torch.tanh_(layer) if activation == "tanh" else torch.relu_(layer))
    weight, bias = parameters[-2:]
    passed.append(torch.addmm(bias.unsqueeze(1), weight, passed[-1].t()).t())
    return passed


class _TowerFunction(torch.autograd.Function):
    """Forward keeps the input and the hidden activations; backward consumes the latter."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, activation: Activation, *parameters: Tensor) -> Tensor:
        *kept, outputs = _through(features, activation, parameters)
        ctx.save_for_backward(*kept, *parameters[0::2])
        ctx.activation = activation
        ctx.spent = False
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.spent:
            raise RuntimeError("a tower's activations serve one backward pass: run the forward pass again")
        ctx.spent = True
        saved = ctx.saved_tensors
        kept, weights = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        of_parameters: list[Tensor | None] = []
        gradient = gradients[0]
        for i in range(len(weights) - 1, -1, -1):
            of_parameters[:0] = [_of_weight(gradient, kept[i]), gradient.sum(0)]
            if i > 0:
                gradient = _through_activation(gradient.mm(weights[i]), kept[i], ctx.activation)
        of_features = gradient.mm(weights[0]) if ctx.needs_input_grad[0] else None
        return of_features, None, *of_parameters


def _of_weight(gradient: Tensor, features: Tensor) -> Tensor:
    """The gradient [outputs, width] of a weight: the narrower of [N, outputs] and [N, width] is transposed."""
    if features.shape[1] < gradient.shape[1]:
        return features.t().mm(gradient).t()
    return gradient.t().mm(features)


def _through_activation(gradient: Tensor, hidden: Tensor, activation: Activation) -> Tensor:
    """The gradient before an activation whose result is `hidden`, written over `hidden`."""
    if activation == "tanh":
        result: Tensor = torch.ops.aten.tanh_backward.grad_input(gradient, hidden, grad_input=hidden)
    else:
        result = torch.ops.aten.threshold_backward.grad_input(gradient, hidden, 0, grad_input=hidden)
    return result
