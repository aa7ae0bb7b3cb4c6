"""What a lane keeps in order to be run again: the actions of its current episode, and how its generators stood.

Where an environment's state cannot be taken (a native simulator, a generator's frame), the environment itself can
still be brought to the same point, if it is a function of seed and actions: reset with the episode's seed, then the
same actions. A recording is one row of the smallest dtype for each tick, cleared when an episode begins: one byte for
each tick of Discrete(256) or less, 4 n for n floats. An episode that outgrows its share is not kept at all, and the
lanes have no snapshot until the next one begins. Running again costs what the ticks cost the first time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.env.spaces import Parts
from common.errors import CheckpointError
from common.specs import ArraySpec

MAX_BYTES_OF_AN_ACTOR = 32 << 20  # of recorded actions in all lanes: half of what a snapshot on the wire may hold
FIRST_ROWS = 256


class Progress(NamedTuple):
    """How far a lane that is run again has come: ticks done, and ticks of the episode."""

    done: int
    ticks: int


class Recording:
    """The current episode of one lane. `max_bytes` bounds its actions."""

    def __init__(self, spec: ArraySpec, max_bytes: int) -> None:
        self._dtype = _smallest_dtype(spec)
        self._max_rows = max_bytes // max(1, self._dtype.itemsize * int(np.prod(spec.shape, dtype=np.int64)))
        self._rows: NDArray[Any] = np.empty((min(FIRST_ROWS, self._max_rows), *spec.shape), self._dtype)
        self._length = 0
        self._why_not = "the episode began before it was recorded"
        self._began: dict[str, Any] = {}
        self._observation: Parts = {}

    def begin(self, *, generators: dict[str, Any] | None, spaces: list[Any]) -> None:
        """Before a reset: forget the last episode.

        Args:
            generators: state of the process-wide generators that are this lane's alone; None if it shares them.
            spaces: states of the environment's spaces, whose generators no reset seeds.
        """
        self._began = {"generators": generators, "spaces": spaces}
        self._length, self._why_not = 0, ""

    def add(self, action: NDArray[Any]) -> None:
        """One stored action, before it is taken."""
        if self._why_not:
            return
        if self._length == len(self._rows) and not self._grow():
            self._why_not = f"the episode is longer than the {self._max_rows:,} ticks that are kept"
            return
        self._rows[self._length] = action
        self._length += 1

    def observe(self, parts: Parts) -> None:
        """The observation that the reset or the last action led to, copied."""
        self._observation = {name: np.array(array) for name, array in parts.items()}

    @property
    def why_not(self) -> str:
        """Why this episode cannot be run again; empty if it can."""
        return self._why_not

    def plain(self) -> dict[str, Any]:
        """What it takes to come here again, for the wire. Only while `why_not` is empty."""
        return {**self._began, "actions": self._rows[: self._length].copy(), "observation": dict(self._observation)}

    def difference(self, expected: Parts) -> str:
        """The first part of the last observation whose bits are not the expected ones, in words; empty if none."""
        for name, array in self._observation.items():
            if array.tobytes() != np.asarray(expected[name]).tobytes():
                return f"{name} {_short(array)}, which was {_short(expected[name])}"
        return ""

    def _grow(self) -> bool:
        if self._length >= self._max_rows:
            return False
        grown = np.empty((min(2 * len(self._rows), self._max_rows), *self._rows.shape[1:]), self._dtype)
        grown[: self._length] = self._rows
        self._rows = grown
        return True


class Rerun:
    """An episode that is run again from `plain`, which `Recording.plain` and its lane made."""

    def __init__(self, plain: dict[str, Any]) -> None:
        self.episode: int = plain["episode"]
        self.spaces: list[Any] = plain["spaces"]
        self.generators: dict[str, Any] = plain["generators"]
        self.ticks = len(plain["actions"])
        self.first_tick: int = plain["tick"] - self.ticks
        self.done = 0
        self._plain = plain

    def next_action(self, spec: ArraySpec) -> NDArray[Any]:
        """The next recorded action in stored form."""
        action: NDArray[Any] = self._plain["actions"][self.done].astype(spec.dtype)
        self.done += 1
        return action

    def check(self, again: Recording, *, ended: bool, where: str) -> None:
        """Raise `CheckpointError` unless the episode, as it was recorded again, has led where it led before."""
        found = again.difference(self._plain["observation"])
        if self.done == self.ticks and ended == self._plain["ended"] and not found:
            return
        raise CheckpointError(
            f"{where}: episode {self.episode}, run again with its seed and actions, differs",
            got=found or f"{'an end' if ended else 'no end'} after {self.done} of {self.ticks} ticks",
            allowed="the same bits",
            fix="the environment depends on more than seed and actions, or its code or libraries have changed; begin "
            "a new run from this one's weights with --init-from",
        )


def _short(array: NDArray[Any]) -> str:
    return np.array2string(np.asarray(array), threshold=8, edgeitems=2, separator=", ").replace("\n", "")


def _smallest_dtype(spec: ArraySpec) -> np.dtype[Any]:
    if spec.kind in ("discrete", "multi_discrete"):
        return np.min_scalar_type(max(spec.nvec) - 1)
    return np.dtype(spec.dtype)
