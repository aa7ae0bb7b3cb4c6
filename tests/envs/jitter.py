"""A CartPole whose steps take a random time, from the operating system's randomness: no stream of the run is drawn."""

from __future__ import annotations

import os
import threading
from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class JitterEnv(CartPoleEnv):
    """Sleeps 0 to `most_ms` milliseconds in one step of 16; with 0 it is its own well-behaved twin."""

    def __init__(self, most_ms: int = 3) -> None:
        super().__init__()
        self.most_ms = most_ms

    def step(self, action: Any) -> Any:
        draw = os.urandom(2)
        if self.most_ms and draw[0] < 16:
            threading.Event().wait(self.most_ms * draw[1] / 255e3)
        return super().step(action)
