"""Norms of a gradient by layer group: which part of a network it is that grows or has fallen silent.

    body.features.*, body.hidden.*   torso        body.policy.*, head_module.*   policy
    body.core.*                      core         body.value.*                   value

Two towers have no torso: each belongs to its head. Names that ours do not have are "other".
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from common.metric_labels import LayerGroup
from common.weights import ParameterManifest

GROUPS = {
    "body.features": LayerGroup.TORSO,
    "body.hidden": LayerGroup.TORSO,
    "body.core": LayerGroup.CORE,
    "body.policy": LayerGroup.POLICY,
    "head_module": LayerGroup.POLICY,
    "body.value": LayerGroup.VALUE,
}


class LayerNorms:
    """Of one network's flat gradient.

    Args:
        manifest: of its parameters, in the gradient's order.
    """

    def __init__(self, manifest: ParameterManifest) -> None:
        self._spans = [
            (group, entries[0].offset, entries[-1].offset + entries[-1].size)
            for group, entries in (
                (group, list(entries))
                for group, entries in itertools.groupby(manifest.entries, lambda entry: layer_group(entry.name))
            )
        ]

    @torch.no_grad()
    def of(self, gradient: Tensor) -> dict[str, float]:
        """Euclidean norm of `gradient` [num_elements] by the value of `LayerGroup`; waits for the device once."""
        parts = [torch.linalg.vector_norm(gradient[start:stop]) for _, start, stop in self._spans]
        norms: dict[str, float] = {}
        for (group, _, _), norm in zip(self._spans, torch.stack(parts).tolist(), strict=True):
            norms[group.value] = math.hypot(norms.get(group.value, 0.0), norm)
        return norms


def layer_group(name: str) -> LayerGroup:
    """Where in the network the parameter `name` is."""
    return GROUPS.get(".".join(name.split(".")[: 1 if name.startswith("head_module") else 2]), LayerGroup.OTHER)
