"""Environments with uncommon spaces, which insist on them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class DiscreteStartEnv(gymnasium.Env):
    """Echoes its action as the observation, from one space for both, and raises on any value outside it."""

    def __init__(self, kind: str = "discrete", n: int = 3, start: int = -1) -> None:
        space: spaces.Space[Any] = spaces.Discrete(n, start=start)
        if kind == "multi":
            space = spaces.MultiDiscrete([n, n + 1], start=[start, start + 5])
        self.action_space = self.observation_space = space
        self.first = space.start

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} of {type(action).__name__} is not in {self.action_space}")
        return action, float(np.sum(action)), False, False, {}


class DictObsEnv(gymnasium.Env):
    """A nested observation of every kind, half precision and bool included; the action is a float64 Box."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (2, 2, 3), np.uint8),
                "body": spaces.Dict(
                    {
                        "half": spaces.Box(-np.inf, np.inf, (2,), np.float16),
                        "touch": spaces.Box(0, 1, (2,), bool),
                        "gear": spaces.Discrete(3, start=5),
                    }
                ),
                "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-9, 9, (), np.float64))),
            }
        )
        self.action_space = spaces.Box(-0.1, 0.1, (2,), np.float64)
        self.kept: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.kept = []
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.kept.append(action)  # by reference: it must not change later
        return self._observation(), float(sum(kept[0] for kept in self.kept)), len(self.kept) == 4, False, {}

    def _observation(self) -> dict[str, Any]:
        n = len(self.kept)
        body = {"half": np.array([n, -n], np.float16), "touch": np.array([n > 0, False]), "gear": 5 + n % 3}
        image = np.full((2, 2, 3), 10 * n, np.uint8)
        return {"image": image, "body": body, "pair": (np.array([1, 0], np.int8), np.float64(n))}
