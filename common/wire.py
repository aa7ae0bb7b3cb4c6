"""The only codec: plain documents and array frames, both valid MessagePack.

Every byte is laid out in docs/wire-format.md.

    pack_plain(value)  ──►  bytes  ──►  unpack_plain(data)         small values: headers, snapshots, manifests
    FrameBuffer.arrays ──►  seal(header)  ──►  decode_frame(data)  large arrays: nothing is copied, either way

Two promises. What the sender may pack, the receiver can read: everything else is refused at *encode*, with the path
of the key. What the receiver cannot trust is one `WireError`: no code runs, no pickle, no allocation that the message
did not pay for in bytes.
"""

from __future__ import annotations

import math
import struct
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar

import msgpack
import numpy as np
import xxhash
from numpy.typing import DTypeLike, NDArray

from common.errors import WireError

MAX_PLAIN_BYTES = 64 << 20
MAX_FRAME_BYTES = 4 << 30
MAX_DEPTH = 32
MAX_VALUES = 1 << 20  # an empty list is one byte on the wire and 72 in memory: values are limited, not only bytes
MAX_BIN_BYTES = 2**32 - 1  # the length of a MessagePack bin, str or ext is 32 bits
MAX_DIMENSIONS = 32  # numpy 1's limit
DTYPES = frozenset(("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"))
ALLOWED_VALUES = (
    "None, bool, int of 64 bits, float, str, bytes, list, tuple, dict with str keys, numeric numpy arrays and "
    "scalars, BFloat16Bits; exactly these classes"
)

# Extension codes of plain documents: append only, never reused.
EXT_TUPLE = 1
EXT_ARRAY = 2
EXT_SCALAR = 3
EXT_BFLOAT16 = 4

FRAME_SCHEMA = 1
ALIGNMENT = 64
MAGIC = b"\x96\xa8truestep\xce"  # an array of six; the first is the magic; the tag of the second, a uint32
_HEADER_START = len(MAGIC) + 4
_BIN = struct.Struct(">BI")  # tag 0xc6 and length
_BIN_TAG = 0xC6
_DIGEST = struct.Struct(">BQ")  # tag 0xcf and xxh3-64
_DIGEST_TAG = 0xCF

FrameKind: TypeAlias = Literal["fragment", "weights"]
Buffer: TypeAlias = bytes | memoryview | NDArray[np.uint8]
Record = TypeVar("Record")


# ── plain documents ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BFloat16Bits:
    """bfloat16 values as their bits, since numpy has no such type. `bits`: uint16 of any shape."""

    bits: NDArray[np.uint16]


def pack_plain(
    value: object, *, what: str = "document", max_bytes: int = MAX_PLAIN_BYTES, max_depth: int = MAX_DEPTH
) -> bytes:
    """`value` as one MessagePack document that `unpack_plain` returns equal in value *and* type.

    Allowed are exactly the classes of `ALLOWED_VALUES`. Arrays may have any layout and byte order. Equal values give
    equal bytes (dicts in their own order), so digests of documents are meaningful.

    Raises:
        WireError: anything else, a cycle, or more than the limits; names `what` and the path, e.g. `lanes[3].state`.
    """
    return _Writer(what, max_bytes, max_depth).document(value)


def unpack_plain(
    data: Buffer, *, what: str = "document", max_bytes: int = MAX_PLAIN_BYTES, max_depth: int = MAX_DEPTH
) -> Any:
    """The value that `pack_plain` packed. Arrays come out C-contiguous, native, writable and owned.

    Memory is bounded by three times the message plus about 100 bytes for each of at most `MAX_VALUES` values.

    Raises:
        WireError: damaged, hostile or foreign bytes, whatever they are.
    """
    view = _as_bytes(data, what)
    if not 0 < len(view) <= max_bytes:
        raise WireError(f"{what}: size", got=f"{len(view)} bytes", allowed=f"1 to {max_bytes}")
    return _Reader(view, what, max_depth).document()


