"""Plain documents and frames: exact round trips, zero copies, golden bytes."""

from __future__ import annotations

import hashlib
import math
import signal
import struct
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from common.errors import WireError
from common.frames import FrameBuffer, FrameLayout, decode_frame
from common.records import record_from_plain, record_to_plain
from common.wire import DTYPES, BFloat16Bits, pack_plain, unpack_plain
from tests.golden import examples

properties = settings(deadline=None, max_examples=150)


def same(left: Any, right: Any) -> bool:
    """Equal in type and in bits, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, BFloat16Bits):
        return same(left.bits, right.bits)
    if isinstance(left, (np.ndarray, np.generic)):
        return bool(left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes())
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    return bool(left == right)


def round_trip(value: object) -> Any:
    return unpack_plain(pack_plain(value))


# ── plain documents ──────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def numeric_arrays(draw: st.DrawFn) -> NDArray[Any]:
    dtype = np.dtype(draw(st.sampled_from(sorted(DTYPES))))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    raw = draw(st.binary(min_size=math.prod(shape) * dtype.itemsize, max_size=math.prod(shape) * dtype.itemsize))
    if dtype.kind == "b":
        raw = bytes(byte & 1 for byte in raw)
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=True)
    | text
    | st.binary(max_size=8)
    | numeric_arrays()
    | numeric_arrays().filter(lambda array: array.size > 0).map(lambda array: array.reshape(-1)[0])
)
plain_values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(text, inner, max_size=4)
    ),
    max_leaves=20,
)


@properties
@given(plain_values)
def test_every_allowed_value_returns_equal_in_value_and_type(value: object) -> None:
    """Round trips keep class and bits, however deep: NaN payloads, -0.0, numpy scalars, tuples."""
    assert same(round_trip(value), value)


@properties
@given(plain_values)
def test_a_second_round_trip_gives_the_same_bytes(value: object) -> None:
    """Packing is a function of the value, so digests of documents mean something."""
    assert pack_plain(round_trip(value)) == pack_plain(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": 1}, "81a16101"),
        ([None, True, -1], "93c0c3ff"),
        ((), "91c70001"),
        ((5,), "92c7000105"),
        (1.0, "cb3ff0000000000000"),
        ("é", "a2c3a9"),
        (b"\x01", "c40101"),
        (np.int16(-2), "c7 07 03 3c693200 00 feff"),
        (np.array([1, 2], np.uint8), "c7 0f 02 7c753100 01 0200000000000000 0102"),
    ],
)
def test_golden_bytes_by_hand(value: object, expected: str) -> None:
    """The bytes that docs/wire-format.md promises."""
    assert pack_plain(value) == bytes.fromhex(expected)


@pytest.mark.parametrize("bits", [0x7FF8000000000001, 0xFFF0000000000001, 0x8000000000000000, 0x0000000000000001])
def test_float_bits_survive(bits: int) -> None:
    """Quiet and signalling NaN payloads, -0.0 and subnormals keep their bits."""
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    assert struct.unpack("<Q", struct.pack("<d", round_trip(value)))[0] == bits


BASE = np.arange(24, dtype=np.float32).reshape(4, 6)
LAYOUTS = {
    "slice": BASE[1:3, 2:5],
    "transpose": BASE.T,
    "negative strides": BASE[::-1, ::-2],
    "fortran order": np.asfortranarray(BASE),
    "broadcast": np.broadcast_to(np.float32(3), (2, 5)),
    "big endian": BASE.astype(">f4"),
    "unaligned": np.frombuffer(b"\0" + BASE.tobytes(), dtype=np.uint8)[1:].view(np.float32),
    "zero dimensions": np.array(2.5),
    "no rows": np.zeros((0, 3)),
    "no columns": np.zeros((3, 0), dtype=np.int8),
    "one element": np.array([True]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_array_layout_arrives_contiguous_native_and_writable(layout: str) -> None:
    """Layout is the sender's business; shape, values and dtype (but for byte order) are kept."""
    array = LAYOUTS[layout]
    decoded = round_trip(array)
    assert decoded.shape == array.shape
    assert decoded.dtype == array.dtype.newbyteorder("=") and decoded.dtype.isnative
    assert np.array_equal(decoded, array)
    assert decoded.flags.c_contiguous and decoded.flags.writeable and decoded.flags.aligned


