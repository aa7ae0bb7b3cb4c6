"""Copies that lie in this process's memory are found, and only those."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.memory_search import CHUNK_PAGES, PAGE_BYTES, Place, places_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/mem")


def addresses(pattern: bytes) -> set[int]:
    """Where it was found."""
    return {place.address for place in places_of(pattern)}


def test_every_copy_is_found_where_it_lies() -> None:
    """The original and two copies, one of them inside a larger array; nothing else is taken for one."""
    original = np.random.default_rng(1).integers(0, 256, 3 * PAGE_BYTES, dtype=np.uint8)
    pattern = original[100:2100].tobytes()
    assert addresses(pattern) == {original.ctypes.data + 100}
    copy, larger = original.copy(), np.concatenate([original, original[:50]])
    starts = {array.ctypes.data + 100 for array in (original, copy, larger)}
    assert addresses(pattern) == starts


def test_views_are_no_copies() -> None:
    """A view shares the memory that was counted already."""
    original = np.random.default_rng(2).integers(0, 256, PAGE_BYTES, dtype=np.uint8)
    views = [original[:], original.reshape(2, -1), memoryview(original)]
    assert len(addresses(original[:512].tobytes())) == 1 and len(views) == 3


def test_memory_beyond_one_chunk_is_searched() -> None:
    """Bytes that lie across the border of two pieces are found too."""
    large = np.zeros(2 * CHUNK_PAGES * PAGE_BYTES, np.uint8)
    marked = np.random.default_rng(3).integers(1, 256, 1000, dtype=np.uint8)
    middle = large.nbytes // 2
    for at in range(middle - 2 * PAGE_BYTES, middle + 2 * PAGE_BYTES, 1500):
        large[at : at + 1000] = marked
    found = addresses(marked.tobytes())
    expected = {large.ctypes.data + at for at in range(middle - 2 * PAGE_BYTES, middle + 2 * PAGE_BYTES, 1500)}
    assert expected <= found


@pytest.mark.parametrize("length", [0, CHUNK_PAGES * PAGE_BYTES + 1])
def test_patterns_that_cannot_be_looked_for(length: int) -> None:
    """Nothing, and more than a piece of memory."""
    with pytest.raises(ValueError, match="allowed"):
        places_of(bytes(length))


def test_the_store_is_known_by_its_mapping() -> None:
    """Ray maps its object store from a file of that name."""
    assert Place(address=1, mapping="/dev/shm/plasma (deleted)").shared
    assert not Place(address=1, mapping="[heap]").shared
