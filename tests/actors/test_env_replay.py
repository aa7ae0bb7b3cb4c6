"""Environments whose state nobody can take are brought back by doing their episode again, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.env import wrapped_lanes
from actors.env.config import EnvConfig
from actors.env.lanes import Lanes
from actors.env.make import prove_restorable
from actors.env.plain_state import NotPlain, plain_equal
from actors.env.recording import Recording, Rerun
from actors.env.spaces import random_action
from common.errors import CheckpointError, EnvironmentFault
from common.rng import Streams
from common.specs import ArraySpec
from common.wire import pack_plain, unpack_plain
from tests.actors.env_driving import lanes_of, test_id
from tests.actors.test_env_restore import play

DISCRETE = ArraySpec(kind="discrete", shape=(), dtype="int64", nvec=(300,), start=(0,))


def through_the_wire(lanes: Lanes) -> dict[str, Any]:
    taken: dict[str, Any] = unpack_plain(pack_plain(lanes.snapshot()))
    return taken


@pytest.mark.parametrize(
    ("kind", "vectorise"), [("generator", "sync"), ("closure", "sync"), ("c_object", "sync"), ("c_object", "async")]
)
def test_lanes_that_are_run_again_continue_bit_for_bit(kind: str, vectorise: str) -> None:
    """Through the wire, onto fresh lanes, at every phase of an episode, a pending reset included; and once more from
    lanes that were themselves run again."""
    lanes = lanes_of("Opaque", 3, vectorise=vectorise, kwargs={"kind": kind})
    assert lanes.facts.restorable and lanes.facts.restores == "replay", lanes.facts.reason
    assert lanes.facts.reason == "obs differs 1 ticks after the state was put on a fresh environment"
    draw = np.random.default_rng(0)
    lanes.start()
    for _ in range(4):
        play(lanes, [random_action(lanes.action, draw, 3) for _ in range(9)])
        taken = through_the_wire(lanes)
        current = {part: array.tobytes() for part, array in lanes.current.items()}
        twin = lanes_of("Opaque", 3, vectorise=vectorise, kwargs={"kind": kind})
        twin.restore(taken)
        assert {part: array.tobytes() for part, array in twin.current.items()} == current
        assert plain_equal(through_the_wire(twin), taken)
        actions = [random_action(lanes.action, draw, 3) for _ in range(25)]
        assert play(twin, actions) == play(lanes, actions)
        twin.close()
    lanes.close()


def test_what_a_child_draws_from_its_own_process_wide_generators_is_run_again() -> None:
    """In a process of its own a lane's generators are part of its episode: here the state proof is not even needed."""
    lanes = lanes_of("GlobalRng", 2, vectorise="async")
    lanes._record()  # type: ignore[attr-defined]
    lanes.start()
    play(lanes, [np.zeros((2, 1), np.float32)] * 5)
    taken = unpack_plain(pack_plain(lanes.capture("replay")))  # type: ignore[attr-defined]
    twin = lanes_of("GlobalRng", 2, vectorise="async")
    twin.restore(taken)
    actions = [np.zeros((2, 1), np.float32)] * 5
    assert play(twin, actions) == play(lanes, actions)
    twin.close()
    lanes.close()


def test_what_is_drawn_from_shared_generators_cannot_be_run_again_alone() -> None:
    """Lanes of one process take turns at its generators; the reason says what to do about it."""
    config = EnvConfig(id=test_id("Opaque"), vectorise="sync", kwargs={"draws_global": True})
    verdict = prove_restorable(config, streams=Streams(0))
    assert verdict.restores == "no"
    assert verdict.reason.endswith("which lanes of one process share (env.vectorise=async: each its own)")
    assert prove_restorable(replace(config, vectorise="async"), streams=Streams(0)).restores == "replay"


@pytest.mark.parametrize(("name", "kwargs"), [("StatefulObject", {}), ("Opaque", {"carries": True, "ends": 10**6})])
def test_what_depends_on_more_than_seed_and_actions_is_refused(name: str, kwargs: dict[str, Any]) -> None:
    """A counter of the class; an episode that begins where the last one ended."""
    verdict = prove_restorable(EnvConfig(id=test_id(name), kwargs=kwargs), streams=Streams(0))
    assert verdict.restores == "no"
    assert "its episode was run again and differed: obs" in verdict.reason


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda lane: lane["actions"].__setitem__(3, 1 - lane["actions"][3]), "which was"),
        (lambda lane: lane.__setitem__("ended", True), "no end after 9 of 9 ticks"),
        (lambda lane: lane.__setitem__("episode", 4), "which was"),
    ],
)
def test_an_episode_that_leads_elsewhere_is_named(damage: Any, words: str) -> None:
    """Other actions, another seed, another ending: the lane, the episode and what differs, not a silent new start."""
    lanes = lanes_of("Opaque", 2, kwargs={"ends": 10**6})
    assert lanes.facts.restores == "replay"
    lanes.start()
    play(lanes, [np.zeros(2, np.int64)] * 9)
    taken = through_the_wire(lanes)
    damage(taken["lanes"][1])
    with pytest.raises(CheckpointError, match=r"lane 1, tick 9: episode \d, run again with its seed") as caught:
        lanes_of("Opaque", 2, kwargs={"ends": 10**6}).restore(taken)
    assert words in str(caught.value.got)


def test_what_the_environment_raises_while_it_is_run_again_is_its_fault() -> None:
    """With its traceback, as at any other tick."""
    lanes = lanes_of("Opaque", 1)
    assert lanes.facts.restorable
    lanes.start()
    taken = through_the_wire(lanes)
    with pytest.raises(EnvironmentFault, match="lane 0, tick 0: reset raised RuntimeError"):
        lanes_of("Faulty", 1, kwargs={"where": "reset"}).restore({**taken, "environment": test_id("Faulty")})


