"""Random streams: distinct, independent of each other's existence, and resumable. Pinned draws must never change."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from common.rng import (
    GlobalGenerators,
    Purpose,
    Role,
    Streams,
    generator_state,
    set_generator_state,
    torch_seeded,
)
from common.wire import pack_plain, unpack_plain

SEEDS, ACTORS, LANES, RANKS = (0, 1, 2), 64, 8, 4
FIRST_DRAWS = 4
PINNED_DRAWS = [1484004269, 414365024, 660767553]
PINNED_EPISODE_SEED = 1732903831


def test_codes_of_roles_and_purposes_are_part_of_every_stream() -> None:
    """Append only, never reused: another code is another run."""
    assert {role.name: int(role) for role in Role} == {
        "DRIVER": 0,
        "ACTOR": 1,
        "LEARNER": 2,
        "EVALUATOR": 3,
        "CHECKER": 4,
    }
    assert {purpose.name: int(purpose) for purpose in Purpose} == {
        "ENVIRONMENT": 0,
        "EPISODE": 1,
        "ACTION": 2,
        "SPACE": 3,
        "GLOBALS": 4,
        "INITIALISE": 5,
        "SHUFFLE": 6,
        "PROBE": 7,
    }


def test_a_stream_is_pinned_for_ever() -> None:
    """Seed 7, actor 3, incarnation 1, lane 2, actions: the path of the design, drawn once and written down."""
    generator = Streams(7).generator(Role.ACTOR, 3, incarnation=1, lane=2, purpose=Purpose.ACTION)
    by_path = np.random.Generator(np.random.PCG64(np.random.SeedSequence(7, spawn_key=(1, 3, 1, 2, 2))))
    drawn = generator.integers(2**32, size=3).tolist()
    assert drawn == by_path.integers(2**32, size=3).tolist()
    assert drawn == PINNED_DRAWS
    assert Streams(7).episode_seed(Role.ACTOR, 3, incarnation=1, lane=2, episode=5) == PINNED_EPISODE_SEED


def paths() -> Iterator[tuple[Role, int, int, Purpose]]:
    """Role, index, lane, purpose of every stream that a run of case C10 can have."""
    for actor, lane, purpose in itertools.product(range(ACTORS), range(LANES), Purpose):
        yield Role.ACTOR, actor, lane, purpose
    for role, index, purpose in itertools.product((Role.LEARNER, Role.EVALUATOR, Role.CHECKER), range(RANKS), Purpose):
        yield role, index, 0, purpose
    for purpose in Purpose:
        yield Role.DRIVER, 0, 0, purpose


def test_no_two_streams_of_neighbouring_runs_share_a_draw() -> None:
    """C10: 64 actors x 8 lanes x 4 ranks x seeds 0, 1, 2 and every purpose, parents included: all draws distinct."""
    draws: list[bytes] = []
    for seed in SEEDS:
        parent = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
        draws += [parent.bytes(8) for _ in range(FIRST_DRAWS)]
        streams = Streams(seed)
        for role, index, lane, purpose in paths():
            generator = streams.generator(role, index, lane=lane, purpose=purpose)
            draws += [generator.bytes(8) for _ in range(FIRST_DRAWS)]
    num_streams = len(SEEDS) * (1 + ACTORS * LANES * len(Purpose) + (3 * RANKS + 1) * len(Purpose))
    assert len(draws) == num_streams * FIRST_DRAWS
    assert len(set(draws)) == len(draws)


def test_episode_seeds_of_a_large_run_do_not_repeat() -> None:
    """C10: 64 actors x 8 lanes x 50 episodes give exactly 25,600 distinct seeds of 31 bits (0.15 pairs expected)."""
    streams = Streams(0)
    seeds = [
        streams.episode_seed(Role.ACTOR, actor, incarnation=0, lane=lane, episode=episode)
        for actor, lane, episode in itertools.product(range(ACTORS), range(LANES), range(50))
    ]
    assert len(set(seeds)) == len(seeds) == 25_600
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_every_part_of_the_path_makes_another_stream() -> None:
    """Seed, role, index, incarnation, lane, purpose, and the length of the path."""
    base: dict[str, Any] = {"role": Role.ACTOR, "index": 1, "incarnation": 0, "lane": 0, "purpose": Purpose.ACTION}
    changes: list[dict[str, Any]] = [
        {},
        {"role": Role.EVALUATOR},
        {"index": 2},
        {"incarnation": 1},
        {"lane": 1},
        {"purpose": Purpose.SPACE},
        {"extra": (0,)},
        {"extra": (1,)},
        {"extra": (0, 0)},
    ]
    draws = [Streams(7).generator(**(base | change)).random() for change in changes]
    draws.append(Streams(8).generator(**base).random())
    assert len(set(draws)) == len(draws)


def test_adding_an_actor_changes_no_other_stream() -> None:
    """C10: a stream is a function of its path, not of the order in which streams are made."""

    def first_draws(actors: list[int]) -> dict[int, float]:
        streams = Streams(3)
        return {actor: streams.generator(Role.ACTOR, actor, purpose=Purpose.ACTION).random() for actor in actors}

    few, many = first_draws([0, 1, 2, 3]), first_draws([4, 3, 2, 1, 0])
    assert {actor: many[actor] for actor in few} == few


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    """Not wrapped: two runs that differ in their seeds differ."""
    with pytest.raises(ValueError, match=rf"seed: got {seed}, allowed: 0 to 2\*\*63 - 1"):
        Streams(seed)


@pytest.mark.parametrize("bits", [1, 31, 32, 63, 64])
def test_an_integer_has_the_bits_asked_for(bits: int) -> None:
    """Never above, and the top bit is drawn too."""
    drawn = [Streams(0).integer(Role.CHECKER, index, purpose=Purpose.PROBE, bits=bits) for index in range(40)]
    assert max(drawn) < 2**bits
    assert any(value >> (bits - 1) for value in drawn)


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_a_generator_goes_on_where_its_state_was_taken(kind: str) -> None:
    """C45: through the wire, in the middle of a 64-bit word, for every generator that numpy has."""
    generator = np.random.Generator(getattr(np.random, kind)(5))
    generator.integers(2**16, size=3, dtype=np.uint32)
    document = pack_plain(generator_state(generator))
    expected = (generator.integers(2**32, size=5, dtype=np.uint32).tolist(), generator.standard_normal(3).tolist())
    other = np.random.Generator(getattr(np.random, kind)(99))
    set_generator_state(other, unpack_plain(document))
    assert (other.integers(2**32, size=5, dtype=np.uint32).tolist(), other.standard_normal(3).tolist()) == expected


def test_a_state_of_another_kind_of_generator_is_refused() -> None:
    """Named, rather than half taken over."""
    state = generator_state(np.random.Generator(np.random.Philox(0)))
    with pytest.raises(ValueError, match="got 'Philox', allowed: 'PCG64'"):
        set_generator_state(np.random.default_rng(0), state)


def test_torch_is_seeded_for_a_block_only() -> None:
    """Same seed, same draws; afterwards the global generator is where it was, also after an exception."""
    before = torch.default_generator.get_state()
    with torch_seeded(3):
        first = torch.rand(4)
    with pytest.raises(RuntimeError, match="inside"), torch_seeded(3):
        assert torch.equal(torch.rand(4), first)
        raise RuntimeError("inside")
    assert torch.equal(torch.default_generator.get_state(), before)


def draw_globally() -> tuple[float, float, float]:
    """One draw from each process-wide generator, as a user's environment may make."""
    return random.random(), float(np.random.random()), float(torch.rand(()))


