"""Frames: arrays and a header as one valid MessagePack document that is viewed, never copied.

Every byte is laid out in docs/wire-format.md.

    FrameBuffer.arrays ──►  seal(header)  ──►  decode_frame(data) ──► read-only views

The digest covers every byte before it. It finds accidents, not attackers; what an attacker could do is bounded by the
checks that follow it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import xxhash
from numpy.typing import DTypeLike, NDArray

from common.errors import WireError
from common.wire import (
    DTYPES,
    MAX_BIN_BYTES,
    MAX_DEPTH,
    MAX_PLAIN_BYTES,
    Buffer,
    as_bytes,
    check_shape,
    describe,
    pack_plain,
    unpack_plain,
)

MAX_FRAME_BYTES = 4 << 30
FRAME_SCHEMA = 1
ALIGNMENT = 64
MAGIC = b"\x96\xa8truestep\xce"  # an array of six; the first is the magic; the tag of the second, a uint32
_HEADER_START = len(MAGIC) + 4
_BIN = struct.Struct(">BI")  # tag 0xc6 and length
_BIN_TAG = 0xC6
_DIGEST = struct.Struct(">BQ")  # tag 0xcf and xxh3-64
_DIGEST_TAG = 0xCF

FrameKind: TypeAlias = Literal["fragment", "weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayEntry:
    """One array of a frame.

    Attributes:
        name: unique in its frame.
        dtype: numpy kind and size, little endian, e.g. `<f4`; one of `DTYPES`.
        shape: C order.
        offset: bytes from the start of the payload; a multiple of `ALIGNMENT`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the array: product of the shape and the item size."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLayout:
    """Where each array of a frame lies. A layout that exists is sound; WireError otherwise."""

    entries: tuple[ArrayEntry, ...]

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if len(set(names)) != len(names):
            raise WireError("frame layout: array named twice", got=names, allowed="unique names")
        for entry in self.entries:
            _check_entry(entry)
        end = 0
        for entry in sorted(self.entries, key=lambda entry: (entry.offset, entry.num_bytes)):
            if entry.offset < end:
                raise WireError(f"frame layout: {entry.name} overlaps", got=entry.offset, allowed=f"from {end}")
            end = entry.offset + entry.num_bytes
        if end > MAX_BIN_BYTES:
            raise WireError("frame layout: too large", got=f"{end} bytes", allowed=MAX_BIN_BYTES, fix="use fewer rows")

    @staticmethod
    def of(arrays: Mapping[str, tuple[DTypeLike, tuple[int, ...]]]) -> FrameLayout:
        """Arrays of the given dtype and shape one after the other, each on the next boundary."""
        entries, offset = [], 0
        for name, (dtype, shape) in arrays.items():
            kind = np.dtype(dtype).newbyteorder("<")
            entries.append(ArrayEntry(name=name, dtype=kind.str, shape=tuple(shape), offset=offset))
            offset = _align(offset + math.prod(shape) * kind.itemsize)
        return FrameLayout(entries=tuple(entries))

    @property
    def payload_bytes(self) -> int:
        """From the start of the payload to the end of the last array."""
        return max((entry.offset + entry.num_bytes for entry in self.entries), default=0)

    def to_plain(self) -> list[Any]:
        """The table in a frame's header: `[name, dtype, shape, offset]` each."""
        return [[entry.name, entry.dtype, list(entry.shape), entry.offset] for entry in self.entries]

    @staticmethod
    def from_plain(plain: object) -> FrameLayout:
        """The inverse of `to_plain`. Raises WireError for any table that `FrameLayout` would not have written."""
        if type(plain) is not list:
            raise WireError("frame layout: no table", got=describe(plain), allowed="a list")
        return FrameLayout(entries=tuple(_read_entry(row) for row in plain))

    def views(self, payload: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Each array as a view of `payload` (`payload_bytes` long), writable if it is."""
        return {
            entry.name: payload[entry.offset : entry.offset + entry.num_bytes].view(entry.dtype).reshape(entry.shape)
            for entry in self.entries
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A decoded frame.

    Attributes:
        header: the fields that the sender sealed.
        layout: the table of its arrays.
        arrays: read-only views of the document; they keep it alive. They are aligned to 64 bytes when the document's
            buffer is (ours and Ray's are) and otherwise merely slower.
        digest: xxh3-64 of every byte before the last element, verified.
    """

    header: dict[str, Any]
    layout: FrameLayout
    arrays: dict[str, NDArray[Any]]
    digest: int


class FrameBuffer:
    """One frame, allocated once and sealed as often as it is filled anew.

    Write into `arrays`, call `seal`, send the document, and do not write before it has been sent or copied.

    Args:
        layout: the arrays.
        kind: what the frame is; the receiver asks for it by name.
        header_room: bytes kept for the header's fields, so that the payload never moves.
    """

    def __init__(self, layout: FrameLayout, kind: FrameKind, header_room: int = 4096) -> None:
        start = _constant_header(layout, kind)
        self.layout = layout
        self.kind = kind
        self.header_room = header_room
        self._fields_start = _HEADER_START + len(start)
        self._payload_start = _align(self._fields_start + header_room + 2 * _BIN.size)
        self._document = _aligned_zeros(self._payload_start + layout.payload_bytes + _DIGEST.size)
        self._view = self._document.data
        self._view[: self._fields_start] = MAGIC + bytes(4) + start
        _BIN.pack_into(self._view, self._payload_start - _BIN.size, _BIN_TAG, layout.payload_bytes)
        self.arrays = layout.views(self._document[self._payload_start : -_DIGEST.size])

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole document."""
        return self._document.size

    def payload_digest(self) -> int:
        """xxh3-64 of the arrays as they are, with the zeros between them; not of the header."""
        return xxhash.xxh3_64_intdigest(self._view[self._payload_start : -_DIGEST.size])

    def seal(self, header: Mapping[str, Any]) -> NDArray[np.uint8]:
        """Write `header` (plain values) and the digest, and return the document: a view, not a copy.

        Raises:
            WireError: the header is not plain or outgrows `header_room`.
        """
        packed = pack_plain(dict(header), what=f"{self.kind} frame header", max_depth=MAX_DEPTH - 1)
        if len(packed) > self.header_room:
            raise WireError(
                f"{self.kind} frame: header too large", got=f"{len(packed)} bytes", allowed=self.header_room
            )
        view, end = self._view, self._fields_start + len(packed)
        padding_start, payload_bin = end + _BIN.size, self._payload_start - _BIN.size
        struct.pack_into(">I", view, len(MAGIC), end - _HEADER_START)
        view[self._fields_start : end] = packed
        _BIN.pack_into(view, end, _BIN_TAG, payload_bin - padding_start)
        view[padding_start:payload_bin] = bytes(payload_bin - padding_start)  # no trace of an earlier, longer header
        body = view[: -_DIGEST.size]
        _DIGEST.pack_into(view, len(body), _DIGEST_TAG, xxhash.xxh3_64_intdigest(body))
        return self._document


def decode_frame(document: Buffer, *, kind: FrameKind, max_bytes: int = MAX_FRAME_BYTES) -> Frame:
    """Verify and open one frame without copying its arrays.

    Checked in this order: size, magic, lengths, digest, schema, kind, table. Nothing is believed before the digest.

    Raises:
        WireError: anything that `FrameBuffer.seal` would not have written.
    """
    what = f"{kind} frame"
    view = as_bytes(document, what)
    if len(view) > max_bytes:
        raise WireError(f"{what}: size", got=f"{len(view)} bytes", allowed=max_bytes)
    header_end, payload_start = _measure(view, what)
    digest = _verify(view, what)
    # Twice the limit: the constant part and the fields were each packed within it.
    header = unpack_plain(view[_HEADER_START:header_end], what=f"{what} header", max_bytes=2 * MAX_PLAIN_BYTES)
    fields_, layout = _read_header(header, kind)
    payload = np.frombuffer(view.toreadonly(), dtype=np.uint8)[payload_start : -_DIGEST.size]
    if layout.payload_bytes != payload.size:
        raise WireError(f"{what}: payload", got=f"{payload.size} bytes", allowed=f"{layout.payload_bytes} by its table")
    arrays = layout.views(payload)
    _check_booleans(arrays, what)
    return Frame(header=fields_, layout=layout, arrays=arrays, digest=digest)


def _constant_header(layout: FrameLayout, kind: str) -> bytes:
    """The header up to the value of its last key, `fields`: packed once, not at every seal."""
    whole = pack_plain({"schema": FRAME_SCHEMA, "kind": kind, "arrays": layout.to_plain(), "fields": None})
    return whole[:-1]


def _measure(view: memoryview, what: str) -> tuple[int, int]:
    """End of the header and start of the payload, from lengths that add up to the document exactly."""
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise WireError(f"{what}: magic", got=bytes(view[: len(MAGIC)]).hex(), allowed=MAGIC.hex())
    try:
        header_end = _HEADER_START + struct.unpack_from(">I", view, len(MAGIC))[0]
        padding_tag, padding = _BIN.unpack_from(view, header_end)
        payload_start = header_end + 2 * _BIN.size + padding
        payload_tag, payload = _BIN.unpack_from(view, payload_start - _BIN.size)
    except struct.error:
        raise WireError(f"{what}: ends too early", got=f"{len(view)} bytes", allowed="header and payload") from None
    end = payload_start + payload + _DIGEST.size
    if (padding_tag, payload_tag) != (_BIN_TAG, _BIN_TAG) or payload_start % ALIGNMENT:
        raise WireError(f"{what}: layout", got=f"payload at {payload_start}", allowed=f"bins, {ALIGNMENT}-byte aligned")
    if end != len(view):
        raise WireError(f"{what}: length", got=f"{len(view)} bytes", allowed=f"{end} by its own lengths")
    return header_end, payload_start


def _verify(view: memoryview, what: str) -> int:
    body = view[: -_DIGEST.size]
    tag, digest = _DIGEST.unpack_from(view, len(body))
    actual = xxhash.xxh3_64_intdigest(body)
    if tag != _DIGEST_TAG or digest != actual:
        raise WireError(f"{what}: digest", got=f"{actual:016x}", allowed=f"{digest:016x}, written at its end")
    return int(digest)


def _read_header(header: Any, kind: str) -> tuple[dict[str, Any], FrameLayout]:
    known = header if type(header) is dict else {}
    schema = known.get("schema")
    if type(schema) is not int or not 1 <= schema <= FRAME_SCHEMA:
        raise WireError(f"{kind} frame: schema", got=repr(schema), allowed=f"1 to {FRAME_SCHEMA}")
    if known.get("kind") != kind:
        raise WireError("frame: kind", got=repr(known.get("kind")), allowed=repr(kind))
    if type(known.get("fields")) is not dict:
        raise WireError(f"{kind} frame: fields", got=describe(known.get("fields")), allowed="a dict")
    return known["fields"], FrameLayout.from_plain(known.get("arrays"))


def _read_entry(row: object) -> ArrayEntry:
    match row:
        case [str(name), str(dtype), list(shape), int(offset)] if all(type(size) is int for size in (*shape, offset)):
            return ArrayEntry(name=name, dtype=dtype, shape=tuple(shape), offset=offset)
    raise WireError("frame layout: entry", got=f"{row!r:.200}", allowed="[name, dtype, shape, offset]")


def _check_entry(entry: ArrayEntry) -> None:
    if entry.dtype not in DTYPES:
        raise WireError(f"frame layout: dtype of {entry.name}", got=f"{entry.dtype:.80}", allowed=sorted(DTYPES))
    if entry.offset < 0 or entry.offset % ALIGNMENT:
        raise WireError(f"frame layout: offset of {entry.name}", got=entry.offset, allowed=f"multiples of {ALIGNMENT}")
    try:
        check_shape(entry.shape, np.dtype(entry.dtype).itemsize)
    except ValueError as error:
        raise WireError(f"frame layout: shape of {entry.name}", got=entry.shape, allowed=error) from None


def _check_booleans(arrays: Mapping[str, NDArray[Any]], what: str) -> None:
    for name, array in arrays.items():
        if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
            raise WireError(f"{what}: {name}", got="bytes above 1", allowed="booleans of 0 and 1")


def _align(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _aligned_zeros(num_bytes: int) -> NDArray[np.uint8]:
    """Zeros, so that the gaps between arrays are the same bytes in every frame, on a 64-byte boundary of memory."""
    room = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + num_bytes]
