"""The only room that seeds.

One root seed; every stream is `SeedSequence(seed, spawn_key=(role, index, incarnation, lane, purpose))`, so a
stream is a function of *who draws for what*, never of the order in which streams were made: adding an actor
changes no other stream, and a new incarnation draws from streams no earlier one has used.

truestep draws from generators it owns. The global generators of Python, numpy and torch are seeded per actor
only because users' environments may draw from them; `GlobalGenerators` gives each worker a private copy that
is switched in while it works, so workers sharing a process (engine `inline`) cannot disturb each other.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import numpy as np

EPISODE_SEED_BITS = 31  # np.random.seed takes 32 bits and several simulators take a signed int32


class Role(IntEnum):
    """Whose stream it is. Codes are part of every stream: append only, never reuse."""

    DRIVER = 0
    ACTOR = 1
    LEARNER = 2
    EVALUATOR = 3
    CHECKER = 4


class Purpose(IntEnum):
    """What the stream is drawn for. Codes are part of every stream: append only, never reuse."""

    ENVIRONMENT = 0
    EPISODE = 1
    ACTION = 2
    SPACE = 3
    GLOBALS = 4
    INITIALISE = 5
    SHUFFLE = 6
    PROBE = 7


class Streams:
    """All random streams of a run, by path.

    >>> a = Streams(7).generator(Role.ACTOR, 0, lane=1, purpose=Purpose.ACTION).random()
    >>> b = Streams(7).generator(Role.ACTOR, 0, lane=2, purpose=Purpose.ACTION).random()
    >>> a != b
    True
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed: got {seed}, allowed: 0 to 2**63 - 1")
        self.seed = seed

    def sequence(
        self,
        role: Role,
        index: int,
        *,
        incarnation: int = 0,
        lane: int = 0,
        purpose: Purpose,
        extra: tuple[int, ...] = (),
    ) -> np.random.SeedSequence:
        """The seed sequence of one path. `extra` lengthens the path (an episode, an update)."""
        key = (int(role), index, incarnation, lane, int(purpose), *extra)
        return np.random.SeedSequence(self.seed, spawn_key=key)

    def generator(
        self,
        role: Role,
        index: int,
        *,
        incarnation: int = 0,
        lane: int = 0,
        purpose: Purpose,
        extra: tuple[int, ...] = (),
    ) -> np.random.Generator:
        """A fresh PCG64 generator at the start of one path's stream."""
        sequence = self.sequence(role, index, incarnation=incarnation, lane=lane, purpose=purpose, extra=extra)
        return np.random.Generator(np.random.PCG64(sequence))

    def integer(
        self,
        role: Role,
        index: int,
        *,
        incarnation: int = 0,
        lane: int = 0,
        purpose: Purpose,
        extra: tuple[int, ...] = (),
        bits: int = EPISODE_SEED_BITS,
    ) -> int:
        """One integer of `bits` bits for code that takes a seed rather than a generator."""
        sequence = self.sequence(role, index, incarnation=incarnation, lane=lane, purpose=purpose, extra=extra)
        low, high = (int(word) for word in sequence.generate_state(2, np.uint32))
        return (low | high << 32) & ((1 << bits) - 1)

    def episode_seed(self, role: Role, index: int, *, incarnation: int, lane: int, episode: int) -> int:
        """The seed with which episode number `episode` of one lane is reset."""
        return self.integer(role, index, incarnation=incarnation, lane=lane, purpose=Purpose.EPISODE, extra=(episode,))


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """A generator's state as plain values (128-bit integers as hexadecimal text), ready for the wire."""
    state: dict[str, Any] = _encode_ints(generator.bit_generator.state)
    return state


def set_generator_state(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Put back what `generator_state` took. Raises ValueError if it is of another kind of generator."""
    decoded = _decode_ints(state)
    kind = type(generator.bit_generator).__name__
    if decoded.get("bit_generator") != kind:
        raise ValueError(f"generator state: got {decoded.get('bit_generator')!r}, allowed: {kind!r}")
    generator.bit_generator.state = decoded


def _encode_ints(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _encode_ints(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "values": [_encode_ints(int(item)) for item in value]}
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value)
    return value


def _decode_ints(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"dtype", "values"}:
            return np.array([_decode_ints(item) for item in value["values"]], dtype=value["dtype"])
        return {key: _decode_ints(item) for key, item in value.items()}
    if isinstance(value, str) and value.startswith("0x"):
        return int(value, 16)
    return value


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """torch's global generator seeded with `seed` inside the block, put back as it was afterwards.

    For code of others that draws from it (layer constructors of a custom network).
    """
    torch = sys.modules["torch"]
    outer = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(outer)


class GlobalGenerators:
    """One worker's private copy of the process-wide generators (Python, numpy legacy, torch).

    Inside `with generators.installed():` the process-wide generators hold this worker's state; on exit the
    state is taken back and the previous one is put back. About 40 µs a switch: once per fragment.
    """

    def __init__(self, sequence: np.random.SeedSequence) -> None:
        words = [int(word) for word in sequence.generate_state(3, np.uint32)]
        saved = self._capture()
        random.seed(words[0])
        np.random.seed(words[1])  # noqa: NPY002 - users' environments draw from it
        if (torch := sys.modules.get("torch")) is not None:
            torch.default_generator.manual_seed(words[2])
        self._state = self._capture()
        self._install(saved)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Switch this worker's generators in for the duration of the block."""
        outer = self._capture()
        self._install(self._state)
        try:
            yield
        finally:
            self._state = self._capture()
            self._install(outer)

    def state(self) -> dict[str, Any]:
        """Plain values, ready for the wire."""
        python_version, python_words, python_gauss = self._state["python"]
        name, keys, position, has_gauss, gauss = self._state["numpy"]
        plain: dict[str, Any] = {
            "python": [python_version, list(python_words), python_gauss],
            "numpy": [name, np.asarray(keys, dtype=np.uint32).tobytes(), int(position), int(has_gauss), float(gauss)],
        }
        if "torch" in self._state:
            plain["torch"] = self._state["torch"].numpy().tobytes()
        return plain

    def set_state(self, plain: dict[str, Any]) -> None:
        """Put back what `state` took."""
        version, words, gauss_python = plain["python"]
        name, keys, position, has_gauss, gauss = plain["numpy"]
        state: dict[str, Any] = {
            "python": (version, tuple(words), gauss_python),
            "numpy": (name, np.frombuffer(keys, dtype=np.uint32), position, has_gauss, gauss),
        }
        if "torch" in plain and (torch := sys.modules.get("torch")) is not None:
            state["torch"] = torch.from_numpy(np.frombuffer(plain["torch"], dtype=np.uint8).copy())
        self._state = state

    @staticmethod
    def _capture() -> dict[str, Any]:
        state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002
        if (torch := sys.modules.get("torch")) is not None:
            state["torch"] = torch.default_generator.get_state()
        return state

    @staticmethod
    def _install(state: dict[str, Any]) -> None:
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])  # noqa: NPY002
        if "torch" in state and (torch := sys.modules.get("torch")) is not None:
            torch.default_generator.set_state(state["torch"])