class Subclass(np.ndarray[Any, Any]):
    pass


class TextSubclass(str):
    pass


class FloatSubclass(np.float64):
    pass


REFUSED = {
    "int key": {1: 2},
    "text subclass key": {TextSubclass("a"): 1},
    "numpy text key": {np.str_("a"): 1},
    "int of 65 bits": 2**64,
    "negative int of 65 bits": -(2**63) - 1,
    "bytearray": bytearray(b"a"),
    "memoryview": memoryview(b"a"),
    "set": {1},
    "lone surrogate": "\ud800",
    "complex": 1j,
    "int subclass": signal.SIGTERM,
    "numpy scalar subclass": FloatSubclass(1),
    "text subclass": TextSubclass("a"),
    "numpy text": np.str_("a"),
    "numpy date": np.datetime64("2024-01-01"),
    "long double": np.longdouble(1),
    "text array": np.array(["a"]),
    "object array": np.array([None]),
    "date array": np.array(["2024-01-01"], dtype="datetime64[D]"),
    "structured array": np.zeros(1, dtype=[("a", "i4")]),
    "masked array": np.ma.masked_array([1.0], mask=[True]),
    "array subclass": np.zeros(1).view(Subclass),
    "array of 2**32 bytes": np.broadcast_to(np.uint8(0), (2**32,)),
    "empty array with a huge axis": np.zeros((0, 2**33), dtype=np.uint8),
    "bfloat16 of floats": BFloat16Bits(bits=np.zeros(1, dtype=np.float32)),
    "function": len,
}


@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_is_refused_at_encode_with_its_path(name: str) -> None:
    """The sender hears of it, with the place; never the receiver first."""
    with pytest.raises(WireError, match=r"^snapshot at lanes\[1\]\.state\[0\]"):
        pack_plain({"lanes": [0, {"state": (REFUSED[name],)}]}, what="snapshot")