def worker(seed: int, actor: int) -> GlobalGenerators:
    """The private generators of one actor."""
    return GlobalGenerators(Streams(seed).sequence(Role.ACTOR, actor, purpose=Purpose.GLOBALS))


def test_workers_of_one_process_have_their_own_global_generators() -> None:
    """C09: 8 actors draw pairwise different numbers from every global generator, and the same ones in a second run."""

    def run(order: list[int]) -> dict[int, list[tuple[float, float, float]]]:
        workers = {actor: worker(1, actor) for actor in range(8)}
        draws: dict[int, list[tuple[float, float, float]]] = {actor: [] for actor in workers}
        for actor in order:
            with workers[actor].installed():
                draws[actor].append(draw_globally())
        return draws

    first = run([*range(8), *range(8)])
    flat = [value for draws in first.values() for draw in draws for value in draw]
    assert len(set(flat)) == len(flat) == 8 * 2 * 3
    assert run([actor for actor in range(8) for _ in range(2)]) == first


def test_the_callers_global_generators_are_left_alone() -> None:
    """Neither making a worker nor letting it draw, nor its failing, moves what the process had."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    expected = draw_globally()
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    generators = worker(0, 0)
    with pytest.raises(RuntimeError, match="inside"), generators.installed():
        draw_globally()
        raise RuntimeError("inside")
    assert draw_globally() == expected


def test_global_generators_go_on_where_their_state_was_taken() -> None:
    """C45: through the wire, with a Gaussian left over in numpy's cache."""
    first = worker(0, 0)
    with first.installed():
        draw_globally()
        np.random.standard_normal()
        random.gauss()
    document = pack_plain(first.state())
    second = worker(5, 5)
    second.set_state(unpack_plain(document))

    def go_on(generators: GlobalGenerators) -> list[object]:
        with generators.installed():
            return [np.random.standard_normal(), random.gauss(), *draw_globally()]

    assert go_on(second) == go_on(first)
