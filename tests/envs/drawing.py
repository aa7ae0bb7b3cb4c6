"""Environments that draw from where seeds do not reach, or keep state where it cannot be taken."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np


class GlobalRngEnv(gymnasium.Env):
    """Observation: one draw each from numpy's and Python's process-wide generators, its own, and its action space."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._draw(), 0.0, False, False, {}

    def _draw(self) -> Any:
        sample = float(self.action_space.sample()[0])
        return np.array([np.random.random(), random.random(), self.np_random.random(), sample])


class SeedIgnoringEnv(gymnasium.Env):
    """`always` and `after_first_reset` draw from entropy; `space_only` from its action space; `never` obeys."""

    def __init__(self, mode: str = "always") -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float64)
        self.action_space = gymnasium.spaces.Box(0, 1, (1,), np.float64)
        self.mode, self.resets = mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        ignores = self.mode == "always" or (self.mode == "after_first_reset" and self.resets > 1)
        super().reset(seed=int(np.random.SeedSequence().entropy) % 2**31 if ignores else seed)
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._draw(), 0.0, True, False, {}

    def _draw(self) -> Any:
        return self.action_space.sample() if self.mode == "space_only" else self.np_random.random(1)


class StatefulObjectEnv(gymnasium.Env):
    """Its state lives in a counter of the class, which no reset begins anew; `hidden=False` keeps it in a number."""

    ticks = itertools.count(1)

    def __init__(self, hidden: bool = True) -> None:
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.hidden, self.count = hidden, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        value = next(self.ticks) if self.hidden else self.count
        return np.array([float(value)]), 0.0, False, False, {}


class OpaqueEnv(gymnasium.Env):
    """A function of seed and actions whose state nobody can copy; it draws from its own generator and its space too.

    `kind` says where the state is: in a generator's frame, in a closure's cell, in an object of C. An episode ends when
    the state is a multiple of `ends`. With `carries` an episode begins where the one before has ended. `draws_global`
    draws from numpy's process-wide generator instead of its own, and each step sleeps `sleep_s`.
    """

    def __init__(self, kind: str = "generator", ends: int = 13, carries: bool = False, **options: Any) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(5, start=2)
        self.begin, self.ends, self.carries, self.value = HOLDERS[kind], ends, carries, 0
        self.draws_global, self.sleep_s = options.get("draws_global", False), options.get("sleep_s", 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.advance = self.begin(int(self.np_random.integers(1000)) + self.value * self.carries)
        return self._observation(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        threading.Event().wait(self.sleep_s)
        self.value = self.advance(int(action))
        return self._observation(self.value), float(self.value), self.value % self.ends == 0, False, {}

    def _observation(self, value: int) -> Any:
        draw = (np.random if self.draws_global else self.np_random).random()
        return np.array([value, draw, self.action_space.sample()])


class ClockEnv(gymnasium.Env):
    """Reads the wall clock at every step, in the way of `asks`; where it `tells`, the observation is what it read."""

    def __init__(self, asks: str = "time", tells: bool = True) -> None:
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.asks, self.tells = asks, tells

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.random(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        match self.asks:
            case "time":
                now = time.time()
            case "datetime":
                now = datetime.datetime.now().timestamp()
            case _:
                now = 0.0
        return np.array([now * self.tells]), 0.0, False, False, {}


def in_a_frame(start: int) -> Callable[[int], int]:
    """A generator that has been started."""

    def run() -> Iterator[int]:
        total = start
        while True:
            total = (3 * total + (yield total)) % 1009

    generator = run()
    next(generator)
    return generator.send


def in_a_cell(start: int) -> Callable[[int], int]:
    """A function that remembers."""
    total = start

    def advance(action: int) -> int:
        nonlocal total
        total = (3 * total + action) % 1009
        return total

    return advance


def in_c(start: int) -> Callable[[int], int]:
    """A hash that is fed."""
    fed = hashlib.blake2b(str(start).encode(), digest_size=2)

    def advance(action: int) -> int:
        fed.update(bytes([action]))
        return int.from_bytes(fed.digest(), "little")

    return advance


HOLDERS = {"generator": in_a_frame, "closure": in_a_cell, "c_object": in_c}
