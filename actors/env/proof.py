"""The twin proof: can an environment be brought back, and how?

    first ──steps──► begins anew ──steps──► snapshots ──wire──► twins
                                     └──steps (A)──► ticks  ==?  ticks ◄──steps (A)──┘

`state`: its state, taken as plain values, was put on a fresh environment. `replay`: a fresh one was reset with the
episode's seed and did its actions again. The first way whose twin agrees with the first in every bit of every tick
after the snapshot is used; if none does, the run says why and starts new episodes under a new incarnation after a
crash. The first begins anew on the way, so that what an environment carries from one episode into the next is there to
be missed. One more twin is only reset: does the seed alone decide how an episode begins?

The proof has its own lanes, streams and process-wide generators, so it changes nothing for the lanes that run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actors.env.lanes import Tick, Verdict, Way
from actors.env.plain_state import plain_equal
from actors.env.spaces import random_action
from common.clock import Clock, Deadline
from common.errors import CheckpointError, DeadlineError, TruestepError
from common.rng import GlobalGenerators, Purpose, Role, Streams
from common.specs import ArraySpec
from common.wire import pack_plain, unpack_plain

STEPS_BEFORE_ANEW = 8
STEPS_BEFORE = 48  # random play ends two or three episodes of CartPole, so the twin also inherits a later episode
STEPS_AFTER = 32
PROOF_DEADLINE_S = 10.0
NO_SNAPSHOT = {"state": "its state is too deep or too large to take", "replay": "its episode is too long to keep"}
WAY = {"state": "the state was put on a fresh environment", "replay": "the episode was run again"}
SHARED = "it draws from process-wide generators, which lanes of one process share (env.vectorise=async: each its own)"

Plain = dict[str, Any]


class ProvableLanes(Protocol):
    """What the proof needs of lanes; snapshots are taken before it is known whether they are any good."""

    num_lanes: int
    action: ArraySpec

    ways: tuple[Way, ...]

    def start(self) -> dict[str, NDArray[Any]]: ...
    def step(self, action: NDArray[Any]) -> Tick: ...
    def capture(self, way: Way) -> Plain | None: ...
    def restore(self, plain: Plain) -> None: ...
    def close(self) -> None: ...


def prove(make: Callable[[], ProvableLanes], streams: Streams, clock: Clock) -> Verdict:
    """Run the proof on fresh sets of lanes that `make` constructs. Never raises for what the environment does."""
    proof = _Proof(make, streams, Deadline(clock, PROOF_DEADLINE_S))
    try:
        verdict = proof.verdict()
    except TruestepError as error:
        verdict = Verdict(restores="no", reason=str(error), seeded=proof.seeded)
    finally:
        close_reason = proof.close()
    if close_reason:
        return Verdict(restores="no", reason=close_reason, seeded=proof.seeded)
    return verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class _Original:
    """What the first lanes left for their twins.

    Attributes:
        snapshots: for each way that they know; None where there is none.
        draws_shared: they have drawn from the process-wide generators.
        process_wide: the process-wide generators at the snapshots.
        actions, ticks: what came after.
    """

    snapshots: dict[Way, Plain | None]
    draws_shared: bool
    process_wide: Plain
    actions: list[NDArray[Any]]
    ticks: list[dict[str, NDArray[Any]]]


class _Proof:
    """One run of the proof, and the lanes that it has opened."""

    def __init__(self, make: Callable[[], ProvableLanes], streams: Streams, deadline: Deadline) -> None:
        self.seeded = True
        self._make = make
        self._streams = streams
        self._deadline = deadline
        self._opened: list[ProvableLanes] = []

    def verdict(self) -> Verdict:
        """Raises what the first lanes raise; what a twin raises is a reason against its way of being made."""
        original = self._original()
        reasons: list[str] = []
        for way in original.snapshots:
            difference = self._difference(original, way)
            if not difference:
                return Verdict(restores=way, reason="; ".join(reasons), seeded=self.seeded)
            reasons.append(difference)
        return Verdict(restores="no", reason="; ".join(reasons), seeded=self.seeded)

    def close(self) -> str:
        """Close all lanes; what the last of them that could not be closed says, or empty."""
        reason = ""
        for lanes in self._opened:
            try:
                lanes.close()
            except TruestepError as error:
                reason = str(error)
        return reason

    def _original(self) -> _Original:
        """Play the first lanes to the snapshots and beyond."""
        generators = self._generators()
        first = self._open(generators)
        self._begin(first, generators)
        draw = self._streams.generator(Role.CHECKER, 0, purpose=Purpose.PROBE, extra=(1,))
        actions = [random_action(first.action, draw, first.num_lanes) for _ in range(STEPS_BEFORE + STEPS_AFTER)]
        before = generators.state()
        self._play_to_snapshots(first, actions[:STEPS_BEFORE], generators)
        process_wide = generators.state()
        return _Original(
            snapshots={way: first.capture(way) for way in first.ways},
            draws_shared=not plain_equal(before, process_wide),
            process_wide=process_wide,
            actions=actions[STEPS_BEFORE:],
            ticks=_play(first, actions[STEPS_BEFORE:], generators),
        )

    def _begin(self, first: ProvableLanes, generators: GlobalGenerators) -> None:
        """Start the first lanes, and a twin with the same seeds: do they begin alike?"""
        with generators.installed():
            began = _copied(first.start())
        again = self._generators()
        twin = self._open(again)
        with again.installed():
            self.seeded = plain_equal(began, _copied(twin.start()))

    def _play_to_snapshots(
        self, first: ProvableLanes, actions: list[NDArray[Any]], generators: GlobalGenerators
    ) -> None:
        with generators.installed():
            for number, action in enumerate(actions):
                if self._deadline.expired():
                    raise DeadlineError(f"the proof took longer than {PROOF_DEADLINE_S:g} s")
                if number == STEPS_BEFORE_ANEW and "replay" in first.ways:
                    first.start()
                first.step(action)

    def _difference(self, original: _Original, way: Way) -> str:
        """Why a twin made in this way is no twin; empty if it is one."""
        if way == "replay" and original.draws_shared:
            return SHARED
        snapshot = original.snapshots[way]
        if snapshot is None:
            return NO_SNAPSHOT[way]
        generators = self._generators()
        try:
            twin = self._open(generators)
            with generators.installed():
                twin.restore(unpack_plain(pack_plain(snapshot, what="environment state"), what="environment state"))
            generators.set_state(original.process_wide)
            ticks = _play(twin, original.actions, generators)
        except CheckpointError as error:
            return f"its episode was run again and differed: {error.got}" if way == "replay" else str(error)
        except TruestepError as error:
            return str(error)
        for number, (one, other) in enumerate(zip(original.ticks, ticks, strict=True)):
            for field, value in one.items():
                if not plain_equal(value, other[field]):
                    return f"{field} differs {number + 1} ticks after {WAY[way]}"
        return ""

    def _open(self, generators: GlobalGenerators) -> ProvableLanes:
        with generators.installed():
            lanes = self._make()
        self._opened.append(lanes)
        return lanes

    def _generators(self) -> GlobalGenerators:
        return GlobalGenerators(self._streams.sequence(Role.CHECKER, 0, purpose=Purpose.PROBE))


def _play(
    lanes: ProvableLanes, actions: list[NDArray[Any]], generators: GlobalGenerators
) -> list[dict[str, NDArray[Any]]]:
    with generators.installed():
        return [_whole(lanes.step(action)) for action in actions]


def _whole(tick: Tick) -> dict[str, NDArray[Any]]:
    """All of a tick, copied."""
    whole = _copied(tick.observation) | _copied({"reward": tick.reward, "end": tick.end, "valid": tick.valid})
    if tick.restart is not None:
        whole |= {f"restart {name}": array for name, array in _copied(tick.restart.observation).items()}
    return whole


def _copied(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: np.array(array) for name, array in arrays.items()}
