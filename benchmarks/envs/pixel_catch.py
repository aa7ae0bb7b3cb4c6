"""Catch a falling ball, seen as pixels only."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

SIDE = 36  # pixels; the smallest image that the Nature network takes
CELL = 3  # pixels of a grid cell
GRID = SIDE // CELL
PADDLE_CELLS = 2
STEP_COLUMNS = (-1, 0, 1)  # columns that actions 0, 1, 2 move the paddle by


class PixelCatchEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """A ball falls one cell a step from the top row; the paddle in the bottom row moves one cell a step.

    Observation: uint8 [36, 36, 1], 255 where ball or paddle is. Actions: 0 left, 1 stay, 2 right. An episode is one
    fall of 11 steps; its return is +1 if the ball lands on the paddle, else -1. Column of the ball and of the paddle
    are drawn uniformly, and any column can be reached in time.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
        self.action_space = spaces.Discrete(len(STEP_COLUMNS))
        self.ball_column = self.ball_row = self.paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.ball_row = 0
        self.ball_column = int(self.np_random.integers(GRID))
        self.paddle = int(self.np_random.integers(GRID - PADDLE_CELLS + 1))
        return self._image(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.ball_row += 1
        self.paddle = min(max(self.paddle + STEP_COLUMNS[int(action)], 0), GRID - PADDLE_CELLS)
        landed = self.ball_row == GRID - 1
        caught = self.paddle <= self.ball_column < self.paddle + PADDLE_CELLS
        reward = (1.0 if caught else -1.0) if landed else 0.0
        return self._image(), reward, landed, False, {}

    def _image(self) -> NDArray[np.uint8]:
        image = np.zeros((SIDE, SIDE, 1), np.uint8)
        bottom = SIDE - CELL
        image[bottom:, self.paddle * CELL : (self.paddle + PADDLE_CELLS) * CELL] = 255
        row, column = self.ball_row * CELL, self.ball_column * CELL
        image[row : row + CELL, column : column + CELL] = 255
        return image
