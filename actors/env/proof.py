"""The twin proof: is an environment's state really taken whole?

    lanes ──steps──► snapshot ──wire──► twin
      └──steps (A)──► ticks  ==?  ticks ◄──steps (A)──┘

Two fresh lanes, the same actions: if every bit of every tick agrees after the snapshot, snapshots of this environment
are used; if not, the run says why and starts new episodes under a new incarnation after a crash. The proof has its own
lanes, streams and process-wide generators, so it changes nothing for the lanes that run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actors.env.lanes import Tick, Verdict
from actors.env.plain_state import plain_equal
from actors.env.spaces import random_action
from common.clock import Clock, Deadline
from common.errors import TruestepError
from common.rng import GlobalGenerators, Purpose, Role, Streams
from common.specs import ArraySpec
from common.wire import pack_plain, unpack_plain

STEPS_BEFORE = 48  # random play ends two or three episodes of CartPole, so the twin also inherits a later episode
STEPS_AFTER = 32
PROOF_DEADLINE_S = 10.0


class ProvableLanes(Protocol):
    """What the proof needs of lanes; `capture` is a snapshot taken before it is known to be any good."""

    num_lanes: int
    action: ArraySpec

    def start(self) -> Any: ...
    def step(self, action: NDArray[Any]) -> Tick: ...
    def capture(self) -> dict[str, Any] | None: ...
    def restore(self, plain: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def prove(make: Callable[[], ProvableLanes], streams: Streams, clock: Clock) -> Verdict:
    """Run the proof on two fresh sets of lanes that `make` constructs. Never raises for what the environment does."""
    sequence = streams.sequence(Role.CHECKER, 0, purpose=Purpose.PROBE)
    generators = GlobalGenerators(sequence)
    opened: list[ProvableLanes] = []
    try:
        with generators.installed():
            opened.append(make())
            opened.append(make())  # one by one: the first must be closed even if the second cannot be made
        reason = _difference(opened[0], opened[1], generators, streams, Deadline(clock, PROOF_DEADLINE_S))
    except TruestepError as error:
        reason = str(error)
    finally:
        close_reason = _close(opened)
    reason = reason or close_reason
    return Verdict(restorable=not reason, reason=reason)


def _difference(
    lanes: ProvableLanes, twin: ProvableLanes, generators: GlobalGenerators, streams: Streams, deadline: Deadline
) -> str:
    """Why the twin is no twin; empty if it is one."""
    draw = streams.generator(Role.CHECKER, 0, purpose=Purpose.PROBE, extra=(1,))
    actions = [random_action(lanes.action, draw, lanes.num_lanes) for _ in range(STEPS_BEFORE + STEPS_AFTER)]
    with generators.installed():
        lanes.start()
        for action in actions[:STEPS_BEFORE]:
            if deadline.expired():
                return f"the proof took longer than {PROOF_DEADLINE_S:g} s"
            lanes.step(action)
    taken = lanes.capture()
    if taken is None:
        return "the environment's state is too deep or too large to take"
    twin.restore(unpack_plain(pack_plain(taken, what="environment state"), what="environment state"))
    process_wide = generators.state()
    original = _play(lanes, actions[STEPS_BEFORE:], generators)
    generators.set_state(process_wide)
    copy = _play(twin, actions[STEPS_BEFORE:], generators)
    for number, (one, other) in enumerate(zip(original, copy, strict=True)):
        for field, value in one.items():
            if not plain_equal(value, other[field]):
                return f"{field} differs {number + 1} ticks after the state was put on a fresh environment"
    return ""


def _play(
    lanes: ProvableLanes, actions: list[NDArray[Any]], generators: GlobalGenerators
) -> list[dict[str, NDArray[Any]]]:
    with generators.installed():
        return [_copied(lanes.step(action)) for action in actions]


def _copied(tick: Tick) -> dict[str, NDArray[Any]]:
    copied = {name: np.array(array) for name, array in tick.observation.items()}
    copied |= {"reward": np.array(tick.reward), "end": np.array(tick.end), "valid": np.array(tick.valid)}
    if tick.restart is not None:
        copied |= {f"restart {name}": np.array(array) for name, array in tick.restart.observation.items()}
    return copied


def _close(opened: list[ProvableLanes]) -> str:
    reason = ""
    for lanes in opened:
        try:
            lanes.close()
        except TruestepError as error:
            reason = str(error)
    return reason