class _Walk:
    """What writing and reading share: where in the document we are, and the limits on depth and number of values."""

    def __init__(self, what: str, max_depth: int) -> None:
        self._what = what
        self._max_depth = max_depth
        self._path: list[str | int] = []
        self._num_values = 0

    def _enter(self) -> None:
        if len(self._path) >= self._max_depth:
            raise self._error("nested too deep", got=f"over {self._max_depth} levels", allowed=self._max_depth)

    def _count(self) -> None:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise self._error("too many values", got=f"over {MAX_VALUES}", allowed=MAX_VALUES, fix="use an array")

    def _error(self, problem: str, *, got: object = None, allowed: object = None, fix: str = "") -> WireError:
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self._path).lstrip(".")
        where = f" at {path}" if path else ""
        return WireError(f"{self._what}{where}: {problem}", got=got, allowed=allowed, fix=fix)


class _Writer(_Walk):
    """Packs by exact class: np.float64 is a float and bool is an int to isinstance, and both must come back as sent."""

    def __init__(self, what: str, max_bytes: int, max_depth: int) -> None:
        super().__init__(what, max_depth)
        self._max_bytes = min(max_bytes, MAX_BIN_BYTES)
        self._packer = msgpack.Packer(autoreset=False, strict_types=True)

    def document(self, value: object) -> bytes:
        self._value(value)
        data: bytes = self._packer.bytes()
        self._fit(len(data))
        return data

    def _value(self, value: Any) -> None:
        self._count()
        kind = type(value)
        if value is None or kind is bool or kind is float:
            self._packer.pack(value)
        elif kind is int:
            self._integer(value)
        elif kind is str:
            self._text(value)
        elif kind is bytes:
            self._fit(len(value))
            self._packer.pack(value)
        elif kind is dict:
            self._mapping(value)
        elif kind is list or kind is tuple:
            self._sequence(value)
        else:
            self._numeric(value)

    def _integer(self, value: int) -> None:
        if not -(2**63) <= value < 2**64:
            raise self._error("integer", got=f"{value.bit_length()} bits", allowed="-2**63 to 2**64 - 1", fix="use hex")
        self._packer.pack(value)

    def _text(self, value: str) -> None:
        self._fit(len(value))
        try:
            self._packer.pack(value)
        except UnicodeEncodeError as error:
            raise self._error("text", got=ascii(value[error.start]), allowed="no lone surrogates") from None

    def _mapping(self, value: dict[Any, Any]) -> None:
        self._enter()
        self._packer.pack_map_header(len(value))
        for key, item in value.items():
            if type(key) is not str:
                raise self._error("key", got=f"{type(key).__name__} {key!r:.80}", allowed="str")
            self._path.append(key)
            self._text(key)
            self._value(item)
            self._path.pop()

    def _sequence(self, value: list[Any] | tuple[Any, ...]) -> None:
        self._enter()
        is_tuple = type(value) is tuple
        self._packer.pack_array_header(len(value) + is_tuple)
        if is_tuple:
            self._packer.pack_ext_type(EXT_TUPLE, b"")
        for index, item in enumerate(value):
            self._path.append(index)
            self._value(item)
            self._path.pop()

    def _numeric(self, value: Any) -> None:
        kind = type(value)
        if kind is np.ndarray:
            self._array(EXT_ARRAY, value)
        elif kind is BFloat16Bits:
            if type(value.bits) is not np.ndarray or value.bits.dtype != np.uint16:
                raise self._error("bfloat16 bits", got=_describe(value.bits), allowed="a uint16 array")
            self._array(EXT_BFLOAT16, value.bits)
        elif issubclass(kind, np.generic) and value.dtype.type is kind:
            self._array(EXT_SCALAR, np.asarray(value))
        else:
            raise self._error("cannot be packed", got=_describe(value), allowed=ALLOWED_VALUES)

    def _array(self, code: int, array: NDArray[Any]) -> None:
        dtype = array.dtype.newbyteorder("<")
        if dtype.str not in DTYPES:
            raise self._error("dtype", got=_describe(array), allowed=", ".join(sorted(DTYPES)))
        self._fit(array.nbytes)  # before tobytes: a broadcast view may be larger than memory
        try:
            _check_shape(array.shape, dtype.itemsize)
        except ValueError as error:
            raise self._error("shape", got=array.shape, allowed=error) from None
        head = struct.pack(f"<4sB{array.ndim}Q", dtype.str.encode(), array.ndim, *array.shape)
        self._packer.pack_ext_type(code, head + array.astype(dtype, copy=False).tobytes())

    def _fit(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise self._error("too large", got=f"{num_bytes} bytes", allowed=self._max_bytes, fix="split it")


class _Reader(_Walk):
    """A strict pull parser: msgpack reads every scalar and header, but nesting, counts and keys are judged here.

    Handing the whole message to `unpackb` would let it allocate what array headers merely claim. Extensions are read
    here and not in the library's hook: a hook bound to the reader is a cycle that keeps the message until the
    collector runs.
    """

    _TUPLE = object()

    def __init__(self, data: memoryview, what: str, max_depth: int) -> None:
        super().__init__(what, max_depth)
        self._data = data
        self._unpacker = msgpack.Unpacker(max_buffer_size=len(data))
        self._unpacker.feed(data)

    def document(self) -> Any:
        value = self._value()
        if self._unpacker.tell() != len(self._data):
            raise self._error("bytes after the end", got=len(self._data) - self._unpacker.tell(), allowed=0)
        return value

    def _value(self) -> Any:
        value = self._value_or_tuple_tag()
        if value is self._TUPLE:
            raise self._error("tuple tag", got="a tag that stands alone", allowed="first in an array")
        return value

    def _value_or_tuple_tag(self) -> Any:
        self._count()
        position = self._unpacker.tell()
        if position >= len(self._data):
            raise self._error("ends too early", got=f"{position} bytes", allowed="one whole value")
        tag = self._data[position]
        if 0x90 <= tag <= 0x9F or tag in (0xDC, 0xDD):
            return self._sequence()
        if 0x80 <= tag <= 0x8F or tag in (0xDE, 0xDF):
            return self._mapping()
        return self._read(self._unpacker.unpack)

    def _read(self, read: Any) -> Any:
        try:
            value = read()
        except (msgpack.UnpackException, ValueError) as error:
            raise self._error("not MessagePack", got=f"{type(error).__name__} {error}") from None
        if type(value) is msgpack.Timestamp:  # the library's reading of code -1
            raise self._error("extension", got="code -1", allowed="codes 1 to 4")
        return self._extension(value.code, value.data) if type(value) is msgpack.ExtType else value

    def _open(self, read_header: Any, bytes_each: int) -> int:
        self._enter()
        length = int(self._read(read_header))
        left = len(self._data) - self._unpacker.tell()
        if length * bytes_each > left:
            raise self._error("length", got=f"{length} items in {left} bytes", allowed=f"{left // bytes_each}")
        return length

    def _sequence(self) -> list[Any] | tuple[Any, ...]:
        items: list[Any] = []
        for index in range(self._open(self._unpacker.read_array_header, 1)):
            self._path.append(index)
            items.append(self._value() if index else self._value_or_tuple_tag())
            self._path.pop()
        return tuple(items[1:]) if items and items[0] is self._TUPLE else items

    def _mapping(self) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for _ in range(self._open(self._unpacker.read_map_header, 2)):
            key = self._value()
            if type(key) is not str or key in items:
                problem = "key twice" if type(key) is str else "key"
                raise self._error(problem, got=f"{type(key).__name__} {key!r:.80}", allowed="str, each once")
            self._path.append(key)
            items[key] = self._value()
            self._path.pop()
        return items

    def _extension(self, code: int, data: bytes) -> Any:
        if code == EXT_TUPLE and not data:
            return self._TUPLE
        if code not in (EXT_ARRAY, EXT_SCALAR, EXT_BFLOAT16):
            raise self._error("extension", got=f"code {code}, {len(data)} bytes", allowed="codes 1 to 4")
        array = self._array(data)
        if code == EXT_ARRAY:
            return array
        if code == EXT_SCALAR and array.ndim == 0:
            return array[()]
        if code == EXT_BFLOAT16 and array.dtype == np.uint16:
            return BFloat16Bits(bits=array)
        raise self._error(f"extension {code}", got=_describe(array), allowed="a 0-d scalar (3), uint16 bits (4)")

    def _array(self, data: bytes) -> NDArray[Any]:
        try:
            name, ndim = struct.unpack_from("<4sB", data)
            shape = struct.unpack_from(f"<{ndim}Q", data, 5)
            view = _array_view(memoryview(data)[5 + 8 * ndim :], name.rstrip(b"\0").decode("ascii"), shape)
        except (struct.error, ValueError) as error:
            raise self._error("array", got=f"{data[:5]!r}, {len(data)} bytes", allowed=error) from None
        return view.astype(view.dtype.newbyteorder("="))  # owned, aligned, writable, native


def _describe(value: Any) -> str:
    kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
    if isinstance(value, np.ndarray):
        return f"{kind} of dtype {value.dtype} and shape {value.shape}"
    return f"{kind} {value!r:.80}"


def _check_shape(shape: tuple[int, ...], itemsize: int) -> None:
    """ValueError unless `shape` is one that any numpy can hold and a bin can carry (empty axes counted as one)."""
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"at most {MAX_DIMENSIONS} dimensions")
    if any(size < 0 for size in shape):
        raise ValueError("no negative size")
    if math.prod(max(size, 1) for size in shape) * itemsize > MAX_BIN_BYTES:
        raise ValueError(f"at most {MAX_BIN_BYTES} bytes")


