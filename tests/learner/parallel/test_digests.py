"""Digests by chunk, on both roads: xxh3 of the bytes, and the integer sum of products that a GPU computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner.parallel.digests import (
    CHUNK_ELEMENTS,
    _weights,
    chunk_bounds,
    combined,
    digest_chunks,
    sha256_of,
    weighted_digests,
)
from learner.parallel.faults import flip_bit

Road = Callable[[Tensor, list[tuple[int, int]]], np.ndarray]
ROADS = pytest.mark.parametrize("road", [digest_chunks, weighted_digests])
SIZE = 64
BOUNDS = chunk_bounds(0, 5 * SIZE - 20, SIZE)  # the last chunk is shorter


def vector(seed: int, length: int = 5 * SIZE - 20) -> Tensor:
    """Random numbers."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(length, dtype=np.float32))


def changed(road: Road, before: Tensor, after: Tensor) -> list[int]:
    """Chunks whose digests differ."""
    return [int(chunk) for chunk in np.flatnonzero(road(before, BOUNDS) != road(after, BOUNDS))]


def test_chunks_cover_every_element_once() -> None:
    """Of one size, the last one shorter; none of nothing."""
    assert chunk_bounds(10, 40, 12) == [(10, 22), (22, 34), (34, 40)]
    assert chunk_bounds(0, 24, 12) == [(0, 12), (12, 24)]
    assert chunk_bounds(7, 7, 12) == []
    assert chunk_bounds(0, CHUNK_ELEMENTS + 1) == [(0, CHUNK_ELEMENTS), (CHUNK_ELEMENTS, CHUNK_ELEMENTS + 1)]


# ── what is seen ─────────────────────────────────────────────────────────────────────────────────────────────────


