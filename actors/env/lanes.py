"""What every flavour of environment becomes: B lanes that advance tick by tick.

    start() ─► observation[B]            first reset of every lane
    step(action[B]) ─► Tick              one tick of every lane, true next observations, checked

Aligned lanes (`lanes.aligned`) follow Gymnasium's next-step rule: the tick after an ended one is a *reset tick*
(valid 0, reward 0, end 0, action ignored, observation = the reset observation). Lanes that are not aligned have
already begun their next episode when `step` returns; `Tick.restart` holds the observations with which they did.

Worked example, one aligned lane of an environment that counts 0, 1, 2 and terminates at 2:

    start            -> observation 0
    step             -> observation 1, reward 1, end CONTINUES,  valid 1
    step             -> observation 2, reward 2, end TERMINATED, valid 1    the final observation
    step             -> observation 0, reward 0, end CONTINUES,  valid 0    the reset tick
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from common.specs import ArraySpec, SpaceSpec

Way = Literal["state", "replay"]  # put the state on a fresh environment, or run its current episode again
Restores = Way | Literal["no"]
Beat = Callable[[int], None]  # called while something long goes on, with a number that grows: alive


def no_beat(number: int) -> None:
    """Nobody watches."""


class Restart(NamedTuple):
    """Lanes that ended in this tick and were already reset.

    Among them may be a lane whose `end` is CONTINUES in this tick: it was BROKEN in an earlier one and has been invalid
    since; only now did its environment let it begin again.

    Attributes:
        lanes: their indices, ascending.
        observation: part name to reset observations `[len(lanes), *shape]`.
    """

    lanes: NDArray[np.int64]
    observation: dict[str, NDArray[Any]]


class Tick(NamedTuple):
    """What one step of all lanes brought. Arrays are valid until the next call on the same lanes.

    Attributes:
        observation: part name to `[B, *shape]`, stored form: the true next observation, on an ended lane the final one.
        reward: float64 `[B]`; 0 where not valid.
        end: uint8 `[B]`, codes of `common.fragment.End`; both flags from the environment count as TERMINATED.
        valid: bool `[B]`; False on reset ticks, on broken ticks, and until a broken lane has been reset.
        restart: None on aligned lanes and where no lane ended.
    """

    observation: dict[str, NDArray[Any]]
    reward: NDArray[np.float64]
    end: NDArray[np.uint8]
    valid: NDArray[np.bool_]
    restart: Restart | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was proven on twins.

    Attributes:
        restores: the way in which environments come back from a snapshot, or `no`.
        reason: why the way is not a better one; empty for `state`.
        seeded: two fresh environments that were reset with one seed began alike.
    """

    restores: Restores
    reason: str
    seeded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFacts:
    """What the run records about its lanes.

    Attributes:
        vectorised: `own`, `sync` or `async`.
        autoreset: `NextStep`, `SameStep` or `Disabled`, as the environment declares or as we chose.
        seeding: one seed for each episode of each lane, or one for all lanes of an actor (own vector entry points).
        restorable: a snapshot, put on fresh lanes, continued bit for bit in the proof: `restores` is not `no`.
        reason: why `restores` is not `state`; empty if it is.
        restores: the way in which it did.
        seeded: two fresh environments that were reset with one seed began alike; if not, no two runs are the same.
    """

    vectorised: str
    autoreset: str
    seeding: Literal["per_episode", "per_actor"]
    restorable: bool
    reason: str
    restores: Restores = "state"
    seeded: bool = True


class Lanes(Protocol):
    """B environments that advance together. Raises `ContractError`, `EnvironmentFault` or `DeadlineError`; after
    any of them only `close` may be called.

    Attributes:
        num_lanes: B.
        observation: spec of one lane's observation.
        action: spec of one lane's action.
        aligned: see the module's docstring.
        broken_episodes: episodes ended so far by a non-finite value (never counted under policy `stop_run`).
        first_broken: the first of them in words: environment, actor, lane, tick, field and value.
    """

    num_lanes: int
    observation: SpaceSpec
    action: ArraySpec
    aligned: bool
    broken_episodes: int
    first_broken: str

    @property
    def facts(self) -> LaneFacts:
        """What the run records. The first call runs the proof that lanes can be restored; before `start`, or a lane
        that can only be run again has no snapshot until its next episode."""
        ...

    @property
    def current(self) -> dict[str, NDArray[Any]]:
        """The observation that the next action answers: after `start`, `step` (restarts included) or `restore`."""
        ...

    def start(self) -> dict[str, NDArray[Any]]:
        """Reset every lane for the first time; part name to `[B, *shape]`."""
        ...

    def step(self, action: NDArray[Any]) -> Tick:
        """Advance every lane by one tick with stored actions `[B, *shape]`."""
        ...

    def snapshot(self) -> dict[str, Any] | None:
        """Everything `restore` needs, as plain values for `common.wire`; None where the proof failed, and while an
        episode that can only be run again is longer than what is kept."""
        ...

    def restore(self, plain: dict[str, Any], beat: Beat = no_beat) -> None:
        """Continue where `snapshot` was taken. On freshly made lanes, instead of `start`.

        Where episodes are run again that takes as long as their ticks did; `beat` is called at least once within each
        step deadline. Raises `CheckpointError` if it does not lead to the same bits.
        """
        ...

    def render(self, lane: int) -> NDArray[np.uint8]:
        """A picture of one lane as it stands, uint8 [height, width, 3]. Only of the lane that was made to be seen, in
        mode `rgb_array` (`actors.env.rendering`). A lane that is not aligned has left the end of its episode behind."""
        ...

    def close(self) -> None:
        """Close every environment; child processes are gone afterwards. May be called twice."""
        ...
