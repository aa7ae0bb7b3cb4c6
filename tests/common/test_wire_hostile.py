"""Damaged and hostile bytes: one typed error, memory that the message paid for, and the receiver goes on."""

from __future__ import annotations

import gc
import math
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
import xxhash

from common.errors import WireError
from common.fragment import decode_fragment
from common.frames import Frame, decode_frame
from common.wire import EXT_ARRAY, EXT_BFLOAT16, EXT_SCALAR, pack_plain, unpack_plain
from tests.golden import examples

NUM_MUTANTS = 10_000
FRAME = examples.fragment_buffer().seal(examples.HEADER).tobytes()
PLAIN = pack_plain(examples.plain_value())


# ── plain documents ──────────────────────────────────────────────────────────────────────────────────────────────


def array_ext(dtype: bytes, shape: tuple[int, ...], data: bytes, code: int = EXT_ARRAY) -> bytes:
    body = struct.pack(f"<4sB{len(shape)}Q", dtype, len(shape), *shape) + data
    packed: bytes = msgpack.packb(msgpack.ExtType(code, body))
    return packed


CLAIMS = {
    "nothing": b"",
    "100,000 nested arrays": b"\x91" * 100_000,
    "100,000 nested maps": b"\x81\xa1a" * 100_000,
    "array of 2**32-1": b"\xdd\xff\xff\xff\xff",
    "map of 2**32-1": b"\xdf\xff\xff\xff\xff",
    "bin of 2**32-1": b"\xc6\xff\xff\xff\xff",
    "text of 2**32-1": b"\xdb\xff\xff\xff\xff",
    "extension of 2**32-1": b"\xc9\xff\xff\xff\xff\x02",
    "nested arrays that claim all that is left": b"".join(b"\xdd" + struct.pack(">I", 900 - i) for i in range(500)),
    "unused tag": b"\xc1",
    "bytes after the end": b"\x01\x01",
    "int keys": msgpack.packb({1: 2}),
    "bytes keys": msgpack.packb({b"a": 2}),
    "a key twice": b"\x82\xa1a\x01\xa1a\x02",
    "text that is not UTF-8": b"\xa1\xff",
    "timestamp": msgpack.packb(msgpack.Timestamp(1, 2)),
    "unknown extension": msgpack.packb(msgpack.ExtType(5, b"")),
    "negative extension": b"\xd4\xfe\x00",
    "tuple tag with data": msgpack.packb([msgpack.ExtType(1, b"x")]),
    "tuple tag alone": msgpack.packb(msgpack.ExtType(1, b"")),
    "tuple tag second": msgpack.packb([0, msgpack.ExtType(1, b"")]),
    "tuple tag as value": msgpack.packb({"a": msgpack.ExtType(1, b"")}),
    "array without head": msgpack.packb(msgpack.ExtType(EXT_ARRAY, b"")),
    "array of 255 dimensions": msgpack.packb(msgpack.ExtType(EXT_ARRAY, b"|u1\0\xff")),
    "33 dimensions": array_ext(b"|u1\0", (1,) * 33, b"\0"),
    "shape beyond its data": array_ext(b"<f4\0", (2,), b"\0" * 4),
    "data beyond its shape": array_ext(b"<f4\0", (1,), b"\0" * 8),
    "shape whose product overflows": array_ext(b"<f8\0", (2**32, 2**32), b""),
    "shape whose product wraps to its data": array_ext(b"<f8\0", (2**61, 8, 2), b""),
    "empty shape with a huge axis": array_ext(b"<f8\0", (0, 2**62), b""),
    "object": array_ext(b"|O\0\0", (1,), b"\0" * 8),
    "void of 99999999": array_ext(b"|V99", (1,), b"\0" * 99),
    "text dtype": array_ext(b"|S4\0", (1,), b"abcd"),
    "big-endian dtype": array_ext(b">f4\0", (1,), b"abcd"),
    "dtype with bytes after its end": array_ext(b"b1\0x", (1,), b"\1"),
    "code-like dtype": array_ext(b"f4,f", (1,), b"\0" * 8),
    "boolean of 2": array_ext(b"|b1\0", (1,), b"\2"),
    "scalar with a shape": array_ext(b"<f4\0", (1,), b"\0" * 4, EXT_SCALAR),
    "bfloat16 of float32": array_ext(b"<f4\0", (1,), b"\0" * 4, EXT_BFLOAT16),
}


def peak_bytes(run: Callable[[], object]) -> int:
    """Most memory that Python and numpy held at once while `run` ran; the smaller of two runs, since whatever else is
    alive in this process is counted too."""
    return min(_peak_bytes(run) for _ in range(2))


