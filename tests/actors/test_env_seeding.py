"""Whose random numbers an environment draws: its episode's, its lane's, its process's; never another's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from common.rng import GlobalGenerators, Purpose, Role, Streams
from tests.actors.env_driving import lanes_of, transitions

NUMPY_GLOBAL, PYTHON_GLOBAL, OWN, SPACE = range(4)


def draws(num_lanes: int = 2, num_ticks: int = 4, **who: Any) -> list[list[list[float]]]:
    """Observations of GlobalRngEnv in child processes: [lane][tick][source]."""
    lanes = lanes_of("GlobalRng", num_lanes, vectorise="async", **who)
    try:
        rows = transitions(lanes, num_ticks, lambda lane, n: [0.0])
    finally:
        lanes.close()
    return [[row.next_observation["obs"] for row in lane] for lane in rows]


def test_children_draw_from_streams_of_their_own_and_reproduce() -> None:
    """Four lanes of two actors and a second life: all four sources pairwise different; the same again bit for bit."""
    lives = {
        (index, incarnation): draws(index=index, incarnation=incarnation)
        for index, incarnation in ((0, 0), (1, 0), (0, 1))
    }
    assert draws(index=0, incarnation=0) == lives[0, 0]
    for source in (NUMPY_GLOBAL, PYTHON_GLOBAL, OWN, SPACE):
        seen = [tick[source] for life in lives.values() for lane in life for tick in lane]
        assert len(set(seen)) == len(seen) == 3 * 2 * 4


def test_a_child_does_not_share_the_stream_of_its_worker() -> None:
    """The worker's own process-wide generators and those of its lane 0 are different streams."""
    worker = GlobalGenerators(Streams(7).sequence(Role.ACTOR, 0, lane=0, purpose=Purpose.GLOBALS))
    with worker.installed():
        own = {np.random.random() for _ in range(20)} | {random.random() for _ in range(20)}
    assert not own & {value for tick in draws(1)[0] for value in tick}


def test_a_child_does_not_inherit_the_process_wide_stream_of_its_parent() -> None:
    """Fork copies the generators; ours are seeded in the child, whatever state the parent's are in."""
    np.random.seed(1)
    one = draws(1)
    np.random.seed(2)
    assert draws(1) == one


@pytest.mark.parametrize("vectorise", ["sync", "async"])
def test_space_only_draws_reproduce(vectorise: str) -> None:
    """Spaces own generators that no reset seeds; the lane seeds them, one stream for each lane."""
    found = []
    for seed in (7, 7, 8):
        lanes = lanes_of("SeedIgnoring", 2, seed=seed, vectorise=vectorise, kwargs={"mode": "space_only"})
        found.append(transitions(lanes, 8, lambda lane, n: [0.0]))
        lanes.close()
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize("mode", ["never", "always", "after_first_reset"])
def test_only_an_environment_that_ignores_its_seed_differs_between_runs(mode: str) -> None:
    """Every reset is seeded, not just the first; an environment that obeys reproduces, one that does not differs."""
    runs = []
    for _ in range(2):
        lanes = lanes_of("SeedIgnoring", vectorise="sync", kwargs={"mode": mode})
        runs.append(transitions(lanes, 8, lambda lane, n: [0.0])[0])
    assert (runs[0] == runs[1]) == (mode == "never")
    if mode == "after_first_reset":
        assert runs[0][0] == runs[1][0]


def test_each_episode_has_the_seed_of_its_lane_and_number() -> None:
    """Episode k of lane l begins with `streams.episode_seed`, so it does not depend on how episode k-1 went."""
    lanes = lanes_of("SeedIgnoring", 2, vectorise="sync", kwargs={"mode": "never"})
    rows = transitions(lanes, 6, lambda lane, n: [0.0])
    for lane in range(2):
        for episode in range(3):
            seed = Streams(7).episode_seed(Role.ACTOR, 0, incarnation=0, lane=lane, episode=episode)
            first = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed))).random(1)
            assert rows[lane][episode].observation["obs"] == first.tolist()


def test_adding_lanes_changes_no_other_lane() -> None:
    """Streams are found by path: lanes 0 and 1 of two are lanes 0 and 1 of four."""
    two = transitions(lanes_of("CartPole-v1", 2, vectorise="sync"), 30, lambda lane, n: n % 2)
    four = transitions(lanes_of("CartPole-v1", 4, vectorise="sync"), 30, lambda lane, n: n % 2)
    assert four[:2] == two
    assert len({str(lane[0].observation) for lane in four}) == 4


def test_a_vector_environment_has_one_seed_for_each_actor() -> None:
    """Own vectorisation: one stream per actor and incarnation, which the facts say."""
    found = {}
    for who in ((0, 0), (0, 0), (1, 0), (0, 1)):
        lanes = lanes_of("CartPole-v1", 3, index=who[0], incarnation=who[1])
        rows = transitions(lanes, 5, lambda lane, n: 0)
        assert found.setdefault(who, rows) == rows
        assert lanes.facts.seeding == "per_actor"
    assert len({str(rows[lane][0].observation) for rows in found.values() for lane in range(3)}) == 9
