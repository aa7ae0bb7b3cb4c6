"""Gymnasium spaces as specs, and values across that border: the only place that maps index to action.

Observations may be Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of those, nested to any depth.
Actions may be floating Box, Discrete, MultiDiscrete or MultiBinary. Everything else is refused at construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from common.errors import ContractError
from common.specs import BOX_DTYPES, ArraySpec, SpaceSpec, SpecViolation

LEAVES = (
    gymnasium.spaces.Box,
    gymnasium.spaces.Discrete,
    gymnasium.spaces.MultiDiscrete,
    gymnasium.spaces.MultiBinary,
)
OBSERVATIONS_ALLOWED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
ACTIONS_ALLOWED = "Box of a floating dtype, Discrete, MultiDiscrete, MultiBinary"
Parts = dict[str, NDArray[Any]]


class PartViolation(SpecViolation):
    """A part of an observation that does not obey its spec; the caller adds environment, lane and tick."""

    def __init__(self, part: str, got: str, expected: str) -> None:
        super().__init__(got, expected)
        self.part = part


class ObservationReader:
    """Takes observations apart: the structure of one space, flattened to named parts in stored form.

    Attributes:
        spec: the parts.
        keys: for each part, the path of Dict keys and Tuple positions that leads to it.
    """

    def __init__(self, space: gymnasium.Space[Any], environment: str) -> None:
        leaves = list(_leaves(space, "obs", (), environment))
        self._space = space
        self._nested = not isinstance(space, LEAVES)
        self.keys = [keys for _, keys, _ in leaves]
        try:
            self.spec = SpaceSpec(parts=tuple((name, _leaf_spec(leaf)) for name, _, leaf in leaves))
        except SpecViolation as violation:
            raise _refused("observation", environment, violation.got, violation.expected) from None

    def read(self, observation: Any) -> Parts:
        """One lane's observation. Raises `PartViolation`; converts only what loses nothing."""
        return self._parts(observation, lambda spec, value: _checked(spec, value, spec.shape, spec.check))

    def read_batch(self, observation: Any, num_lanes: int) -> Parts:
        """The batched observation of a vector environment, every part `[num_lanes, *shape]`."""
        return self._parts(
            observation,
            lambda spec, value: _checked(
                spec, value, (num_lanes, *spec.shape), lambda array: spec.check_batch(array, num_lanes)
            ),
        )

    def _parts(self, observation: Any, check: Callable[[ArraySpec, Any], NDArray[Any]]) -> Parts:
        if self._nested:
            _check_structure(self._space, observation, "obs")
        parts: Parts = {}
        for (name, spec), keys in zip(self.spec.parts, self.keys, strict=True):
            value = observation
            for key in keys:
                value = value[key]
            try:
                parts[name] = check(spec, value)
            except SpecViolation as violation:
                raise PartViolation(name, violation.got, violation.expected) from None
        return parts


class ActionWriter:
    """Turns stored actions into what the environment declares: the index plus `start`, the declared dtype.

    Every value given to an environment is a fresh array: one that an environment keeps never changes under it.
    """

    def __init__(self, space: gymnasium.Space[Any], environment: str) -> None:
        floating = isinstance(space, gymnasium.spaces.Box) and np.dtype(space.dtype).kind == "f"
        if not floating and not isinstance(space, LEAVES[1:]):
            raise _refused("action", environment, str(space), ACTIONS_ALLOWED)
        try:
            self.spec = _leaf_spec(space)
        except SpecViolation as violation:
            raise _refused("action", environment, violation.got, violation.expected) from None
        self._dtype = np.dtype(space.dtype)
        self._start = self.spec.start_array() if self.spec.start else None
        # Actions are stored as float32; the float32 nearest to a float64 bound may lie beyond it.
        widened = self.spec.kind == "box" and self._dtype.itemsize > 4
        self._bounds = (self.spec.low_array(), self.spec.high_array()) if widened else None

    def one(self, action: NDArray[Any]) -> Any:
        """One lane's action: a numpy scalar for Discrete, else an array."""
        value = self.batch(action)
        return self._dtype.type(value) if self.spec.kind == "discrete" else value

    def batch(self, action: NDArray[Any]) -> NDArray[Any]:
        """Actions of any number of lanes `[..., *shape]`."""
        if self._start is not None:
            return np.asarray(action + self._start, dtype=self._dtype)
        if self._bounds is not None:
            return np.asarray(np.clip(np.asarray(action, dtype=self._dtype), *self._bounds))
        return np.array(action, dtype=self._dtype)


