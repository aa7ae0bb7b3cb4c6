"""The contract of one environment's return values, checked before anything can cast or broadcast them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.env.spaces import Parts, PartViolation
from common.specs import SpaceSpec

REWARD_LIMIT = float(np.finfo(np.float32).max)  # rewards travel as float32; beyond this they would arrive as inf
REWARD_EXPECTED = "a real number: Python or numpy int, float or bool, or an array of shape ()"
FLAG_EXPECTED = "a Python or numpy bool"


def reset_parts(outcome: Any) -> Any:
    """The observation of `(observation, info)`. Raises `PartViolation`."""
    if not isinstance(outcome, tuple) or len(outcome) != 2:
        raise PartViolation("reset", _arity(outcome), "a tuple (observation, info)")
    if not isinstance(outcome[1], dict):
        raise PartViolation("info of reset", type(outcome[1]).__name__, "a dict")
    return outcome[0]


def step_parts(outcome: Any) -> tuple[Any, float, bool, bool]:
    """Observation, reward, terminated, truncated of Gymnasium's five values. Raises `PartViolation`."""
    if not isinstance(outcome, tuple) or len(outcome) != 5:
        raise PartViolation("step", _arity(outcome), "a tuple (observation, reward, terminated, truncated, info)")
    observation, reward, terminated, truncated, info = outcome
    if not isinstance(info, dict):
        raise PartViolation("info of step", type(info).__name__, "a dict")
    return observation, real_number(reward), flag("terminated", terminated), flag("truncated", truncated)


def real_number(value: Any) -> float:
    """A scalar reward as float64; an integer beyond float64 becomes an infinity. Raises `PartViolation`."""
    if type(value) is float or type(value) is np.float64:
        return float(value)
    scalar = isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating)
    if not scalar and not (isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "biuf"):
        raise PartViolation("reward", _shape(value), REWARD_EXPECTED)
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def flag(name: str, value: Any) -> bool:
    """One end flag. Raises `PartViolation`: 0, 1, None and arrays are no flags."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise PartViolation(name, _shape(value), FLAG_EXPECTED)


def vector_step_parts(outcome: Any, num_lanes: int) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """The five values of a vector environment's step, rewards as float64. Raises `PartViolation`."""
    if not isinstance(outcome, tuple) or len(outcome) != 5:
        raise PartViolation(
            "step", _arity(outcome), "a tuple (observations, rewards, terminations, truncations, infos)"
        )
    observation, reward, terminated, truncated, infos = outcome
    if not isinstance(infos, dict):
        raise PartViolation("infos of step", type(infos).__name__, "a dict")
    terminated = batched_flags("terminated", terminated, num_lanes)
    truncated = batched_flags("truncated", truncated, num_lanes)
    return observation, batched_rewards(reward, num_lanes), terminated, truncated, infos


def batched_rewards(value: Any, num_lanes: int) -> NDArray[np.float64]:
    """A vector environment's rewards as fresh float64 `[num_lanes]`. Raises `PartViolation`."""
    if not isinstance(value, np.ndarray) or value.shape != (num_lanes,) or value.dtype.kind not in "biuf":
        raise PartViolation("reward", _shape(value), f"real numbers of shape ({num_lanes},)")
    return value.astype(np.float64)


def batched_flags(name: str, value: Any, num_lanes: int) -> NDArray[np.bool_]:
    """A vector environment's end flags `[num_lanes]`. Raises `PartViolation`."""
    if not isinstance(value, np.ndarray) or value.shape != (num_lanes,) or value.dtype != np.bool_:
        raise PartViolation(name, _shape(value), f"bool of shape ({num_lanes},)")
    return value


def floating_parts(spec: SpaceSpec) -> tuple[str, ...]:
    """Names of the parts that could hold a NaN or an infinity."""
    return tuple(name for name, part in spec if np.dtype(part.dtype).kind == "f")


def nonfinite(parts: Parts, names: tuple[str, ...], reward: float) -> tuple[str, str] | None:
    """The first field of one lane that is NaN, infinite or a reward beyond float32, with its value; else None."""
    if not -REWARD_LIMIT <= reward <= REWARD_LIMIT:
        return "reward", repr(reward)
    for name in names:
        finite = np.isfinite(parts[name])
        if not finite.all():
            return name, _first_bad(parts[name], finite)
    return None


def nonfinite_lanes(parts: Parts, names: tuple[str, ...], reward: NDArray[np.float64]) -> dict[int, tuple[str, str]]:
    """The same for all lanes: lane to (field, value); empty, and cheap, on a sound tick."""
    bad: dict[int, tuple[str, str]] = {}
    if not np.abs(reward).max(initial=0.0) <= REWARD_LIMIT:
        for lane in np.flatnonzero(~(np.abs(reward) <= REWARD_LIMIT)):
            bad[int(lane)] = "reward", repr(float(reward[lane]))
    for name in names:
        finite = np.isfinite(parts[name])
        if not finite.all():
            rows = finite.reshape(len(finite), -1).all(axis=1)
            for lane in np.flatnonzero(~rows):
                bad.setdefault(int(lane), (name, _first_bad(parts[name][lane], finite[lane])))
    return bad


def _first_bad(array: NDArray[Any], finite: NDArray[np.bool_]) -> str:
    position = tuple(int(axis) for axis in np.argwhere(~finite)[0])
    return f"{float(array[position])!r} at {list(position)}" if position else repr(float(array))


def _arity(outcome: Any) -> str:
    return f"a tuple of {len(outcome)}" if isinstance(outcome, tuple) else type(outcome).__name__


def _shape(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}, dtype {value.dtype}"
    return f"{value!r:.60} of type {type(value).__name__}"
