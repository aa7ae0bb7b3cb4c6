"""An environment's state as plain values: taken from a running one, put on a fresh one. Never pickle.

`take` walks everything reachable from the outermost wrapper through instance attributes and keeps what can be
state: numbers, text, arrays, generators, containers, enum members, and user objects with these inside. Whatever else
it meets (functions, classes, modules, renderers, handles of native simulators) it assumes to be constant by
construction and leaves as the fresh environment has it. Whether that assumption holds for an environment is not
believed but proven on a twin before snapshots are used (`actors.env.proof`).

Shared references and cycles survive. Encoding: scalars and arrays stand for themselves; everything else is a list that
begins with a tag:

    ["list", [..]]  ["tuple", [..]]  ["deque", maxlen, [..]]  ["set", [..]]  ["dict", [[key, value], ..]]
    ["int", hex]                     beyond 64 bits
    ["generator", state]  ["random_state", ..]  ["python_random", ..]  ["space", state, [child spaces]]
    ["enum", class, name]  ["object", class, [[attribute, value], ..]]  ["frozen", class, [..]]  ["named", class, [..]]
    ["ref", n]                       the n-th mutable value met before
    ["same"]                         assumed constant
"""

from __future__ import annotations

import enum
import random
import sys
from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from common.errors import CheckpointError
from common.rng import generator_state, set_generator_state

SAME = ["same"]
MAX_DEPTH = 64
MAX_VALUES = 200_000
BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
SCALARS = (type(None), bool, float, str, bytes)
# Their attributes are bookkeeping of live resources; user objects derived from them are not walked either.
CONSTANT_ROOTS = frozenset(sys.stdlib_module_names) | {"numpy", "torch", "jax", "pygame", "mujoco"}
STATELESS_BASES = frozenset(("typing", "abc", "collections"))  # Generic, Protocol, ABC, collections.abc


class NotPlain(Exception):
    """The state cannot be taken: too deep or too large. The message says where."""


def take(env: Any) -> list[Any]:
    """The state of `env` (a Gymnasium environment with its wrappers) as plain values. Raises `NotPlain`."""
    encoded: list[Any] = _Taking().encode(env, "env")
    return encoded


def put(env: Any, state: list[Any]) -> None:
    """Put what `take` took on `env`, a fresh environment of the same kind that was reset once.

    Afterwards `take(env)` equals `state`. Raises `CheckpointError` where the fresh environment lacks an object that the
    state was taken from; `env` must not be used then.
    """
    try:
        _Putting().decode(state, env, "env")
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        raise CheckpointError("environment state: cannot be put on a fresh environment", got=str(error)) from error
    if not plain_equal(take(env), state):
        raise CheckpointError("environment state: what was put on a fresh environment reads back differently")


