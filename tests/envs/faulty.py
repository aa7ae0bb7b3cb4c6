"""Environments that break their word: wrong values, non-finite values, exceptions, dead and hanging processes."""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from common.clock import MonotonicClock

OBSERVATION = gymnasium.spaces.Box(-10, 10, (3,), np.float32)
GOOD = np.array([1, 2, 3], np.float32)
OUTCOMES: dict[str, Any] = {  # what step returns at tick `at`, by mode
    "good": (GOOD, 1.0, False, False, {}),
    "int_reward": (GOOD, 1, False, False, {}),
    "scalar_array_reward": (GOOD, np.array(1.0), False, False, {}),
    "bool_reward": (GOOD, np.True_, False, False, {}),
    "numpy_flags": (GOOD, np.float32(1), np.False_, np.bool_(0), {}),
    "narrow_obs": (GOOD.astype(np.float16), 1.0, False, False, {}),
    "float64_obs": (GOOD.astype(np.float64), 1.0, False, False, {}),
    "shape_obs": (GOOD.reshape(3, 1), 1.0, False, False, {}),
    "none_obs": (None, 1.0, False, False, {}),
    "reward_of_shape_1": (GOOD, np.array([1.0]), False, False, {}),
    "text_reward": (GOOD, "1", False, False, {}),
    "none_reward": (GOOD, None, False, False, {}),
    "int_flag": (GOOD, 1.0, 0, False, {}),
    "none_info": (GOOD, 1.0, False, False, None),
    "four_values": (GOOD, 1.0, False, {}),
    "none": None,
}


class WrongDtypeEnv(gymnasium.Env):
    """Returns `OUTCOMES[mode]` from step number `at`, the good outcome before."""

    def __init__(self, mode: str = "good", at: int = 2) -> None:
        self.observation_space, self.action_space = OBSERVATION, gymnasium.spaces.Discrete(2)
        self.mode, self.at, self.index = mode, at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.index = 0
        return GOOD if self.mode == "partial_reset" else (GOOD, {})  # type: ignore[return-value]

    def step(self, action: Any) -> Any:
        self.index += 1
        return OUTCOMES[self.mode if self.index == self.at else "good"]


class NaNRewardEnv(gymnasium.Env):
    """Observation = step index; at step `at` the field becomes `value`. Length 6. The twin has another field name."""

    def __init__(self, at: int = 3, value: float = float("nan"), field: str = "reward", length: int = 6) -> None:
        self.observation_space, self.action_space = OBSERVATION, gymnasium.spaces.Discrete(2)
        self.at, self.value, self.field, self.length, self.index, self.resets = at, value, field, length, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.index, self.resets = 0, self.resets + 1
        bad = self.field == "reset" and self.resets == self.at
        self.observation = np.full(3, self.value if bad else 0, np.float32)
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.index += 1
        now = self.index == self.at
        self.observation[:] = self.index
        observation = self.observation  # the same array every time
        if now and self.field == "obs":
            observation[1] = self.value
        reward = self.value if now and self.field == "reward" else 1.0
        return observation, reward, self.index == self.length, False, {"x": self.value} if self.field == "info" else {}


class NaNVectorEnv(VectorEnv):
    """`NaNRewardEnv` in lane `lane`, sound elsewhere; only the lane's first episode is bad."""

    def __init__(self, num_envs: int, mode: str = "NextStep", lane: int = 1, **kwargs: Any) -> None:
        self.lanes = [NaNRewardEnv(**(kwargs if i == lane else kwargs | {"field": "none"})) for i in range(num_envs)]
        self.vector = gymnasium.vector.SyncVectorEnv(
            [lambda env=env: env for env in self.lanes], copy=False, autoreset_mode=mode
        )
        self.bad, self.num_envs, self.metadata = lane, num_envs, {"autoreset_mode": AutoresetMode(mode)}
        self.single_observation_space, self.single_action_space = OBSERVATION, gymnasium.spaces.Discrete(2)
        self.observation_space = batch_space(OBSERVATION, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, **kwargs: Any) -> Any:
        return self.vector.reset(**kwargs)

    def step(self, actions: Any) -> Any:
        outcome = self.vector.step(actions)
        if self.lanes[self.bad].resets > 1 and self.lanes[self.bad].field != "reset":
            self.lanes[self.bad].field = "none"
        return outcome


