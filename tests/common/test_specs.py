"""Specs: what is converted, what is refused, and that nothing is cast, broadcast or reshaped in silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.specs import ArraySpec, SpaceSpec, SpecViolation
from common.wire import pack_plain, unpack_plain
from tests.support import box, discrete, multi_discrete, space

F32 = box(3)
PIXEL = box(2, dtype="uint8", low=0.0, high=255.0)
DICE = box(2, dtype="int64", low=1.0, high=6.0)
SHIFTED = discrete(3, start=-1)
BITS = ArraySpec(kind="multi_binary", shape=(2,), dtype="int8")

CONVERTED: list[tuple[ArraySpec, Any, Any]] = [
    (F32, np.ones(3, np.float32), np.ones(3, np.float32)),
    (F32, np.ones(3, np.float16), np.ones(3, np.float32)),
    (F32, np.array([1, 2, 3], np.int16), np.array([1, 2, 3], np.float32)),
    (F32, np.array([True, False, True]), np.array([1, 0, 1], np.float32)),
    (F32, np.ones(3, ">f4"), np.ones(3, np.float32)),
    (F32, np.ones((2, 3), np.float32)[:, ::-1][0], np.ones(3, np.float32)),
    (box(3, dtype="float64"), [1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0])),
    (box(dtype="float64"), 0.5, np.array(0.5)),
    (box(2, low=-1.0, high=1.0), np.array([-7.0, 7.0], np.float32), np.array([-7.0, 7.0], np.float32)),
    (PIXEL, np.array([0, 255], np.uint8), np.array([0, 255], np.uint8)),
    (DICE, np.array([1, 6], np.int32), np.array([1, 6], np.int64)),
    (SHIFTED, -1, np.array(0)),
    (SHIFTED, np.int8(1), np.array(2)),
    (SHIFTED, np.array(0, np.uint64), np.array(1)),
    (discrete(1, start=2), 2, np.array(0)),
    (multi_discrete(2, 3, start=(5, -1)), np.array([6, -1]), np.array([1, 0])),
    (BITS, np.array([True, False]), np.array([1, 0], np.int8)),
    (BITS, [1, 0], np.array([1, 0], np.int8)),
]

REFUSED: list[tuple[ArraySpec, Any, str]] = [
    (F32, np.ones(3, np.float64), "dtype float64, expected Box of shape (3,), dtype float32"),
    (F32, np.array([1, 2, 3]), "dtype int64"),
    (F32, [1.0, 2.0, 3.0], "dtype float64"),
    (F32, np.ones((3, 1), np.float32), "shape (3, 1)"),
    (F32, np.ones(1, np.float32), "shape (1,)"),
    (F32, np.float32(1), "shape ()"),
    (F32, None, "None"),
    (F32, [[1.0], [1.0, 2.0]], "no array"),
    (F32, "abc", "dtype <U3"),
    (F32, np.array([None, 1, 2]), "dtype object"),
    (F32, np.ones(3, np.complex64), "dtype complex64"),
    (F32, np.ma.masked_array(np.ones(3, np.float32), [0, 1, 0]), "masked array"),
    (F32, {"a": 1}, "dtype object"),
    (PIXEL, np.array([0, 300]), "dtype int64"),
    (PIXEL, np.array([-0.9, 0.0]), "dtype float64"),
    (DICE, np.array([0, 6]), "values from 0 to 6"),
    (DICE, np.array([1, 7]), "values from 1 to 7"),
    (SHIFTED, 2, "got 2, expected an integer from -1 to 1"),
    (SHIFTED, -2, "got -2"),
    (SHIFTED, 0.0, "dtype float64"),
    (SHIFTED, True, "dtype bool"),
    (SHIFTED, np.array([0]), "shape (1,)"),
    (SHIFTED, np.uint64(2**63), "9223372036854775808"),
    (SHIFTED, np.uint64(2**64 - 1), "18446744073709551615"),  # -1 if it were cast: a valid choice here
    (SHIFTED, 2**63 - 1, "9223372036854775807"),
    (SHIFTED, -(2**63), "-9223372036854775808"),
    (multi_discrete(2, 3), np.array([1, 3]), "got 3, expected integers of shape (2,) below [2, 3] from [0, 0]"),
    (BITS, np.array([0, 2]), "values from 0 to 2"),
    (BITS, np.array([0.0, 1.0]), "dtype float64"),
]


@pytest.mark.parametrize(("spec", "value", "stored"), CONVERTED)
def test_what_loses_nothing_is_converted(spec: ArraySpec, value: Any, stored: Any) -> None:
    """C03, C04: the stored form has the spec's dtype and shape, native byte order, and is an array."""
    got = spec.check(value)
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape) == (np.dtype(spec.dtype), spec.shape)
    assert got.dtype.isnative
    np.testing.assert_array_equal(got, stored)


@pytest.mark.parametrize(("spec", "value", "words"), REFUSED)
def test_what_would_lose_something_is_refused(spec: ArraySpec, value: Any, words: str) -> None:
    """C04: the message names what was got and what was expected."""
    with pytest.raises(SpecViolation) as caught:
        spec.check(value)
    assert words in str(caught.value)
    assert caught.value.expected and caught.value.got


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
)
def test_nothing_is_ever_broadcast(declared: tuple[int, ...], got: tuple[int, ...]) -> None:
    """Any other shape is refused, also where numpy would stretch it, for a lane and for a batch of lanes."""
    spec = box(*declared)
    for check, shape in ((spec.check, declared), (lambda value: spec.check_batch(value, 2), (2, *declared))):
        value = np.zeros(got, np.float32)
        if got == shape:
            assert check(value).shape == shape
        else:
            with pytest.raises(SpecViolation, match="shape"):
                check(value)