def plain_equal(one: Any, other: Any) -> bool:
    """Equal in type, structure and bits (NaN equals the same NaN)."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(plain_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(plain_equal, one, other))
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, float | np.generic):
        return plain_equal(np.asarray(one), np.asarray(other))
    return bool(one == other)


class _Taking:
    """One walk from environment to plain values."""

    def __init__(self) -> None:
        self._met: dict[int, int] = {}
        self._kept: list[Any] = []  # keeps temporaries alive, so that no id is used twice
        self._count = 0

    def encode(self, value: Any, path: str, depth: int = 0) -> Any:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_VALUES:
            raise NotPlain(f"{path}: more than {MAX_DEPTH} levels or {MAX_VALUES:,} values of state")
        if isinstance(value, SCALARS) and type(value) in SCALARS:
            return value
        if type(value) is int:
            return value if -(2**63) <= value < 2**63 else ["int", hex(value)]
        if isinstance(value, np.generic):
            return value if value.dtype.kind in "biuf" and value.dtype.itemsize <= 8 else SAME
        if isinstance(value, enum.Enum):
            return ["enum", _class_name(value), value.name]
        return self._encode_mutable(value, path, depth)

    def _encode_mutable(self, value: Any, path: str, depth: int) -> Any:
        if type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
            tag = ["tuple"] if type(value) is tuple else ["named", _class_name(value)]
            return [*tag, [self.encode(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]]
        kind = _kind(value)
        if kind is None:
            return SAME
        if id(value) in self._met:
            return ["ref", self._met[id(value)]]
        self._met[id(value)] = len(self._met)
        self._kept.append(value)
        if kind == "array":
            return value.copy()
        return [kind, *getattr(self, f"_{kind}")(value, path, depth + 1)]

    def _list(self, value: Any, path: str, depth: int) -> list[Any]:
        return [[self.encode(item, f"{path}[{i}]", depth) for i, item in enumerate(value)]]

    def _deque(self, value: Any, path: str, depth: int) -> list[Any]:
        return [value.maxlen, *self._list(value, path, depth)]

    def _set(self, value: Any, path: str, depth: int) -> list[Any]:
        return [[self.encode(item, f"{path}{{{i}}}", depth) for i, item in enumerate(sorted(value, key=repr))]]

    def _dict(self, value: Any, path: str, depth: int) -> list[Any]:
        pairs = [
            (self.encode(key, path, depth), self.encode(item, f"{path}[{key!r}]", depth)) for key, item in value.items()
        ]
        return [[list(pair) for pair in pairs]]

    def _generator(self, value: Any, path: str, depth: int) -> list[Any]:
        return [generator_state(value)]

    def _random_state(self, value: Any, path: str, depth: int) -> list[Any]:
        name, keys, position, has_gauss, gauss = value.get_state(legacy=True)
        return [name, np.array(keys), int(position), int(has_gauss), float(gauss)]

    def _python_random(self, value: Any, path: str, depth: int) -> list[Any]:
        version, words, gauss = value.getstate()
        return [version, np.array(words, dtype=np.uint32), gauss]

    def _space(self, value: Any, path: str, depth: int) -> list[Any]:
        children = [self.encode(child, f"{path}.spaces", depth) for child in _child_spaces(value)]
        generator = vars(value).get("_np_random")  # the property would make one from entropy
        return [None if generator is None else generator_state(generator), children]

    def _object(self, value: Any, path: str, depth: int) -> list[Any]:
        attributes = _attributes(value)
        return [_class_name(value), [[k, self.encode(attributes[k], f"{path}.{k}", depth)] for k in attributes]]

    _frozen = _object


class _Putting:
    """One walk from plain values to a fresh environment."""

    def __init__(self) -> None:
        self._met: list[Any] = []
        self._written: set[int] = set()

    def decode(self, plain: Any, existing: Any, path: str) -> Any:
        """The value for the place where `existing` is now; updated in place where it has an identity of its own."""
        if isinstance(plain, np.ndarray):
            return self._array(plain, existing)
        if not isinstance(plain, list):
            return plain
        tag, *rest = plain
        match tag:
            case "same":
                return existing
            case "ref":
                return self._met[rest[0]]
            case "int":
                return int(rest[0], 16)
            case "tuple":
                return tuple(self._items(rest[0], existing, path))
            case "named":
                self._same_class(existing, rest[0], path)
                return type(existing)(*self._items(rest[1], existing, path))
            case "enum":
                self._same_class(existing, rest[0], path)
                return type(existing)[rest[1]]
            case _:
                return getattr(self, f"_{tag}")(existing, path, *rest)

    def _array(self, plain: np.ndarray[Any, Any], existing: Any) -> Any:
        array: Any = plain.copy()
        alike = _kind(existing) == "array" and existing.shape == plain.shape and existing.dtype == plain.dtype
        if alike and existing.flags.writeable and id(existing) not in self._written:
            existing[...] = plain  # in place: views of it that the environment holds follow
            array = existing
        return self._meet(array)

    def _items(self, items: list[Any], existing: Any, path: str) -> list[Any]:
        present = list(existing) if isinstance(existing, tuple | list | deque) else []
        present += [_MISSING] * (len(items) - len(present))
        return [
            self._item(item, now, f"{path}[{i}]") for i, (item, now) in enumerate(zip(items, present, strict=False))
        ]

    def _item(self, plain: Any, existing: Any, path: str) -> Any:
        if existing is _MISSING and _assumed_constant(plain):
            raise self._lacks(path, "a value that was assumed constant")
        return self.decode(plain, existing, path)

    def _list(self, existing: Any, path: str, items: list[Any]) -> Any:
        fresh: list[Any] = self._meet([])
        fresh.extend(self._items(items, existing, path))
        return fresh

    def _deque(self, existing: Any, path: str, maxlen: int | None, items: list[Any]) -> Any:
        fresh: deque[Any] = self._meet(deque(maxlen=maxlen))
        fresh.extend(self._items(items, existing, path))
        return fresh

    def _set(self, existing: Any, path: str, items: list[Any]) -> Any:
        fresh: set[Any] = self._meet(set())
        fresh.update(self._items(items, None, path))
        return fresh

    def _dict(self, existing: Any, path: str, pairs: list[Any]) -> Any:
        fresh: dict[Any, Any] = self._meet({})
        present = existing if type(existing) is dict else {}
        for plain_key, plain in pairs:
            key = self._item(plain_key, _MISSING, path)
            fresh[key] = self._item(plain, present.get(key, _MISSING), f"{path}[{key!r}]")
        return fresh

    def _generator(self, existing: Any, path: str, state: dict[str, Any]) -> Any:
        kind = state["bit_generator"]
        usable = isinstance(existing, np.random.Generator) and type(existing.bit_generator).__name__ == kind
        if not usable or id(existing) in self._written:
            if kind not in BIT_GENERATORS:
                raise self._lacks(path, f"a generator over {kind}")
            existing = np.random.Generator(getattr(np.random, kind)(0))
        set_generator_state(existing, state)
        return self._meet(existing)

    def _random_state(self, existing: Any, path: str, *state: Any) -> Any:
        if type(existing) is not np.random.RandomState or id(existing) in self._written:
            existing = np.random.RandomState(0)
        existing.set_state(state)
        return self._meet(existing)

    def _python_random(self, existing: Any, path: str, version: int, words: Any, gauss: float | None) -> Any:
        if type(existing) is not random.Random or id(existing) in self._written:
            existing = random.Random(0)
        existing.setstate((version, tuple(int(word) for word in words), gauss))
        return self._meet(existing)

    def _space(self, existing: Any, path: str, state: dict[str, Any] | None, children: list[Any]) -> Any:
        if not isinstance(existing, gymnasium.Space):
            raise self._lacks(path, "a space")
        self._meet(existing)
        if state is None:
            vars(existing)["_np_random"] = None
        else:
            set_generator_state(existing.np_random, state)
        for child, now in zip(children, _child_spaces(existing), strict=True):
            self.decode(child, now, f"{path}.spaces")
        return existing

    def _object(self, existing: Any, path: str, name: str, attributes: list[Any]) -> Any:
        self._same_class(existing, name, path)
        if id(existing) in self._written:
            raise self._lacks(path, f"a {name} of its own")
        self._meet(existing)
        now = _attributes(existing)
        for key, plain in attributes:
            if not _assumed_constant(plain):
                object.__setattr__(existing, key, self.decode(plain, now.get(key, _MISSING), f"{path}.{key}"))
        for key in now.keys() - {key for key, _ in attributes}:
            object.__delattr__(existing, key)
        return existing

    def _frozen(self, existing: Any, path: str, name: str, attributes: list[Any]) -> Any:
        """A new instance: the existing one may be a constant that other environments share."""
        self._same_class(existing, name, path)
        fresh = self._meet(object.__new__(type(existing)))
        now = _attributes(existing)
        for key, plain in attributes:
            object.__setattr__(fresh, key, self._item(plain, now.get(key, _MISSING), f"{path}.{key}"))
        return fresh

    def _meet(self, value: Any) -> Any:
        self._met.append(value)
        self._written.add(id(value))
        return value

    def _same_class(self, existing: Any, name: str, path: str) -> None:
        if existing is _MISSING or _class_name(existing) != name:
            raise self._lacks(path, f"a {name}")

    def _lacks(self, path: str, what: str) -> CheckpointError:
        return CheckpointError(f"environment state: a fresh environment has no {what} at {path}")


def _assumed_constant(plain: Any) -> bool:
    return isinstance(plain, list) and plain[0] == "same"


class _Missing:
    """Nothing is there; None is a value."""


_MISSING = _Missing()


def _kind(value: Any) -> str | None:
    """The tag of a mutable value; None for what is assumed constant."""
    match value:
        case np.ndarray() if type(value) is np.ndarray:
            plain = value.dtype.kind in "biuf" and value.dtype.isnative and value.dtype.itemsize <= 8
            return "array" if plain else None
        case list() | dict() | set() | deque() if type(value) in (list, dict, set, deque):
            return type(value).__name__
        case np.random.Generator():
            return "generator" if type(value.bit_generator).__name__ in BIT_GENERATORS else None
        case np.random.RandomState():
            return "random_state" if type(value._bit_generator).__name__ == "MT19937" else None
        case random.Random():
            return "python_random" if type(value) is random.Random else None
        case gymnasium.Space():
            return "space"
        case type() | EnvSpec():
            return None
        case _:
            return _object_kind(value)


def _object_kind(value: Any) -> str | None:
    kind = type(value)
    roots = {base.__module__.partition(".")[0] for base in kind.__mro__ if base is not object}
    if (roots - STATELESS_BASES) & CONSTANT_ROOTS or not (hasattr(value, "__dict__") or _slots(kind)):
        return None
    parameters = getattr(kind, "__dataclass_params__", None)
    return "frozen" if parameters is not None and parameters.frozen else "object"


def _attributes(value: Any) -> dict[str, Any]:
    attributes = dict(getattr(value, "__dict__", {}))
    attributes.update({name: getattr(value, name) for name in _slots(type(value)) if hasattr(value, name)})
    return attributes


def _slots(kind: type) -> list[str]:
    names: list[str] = []
    for base in kind.__mro__:
        declared = base.__dict__.get("__slots__", ())
        names += [declared] if isinstance(declared, str) else list(declared)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _child_spaces(space: gymnasium.Space[Any]) -> list[gymnasium.Space[Any]]:
    children = getattr(space, "spaces", ())
    return list(children.values() if isinstance(children, dict) else children)


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
