"""Who an environment is: its name in every error, and its own random streams."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.errors import ContractError, EnvironmentFault, NonFiniteError
from common.rng import Purpose, Role, Streams

CHILD_GLOBALS = (1,)  # lengthens the path: the worker's own process-wide generators use the path without it


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One lane of one actor (or all lanes of an environment that vectorises itself: `lane` is None).

    Attributes:
        environment: the id from the config.
        who: the owner in the words of an error message, such as `actor 3`.
        lane: index of the lane.
        streams, role, index, incarnation: the path of every stream drawn for this seat.
    """

    environment: str
    who: str
    lane: int | None
    streams: Streams
    role: Role
    index: int
    incarnation: int

    def describe(self, tick: int | None = None, lane: int | None = None) -> str:
        """`environment 'X', actor 3, lane 2, tick 17`."""
        lane = self.lane if lane is None else lane
        words = [f"environment {self.environment!r}", self.who]
        words += [f"lane {lane}"] if lane is not None else []
        words += [f"tick {tick}"] if tick is not None else []
        return ", ".join(words)

    def episode_seed(self, episode: int) -> int:
        """The seed of this lane's episode number `episode`."""
        return self.streams.episode_seed(
            self.role, self.index, incarnation=self.incarnation, lane=self.lane or 0, episode=episode
        )

    def seed(self, purpose: Purpose, *extra: int) -> int:
        """One integer seed for this seat."""
        return self.streams.integer(
            self.role, self.index, incarnation=self.incarnation, lane=self.lane or 0, purpose=purpose, extra=extra
        )

    def child_globals(self) -> np.random.SeedSequence:
        """The sequence of the process-wide generators in this lane's own process."""
        return self.streams.sequence(
            self.role,
            self.index,
            incarnation=self.incarnation,
            lane=self.lane or 0,
            purpose=Purpose.GLOBALS,
            extra=CHILD_GLOBALS,
        )

    def run(self, method: str, tick: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call user code; whatever it raises becomes an `EnvironmentFault` that carries the original traceback."""
        try:
            return function(*args, **kwargs)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything; nothing is lost
            raise self.fault(method, tick, error) from None

    def fault(self, method: str, tick: int | None, error: BaseException) -> EnvironmentFault:
        """What user code raised in `method`, as our error."""
        return EnvironmentFault(
            f"{self.describe(tick)}: {method} raised {type(error).__name__}",
            got=str(error) or None,
            fix="the environment's own traceback follows",
            detail="".join(traceback.format_exception(error)),
        )

    def breach(self, key: str, got: str, expected: str, *, tick: int | None = None, fix: str = "") -> ContractError:
        """The environment broke its own declaration; `key` is what it returned wrongly."""
        return ContractError(f"{self.describe(tick)}: {key}", got=got, allowed=expected, fix=fix)

    def nonfinite(self, key: str, got: str, *, tick: int | None, more: str = "") -> NonFiniteError:
        """`key` is no number to learn from, and the run is to stop at one."""
        return NonFiniteError(
            f"{self.describe(tick)}: {key}",
            got=got,
            allowed="finite numbers that fit float32",
            fix=f"mend the environment, or set env.on_nonfinite to drop_episode or end_episode{more}",
        )