def test_a_batch_is_checked_lane_by_lane() -> None:
    """Bounds and starts apply to each lane; one bad lane is enough."""
    spec = multi_discrete(2, 3, start=(5, 0))
    np.testing.assert_array_equal(spec.check_batch(np.array([[5, 0], [6, 2]]), 2), [[0, 0], [1, 2]])
    with pytest.raises(SpecViolation, match="got 7"):
        spec.check_batch(np.array([[5, 0], [7, 2]]), 2)
    with pytest.raises(SpecViolation, match=r"shape \(1, 2\)"):
        spec.check_batch(np.array([[5, 0]]), 2)
    uneven = ArraySpec(kind="box", shape=(2,), dtype="int32", low=(0.0, 10.0), high=(1.0, 11.0))
    assert uneven.check_batch(np.array([[0, 10], [1, 11]], np.int32), 2).shape == (2, 2)
    with pytest.raises(SpecViolation, match="within its bounds"):
        uneven.check_batch(np.array([[0, 10], [2, 11]], np.int32), 2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "box", "shape": (2,), "dtype": "complex64"}, "Box of dtype complex64"),
        ({"kind": "box", "shape": (2,), "dtype": "O"}, "Box of dtype O"),
        ({"kind": "box", "shape": (-1,), "dtype": "int8"}, "no negative size"),
        ({"kind": "box", "shape": (2,), "dtype": "int8", "low": (0.0,)}, "1 low and 0 high bounds"),
        ({"kind": "box", "shape": (3,), "dtype": "int8", "low": (0.0, 0.0), "high": (1.0, 1.0)}, "none, 1 or 3"),
        ({"kind": "box", "shape": (1,), "dtype": "int8", "low": (2.0,), "high": (1.0,)}, "no low bound above"),
        ({"kind": "box", "shape": (1,), "dtype": "int8", "low": (float("nan"),), "high": (1.0,)}, "no low bound"),
        ({"kind": "box", "shape": (1,), "dtype": "int8", "nvec": (1,), "start": (0,)}, "0 for box"),
        ({"kind": "discrete", "shape": (), "dtype": "int32", "nvec": (2,), "start": (0,)}, "discrete stored as int32"),
        ({"kind": "discrete", "shape": (), "dtype": "int64", "nvec": (0,), "start": (0,)}, "at least 1 each"),
        ({"kind": "discrete", "shape": (), "dtype": "int64"}, "0 numbers of choices"),
        ({"kind": "discrete", "shape": (), "dtype": "int64", "nvec": (2,)}, "0 starts"),
        ({"kind": "multi_discrete", "shape": (3,), "dtype": "int64", "nvec": (2, 2), "start": (0, 0)}, "3 for multi"),
        ({"kind": "multi_binary", "shape": (3,), "dtype": "bool"}, "multi_binary stored as bool"),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(fields: dict[str, Any], words: str) -> None:
    """At construction, and so also when it is read from a checkpoint."""
    with pytest.raises(SpecViolation) as caught:
        ArraySpec(**fields)
    assert words in str(caught.value)


@pytest.mark.parametrize("spec", [F32, PIXEL, DICE, SHIFTED, multi_discrete(2, 3, start=(5, -1)), BITS, box()])
def test_a_spec_survives_the_wire(spec: ArraySpec) -> None:
    """Equal after a round trip, alone and as a part of a space."""
    assert ArraySpec.from_plain(unpack_plain(pack_plain(spec.to_plain()))) == spec
    observation = space(obs=spec)
    assert SpaceSpec.from_plain(unpack_plain(pack_plain(observation.to_plain()))) == observation


def test_sizes_are_those_of_one_lane() -> None:
    """By hand: 84 x 84 x 4 bytes; a scalar is one element."""
    assert (box(84, 84, 4, dtype="uint8").size, box(84, 84, 4, dtype="uint8").num_bytes) == (28_224, 28_224)
    assert (SHIFTED.size, SHIFTED.num_bytes) == (1, 8)
    assert box(0, dtype="float64").num_bytes == 0


def test_bounds_take_the_shape_of_a_lane() -> None:
    """One number stands for all elements; no bounds are infinite ones."""
    np.testing.assert_array_equal(box(2, low=-1.0, high=2.0).high_array(), [2.0, 2.0])
    np.testing.assert_array_equal(box(2).low_array(), [-np.inf, -np.inf])
    assert box(2).high_array().tolist() == [np.inf, np.inf]


def test_a_space_names_each_part_once() -> None:
    """Order is kept; a second part of the same name and a space of nothing are refused."""
    observation = space(b=F32, a=PIXEL)
    assert [name for name, _ in observation] == ["b", "a"]
    assert (len(observation), observation["a"]) == (2, PIXEL)
    with pytest.raises(SpecViolation, match="each named once"):
        SpaceSpec(parts=(("a", F32), ("a", PIXEL)))
    with pytest.raises(SpecViolation, match="at least one part"):
        SpaceSpec(parts=())