def _peak_bytes(run: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refuse(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack_plain(data)


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_are_refused_and_allocate_nothing(name: str) -> None:
    """One WireError, at most a few times the message in memory, and the next good document is read."""
    data = CLAIMS[name]
    assert peak_bytes(lambda: refuse(data)) < 4 * len(data) + (256 << 10)
    assert unpack_plain(PLAIN)["text"] == "naïve"


@pytest.mark.parametrize("name", ["array of 2**32-1", "map of 2**32-1"])
def test_counts_are_judged_by_the_bytes_that_are_left(name: str) -> None:
    """Before the first item is read: each takes at least one byte, each pair two."""
    with pytest.raises(WireError, match="length; got 4294967295 items in 0 bytes; allowed: 0"):
        unpack_plain(CLAIMS[name])


def test_a_million_int_keys_are_refused_at_the_first() -> None:
    """Hash flooding needs chosen keys; only text is taken, and refusal does not read on."""
    data = msgpack.packb(dict.fromkeys(range(1_000_000)))
    with pytest.raises(WireError, match="key; got int 0; allowed: str"):
        unpack_plain(data)


def test_the_number_of_values_is_limited_alike_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list costs a byte on the wire and 70 in memory, so a document may hold only so many values."""
    monkeypatch.setattr("common.wire.MAX_VALUES", 100)
    assert unpack_plain(pack_plain([[]] * 99)) == [[]] * 99
    with pytest.raises(WireError, match="too many values; got over 100"):
        pack_plain([[]] * 100)
    with pytest.raises(WireError, match="too many values; got over 100"):
        unpack_plain(msgpack.packb([[]] * 100))


def test_an_error_names_the_place() -> None:
    """The path of the key, as at encode."""
    with pytest.raises(WireError, match=r"^snapshot at lanes\[1\]: extension; got code 7"):
        unpack_plain(msgpack.packb({"lanes": [0, msgpack.ExtType(7, b"")]}), what="snapshot")


def test_what_is_no_buffer_is_a_wire_error() -> None:
    """Text, None and strided arrays are refused by type."""
    for value in ("text", None, np.zeros((4, 4), dtype=np.uint8)[:, ::2]):
        with pytest.raises(WireError, match="no bytes"):
            unpack_plain(value)  # type: ignore[arg-type]


# ── mutants ──────────────────────────────────────────────────────────────────────────────────────────────────────


def mutate(data: bytes, draw: random.Random) -> bytes:
    """One of: flip bits, overwrite with telling bytes, cut, insert, repeat a stretch, swap two stretches."""
    mutant = bytearray(data)
    at, other = draw.randrange(len(data)), draw.randrange(len(data))
    size = draw.choice((1, 1, 2, 5, 9, 64))
    match draw.randrange(6):
        case 0:
            mutant[at] ^= 1 << draw.randrange(8)
        case 1:
            mutant[at : at + size] = draw.choice((b"\xff", b"\0", b"\x91", b"\xdd", b"\xc7", b"\x7f")) * size
        case 2:
            del mutant[at : at + size]
        case 3:
            mutant[at:at] = draw.randbytes(size)
        case 4:
            mutant[at:at] = mutant[other : other + size]
        case _:
            mutant[at : at + size], mutant[other : other + size] = mutant[other : other + size], mutant[at : at + size]
    return bytes(mutant)


def resealed(document: bytes) -> bytes:
    """With a right digest, as an attacker would: what then protects is the checking of the structure."""
    body = document[:-9]
    return body + b"\xcf" + struct.pack(">Q", xxhash.xxh3_64_intdigest(body))


def mutate_header(draw: random.Random) -> bytes:
    """Most mutants of a whole frame hit its payload; these hit the few bytes that carry its structure."""
    start, length = 15, struct.unpack_from(">I", FRAME, 11)[0]
    header = mutate(FRAME[start : start + length], draw)
    shift = len(header) - length
    padding = struct.unpack_from(">I", FRAME, start + length + 1)[0] - shift
    middle = b"\xc6" + struct.pack(">I", padding) + bytes(padding)
    payload = FRAME[start + length + 5 + padding + shift :]
    return resealed(FRAME[:11] + struct.pack(">I", len(header)) + header + middle + payload)


def check_frame(frame: Frame) -> None:
    """Whatever decodes keeps every promise of a frame: views inside it, of the shapes that its table says."""
    for entry in frame.layout.entries:
        array = frame.arrays[entry.name]
        assert array.shape == entry.shape and array.dtype.str == entry.dtype
        assert array.nbytes == math.prod(entry.shape) * array.itemsize
        array.tobytes()


def decode_all(mutants: Iterator[bytes]) -> tuple[int, int]:
    """Numbers of refused and of decoded mutants; anything but WireError fails the test."""
    refused = decoded = 0
    for mutant in mutants:
        try:
            frame = decode_frame(mutant, kind="fragment")
        except WireError:
            refused += 1
        else:
            check_frame(frame)
            decoded += 1
    return refused, decoded


def test_ten_thousand_mutants_are_refused_or_unchanged() -> None:
    """Damage of any kind is found: what decodes is byte for byte the frame that was sent."""
    draw = random.Random(1)
    changed = (mutant for mutant in (mutate(FRAME, draw) for _ in range(NUM_MUTANTS)) if mutant != FRAME)
    refused, decoded = decode_all(changed)
    assert decoded == 0 and refused > NUM_MUTANTS * 0.7


def test_ten_thousand_resealed_mutants_are_refused_or_sound() -> None:
    """With the digest put right the structure alone is judged, and nothing but WireError or a sound frame comes out."""
    draw = random.Random(2)
    mutants = (resealed(mutate(FRAME, draw)) if i % 4 == 0 else mutate_header(draw) for i in range(NUM_MUTANTS))
    refused, decoded = decode_all(mutants)
    assert refused > 3_000 and decoded > 500


def test_resealed_mutants_are_never_another_fragment_than_the_layout_says() -> None:
    """The fragment's own checks stand behind the frame's."""
    draw = random.Random(3)
    for _ in range(1_000):
        try:
            fragment = decode_fragment(mutate_header(draw), examples.LAYOUT)
        except WireError:
            continue
        assert fragment.observation["obs/camera"].shape == (3, 1, 2, 2)
        assert fragment.header.num_valid == 1 and type(fragment.header.version) is int


def test_ten_thousand_mutated_documents_are_refused_or_plain() -> None:
    """A plain document carries no digest: what decodes is a plain value, which packs again."""
    draw = random.Random(4)
    refused = 0
    for _ in range(NUM_MUTANTS):
        try:
            value = unpack_plain(mutate(PLAIN, draw))
        except WireError:
            refused += 1
        else:
            pack_plain(value)
    assert refused > 3_000


def test_mutants_allocate_no_more_than_a_few_times_their_size() -> None:
    """Peak memory over 500 mutants of each kind stays within a small multiple of one message."""
    draw = random.Random(5)
    frames = [mutate_header(draw) for _ in range(500)]
    plains = [mutate(PLAIN, draw) for _ in range(500)]

    def decode_each() -> None:
        decode_all(iter(frames))
        for plain in plains:
            try:
                unpack_plain(plain)
            except WireError:
                continue

    assert peak_bytes(decode_each) < 4 * len(FRAME) + (256 << 10)


def test_decoding_leaves_no_cycles() -> None:
    """What was received is free when its last view is: a fragment of 58 MB must not wait for the collector."""
    gc.collect()
    gc.disable()
    try:
        decode_frame(FRAME, kind="fragment")
        unpack_plain(PLAIN)
        pack_plain(examples.plain_value())
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_every_truncation_is_refused() -> None:
    """No prefix of a frame or of a document is one."""
    for document, decode in ((FRAME, lambda data: decode_frame(data, kind="fragment")), (PLAIN, unpack_plain)):
        for length in range(len(document)):
            with pytest.raises(WireError):
                decode(document[:length])


# ── crafted frames ───────────────────────────────────────────────────────────────────────────────────────────────


def craft(header: Any, *, payload: bytes = bytes(64), payload_start: int = 512) -> bytes:
    """A frame that is right in all but what the header says."""
    packed = msgpack.packb(header)
    padding = payload_start - 15 - len(packed) - 10
    start = b"\x96\xa8truestep\xce" + struct.pack(">I", len(packed)) + packed
    bins = b"\xc6" + struct.pack(">I", padding) + bytes(padding) + b"\xc6" + struct.pack(">I", len(payload))
    return resealed(start + bins + payload + bytes(9))


def table(*rows: Any, **changes: Any) -> dict[str, Any]:
    return {"schema": 1, "kind": "fragment", "arrays": list(rows), "fields": {}} | changes


GOOD = ["a", "|u1", [64], 0]
CRAFTED: dict[str, tuple[Any, str]] = {
    "newer schema": (table(GOOD, schema=2), "schema; got 2; allowed: 1 to 1"),
    "schema true": (table(GOOD, schema=True), "schema; got True"),
    "no schema": ({"kind": "fragment"}, "schema; got None"),
    "header is a list": ([1], "schema; got None"),
    "no fields": (table(GOOD, fields=None), "fields; got NoneType None; allowed: a dict"),
    "no table": (table(arrays={}), "no table; got dict"),
    "short row": (table(["a", "|u1", [64]]), "entry; got"),
    "row of other types": (table([1, "|u1", [64], 0]), "entry; got"),
    "text in shape": (table(["a", "|u1", ["64"], 0]), "entry; got"),
    "bool in shape": (table(["a", "|u1", [True], 0]), "entry; got"),
    "bool as offset": (table(["a", "|u1", [64], False]), "entry; got"),
    "negative shape": (table(["a", "|u1", [-64], 0]), "shape of a; got .* no negative size"),
    "two negative sizes": (table(["a", "|u1", [-8, -8], 0]), "shape of a; got"),
    "shape that overflows": (table(["a", "<f8", [2**31, 2**31], 0]), "shape of a; got .* at most 4294967295 bytes"),
    "shape that wraps": (table(["a", "<f8", [2**61, 8], 0]), "shape of a; got"),
    "empty with a huge axis": (table(["a", "<f8", [0, 2**62], 0]), "shape of a; got"),
    "33 dimensions": (table(["a", "|u1", [1] * 33, 0]), "at most 32 dimensions"),
    "object dtype": (table(["a", "|O", [8], 0]), "dtype of a; got"),
    "void dtype": (table(["a", "V99999999", [1], 0]), "dtype of a; got V99999999"),
    "text dtype": (table(["a", "|S4000000000", [1], 0]), "dtype of a; got"),
    "big-endian dtype": (table(["a", ">f4", [16], 0]), "dtype of a; got >f4"),
    "code-like dtype": (table(["a", "__import__('os')", [1], 0]), "dtype of a; got"),
    "unaligned offset": (table(["a", "|u1", [8], 8]), "offset of a; got 8; allowed: multiples of 64"),
    "negative offset": (table(["a", "|u1", [64], -64]), "offset of a; got -64"),
    "offset beyond the payload": (table(["a", "|u1", [64], 64]), "payload; got 64 bytes; allowed: 128"),
    "offset beyond 64 bits": (table(["a", "|u1", [64], 2**64 - 64]), "too large"),
    "payload beyond the table": (table(["a", "|u1", [32], 0]), "payload; got 64 bytes; allowed: 32"),
    "same name": (table(["a", "|u1", [0], 0], GOOD), "array named twice"),
    "overlap": (table(GOOD, ["b", "|u1", [1], 0]), "a overlaps"),
    "boolean of 2": (table(["a", "|b1", [64], 0]), "a; got bytes above 1"),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_frames_are_refused_by_what_is_wrong(name: str) -> None:
    """A right digest buys no trust: every claim of the header is checked, and the message says which was false."""
    header, message = CRAFTED[name]
    document = craft(header, payload=b"\2" * 64)
    with pytest.raises(WireError, match=message):
        decode_frame(document, kind="fragment")
    assert decode_frame(FRAME, kind="fragment").header["run"] == "golden"


def test_the_crafting_is_right_where_the_header_is() -> None:
    """The refusals above are not an accident of `craft`; unknown keys of a newer sender are ignored."""
    frame = decode_frame(craft(table(GOOD, later="x"), payload=b"\2" * 64), kind="fragment")
    assert frame.arrays["a"].tolist() == [2] * 64


def changed(position: int, value: bytes) -> bytes:
    return resealed(FRAME[:position] + value + FRAME[position + len(value) :])


HEADER_END = 15 + struct.unpack_from(">I", FRAME, 11)[0]
DAMAGED = {
    "magic": (b"\x95" + FRAME[1:], "magic; got 95a8"),
    "header beyond the document": (changed(11, b"\xff\xff\xff\xff"), "ends too early"),
    "padding beyond the document": (changed(HEADER_END + 1, b"\xff\xff\xff\xff"), "ends too early"),
    "padding of another kind": (changed(HEADER_END, b"\xdb"), "layout; got payload at"),
    "payload longer than the document": (
        changed(FRAME.index(bytes(range(12))) - 4, b"\xff\xff\xff\xff"),
        "length; got",
    ),
    "one byte too many": (FRAME + b"\0", "length; got"),
    "a flipped bit in the payload": (FRAME[:-20] + bytes([FRAME[-20] ^ 1]) + FRAME[-19:], "digest; got"),
    "a flipped bit in the digest": (FRAME[:-1] + bytes([FRAME[-1] ^ 1]), "digest; got"),
    "a digest of another type": (FRAME[:-9] + b"\xd3" + FRAME[-8:], "digest; got"),
    "payload that starts off the boundary": (
        craft(table(GOOD), payload_start=520),
        "layout; got payload at 520; allowed: bins, 64-byte aligned",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_frames_are_refused_by_what_is_wrong(name: str) -> None:
    """Size, magic, lengths and digest are judged before the header is read."""
    document, message = DAMAGED[name]
    with pytest.raises(WireError, match=message):
        decode_frame(document, kind="fragment")


def test_a_frame_beyond_the_limit_is_not_even_hashed() -> None:
    """`max_bytes` is the first check."""
    with pytest.raises(WireError, match="size; got"):
        decode_frame(FRAME, kind="fragment", max_bytes=len(FRAME) - 1)
    assert decode_frame(FRAME, kind="fragment", max_bytes=len(FRAME)).header["actor"] == 3