def random_action(spec: ArraySpec, generator: np.random.Generator, num_lanes: int) -> NDArray[Any]:
    """Uniform stored actions `[num_lanes, *shape]`; standard normal, cut to the bounds, where a Box is unbounded."""
    shape = (num_lanes, *spec.shape)
    if spec.kind == "multi_binary":
        return generator.integers(0, 2, size=shape, dtype=np.int8)
    if spec.kind != "box":
        return generator.integers(0, np.asarray(spec.nvec).reshape(spec.shape), size=shape, dtype=np.int64)
    low, high = spec.low_array(), spec.high_array()
    bounded = np.isfinite(low) & np.isfinite(high) & (high - low < np.finfo(np.float32).max)
    uniform = generator.random(shape) * np.where(bounded, high - low, 0.0) + np.where(bounded, low, 0.0)
    return np.where(bounded, uniform, np.clip(generator.standard_normal(shape), low, high)).astype(spec.dtype)


def _leaves(space: Any, name: str, keys: tuple[Any, ...], environment: str) -> Any:
    """Yield (part name, path, leaf space), depth first in the order of the space."""
    if isinstance(space, gymnasium.spaces.Dict):
        for key, child in space.spaces.items():
            yield from _leaves(child, f"{name}/{key}", (*keys, key), environment)
    elif isinstance(space, gymnasium.spaces.Tuple):
        for position, child in enumerate(space.spaces):
            yield from _leaves(child, f"{name}/{position}", (*keys, position), environment)
    elif isinstance(space, LEAVES):
        yield name, keys, space
    else:
        raise _refused("observation", environment, f"{space} at {name!r}", OBSERVATIONS_ALLOWED)


def _refused(which: str, environment: str, got: str, allowed: str) -> ContractError:
    return ContractError(
        f"environment {environment!r}: {which} space is not supported",
        got=got,
        allowed=allowed,
        fix="wrap the environment so that its space is one of these",
    )


def _leaf_spec(space: Any) -> ArraySpec:
    dtype = np.dtype(space.dtype)
    if not dtype.isnative:
        raise SpecViolation(f"{space} in byte order {dtype.byteorder!r}", "this machine's byte order")
    match space:
        case gymnasium.spaces.Box():
            if dtype.name not in BOX_DTYPES:
                raise SpecViolation(f"Box of dtype {dtype}", f"one of {sorted(BOX_DTYPES)}")
            low, high = _bounds(space.low, space), _bounds(space.high, space)
            return ArraySpec(kind="box", shape=tuple(space.shape), dtype=dtype.name, low=low, high=high)
        case gymnasium.spaces.Discrete():
            choices, start = (int(space.n),), (int(space.start),)
            return ArraySpec(kind="discrete", shape=(), dtype="int64", nvec=choices, start=start)
        case gymnasium.spaces.MultiDiscrete():
            nvec = tuple(int(count) for count in space.nvec.reshape(-1))
            starts = tuple(int(first) for first in space.start.reshape(-1))
            return ArraySpec(kind="multi_discrete", shape=tuple(space.shape), dtype="int64", nvec=nvec, start=starts)
        case _:
            return ArraySpec(kind="multi_binary", shape=tuple(space.shape), dtype="int8")


def _bounds(bounds: NDArray[Any], space: Any) -> tuple[float, ...]:
    flat = np.asarray(bounds, dtype=np.float64).reshape(-1)
    if np.isnan(flat).any():
        raise SpecViolation(f"{space} with NaN among its bounds", "numbers or infinities")
    return (float(flat[0]),) if flat.size and (flat == flat[0]).all() else tuple(flat.tolist())


def _checked(spec: ArraySpec, value: Any, shape: tuple[int, ...], check: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
    plain = type(value) is np.ndarray and spec.kind == "box" and value.shape == shape and value.dtype == spec.dtype
    if plain and value.dtype.kind in "fb":
        return value  # type: ignore[no-any-return]  # nearly every tick of nearly every environment: no more to check
    return check(value)


def _check_structure(space: Any, value: Any, name: str) -> None:
    if isinstance(space, gymnasium.spaces.Dict):
        expected = list(space.spaces)
        if not isinstance(value, Mapping):
            raise PartViolation(name, type(value).__name__, f"a dict with the keys {expected}")
        if value.keys() != space.spaces.keys():
            raise PartViolation(name, f"the keys {list(value)}", f"the keys {expected}")
        for key, child in space.spaces.items():
            _check_structure(child, value[key], f"{name}/{key}")
    elif isinstance(space, gymnasium.spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
            raise PartViolation(name, f"{type(value).__name__}{size}", f"a tuple of {len(space.spaces)}")
        for position, child in enumerate(space.spaces):
            _check_structure(child, value[position], f"{name}/{position}")
