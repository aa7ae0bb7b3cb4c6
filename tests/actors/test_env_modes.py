"""One environment through every flavour of vectorisation and every autoreset mode: the same transitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ContractError
from common.fragment import End
from tests.actors.env_driving import Transition, lanes_of, transitions

OWN_MODES = ("Counting", "CountingSameStep", "CountingDisabled")
FLAVOURS = [("Counting", "sync"), ("Counting", "async"), *((name, "own") for name in OWN_MODES)]


def counted(index: int, end: End) -> Transition:
    return Transition({"obs": [index, 0]}, 0, index + 1.0, end, {"obs": [index + 1, 0]})


@pytest.mark.parametrize(("name", "vectorise"), FLAVOURS)
def test_every_flavour_gives_the_counted_transitions(name: str, vectorise: str) -> None:
    """An environment that counts to 3 yields 0>1, 1>2, 2>3 terminated, over and over, and no reset row."""
    lanes = lanes_of(name, 2, vectorise=vectorise)
    try:
        rows = transitions(lanes, 20, lambda lane, n: 0)
    finally:
        lanes.close()
    episode = [counted(0, End.CONTINUES), counted(1, End.CONTINUES), counted(2, End.TERMINATED)]
    assert len(rows[0]) == (15 if lanes.aligned else 20)
    for lane in rows:
        assert lane == (episode * 7)[: len(lane)]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_lanes=st.integers(1, 4))
def test_random_actions_give_identical_transitions_in_all_modes(seed: int, num_lanes: int) -> None:
    """Actions that terminate, truncate and do both at random times mean the same in sync and in all three modes."""
    script = np.random.default_rng(seed).integers(0, 5, size=(num_lanes, 64))
    found = []
    for name, vectorise in [("Counting", "sync"), *((name, "own") for name in OWN_MODES)]:
        lanes = lanes_of(name, num_lanes, vectorise=vectorise, kwargs={"length": 4, "obeys": True})
        found.append(transitions(lanes, 24, lambda lane, n: int(script[lane, n])))
        lanes.close()
    for other in found[1:]:
        for one_lane, other_lane in zip(found[0], other, strict=True):
            common = min(len(one_lane), len(other_lane))
            assert common >= 12
            assert one_lane[:common] == other_lane[:common]


def test_async_lanes_give_the_transitions_of_sync_lanes_under_random_actions() -> None:
    """Children behave as our own process does, also for seeded environments."""
    script = np.random.default_rng(3).integers(0, 2, size=(3, 300))
    found = []
    for vectorise in ("sync", "async"):
        lanes = lanes_of("CartPole-v1", 3, vectorise=vectorise)
        found.append(transitions(lanes, 120, lambda lane, n: int(script[lane, n])))
        lanes.close()
    assert found[0] == found[1]
    assert sum(row.end == End.TERMINATED for row in found[0][0]) > 2


def test_plain_gymnasium_gives_the_same_transitions() -> None:
    """One lane is what a plain loop over `gymnasium.make` yields with the lane's own episode seeds."""
    import gymnasium

    from common.rng import Role, Streams

    lanes = lanes_of("CartPole-v1", 1, vectorise="sync")
    rows = transitions(lanes, 60, lambda lane, n: n % 2)[0]
    env, plain, episode = gymnasium.make("CartPole-v1"), [], -1
    done = True
    while len(plain) < len(rows):
        if done:
            episode += 1
            seed = Streams(7).episode_seed(Role.ACTOR, 0, incarnation=0, lane=0, episode=episode)
            observation, _ = env.reset(seed=seed)
        action = len(plain) % 2
        after, reward, terminated, truncated, _ = env.step(action)
        end = End.TERMINATED if terminated else End.TRUNCATED if truncated else End.CONTINUES
        before_after = ({"obs": observation.tolist()}, {"obs": after.tolist()})
        plain.append(Transition(before_after[0], action, float(reward), end, before_after[1]))
        observation, done = after, terminated or truncated
    assert rows == plain
    assert episode >= 2


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("TruncationOnly", End.TRUNCATED),
        ("TerminationOnly", End.TERMINATED),
        ("BothFlags", End.TERMINATED),
        ("Marker", End.TRUNCATED),
    ],
)
def test_how_an_episode_ends_is_told_apart(name: str, end: End) -> None:
    """A time limit is TRUNCATED, a terminal state TERMINATED, and both flags together are TERMINATED."""
    rows = transitions(lanes_of(name), 12, lambda lane, n: 0)[0]
    assert [row.end for row in rows[:5]] == [End.CONTINUES] * 4 + [end]
    assert rows[4].next_observation == {"obs": [1000.0 if name == "Marker" else 5.0]}
    assert rows[5].observation == {"obs": [0.0]}


def test_a_reset_tick_is_no_transition() -> None:
    """On aligned lanes the tick after an end has valid 0, reward 0, end 0 and shows the reset observation."""
    lanes = lanes_of("Counting", 2, vectorise="own")
    lanes.start()
    ticks = []
    for _ in range(4):
        tick = lanes.step(np.zeros(2, np.int64))
        ticks.append((tick.observation["obs"][0, 0], tick.reward[0], tick.end[0], bool(tick.valid[0])))
    assert ticks == [(1, 1, 0, True), (2, 2, 0, True), (3, 3, 1, True), (0, 0, 0, False)]


def test_restart_holds_the_reset_observation_beside_the_final_one() -> None:
    """SameStep: the tick shows the final observation, its restart the reset one, `current` what to act on."""
    lanes = lanes_of("CountingSameStep", 2)
    lanes.start()
    for _ in range(3):
        tick = lanes.step(np.zeros(2, np.int64))
    assert tick.observation["obs"][:, 0].tolist() == [3, 3]
    assert tick.restart is not None
    assert tick.restart.lanes.tolist() == [0, 1]
    assert tick.restart.observation["obs"][:, 0].tolist() == [0, 0]
    assert lanes.current["obs"][:, 0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "length", "key", "fix"),
    [
        ("CountingUndeclared", 3, 'metadata["autoreset_mode"]', "declare it"),
        ("CountingHidesFinal", 3, "final_obs", ""),
        ("CountingLies", 3, "final_obs", "declare the autoreset_mode"),
        ("CountingLiesAndHides", 1, "end flags", "declare the autoreset_mode"),
    ],
)
def test_an_autoreset_mode_that_is_missing_or_untrue_is_refused(name: str, length: int, key: str, fix: str) -> None:
    """Undeclared mode, hidden final observation, SameStep passed off as NextStep: each is named, none is guessed."""
    with pytest.raises(ContractError) as caught:
        transitions(lanes_of(name, 2, kwargs={"length": length}), 8, lambda lane, n: 0)
    assert key in caught.value.what
    assert fix in caught.value.fix
