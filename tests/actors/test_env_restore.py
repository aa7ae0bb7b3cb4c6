"""Environment state as plain values: what is taken, put back, proven, and refused."""

from __future__ import annotations

import enum
import random
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.env import plain_state
from actors.env.config import EnvConfig
from actors.env.lanes import Lanes
from actors.env.make import prove_restorable
from actors.env.plain_state import NotPlain, plain_equal
from actors.env.spaces import random_action
from common.clock import ManualClock
from common.errors import CheckpointError
from common.rng import Streams
from common.wire import pack_plain, unpack_plain
from tests.actors.env_driving import lanes_of, test_id

KNOWN = [
    ("CartPole-v1", "own"),
    ("CartPole-v1", "sync"),
    ("CartPole-v1", "async"),
    ("Acrobot-v1", "sync"),
    ("Pendulum-v1", "sync"),
    ("MountainCar-v0", "sync"),
    ("Counting", "own"),
    ("CountingSameStep", "own"),
    ("CountingDisabled", "own"),
    ("GlobalRng", "async"),
]


def play(lanes: Lanes, actions: list[Any]) -> list[list[bytes]]:
    """Every bit of every tick."""
    found = []
    for action in actions:
        tick = lanes.step(action)
        arrays = [*tick.observation.values(), tick.reward, tick.end, tick.valid]
        arrays += [] if tick.restart is None else [tick.restart.lanes, *tick.restart.observation.values()]
        found.append([array.tobytes() for array in arrays])
    return found


@pytest.mark.parametrize(("name", "vectorise"), KNOWN)
def test_restored_lanes_continue_bit_for_bit(name: str, vectorise: str) -> None:
    """Through the wire, onto fresh lanes, at every phase of an episode, a pending reset included."""
    lanes = lanes_of(name, 2, vectorise=vectorise)
    assert lanes.facts.restorable, lanes.facts.reason
    draw = np.random.default_rng(0)
    lanes.start()
    for _ in range(4):
        play(lanes, [random_action(lanes.action, draw, 2) for _ in range(7)])
        taken = unpack_plain(pack_plain(lanes.snapshot()))
        current = {part: array.tobytes() for part, array in lanes.current.items()}
        actions = [random_action(lanes.action, draw, 2) for _ in range(25)]
        twin = lanes_of(name, 2, vectorise=vectorise)
        twin.restore(taken)
        assert {part: array.tobytes() for part, array in twin.current.items()} == current
        assert play(twin, actions) == play(lanes, actions)
        twin.close()
    lanes.close()


def test_a_pending_reset_survives() -> None:
    """A snapshot right after an end restores lanes whose next tick is a reset tick, with the next episode's seed."""
    lanes = lanes_of("Counting", 2, vectorise="sync")
    lanes.start()
    for _ in range(3):
        tick = lanes.step(np.zeros(2, np.int64))
    assert tick.end.tolist() == [1, 1]
    twin = lanes_of("Counting", 2, vectorise="sync")
    twin.restore(lanes.snapshot())
    tick = twin.step(np.zeros(2, np.int64))
    assert tick.valid.tolist() == [False, False]
    assert tick.observation["obs"][:, 0].tolist() == [0, 0]
    assert twin.step(np.zeros(2, np.int64)).observation["obs"][:, 0].tolist() == [1, 1]


@pytest.mark.parametrize("name", ["NaNReward", "NaNRewardSameStep", "NaNRewardDisabled"])
def test_broken_lanes_stay_broken_after_a_restore(name: str) -> None:
    """Counter, words and the invalid rows to come are part of the state."""
    made = {"vectorise": "own", "on_nonfinite": "drop_episode"}
    lanes = lanes_of(name, 3, **made)
    lanes.start()
    play(lanes, [np.zeros(3, np.int64)] * 4)
    assert lanes.broken_episodes == 1
    twin = lanes_of(name, 3, **made)
    twin.restore(unpack_plain(pack_plain(lanes.capture("state"))))  # type: ignore[attr-defined]
    assert play(twin, [np.zeros(3, np.int64)] * 12) == play(lanes, [np.zeros(3, np.int64)] * 12)
    assert (twin.broken_episodes, twin.first_broken) == (lanes.broken_episodes, lanes.first_broken)


def test_hidden_state_is_found_out_and_said() -> None:
    """A counter of the class is in no state and not in the episode: both twins differ, and snapshots are None."""
    lanes = lanes_of("StatefulObject")
    assert (lanes.facts.restorable, lanes.facts.restores) == (False, "no")
    by_state, by_replay = lanes.facts.reason.split("; ")
    assert by_state == "obs differs 1 ticks after the state was put on a fresh environment"
    assert by_replay.startswith("its episode was run again and differed: obs [")
    lanes.start()
    assert lanes.snapshot() is None
    assert lanes_of("StatefulObject", kwargs={"hidden": False}).facts.restorable


def test_a_proof_that_takes_too_long_is_a_no() -> None:
    """The deadline is on the clock that the proof was given."""

    class Racing(ManualClock):
        def now_ns(self) -> int:
            self.advance(1.0)
            return super().now_ns()

    verdict = prove_restorable(EnvConfig(id="CartPole-v1"), streams=Streams(0), clock=Racing())
    assert verdict.reason == "the proof took longer than 10 s"


