"""Episodes that end in each way, on time: what may be bootstrapped, and from which observation."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

MARKER = 1000.0


class EndingEnv(gymnasium.Env):
    """Observation = step index, reward 1; after `horizon` steps the flags given and, if asked, a marker observation."""

    def __init__(
        self, horizon: int = 5, terminated: bool = False, truncated: bool = True, marker: bool = False
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(0, MARKER, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.horizon, self.flags, self.marker, self.index = horizon, (terminated, truncated), marker, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.index = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.index += 1
        last = self.index == self.horizon
        observation = np.array([MARKER if last and self.marker else self.index], np.float32)
        return observation, 1.0, last and self.flags[0], last and self.flags[1], {}


class TruncationOnlyEnv(EndingEnv):
    """Cut by its time limit, never terminal."""


class TerminationOnlyEnv(EndingEnv):
    """The well-behaved twin: always terminal."""

    def __init__(self, horizon: int = 5) -> None:
        super().__init__(horizon, terminated=True, truncated=False)


class BothFlagsEnv(EndingEnv):
    """Terminated and truncated in the same step."""

    def __init__(self, horizon: int = 5) -> None:
        super().__init__(horizon, terminated=True, truncated=True)


class MarkerEnv(EndingEnv):
    """Its final observation can be told from every other."""

    def __init__(self, horizon: int = 5) -> None:
        super().__init__(horizon, marker=True)
