"""A CartPole that is as slow as wanted, for as long as a file exists, and whose observation is wide.

The pace is no part of the configuration, so a run that was slowed down for a test is made again at full speed.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

ENV = "tests.net.paced:truestep-tests/Paced-v0"
PACE = "TRUESTEP_TESTS_PACE"  # name of a file; while it exists each step takes STEP_S
STEP_S = 0.02


class PacedEnv(CartPoleEnv):
    """CartPole with zeros behind its observation.

    Args:
        width: of the observation, 4 or more: a fragment of more than 100 kB travels through the object store.
    """

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self._width = width
        self._pace = Path(os.environ[PACE]) if PACE in os.environ else None
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def reset(self, **options: Any) -> Any:
        observation, info = super().reset(**options)
        return self._widened(observation), info

    def step(self, action: Any) -> Any:
        if self._pace is not None and self._pace.exists():
            threading.Event().wait(STEP_S)
        observation, *others = super().step(action)
        return self._widened(observation), *others

    def _widened(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        wide = np.zeros(self._width, np.float32)
        wide[: len(observation)] = observation
        return wide


gymnasium.register("truestep-tests/Paced-v0", entry_point=PacedEnv, max_episode_steps=500)