KINDS = ("raise", "sys_exit", "exit", "segv", "hang", "hold_gil", "sleep", "none", "partial_reset")
PLACES = ("init", "reset", "step", "close", "late_close")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong, and where. The well-behaved twin of an environment has `where=""`.

    Attributes:
        kind: `raise`, `sys_exit` (SystemExit), `exit` (of the process, status 7), `segv`, `hang` (interpreter lock let
            go), `hold_gil` (hang with the lock held), `sleep` (for `seconds`), `none` (returned), `partial_reset`
            (reset returns the bare observation).
        where: words out of init, reset, step, close, late_close (a close after step `at`).
        at: the step of the episode.
        lane_pid: a process in which nothing goes wrong.
        once: a path. Who comes to the place leaves a file `PATH.n` there, n counted over all processes and lives.
        skip, times: with `once`, the arrivals `skip` to `skip + times - 1` misbehave and all others are well.
        seconds: of a sleep.
        note: a path. Whoever goes wrong first writes there when that was, in ns of the monotonic clock.
    """

    kind: str = "raise"
    where: str = "step"
    at: int = 2
    lane_pid: int = 0
    once: str = ""
    skip: int = 0
    times: int = 1
    seconds: float = 1.0
    note: str = ""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, f"kind {self.kind!r} is none of {KINDS}"
        assert set(self.where.split()) <= set(PLACES), f"{self.where!r}: places are {PLACES}"

    def fail_maybe(self, where: str, outcome: Any = None) -> Any:
        """Go wrong, if this is the place; else hand back `outcome`."""
        if where not in self.where.split() or os.getpid() == self.lane_pid:
            return outcome
        if self.once and not self.skip <= _arrival(self.once) < self.skip + self.times:
            return outcome
        if self.note and not Path(self.note).exists():
            Path(self.note).write_text(str(MonotonicClock().now_ns()), encoding="ascii")
        match self.kind:
            case "raise":
                raise RuntimeError("the simulator lost its licence")
            case "sys_exit":
                raise SystemExit(3)
            case "exit":
                os._exit(7)
            case "segv":
                faulthandler.disable()  # the dump would only clutter the test's output
                ctypes.string_at(0)
            case "hang":
                threading.Event().wait()
            case "hold_gil":
                ctypes.PyDLL(None).sleep(10**6)
            case "sleep":
                threading.Event().wait(self.seconds)
            case "partial_reset":
                return outcome[0] if where == "reset" else outcome
        return None if self.kind == "none" else outcome


def _arrival(path: str) -> int:
    """Which arrival this is, from 0: the first number whose file is not there yet."""
    for number in itertools.count():
        try:
            Path(f"{path}.{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return number
    raise AssertionError("there is always another number")


class FaultyEnv(WrongDtypeEnv):
    """`WrongDtypeEnv` that is good but for a `Fault`: one constant observation, and episodes without end."""

    def __init__(self, **fault: Any) -> None:
        super().__init__()
        self.fault = Fault(**fault)
        self.fault.fail_maybe("init")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        outcome: tuple[Any, dict[str, Any]] = self.fault.fail_maybe("reset", super().reset(seed=seed))
        return outcome

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        return self.fault.fail_maybe("step", outcome) if self.index == self.fault.at else outcome

    def close(self) -> None:
        self.fault.fail_maybe("close")
        if self.index >= self.fault.at:
            self.fault.fail_maybe("late_close")


class FaultyCartPoleEnv(CartPoleEnv):
    """CartPole without a time limit, with a `Fault` whose `at` counts the steps since construction (a proof makes 80).

    Its twin is itself with `where=""`: the same bits wherever the fault has not struck.
    """

    def __init__(self, **fault: Any) -> None:
        super().__init__()
        self.fault, self.steps = Fault(**fault), 0
        self.fault.fail_maybe("init")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        outcome: tuple[Any, dict[str, Any]] = self.fault.fail_maybe("reset", super().reset(seed=seed))
        return outcome

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        self.steps += 1
        return self.fault.fail_maybe("step", outcome) if self.steps == self.fault.at else outcome

    def close(self) -> None:
        self.fault.fail_maybe("close")
        if self.steps >= self.fault.at:
            self.fault.fail_maybe("late_close")


class CrowdedCartPoleEnv(FaultyCartPoleEnv):
    """`FaultyCartPoleEnv` for a crowd of actors, each of which misbehaves in its own way.

    Processes of actors are counted as they come, over all lives: the first `well` of them are well, the next `faults`
    misbehave, in the way that is their turn among `kinds`, and all later ones are well again. Nothing goes wrong in any
    other process. Where, when and how is as of a `Fault`; process n notes its fault in `PATH.n.KIND`.

    Args:
        path: of the files by which processes are counted.
    """

    def __init__(self, *, path: str, kinds: str, well: int = 0, faults: int = 0, where: str = "", **fault: Any) -> None:
        turn = _turn(path) - well
        ways = kinds.split()
        kind = ways[turn % len(ways)]
        misbehaves = 0 <= turn < faults
        note = f"{path}.{turn + well}.{kind}"
        super().__init__(kind=kind, where=where if misbehaves else "", note=note, **fault)


_turns: dict[str, int] = {}  # by path; a forked child has the turn of its actor


def _turn(path: str) -> int:
    """This process's turn among the actors' processes; -1 in every other process."""
    if not Path("/proc/self/cmdline").read_bytes().startswith(b"ray::ActorProcess"):
        return -1
    if path not in _turns:
        _turns[path] = _arrival(path)
    return _turns[path]


class LeakyEnv(WrongDtypeEnv):
    """Starts a process of its own; `close` ends it unless it `leaks`."""

    def __init__(self, leaks: bool = True) -> None:
        super().__init__()
        self.leaks, self.process = leaks, subprocess.Popen(["sleep", "600"])

    def close(self) -> None:
        if not self.leaks:
            self.process.kill()
            self.process.wait()


def not_installed() -> None:
    """The entry point of an environment whose simulator is missing."""
    raise ImportError("No module named 'simulator'")


def no_env() -> dict[str, int]:
    """An entry point that makes something else."""
    return {}


def needs(licence: str) -> None:
    """An entry point with an argument that nobody gave."""
