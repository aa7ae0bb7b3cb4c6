"""The target network: the parameters of some updates ago, in a network of their own that nothing differentiates."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.nets import ActorCritic
from common.parameters import FlatParameters


class TargetNetwork:
    """Follows `source` at every update whose number (from 1) is a multiple of `every`; part of the replicated state.

    Attributes:
        model: to evaluate.
    """

    def __init__(self, model: ActorCritic, source: FlatParameters, *, every: int) -> None:
        self.model = model
        self._parameters = FlatParameters(model, trainable=False)
        self._source = source
        self._every = every

    @property
    def vector(self) -> Tensor:
        """The live parameters, flat."""
        return self._parameters.vector.detach()

    @torch.no_grad()
    def follow(self, updates: int) -> None:
        """`updates` updates have been made: take the parameters over if it is time."""
        if updates % self._every == 0:
            self.vector.copy_(self._source.vector)

    def array(self) -> NDArray[np.float32]:
        """A copy of the parameters."""
        return self._parameters.numpy().copy()

    def load(self, flat: NDArray[np.float32]) -> None:
        """Overwrite the parameters with `flat` [num_elements]."""
        self._parameters.load(flat)
