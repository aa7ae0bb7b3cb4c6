"""The optimiser over the flat parameter vector, and its state as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import CheckpointError, ConfigError
from common.parameters import FlatParameters
from learner.schedules import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserConfig:
    """Adam (Kingma & Ba, 2015) and what surrounds it.

    Attributes:
        kind: the method.
        learning_rate: base step size, multiplied by `schedule`.
        schedule: over the updates of the run.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: added to the root of the second moment.
        max_gradient_norm: gradients of a larger Euclidean norm are scaled down to it; 0 never clips.
    """

    kind: Literal["adam"] = "adam"
    learning_rate: float = 3e-4
    schedule: Schedule = field(default_factory=Schedule)
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-5
    max_gradient_norm: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 < self.learning_rate < float("inf"):
            raise ConfigError("optimiser.learning_rate", got=self.learning_rate, allowed="above 0, finite")
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0.0 <= beta < 1.0:
                raise ConfigError(f"optimiser.{name}", got=beta, allowed="from 0 to below 1")
        if not self.epsilon > 0.0:
            raise ConfigError("optimiser.epsilon", got=self.epsilon, allowed="above 0")
        if not self.max_gradient_norm >= 0.0:
            raise ConfigError("optimiser.max_gradient_norm", got=self.max_gradient_norm, allowed="0 (off) or more")


class Optimiser:
    """torch's fused Adam on one flat tensor: one kernel a step, no allocation."""

    def __init__(self, config: OptimiserConfig, parameters: FlatParameters) -> None:
        self._config = config
        self._vector = parameters.vector
        betas = (config.beta1, config.beta2)
        self._adam = torch.optim.Adam(
            [parameters.vector], lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=True
        )
        zeros = np.zeros(self._vector.numel(), dtype=np.float32)
        self.load({"adam_first": zeros, "adam_second": zeros, "adam_steps": np.zeros(1, dtype=np.float32)})

    def set_update(self, update: int, horizon: int) -> float:
        """Set the step size for update number `update`; returns it."""
        rate = self._config.learning_rate * self._config.schedule.factor(update, horizon)
        self._adam.param_groups[0]["lr"] = rate
        return rate

    def step(self) -> None:
        """One step along the current gradient."""
        self._adam.step()

    def tensors(self) -> list[Tensor]:
        """The live state: first moment, second moment, step count."""
        state = self._adam.state[self._vector]
        return [state["exp_avg"], state["exp_avg_sq"], state["step"]]

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Copies of the moments and the step count; zeros before the first step."""
        names = ("adam_first", "adam_second", "adam_steps")
        return {name: each.reshape(-1).cpu().numpy().copy() for name, each in zip(names, self.tensors(), strict=True)}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put back what `arrays` took. Raises CheckpointError, before anything changes, if it does not fit."""
        size = self._vector.numel()
        for name, shape in (("adam_first", (size,)), ("adam_second", (size,)), ("adam_steps", (1,))):
            array = arrays.get(name)
            if array is None or array.shape != shape or array.dtype != np.float32:
                got = "nothing" if array is None else f"{array.dtype}{array.shape}"
                raise CheckpointError(f"optimiser state {name}", got=got, allowed=f"float32{shape}")
        device = self._vector.device
        self._adam.state[self._vector] = {
            "step": torch.from_numpy(arrays["adam_steps"].copy()).reshape(()).to(device),
            "exp_avg": torch.from_numpy(arrays["adam_first"].copy()).to(device),
            "exp_avg_sq": torch.from_numpy(arrays["adam_second"].copy()).to(device),
        }