def test_a_broken_episode_that_awaits_its_reset_is_run_again() -> None:
    """The bad tick breaks it again; its last good observation and the reset to come are those of the first time."""
    made = {"vectorise": "sync", "on_nonfinite": "end_episode"}
    lanes = lanes_of("NaNReward", 2, **made)
    lanes._record()  # type: ignore[attr-defined]
    lanes.start()
    play(lanes, [np.zeros(2, np.int64)] * 3)
    assert lanes.broken_episodes == 2
    twin = lanes_of("NaNReward", 2, **made)
    twin.restore(unpack_plain(pack_plain(lanes.capture("replay"))))  # type: ignore[attr-defined]
    assert play(twin, [np.zeros(2, np.int64)] * 12) == play(lanes, [np.zeros(2, np.int64)] * 12)
    assert (twin.broken_episodes, twin.first_broken) == (lanes.broken_episodes, lanes.first_broken)


@pytest.mark.parametrize("vectorise", ["sync", "async"])
def test_an_episode_longer_than_the_deadline_is_run_again_with_a_beat_in_between(
    vectorise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is that of one tick, not of one episode: it is done in pieces, and each is a sign of life."""
    monkeypatch.setattr(wrapped_lanes, "RERUN_CHUNK_S", 0.02)
    made = {"vectorise": vectorise, "kwargs": {"kind": "closure", "ends": 10**6}}
    lanes = lanes_of("Opaque", 2, **made)
    assert lanes.facts.restorable
    lanes.start()
    actions = [np.ones(2, np.int64)] * 100
    play(lanes, actions)
    beats: list[int] = []
    twin = lanes_of("Opaque", 2, **{**made, "kwargs": {**made["kwargs"], "sleep_s": 1e-3}})
    twin.restore(through_the_wire(lanes), beats.append)
    assert len(beats) >= 2 and beats == sorted(beats) and beats[-1] == 100
    assert play(twin, actions[:5]) == play(lanes, actions[:5])
    twin.close()
    lanes.close()


def test_an_episode_that_outgrows_its_share_has_no_snapshot_until_the_next() -> None:
    """Nothing of it is kept by halves; the words say how long an episode may be."""
    recording = Recording(DISCRETE, max_bytes=7)  # three actions of two bytes
    assert recording.why_not == "the episode began before it was recorded"
    recording.begin(generators=None, spaces=[])
    for _ in range(3):
        recording.add(np.int64(299))
        assert not recording.why_not
    recording.add(np.int64(0))
    assert recording.why_not == "the episode is longer than the 3 ticks that are kept"
    recording.begin(generators=None, spaces=[])
    assert not recording.why_not
    assert recording.plain()["actions"].tolist() == []


def test_lanes_without_a_whole_recording_have_no_snapshot() -> None:
    """Proven only after the episode began: None now, a snapshot from the next episode on; nothing is given up."""
    lanes = lanes_of("Opaque", 1, kwargs={"ends": 1})
    lanes.start()
    assert lanes.facts.restores == "replay"
    assert lanes.snapshot() is None
    assert isinstance(lanes._called("lane_recording", deadline_s=1.0)[0], NotPlain)  # type: ignore[attr-defined]
    play(lanes, [np.zeros(1, np.int64)] * 2)
    assert lanes.snapshot() is not None
    assert lanes.facts.restorable


ACTIONS = st.sampled_from(
    [
        (DISCRETE, "<u2"),
        (ArraySpec(kind="multi_discrete", shape=(2,), dtype="int64", nvec=(2, 256), start=(0, 5)), "|u1"),
        (ArraySpec(kind="multi_binary", shape=(3,), dtype="int8"), "|i1"),
        (ArraySpec(kind="box", shape=(2,), dtype="float64", low=(-1.0,), high=(1.0,)), "<f8"),
    ]
)


@settings(max_examples=40, deadline=None)
@given(kind=ACTIONS, length=st.integers(0, 700), seed=st.integers(0, 99))
def test_recorded_actions_come_back_as_they_were(kind: tuple[ArraySpec, str], length: int, seed: int) -> None:
    """Whatever the space: kept in the smallest dtype that holds them, handed back in stored form, bit for bit."""
    spec, dtype = kind
    recording = Recording(spec, max_bytes=1 << 20)
    recording.begin(generators=None, spaces=[])
    actions = random_action(spec, np.random.default_rng(seed), length)
    for action in actions:
        recording.add(action)
    recording.observe({})
    plain = {**recording.plain(), "episode": 0, "tick": length, "ended": False}
    assert plain["actions"].dtype.str == dtype
    rerun = Rerun(unpack_plain(pack_plain(plain)))
    again = [rerun.next_action(spec) for _ in range(length)]
    assert all(plain_equal(np.asarray(one), np.asarray(other)) for one, other in zip(again, actions, strict=True))


@pytest.mark.parametrize(
    ("name", "kwargs", "seeded"),
    [
        ("CartPole-v1", {}, True),
        ("GlobalRng", {}, True),
        ("Counting", {}, True),
        ("SeedIgnoring", {"mode": "never"}, True),
        ("SeedIgnoring", {"mode": "space_only"}, True),
        ("SeedIgnoring", {"mode": "always"}, False),
    ],
)
def test_whether_a_seed_decides_how_an_episode_begins_is_a_fact(
    name: str, kwargs: dict[str, Any], seeded: bool
) -> None:
    """Two fresh environments, reset with one seed and the same process-wide generators, begin alike or do not."""
    assert lanes_of(name, 2, kwargs=kwargs).facts.seeded is seeded