def test_a_cycle_is_refused() -> None:
    """A value that contains itself is only nested too deep."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(WireError, match="nested too deep"):
        pack_plain(value)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_limited_alike_on_both_sides() -> None:
    """32 levels pass, 33 are refused by the sender and, sent by another, by the receiver."""
    assert same(round_trip(nested(32)), nested(32))
    with pytest.raises(WireError, match="nested too deep"):
        pack_plain(nested(33))
    with pytest.raises(WireError, match="nested too deep"):
        unpack_plain(msgpack.packb(nested(33)))


def test_size_is_limited_alike_on_both_sides() -> None:
    """A document of exactly `max_bytes` passes; one byte more does not."""
    data = pack_plain(b"12345678", max_bytes=10)
    assert unpack_plain(data, max_bytes=10) == b"12345678"
    with pytest.raises(WireError, match="got 11 bytes"):
        pack_plain(b"123456789", max_bytes=10)
    with pytest.raises(WireError, match="got 10 bytes"):
        unpack_plain(data, max_bytes=9)


def test_no_limit_goes_beyond_a_bin() -> None:
    """2**32 bytes (a broadcast view: none in memory) are refused with their size, whatever the caller allows."""
    with pytest.raises(WireError, match="got 4294967296 bytes; allowed: 4294967295; split it"):
        pack_plain(np.broadcast_to(np.uint8(0), (2**32,)), max_bytes=2**40)


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    name: str
    count: int
    weight: float = 0.5


def test_records_round_trip_and_new_fields_have_defaults() -> None:
    """An older sender's missing field takes its default; a newer sender's unknown field is ignored."""
    record = Record(name="a", count=2, weight=1.0)
    assert record_from_plain(Record, record_to_plain(record), what="r") == record
    assert record_from_plain(Record, {"name": "a", "count": 2, "later": 1}, what="r") == Record(name="a", count=2)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"name": "a"}, "r: missing count"),
        ({"name": "a", "count": True}, "r: count; got bool True; allowed: int"),
        ({"name": 3, "count": 1}, "r: name; got int 3; allowed: str"),
        ([], "r: no fields"),
    ],
)
def test_records_name_the_field_that_is_wrong(plain: object, message: str) -> None:
    """Exact classes: a bool is no int."""
    with pytest.raises(WireError, match=message):
        record_from_plain(Record, plain, what="r")


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────

ARRAYS = {
    "camera": (np.uint8, (3, 5)),
    "speed": (np.float64, ()),
    "empty": (np.float32, (0, 4)),
    "flag": (np.bool_, (2,)),
}


def filled() -> FrameBuffer:
    frame = FrameBuffer(FrameLayout.of(ARRAYS), "fragment")
    frame.arrays["camera"][...] = np.arange(15).reshape(3, 5)
    frame.arrays["speed"][...] = 2.5
    frame.arrays["flag"][...] = [True, False]
    return frame


def test_a_frame_is_a_document_of_plain_msgpack() -> None:
    """Ten lines, the msgpack library and numpy read a frame; nothing of ours is needed."""
    document = filled().seal({"run": "r"}).tobytes()

    magic, header_length, header, _padding, payload, digest = msgpack.unpackb(document)
    arrays = {
        name: np.frombuffer(payload, dtype, math.prod(shape), offset).reshape(shape)
        for name, dtype, shape, offset in header["arrays"]
    }

    assert magic == "truestep" and header["schema"] == 1 and header["kind"] == "fragment"
    assert header["fields"] == {"run": "r"} and len(msgpack.packb(header)) == header_length
    assert arrays["camera"].tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]
    assert arrays["speed"] == 2.5 and arrays["flag"].tolist() == [True, False]
    assert digest == int.from_bytes(document[-8:], "big")


def test_nothing_is_copied_in_either_direction() -> None:
    """Sealing returns the buffer that was filled; decoding returns views of what was received, never writable."""
    frame = filled()
    document = frame.seal({})
    assert np.shares_memory(document, frame.arrays["camera"])
    decoded = decode_frame(document, kind="fragment")
    for name in ("camera", "speed", "flag"):
        assert np.shares_memory(decoded.arrays[name], document)
        assert same(decoded.arrays[name], frame.arrays[name])
    assert all(not array.flags.writeable for array in decoded.arrays.values())
    assert decoded.arrays["empty"].shape == (0, 4)


def test_arrays_lie_on_64_byte_boundaries_of_memory() -> None:
    """Where the buffer is aligned, so is every array in it; ours are."""
    document = filled().seal({})
    arrays = decode_frame(document, kind="fragment").arrays
    assert document.ctypes.data % 64 == 0
    assert all(array.ctypes.data % 64 == 0 for array in arrays.values() if array.size)


@pytest.mark.parametrize("shift", [1, 3, 7])
def test_an_unaligned_buffer_decodes_to_the_same_values(shift: int) -> None:
    """Alignment is for speed only."""
    document = filled().seal({})
    room = np.zeros(document.size + shift, dtype=np.uint8)
    room[shift:] = document
    decoded = decode_frame(room[shift:], kind="fragment")
    assert same(dict(decoded.arrays), dict(filled().arrays))


@pytest.mark.parametrize("wrap", [bytes, memoryview, np.asarray, lambda document: memoryview(document.tobytes())])
def test_any_contiguous_buffer_is_taken(wrap: Any) -> None:
    """bytes, memoryview, uint8 array: the same frame."""
    document = filled().seal({"a": 1})
    assert decode_frame(wrap(document), kind="fragment").header == {"a": 1}


def test_a_buffer_is_sealed_again_without_traces() -> None:
    """The second document is what a fresh buffer would give, even after a longer header."""
    used = filled()
    used.seal({"note": "x" * 1000})
    assert used.seal({"a": 1}).tobytes() == filled().seal({"a": 1}).tobytes()


def test_an_overgrown_header_is_refused() -> None:
    """The payload never moves, so the header must fit its room exactly or better."""
    frame = FrameBuffer(FrameLayout.of(ARRAYS), "fragment", header_room=9)
    assert decode_frame(frame.seal({"a": "12345"}), kind="fragment").header == {"a": "12345"}
    with pytest.raises(WireError, match="header too large; got 10 bytes; allowed: 9"):
        frame.seal({"a": "123456"})


@properties
@given(
    st.dictionaries(text, numeric_arrays(), max_size=5),
    st.dictionaries(text, plain_values, max_size=3),
    st.sampled_from(["fragment", "weights"]),
)
def test_any_frame_returns_as_it_was_sealed(arrays: dict[str, NDArray[Any]], header: dict[str, Any], kind: Any) -> None:
    """Header and arrays, whatever their names, dtypes and shapes."""
    layout = FrameLayout.of({name: (array.dtype, array.shape) for name, array in arrays.items()})
    frame = FrameBuffer(layout, kind, header_room=1 << 16)
    for name, array in arrays.items():
        frame.arrays[name][...] = array
    decoded = decode_frame(frame.seal(header), kind=kind)
    assert same(decoded.header, header)
    assert decoded.layout == layout
    assert all(same(decoded.arrays[name], frame.arrays[name]) for name in arrays)


def test_layouts_have_a_plain_form() -> None:
    """The table in the header is the layout, and gives it back."""
    layout = FrameLayout.of(ARRAYS)
    assert layout.to_plain() == [
        ["camera", "|u1", [3, 5], 0],
        ["speed", "<f8", [], 64],
        ["empty", "<f4", [0, 4], 128],
        ["flag", "|b1", [2], 128],
    ]
    assert FrameLayout.from_plain(layout.to_plain()) == layout
    assert layout.payload_bytes == 130


def test_a_layout_beyond_a_bin_is_refused_before_it_is_allocated() -> None:
    """2**32 bytes do not fit the length of a MessagePack bin; the error gives the sizes."""
    with pytest.raises(WireError, match="too large; got 4294967296 bytes; allowed: 4294967295"):
        FrameLayout.of({"a": (np.uint8, (2**31,)), "b": (np.uint8, (2**31,))})


def test_the_kind_must_be_the_one_asked_for() -> None:
    """Weights are not taken for a fragment."""
    with pytest.raises(WireError, match="kind; got 'fragment'; allowed: 'weights'"):
        decode_frame(filled().seal({}), kind="weights")


# ── golden files ─────────────────────────────────────────────────────────────────────────────────────────────────

GOLDEN_SHA256 = {
    "plain_v1.msgpack": "f227643355453fb07149ef313f6e8acca12ddc45d956f32973c5bf4a1e5123de",
    "fragment_v1.msgpack": "8e5e187c6c15dbaadee70297b7629c52fddc54e644d7ee849e13df974b28a484",
    "weights_v1.msgpack": "e0867136f3665f521b24e7d31bf6662825a1d5d5cf879ec4be3c054eaea79ba9",
}


@pytest.mark.parametrize("name", GOLDEN_SHA256)
def test_golden_files_of_schema_1_are_what_we_write(name: str) -> None:
    """Schema 1 does not drift: this code writes the committed bytes, and nobody has replaced them."""
    data = (examples.HERE / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == GOLDEN_SHA256[name]
    assert examples.documents()[name] == data


def test_the_golden_plain_document_decodes() -> None:
    """Whatever schema we write, schema 1 is read."""
    assert same(unpack_plain((examples.HERE / "plain_v1.msgpack").read_bytes()), examples.plain_value())
