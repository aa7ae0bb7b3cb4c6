"""The only codec: plain documents, valid MessagePack. `common.frames` lays arrays out on top of it.

Every byte is laid out in docs/wire-format.md.

    pack_plain(value)  ──►  bytes  ──►  unpack_plain(data)     headers, snapshots, manifests

Two promises. What the sender may pack, the receiver can read: everything else is refused at *encode*, with the path
of the key. What the receiver cannot trust is one `WireError`: no code runs, no pickle, no allocation that the message
did not pay for in bytes.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

from common.errors import WireError

MAX_PLAIN_BYTES = 64 << 20
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

Buffer: TypeAlias = bytes | memoryview | NDArray[np.uint8]


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
    view = as_bytes(data, what)
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
                raise self._error("bfloat16 bits", got=describe(value.bits), allowed="a uint16 array")
            self._array(EXT_BFLOAT16, value.bits)
        elif issubclass(kind, np.generic) and value.dtype.type is kind:
            self._array(EXT_SCALAR, np.asarray(value))
        else:
            raise self._error("cannot be packed", got=describe(value), allowed=ALLOWED_VALUES)

    def _array(self, code: int, array: NDArray[Any]) -> None:
        dtype = array.dtype.newbyteorder("<")
        if dtype.str not in DTYPES:
            raise self._error("dtype", got=describe(array), allowed=", ".join(sorted(DTYPES)))
        self._fit(array.nbytes)  # before tobytes: a broadcast view may be larger than memory
        try:
            check_shape(array.shape, dtype.itemsize)
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
        raise self._error(f"extension {code}", got=describe(array), allowed="a 0-d scalar (3), uint16 bits (4)")

    def _array(self, data: bytes) -> NDArray[Any]:
        try:
            name, ndim = struct.unpack_from("<4sB", data)
            shape = struct.unpack_from(f"<{ndim}Q", data, 5)
            view = _array_view(memoryview(data)[5 + 8 * ndim :], name.rstrip(b"\0").decode("ascii"), shape)
        except (struct.error, ValueError) as error:
            raise self._error("array", got=f"{data[:5]!r}, {len(data)} bytes", allowed=error) from None
        return view.astype(view.dtype.newbyteorder("="))  # owned, aligned, writable, native


def describe(value: Any) -> str:
    kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
    if isinstance(value, np.ndarray):
        return f"{kind} of dtype {value.dtype} and shape {value.shape}"
    return f"{kind} {value!r:.80}"


def check_shape(shape: tuple[int, ...], itemsize: int) -> None:
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
    check_shape(shape, kind.itemsize)
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"{math.prod(shape) * kind.itemsize} bytes for shape {shape} of {dtype}")
    if not len(data):
        return np.frombuffer(b"", dtype=kind).reshape(shape)
    view = np.frombuffer(data.toreadonly(), dtype=np.uint8)
    if kind.kind == "b" and view.max() > 1:
        raise ValueError("booleans of 0 and 1")
    return view.view(kind).reshape(shape)


def as_bytes(data: Any, what: str) -> memoryview:
    """Any contiguous buffer as bytes, without a copy."""
    try:
        view = memoryview(data)
        return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B")
    except (TypeError, ValueError) as error:
        raise WireError(f"{what}: no bytes", got=describe(data), allowed=f"a contiguous buffer ({error})") from None
