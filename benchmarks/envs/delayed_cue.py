"""Remember a cue that was seen once: nothing but memory solves it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

LENGTH = 24  # steps of an episode


class DelayedCueEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """The first observation shows a cue, all later ones are alike; at the end one is asked which it was.

    Observation: float32 [2], the cue (-1 or 1 in the first observation, 0 in all others) and whether this is the last
    action (0 or 1). Actions: 0 or 1; only the last of the 24 counts. The return is +1 if it is 1 for a cue of 1 and 0
    for a cue of -1, else -1. A policy that sees only the present observation returns 0 in the mean, whatever it does.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.cue = 0
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.cue = int(self.np_random.integers(2))
        self.steps = 0
        return np.array([2 * self.cue - 1, 0], np.float32), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == LENGTH
        right = int(action) == self.cue
        reward = (1.0 if right else -1.0) if over else 0.0
        return np.array([0, self.steps == LENGTH - 1], np.float32), reward, over, False, {}
