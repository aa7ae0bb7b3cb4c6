"""Observations as a network sees them: the statistics of its version, applied where actors and learners alike read."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from common.normalize import InputScale, normalised_parts
from common.specs import SpaceSpec
from common.torsos import Observation


class InputStage:
    """Normalises the floating parts of an observation to float32, element by element; other parts pass.

    The difference from the mean is formed in float64 and only the result is rounded: one digit in sixteen is lost to a
    large mean where float32 would lose one in seven. A row gives the same bits alone and among others.
    """

    def __init__(self, observation: SpaceSpec, scale: InputScale, device: torch.device | None = None) -> None:
        self._clip = scale.clip
        self._parts: dict[str, tuple[Tensor, Tensor]] = {}
        start = 0
        for name, shape in normalised_parts(observation):
            stop = start + math.prod(shape)
            mean, factor = (torch.tensor(each[start:stop]).reshape(shape) for each in (scale.mean, scale.factor))
            self._parts[name] = mean.to(device), factor.to(device)
            start = stop

    def __call__(self, observation: Observation) -> dict[str, Tensor]:
        """{part: [..., *shape]}, with any number of leading dimensions."""
        return {name: self._seen(name, part) for name, part in observation.items()}

    def _seen(self, name: str, part: Tensor) -> Tensor:
        if name not in self._parts:
            return part
        mean, factor = self._parts[name]
        scaled = part.double().sub_(mean).mul_(factor) if part.dtype != torch.float64 else (part - mean).mul_(factor)
        return (scaled.clamp_(-self._clip, self._clip) if self._clip else scaled).float()
