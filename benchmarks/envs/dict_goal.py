"""Walk a line to the goal that a code names; every part of the observation is needed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CODE_BITS = 3
NUM_CELLS = 2**CODE_BITS
MAX_STEPS = 12
WASTED_STEP = -0.2

Observation = dict[str, Any]


class DictGoalEnv(gymnasium.Env[Observation, np.int64]):
    """A walker among 8 cells on a line has to reach the goal and stop there; its controls may be reversed.

    Observation, a Dict:
        position: Box float32 [1], cell of the walker scaled to [-1, 1].
        goal: MultiBinary [3], the goal cell as a binary number, most significant bit first.
        wiring: Discrete 2, 0 if action 2 moves right, 1 if it moves left.

    Actions: 0 and 2 walk to either side, 1 stops. A step that brings the walker no closer costs 0.2, stopping
    on the goal gives +1 and ends the episode; after 12 steps it is truncated. The best return is 1 from every start.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            position=spaces.Box(-1.0, 1.0, (1,), np.float32),
            goal=spaces.MultiBinary(CODE_BITS),
            wiring=spaces.Discrete(2),
        )
        self.action_space = spaces.Discrete(3)
        self.position = self.goal = self.wiring = self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.position, self.goal = (int(cell) for cell in self.np_random.integers(NUM_CELLS, size=2))
        self.wiring = int(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        move = (int(action) - 1) * (-1 if self.wiring else 1)
        distance = abs(self.position - self.goal)
        stopped = move == 0 and distance == 0
        self.position = min(max(self.position + move, 0), NUM_CELLS - 1)
        closer = abs(self.position - self.goal) < distance
        reward = 1.0 if stopped else 0.0 if closer else WASTED_STEP
        return self._observation(), reward, stopped, self.steps == MAX_STEPS and not stopped, {}

    def _observation(self) -> Observation:
        position = np.array([2.0 * self.position / (NUM_CELLS - 1) - 1.0], np.float32)
        bits = [self.goal >> bit & 1 for bit in reversed(range(CODE_BITS))]
        return {"position": position, "goal": np.array(bits, np.int8), "wiring": np.int64(self.wiring)}