def _array_view(data: memoryview, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A read-only view of exactly `data`. Raises ValueError, saying what is allowed, before numpy sees anything odd."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype one of {', '.join(sorted(DTYPES))}")
    kind = np.dtype(dtype)
    _check_shape(shape, kind.itemsize)
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"{math.prod(shape) * kind.itemsize} bytes for shape {shape} of {dtype}")
    if not len(data):
        return np.frombuffer(b"", dtype=kind).reshape(shape)
    view = np.frombuffer(data.toreadonly(), dtype=np.uint8)
    if kind.kind == "b" and view.max() > 1:
        raise ValueError("booleans of 0 and 1")
    return view.view(kind).reshape(shape)


def _as_bytes(data: Any, what: str) -> memoryview:
    """Any contiguous buffer as bytes, without a copy."""
    try:
        view = memoryview(data)
        return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B")
    except (TypeError, ValueError) as error:
        raise WireError(f"{what}: no bytes", got=_describe(data), allowed=f"a contiguous buffer ({error})") from None


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────


def record_to_plain(record: Any) -> dict[str, Any]:
    """A flat dataclass as a dict by field name, in the order of the fields."""
    return {item.name: getattr(record, item.name) for item in fields(record)}


def record_from_plain(kind: Callable[..., Record], plain: object, *, what: str) -> Record:
    """The inverse, strict: exact classes; a missing field takes its default or is an error; unknown ones are newer.

    Raises:
        WireError: names the field, its value and its type.
    """
    if type(plain) is not dict:
        raise WireError(f"{what}: no fields", got=_describe(plain), allowed="a dict")
    expected = _field_classes(kind)
    missing = [name for name, (_, required) in expected.items() if required and name not in plain]
    if missing:
        raise WireError(f"{what}: missing {', '.join(missing)}", got=sorted(plain), allowed=list(expected))
    values = {name: plain[name] for name in expected if name in plain}
    for name, value in values.items():
        if type(value) is not expected[name][0]:
            raise WireError(f"{what}: {name}", got=_describe(value), allowed=expected[name][0].__name__)
    return kind(**values)


@cache
def _field_classes(kind: Any) -> dict[str, tuple[type, bool]]:
    """Per field its class and whether it is required."""
    hints = typing.get_type_hints(kind)
    classes = {name: typing.get_origin(hint) or hint for name, hint in hints.items()}
    return {
        item.name: (classes[item.name], item.default is MISSING and item.default_factory is MISSING)
        for item in fields(kind)
    }


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────


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
            raise WireError("frame layout: no table", got=_describe(plain), allowed="a list")
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
    view = _as_bytes(document, what)
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
        raise WireError(f"{kind} frame: fields", got=_describe(known.get("fields")), allowed="a dict")
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
        _check_shape(entry.shape, np.dtype(entry.dtype).itemsize)
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
