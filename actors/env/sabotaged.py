"""CartPole in which one thing goes wrong on purpose, for drills: the id is `actors.env.sabotaged:truestep/...`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from common.clock import MonotonicClock

SABOTAGED = "actors.env.sabotaged:truestep/SabotagedCartPole-v0"
FOR_EVER_S = 10.0**6
EnvFault = Literal["", "raise", "hang", "sleep"]


class SabotagedCartPole(CartPoleEnv):
    """CartPole-v1 in everything, until its fault strikes.

    Args:
        fault: `raise` an exception, `hang` for ever, `sleep` for `seconds`; "" is none.
        at: step, counted since it was made, in which the fault strikes; more than the 80 steps of a proof.
        seconds: of a sleep.
        mark: file that is written when it strikes, with the reading of the monotonic clock (ns); where it is there, the
            fault has been and does not come again, in this environment or in another.
    """

    def __init__(self, *, fault: EnvFault = "", at: int = 0, seconds: float = 0.0, mark: str = "") -> None:
        super().__init__()
        self._fault = fault
        self._at = at
        self._seconds = seconds
        self._mark = mark
        self._made = 0

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """One step of CartPole, or its fault before it."""
        self._made += 1
        if self._fault and self._made == self._at and not Path(self._mark).exists():
            Path(self._mark).write_text(str(MonotonicClock().now_ns()), encoding="ascii")
            self._go_wrong()
        observation, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return observation, reward, terminated, truncated, info

    def _go_wrong(self) -> None:
        if self._fault == "raise":
            raise RuntimeError("a drill: this environment was told to raise")
        MonotonicClock().sleep(FOR_EVER_S if self._fault == "hang" else self._seconds)


gymnasium.register(
    "truestep/SabotagedCartPole-v0", entry_point="actors.env.sabotaged:SabotagedCartPole", max_episode_steps=500
)
