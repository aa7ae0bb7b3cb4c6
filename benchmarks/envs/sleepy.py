"""CartPole that takes its time without taking a core: a load by which stalls can be planted on a small machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from common.clock import MonotonicClock


class SleepyCartPole(CartPoleEnv):
    """CartPole-v1 whose every step sleeps.

    Args:
        step_s: so long.
        fault, at, seconds, mark: as a drill tells one actor's environments: with fault "sleep", every step from number
            `at` on sleeps `seconds` more; `mark` is not written.
    """

    def __init__(
        self, *, step_s: float = 0.0, fault: str = "", at: int = 0, seconds: float = 0.0, mark: str = ""
    ) -> None:
        super().__init__()
        self._clock = MonotonicClock()
        self._step_s = step_s
        self._slow_from = at if fault == "sleep" else None
        self._seconds = seconds
        self._steps = 0

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """One step of CartPole, after its sleep."""
        slow = self._slow_from is not None and self._steps >= self._slow_from
        self._steps += 1
        self._clock.sleep(self._step_s + (self._seconds if slow else 0.0))
        observation, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return observation, reward, terminated, truncated, info