@ROADS
@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 99), element=st.integers(0, 5 * SIZE - 21), bit=st.integers(0, 31))
def test_any_single_bit_is_seen_in_its_chunk_and_in_no_other(road: Road, seed: int, element: int, bit: int) -> None:
    """Mantissa, exponent or sign."""
    before, after = vector(seed), vector(seed)
    flip_bit(after, element, bit)
    assert changed(road, before, after) == [element // SIZE]


@ROADS
@settings(deadline=None, max_examples=150)
@given(
    first=st.integers(0, SIZE - 1), second=st.integers(0, SIZE - 1), bits=st.tuples(*[st.integers(0, 2**32 - 1)] * 2)
)
def test_any_swap_of_unequal_elements_is_seen(road: Road, first: int, second: int, bits: tuple[int, int]) -> None:
    """Any two patterns of 32 bits, anywhere in a chunk."""
    assume(first != second and bits[0] != bits[1])
    before = vector(0)
    pattern = before.numpy().view(np.uint32)
    pattern[[first, second]] = bits
    after = before.clone()
    after.numpy().view(np.uint32)[[second, first]] = bits
    assert changed(road, before, after) == [0]


@ROADS
@pytest.mark.parametrize("bits", [(0, 1 << 31), (1 << 31, 0), (0x7FFFFFFF, 0xFFFFFFFF)])
def test_the_swap_with_the_most_factors_of_two_is_seen_at_every_distance(road: Road, bits: tuple[int, int]) -> None:
    """Patterns 2^31 apart, where the weighted sum has least to spare: all distances within a full chunk."""
    size = 2**14
    bounds = [(0, size)]
    before = torch.zeros(size)
    for second in [1 << power for power in range(14)] + [size - 1, 3 * 2**12]:
        one, other = before.clone(), before.clone()
        one.numpy().view(np.uint32)[[0, second]] = bits
        other.numpy().view(np.uint32)[[second, 0]] = bits
        assert road(one, bounds) != road(other, bounds), second


@ROADS
def test_swapped_duplicated_and_zeroed_chunks_are_seen(road: Road) -> None:
    """Whole chunks in the wrong place, or lost on the way."""
    before = vector(3)
    first, second = slice(0, SIZE), slice(SIZE, 2 * SIZE)
    swapped, doubled, lost = before.clone(), before.clone(), before.clone()
    swapped[first], swapped[second] = before[second], before[first]
    doubled[second] = before[first]
    lost[second] = 0.0
    assert changed(road, before, swapped) == [0, 1]
    assert changed(road, before, doubled) == [1]
    assert changed(road, before, lost) == [1]


@ROADS
def test_zero_and_minus_zero_and_two_kinds_of_nan_are_unlike(road: Road) -> None:
    """Digests are of bits, not of values."""
    for one, other in ((0x0000_0000, 0x8000_0000), (0x7FC0_0000, 0x7FC0_0001)):
        vectors = [torch.from_numpy(np.array([bits], dtype=np.uint32).view(np.float32)) for bits in (one, other)]
        assert road(vectors[0], [(0, 1)]) != road(vectors[1], [(0, 1)])


@ROADS
def test_zeros_of_different_length_are_unlike(road: Road) -> None:
    """A chunk that lost its end is another chunk."""
    assert road(torch.zeros(8), [(0, 8)]) != road(torch.zeros(7), [(0, 7)])


@ROADS
def test_a_digest_depends_on_nothing_but_the_chunk(road: Road) -> None:
    """Not on where it lies, on what lies beside it, or on the vector being a parameter."""
    values = vector(5, SIZE)
    inside = torch.cat([torch.ones(SIZE), values, torch.ones(3)])
    assert road(inside, chunk_bounds(0, len(inside), SIZE))[1] == road(values, [(0, SIZE)])[0]
    assert road(torch.nn.Parameter(values), [(0, SIZE)]) == road(values, [(0, SIZE)])


@ROADS
def test_nothing_has_no_digests(road: Road) -> None:
    """An empty vector is no chunk."""
    digests = road(torch.zeros(0), [])
    assert digests.dtype == np.uint64 and len(digests) == 0


# ── the weighted sum ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_weighted_digest_of_three_elements_by_hand() -> None:
    """Σ (bits + 1) w modulo 2^64, bits as signed numbers, for 0.0, 1.0 and -1.0."""
    weights = []
    for index in range(3):
        low = 2 * (index * 0x9E3779B1 % 2**32) + 1
        high = (index + 1) * 0xBF58476D1CE4E5B9 % 2**64 // 2**33
        weights.append(high * 2**33 + low)
    bits = [0, 0x3F80_0000, 0xBF80_0000 - 2**32]
    expected = sum((each + 1) * weight for each, weight in zip(bits, weights, strict=True)) % 2**64
    assert weighted_digests(torch.tensor([0.0, 1.0, -1.0]), [(0, 3)]).tolist() == [expected]
    assert expected == 0x1C1B_4948_214C_DA29


def test_weights_are_odd_and_distinct_below_bit_33() -> None:
    """What the two promises of the weighted sum rest on, for a full chunk."""
    weights = _weights("cpu", CHUNK_ELEMENTS).numpy().view(np.uint64)
    assert (weights & np.uint64(1)).all()
    assert len(set((weights & np.uint64(2**33 - 1)).tolist())) == CHUNK_ELEMENTS


# ── of many, and for the record ──────────────────────────────────────────────────────────────────────────────────


def test_one_digest_of_many_is_bound_to_its_step_and_its_order() -> None:
    """The same chunks at another step, or in another order, are something else."""
    digests = digest_chunks(vector(1), BOUNDS)
    assert combined(digests, 3) == combined(digests.copy(), 3)
    assert len({combined(digests, 3), combined(digests, 4), combined(digests[::-1].copy(), 3)}) == 3


def test_the_record_holds_sha256_of_the_bytes() -> None:
    """Of the chunk alone: of one float32 1.0, little-endian."""
    got = sha256_of(torch.tensor([5.0, 1.0, 5.0]), (1, 2))
    assert got == "e00e5eb9444182f352323374ef4e08ebcb784725fdd4fd612d7730540b3e0c8c"
