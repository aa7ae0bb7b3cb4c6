"""Environments that draw from where seeds do not reach, or keep state where it cannot be taken."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np


class GlobalRngEnv(gymnasium.Env):
    """Observation: one draw each from numpy's and Python's process-wide generators, its own, and its action space."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._draw(), 0.0, False, False, {}

    def _draw(self) -> Any:
        sample = float(self.action_space.sample()[0])
        return np.array([np.random.random(), random.random(), self.np_random.random(), sample])


class SeedIgnoringEnv(gymnasium.Env):
    """`always` and `after_first_reset` draw from entropy; `space_only` from its action space; `never` obeys."""

    def __init__(self, mode: str = "always") -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(0, 1, (1,), np.float64)
        self.mode, self.resets = mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        ignores = self.mode == "always" or (self.mode == "after_first_reset" and self.resets > 1)
        super().reset(seed=int(np.random.SeedSequence().entropy) % 2**31 if ignores else seed)
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._draw(), 0.0, True, False, {}

    def _draw(self) -> Any:
        return self.action_space.sample() if self.mode == "space_only" else self.np_random.random(1)


class StatefulObjectEnv(gymnasium.Env):
    """Its state lives in a generator function's frame, which nobody can copy; `hidden=False` keeps it in a number."""

    def __init__(self, hidden: bool = True) -> None:
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.hidden, self.count, self.ticks = hidden, 0, iter(())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.ticks = 0, (tick for tick in range(1, 10**9))
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        value = next(self.ticks) if self.hidden else self.count
        return np.array([float(value)]), 0.0, False, False, {}
