"""A model's parameters as one flat float32 vector, and its gradients as another.

The model's own tensors become views of the flat ones, so publishing, digesting, copying, clipping and reducing are one
operation on one contiguous buffer, and the optimiser makes one step on one tensor.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.weights import ParameterManifest


class FlatParameters:
    """Owner of the flat vector (`vector`) and, where the model is to be trained, the flat gradient (`gradient`).

    `manifest` and `parts` hold the parameters' names and the parameters, both in the order of the vector.
    """

    def __init__(self, model: nn.Module, *, trainable: bool) -> None:
        named = list(model.named_parameters())
        self.manifest = ParameterManifest.of([(name, tuple(p.shape), "float32") for name, p in named])
        self.parts = tuple(parameter for _, parameter in named)
        storage = torch.cat([p.detach().reshape(-1) for _, p in named])
        self.vector = nn.Parameter(storage, requires_grad=trainable)
        self.gradient = self.gradient_and_tail = torch.zeros_like(storage[:0])
        for parameter, entry in zip(self.parts, self.manifest.entries, strict=True):
            parameter.data = storage[entry.offset : entry.offset + entry.size].view(parameter.shape)
            parameter.requires_grad_(trainable and parameter.requires_grad)  # frozen by its maker: stays frozen
        if trainable:
            self.reserve_tail(0)

    def reserve_tail(self, num_elements: int) -> None:
        """Make the flat gradient anew, zero, followed by `num_elements` that travel with it and belong to no parameter.

        `gradient_and_tail` is the whole; `gradient` is its view without the tail.
        """
        self.gradient_and_tail = torch.zeros(self.num_elements + num_elements, device=self.vector.device)
        self.gradient = self.gradient_and_tail[: self.num_elements]
        self.vector.grad = self.gradient
        for parameter, entry in zip(self.parts, self.manifest.entries, strict=True):
            parameter.grad = self.gradient[entry.offset : entry.offset + entry.size].view(parameter.shape)

    @property
    def num_elements(self) -> int:
        """Length of the vector."""
        return self.vector.numel()

    def numpy(self) -> NDArray[np.float32]:
        """The live vector as an array on the host: a view on CPU. Copy before keeping it."""
        values: NDArray[np.float32] = self.vector.detach().cpu().numpy()
        return values

    @torch.no_grad()
    def load(self, flat: NDArray[np.float32]) -> None:
        """Overwrite the parameters with `flat` [num_elements]."""
        if flat.shape != (self.num_elements,) or flat.dtype != np.float32:
            raise ValueError(f"parameters: got {flat.dtype}{flat.shape}, allowed float32({self.num_elements},)")
        self.vector.copy_(torch.from_numpy(flat.copy()))

    def first_non_finite(self, gradient: Tensor) -> str:
        """Name of the parameter that holds the first non-finite element of `gradient`, or "" if all are finite."""
        bad = torch.nonzero(~torch.isfinite(gradient)).reshape(-1)
        if not len(bad):
            return ""
        at = int(bad[0])
        return next(entry.name for entry in self.manifest.entries if at < entry.offset + entry.size)
