"""Environments that can be seen, or claim to be: a picture's pixels are the number of the step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tests.envs.endings import EndingEnv

WINDOWS: list[int] = []  # in mode human: what was drawn, by step
CONSTRUCTED: list[str | None] = []  # the render mode of each that was made in this process


class DrawnEnv(EndingEnv):
    """Ends after 3 to 7 steps, as the seed says. `paints` chooses what `render` returns."""

    def __init__(self, render_mode: str | None = None, paints: str = "picture", obeys: bool = True) -> None:
        super().__init__()
        assert render_mode is None or obeys, "it takes no render mode"
        CONSTRUCTED.append(render_mode)
        self.canvas = np.zeros((2, 3, 3), np.uint8)
        self.metadata = {"render_modes": ["human", "rgb_array"]}
        self.render_mode, self.paints = render_mode, paints

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        answer = super().reset(seed=seed)
        self.horizon = int(self.np_random.integers(3, 8))
        self._show()
        return answer

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        answer = super().step(action)
        self._show()
        return answer

    def _show(self) -> None:
        if self.render_mode == "human":
            WINDOWS.append(self.index)

    def render(self) -> Any:
        self.canvas[:] = self.index  # the same array every time, as fast environments do
        others = {"floats": self.canvas / 255, "grey": self.canvas[..., 0], "four": np.zeros((2, 3, 4), np.uint8)}
        return (others | {"picture": self.canvas, "nothing": None})[self.paints]


class DrawnVectorEnv(VectorEnv):
    """Every lane ends after three steps; all are painted at once. There is no window."""

    def __init__(self, num_envs: int, mode: str, render_mode: str | None = None) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode(mode), "render_modes": ["rgb_array"]}
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.index = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.index = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.index = (self.index + 1) % 4
        ended, infos = np.full(self.num_envs, self.index == 3), {}
        reward = np.ones(self.num_envs)
        if self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP and self.index == 3:
            infos, self.index = {"final_obs": self._observation()}, 0
        return self._observation(), reward, ended, np.zeros(self.num_envs, bool), infos

    def render(self) -> tuple[Any, ...]:
        return tuple(np.full((2, 3, 3), 10 * lane + self.index, np.uint8) for lane in range(self.num_envs))

    def _observation(self) -> Any:
        return np.full((self.num_envs, 1), self.index, np.float32)
