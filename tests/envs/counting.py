"""CountingEnv: observation = (step index, last action), reward = index + 1. Plain, and vectorised in every mode."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

OBSERVATION = gymnasium.spaces.Box(0, np.inf, (2,), np.float32)
TERMINATE, TRUNCATE, BOTH = 2, 3, 4  # actions that end the episode at once where `obeys`


class CountingEnv(gymnasium.Env):
    """Terminates after `length` steps; where `obeys`, actions 2, 3, 4 terminate, truncate, or do both."""

    observation_space = OBSERVATION

    def __init__(self, length: int = 3, obeys: bool = False) -> None:
        self.action_space = gymnasium.spaces.Discrete(5)
        self.length, self.obeys, self.index = length, obeys, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.index = 0
        return np.array([0, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.index += 1
        asked = int(action) if self.obeys else 0
        terminated = self.index == self.length or asked in (TERMINATE, BOTH)
        return np.array([self.index, action], np.float32), float(self.index), terminated, asked in (TRUNCATE, BOTH), {}


class CountingVectorEnv(VectorEnv):
    """The same in numpy. It keeps to `mode` and declares it, unless told to declare another, or to hide final_obs."""

    def __init__(self, num_envs: int, mode: str | None = "NextStep", declared: str = "", **kwargs: Any) -> None:
        self.num_envs, self.mode, self.hides_final = num_envs, mode, kwargs.get("hides_final", False)
        self.length, self.obeys = kwargs.get("length", 3), kwargs.get("obeys", False)
        self.metadata = {} if mode is None else {"autoreset_mode": AutoresetMode(declared or mode)}
        self.single_observation_space, self.single_action_space = OBSERVATION, gymnasium.spaces.Discrete(5)
        self.observation_space, self.action_space = (
            batch_space(OBSERVATION, num_envs),
            batch_space(self.single_action_space, num_envs),
        )
        self.ended = np.zeros(num_envs, bool)
        self.state = np.zeros((num_envs, 2), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self.state[mask], self.ended[mask] = 0, False
        return self.state, {}  # the same array every time, as fast environments do

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert self.mode != "Disabled" or not self.ended.any(), "an ended lane was stepped"
        again = self.ended.copy() if self.mode == "NextStep" else np.zeros(self.num_envs, bool)
        self.state[:, 0] += 1
        self.state[:, 1] = action
        self.state[again] = 0
        asked = np.where(again, 0, action) * self.obeys
        terminated = (self.state[:, 0] == self.length) | np.isin(asked, (TERMINATE, BOTH))
        truncated = np.isin(asked, (TRUNCATE, BOTH))
        self.ended, reward, infos = terminated | truncated, self.state[:, 0].astype(np.float64), {}
        reward[again] = 99.0  # filler, which must not be read
        if self.mode == "SameStep" and self.ended.any():
            final = np.full(self.num_envs, None, dtype=object)
            for lane in np.flatnonzero(self.ended):
                final[lane] = self.state[lane].copy()
            infos = {} if self.hides_final else {"final_obs": final}
            self.state[self.ended] = 0
        return self.state, reward, terminated, truncated, infos
