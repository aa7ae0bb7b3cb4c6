"""CartPole with a planted hot function: pure Python that takes its time in every step."""

from __future__ import annotations

from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv

TURNS = 3_000  # about 0.1 ms of one core


class SpinningCartPoleEnv(CartPoleEnv):
    """Plays as CartPole does; most of its time goes into `planted_spin`."""

    def step(self, action: Any) -> Any:
        planted_spin()
        return super().step(action)


def planted_spin() -> int:
    """Nothing of use."""
    total = 0
    for turn in range(TURNS):
        total ^= turn
    return total