def test_a_failing_environment_is_not_restorable_rather_than_an_error() -> None:
    """The proof never ends a run: what the environment raised is the reason."""
    config = EnvConfig(id=test_id("WrongDtype"), kwargs={"mode": "none"})
    verdict = prove_restorable(config, streams=Streams(0))
    assert verdict.restores == "no"
    assert "tick 2: step" in verdict.reason


def test_the_proof_disturbs_nobody() -> None:
    """Process-wide generators stand where they stood, and lanes that were proven in between draw the same."""
    np.random.seed(5)
    random.seed(5)
    before = (np.random.get_state()[1].tobytes(), random.getstate())
    assert prove_restorable(EnvConfig(id=test_id("GlobalRng")), streams=Streams(0)).restores == "state"
    assert (np.random.get_state()[1].tobytes(), random.getstate()) == before


def test_a_snapshot_of_other_lanes_is_refused() -> None:
    """Another environment, another number of lanes, another vectorisation: named, not tried."""
    lanes = lanes_of("Counting", 2, vectorise="sync")
    lanes.start()
    taken = lanes.snapshot()
    assert taken is not None
    for other in (lanes_of("Counting", 3, vectorise="sync"), lanes_of("Counting", 2), lanes_of("CartPole-v1", 2)):
        with pytest.raises(CheckpointError, match="of other lanes"):
            other.restore(taken)


class Phase(enum.Enum):
    BUILD = 1
    PLAY = 2


class Point(NamedTuple):
    x: float
    y: Any


@dataclass(frozen=True)
class Frozen:
    level: int
    parts: tuple[int, ...]


START = Frozen(0, ())


class Body:
    __slots__ = ("owner", "speed")

    def __init__(self, owner: Any) -> None:
        self.owner, self.speed = owner, 1.0


class World:
    """Every kind of value that counts as state, with shared references, a view and a cycle."""

    def __init__(self) -> None:
        self.phase, self.frozen, self.point = Phase.BUILD, START, Point(0.0, [1])
        self.grid = np.zeros((2, 3))
        self.row = self.grid[0]
        self.rng = np.random.default_rng(0)
        self.legacy, self.python = np.random.RandomState(0), random.Random(0)
        self.bodies = [Body(self), Body(self)]
        self.shared = self.bodies[0]
        self.body_rng = self.other_rng = self.rng
        self.queue, self.seen = deque([1], maxlen=3), {1}
        self.table: dict[Any, Any] = {"a": 1, 2: (3, 4)}
        self.big, self.scalar, self.hook = 1, np.float32(1), len
        self.late = 0

    def live(self) -> None:
        self.phase, self.frozen, self.point = Phase.PLAY, replace(START, level=9, parts=(1, 2)), Point(-0.0, [7, None])
        self.row[1] = np.nan
        for draw in (self.rng.random, self.legacy.rand, self.python.random):
            draw()
        self.bodies[0].speed, self.bodies[1].speed = 3.5, -1.0
        self.queue.extend([5, 6, 7])
        self.seen |= {8, 9}
        self.table = {2: (5, b"x"), "new": {"deep": np.int8(4)}}
        self.other_rng = np.random.default_rng(5)
        self.big, self.scalar = 2**200, np.float32(2.5)
        self.added = "text"
        del self.late


def test_everything_that_is_state_survives_with_its_references() -> None:
    """Values, generators, views, aliases and cycles; constants that environments share are left alone."""
    world, twin = World(), World()
    world.live()
    plain = unpack_plain(pack_plain(plain_state.take(world)))
    plain_state.put(twin, plain)
    assert plain_equal(plain_state.take(twin), plain)
    assert twin.phase is Phase.PLAY
    assert (twin.frozen, START) == (Frozen(9, (1, 2)), Frozen(0, ()))
    assert (twin.big, type(twin.scalar), twin.table) == (
        2**200,
        np.float32,
        {2: (5, b"x"), "new": {"deep": np.int8(4)}},
    )
    assert not hasattr(twin, "late")
    assert twin.shared is twin.bodies[0]
    assert twin.bodies[1].owner is twin
    assert twin.body_rng is twin.rng
    assert twin.queue == deque([5, 6, 7], maxlen=3)
    twin.grid[0, 2] = 4
    assert twin.row[2] == 4
    assert twin.other_rng is not twin.rng
    for name in ("rng", "other_rng", "legacy", "python"):
        draw = "rand" if name == "legacy" else "random"
        assert getattr(getattr(twin, name), draw)() == getattr(getattr(world, name), draw)()


def test_what_a_fresh_environment_lacks_is_named() -> None:
    """A body more than a fresh world has cannot be made from plain values: the path says where."""
    world = World()
    world.bodies.append(Body(world))
    with pytest.raises(CheckpointError, match=r"no .*Body at env.bodies\[2\]"):
        plain_state.put(World(), plain_state.take(world))


def test_state_without_end_is_refused() -> None:
    """A chain deeper than the limit, and a list longer than it, say where."""
    world = World()
    world.table = {"chain": []}
    for _ in range(plain_state.MAX_DEPTH + 1):
        world.table = {"chain": world.table}
    with pytest.raises(NotPlain, match="more than 64 levels"):
        plain_state.take(world)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers(0, 9) | st.text("ab", max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(value=VALUES)
def test_any_plain_value_of_an_attribute_survives(value: Any) -> None:
    """Whatever is built of numbers, text and containers comes back equal in type and bits, through the wire."""
    world, twin = World(), World()
    world.table = value
    plain_state.put(twin, unpack_plain(pack_plain(plain_state.take(world))))
    assert plain_equal(twin.table, value)
