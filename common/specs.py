"""What an observation and an action look like, independent of any environment library.

One stored form, stated here and used everywhere (frames, replay, networks, checkpoints):

| space          | stored dtype        | stored value                    | environment's value |
| ---            | ---                 | ---                             | ---                 |
| Box            | the declared dtype  | the value itself                | the same            |
| Discrete       | int64               | index 0..n-1                    | index + start       |
| MultiDiscrete  | int64               | indices 0..nvec-1               | indices + start     |
| MultiBinary    | int8                | 0 or 1                          | the same            |

Continuous *actions* are stored as the distribution drew them (before squashing or clipping); `common/distributions`
turns them into the environment's range.

The rule of conversion: a value whose dtype casts safely to the declared one (numpy's "safe") is converted; whatever
would lose information or change shape is a `SpecViolation`. Nothing is broadcast, reshaped, transposed or rounded.
Bounds are enforced for integer spaces; for floating Box they are advisory, since most environments exceed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["box", "discrete", "multi_discrete", "multi_binary"]
STORED_DTYPE: dict[str, str] = {"discrete": "int64", "multi_discrete": "int64", "multi_binary": "int8"}
BOX_DTYPES = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
)


class SpecViolation(ValueError):
    """A value that does not obey its spec. The caller knows environment, lane, tick and key, and adds them."""

    def __init__(self, got: str, expected: str) -> None:
        self.got = got
        self.expected = expected
        super().__init__(f"got {got}, expected {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySpec:
    """One array of an observation or action, for one lane.

    Attributes:
        kind: the family of space.
        shape: shape for one lane; () for Discrete.
        dtype: stored dtype, native byte order.
        low: Box only: bounds flattened in C order, or a single number if uniform.
        high: likewise.
        nvec: numbers of choices, flattened; one for Discrete; empty for Box and MultiBinary.
        start: first environment value of each choice, as long as `nvec`.
    """

    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    nvec: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "box" and self.dtype not in BOX_DTYPES:
            raise SpecViolation(f"Box of dtype {self.dtype}", f"one of {sorted(BOX_DTYPES)}")
        if self.kind != "box" and self.dtype != STORED_DTYPE[self.kind]:
            raise SpecViolation(f"{self.kind} stored as {self.dtype}", STORED_DTYPE[self.kind])
        if any(size < 0 for size in self.shape):
            raise SpecViolation(f"shape {self.shape}", "no negative size")
        self._check_declared_choices()
        self._check_declared_bounds()

    def _check_declared_choices(self) -> None:
        choices = self.size if self.kind in ("discrete", "multi_discrete") else 0
        if len(self.nvec) != choices:
            raise SpecViolation(f"{len(self.nvec)} numbers of choices", f"{choices} for {self.kind} of {self.shape}")
        if len(self.nvec) != len(self.start):
            raise SpecViolation(f"{len(self.start)} starts", f"{len(self.nvec)}, one per choice")
        if any(count < 1 for count in self.nvec):
            raise SpecViolation(f"numbers of choices {self.nvec}", "at least 1 each")

    def _check_declared_bounds(self) -> None:
        if len(self.low) != len(self.high) or len(self.low) not in (0, 1, self.size):
            raise SpecViolation(
                f"{len(self.low)} low and {len(self.high)} high bounds", f"none, 1 or {self.size} of each"
            )
        if not all(low <= high for low, high in zip(self.low, self.high, strict=True)):
            raise SpecViolation(f"low {self.low}, high {self.high}", "no low bound above its high one")

    @property
    def size(self) -> int:
        """Elements of one lane's value."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def num_bytes(self) -> int:
        """Bytes of one lane's value."""
        return self.size * np.dtype(self.dtype).itemsize

    def describe(self) -> str:
        """What is expected, in the words of an error message."""
        match self.kind:
            case "box":
                return f"Box of shape {self.shape}, dtype {self.dtype}"
            case "discrete":
                return f"an integer from {self.start[0]} to {self.start[0] + self.nvec[0] - 1}"
            case "multi_discrete":
                return f"integers of shape {self.shape} below {list(self.nvec)} from {list(self.start)}"
            case "multi_binary":
                return f"zeros and ones of shape {self.shape}"

    def check(self, value: Any) -> NDArray[Any]:
        """One lane's value in stored form. Raises `SpecViolation`; never casts lossily, never broadcasts."""
        return self._check(value, self.shape)

    def check_batch(self, value: Any, num_lanes: int) -> NDArray[Any]:
        """The same for `num_lanes` values stacked on the first axis."""
        return self._check(value, (num_lanes, *self.shape))

    def _check(self, value: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        array = self._as_array(value)
        if array.shape != shape:
            raise SpecViolation(f"shape {array.shape}, dtype {array.dtype}", f"{self.describe()} (shape {shape})")
        if self.kind == "box":
            return self._check_box(array)
        return self._check_choices(array)

    def _as_array(self, value: Any) -> NDArray[Any]:
        if value is None:
            raise SpecViolation("None", self.describe())
        if isinstance(value, np.ma.MaskedArray):
            raise SpecViolation("a masked array", self.describe())
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise SpecViolation(f"{type(value).__name__} that is no array ({error})", self.describe()) from None
        if array.dtype.kind not in "biuf":
            raise SpecViolation(f"{type(value).__name__} of dtype {array.dtype}", self.describe())
        return array

    def _check_box(self, array: NDArray[Any]) -> NDArray[Any]:
        if array.dtype != self.dtype:
            if not np.can_cast(array.dtype, self.dtype, "safe"):
                raise SpecViolation(
                    f"dtype {array.dtype}", f"{self.describe()} ({array.dtype} to {self.dtype} is lossy)"
                )
            array = array.astype(self.dtype)
        if array.dtype.kind in "iu" and self.low and array.size:
            self._check_integer_bounds(array)
        return array

    def _check_integer_bounds(self, array: NDArray[Any]) -> None:
        limits = np.iinfo(self.dtype)
        if self.low == (float(limits.min),) and self.high == (float(limits.max),):
            return
        low, high = self._bounds_like(self.low), self._bounds_like(self.high)
        if (array < low).any() or (array > high).any():
            raise SpecViolation(f"values from {array.min()} to {array.max()}", f"{self.describe()} within its bounds")

    def _bounds_like(self, bounds: tuple[float, ...]) -> Any:
        return bounds[0] if len(bounds) == 1 else np.asarray(bounds).reshape(self.shape)

    def _check_choices(self, array: NDArray[Any]) -> NDArray[Any]:
        if array.dtype.kind == "f" or (array.dtype.kind == "b" and self.kind != "multi_binary"):
            raise SpecViolation(f"dtype {array.dtype}", self.describe())
        if self.kind == "multi_binary":
            if array.size and not np.isin(array, (0, 1)).all():
                raise SpecViolation(f"values from {array.min()} to {array.max()}", self.describe())
            return array.astype(np.int8)
        if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
            raise SpecViolation(f"{array.max()}", self.describe())
        index = np.asarray(array.astype(np.int64) - self.start_array())  # numpy makes a scalar of a 0-d difference
        if index.size and ((index < 0).any() or (index >= self._nvec_array()).any()):
            bad = array[(index < 0) | (index >= self._nvec_array())]
            raise SpecViolation(f"{bad.reshape(-1)[0]}", self.describe())
        return index

    def start_array(self) -> NDArray[np.int64]:
        """First environment value of each choice, shaped like one lane's value."""
        return np.asarray(self.start, dtype=np.int64).reshape(self.shape)

    def _nvec_array(self) -> NDArray[np.int64]:
        return np.asarray(self.nvec, dtype=np.int64).reshape(self.shape)

    def low_array(self) -> NDArray[np.float64]:
        """Box bounds, shaped like one lane's value; -inf where unbounded."""
        return self._bounds_array(self.low or (-np.inf,))

    def high_array(self) -> NDArray[np.float64]:
        """Box bounds, shaped like one lane's value; +inf where unbounded."""
        return self._bounds_array(self.high or (np.inf,))

    def _bounds_array(self, bounds: tuple[float, ...]) -> NDArray[np.float64]:
        return np.broadcast_to(np.asarray(self._bounds_like(bounds)), self.shape).astype(np.float64)

    def is_image(self) -> bool:
        """uint8 and rank 3: what the convolutional networks take (channels last or first by config)."""
        return self.kind == "box" and self.dtype == "uint8" and len(self.shape) == 3

    def to_plain(self) -> dict[str, Any]:
        """Plain values for the wire and for checkpoints."""
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "low": list(self.low),
            "high": list(self.high),
            "nvec": list(self.nvec),
            "start": list(self.start),
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> ArraySpec:
        """The inverse of `to_plain`; validates as the constructor does."""
        return ArraySpec(
            kind=plain["kind"],
            shape=tuple(int(size) for size in plain["shape"]),
            dtype=str(plain["dtype"]),
            low=tuple(float(bound) for bound in plain["low"]),
            high=tuple(float(bound) for bound in plain["high"]),
            nvec=tuple(int(count) for count in plain["nvec"]),
            start=tuple(int(first) for first in plain["start"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSpec:
    """An observation: named arrays in a fixed order.

    The only part of a plain space is named `"obs"`; parts of a Dict (or Tuple) space are `"obs/<key>"`, nested keys
    joined by `/`, in the order of the space. These names are also the names of the arrays in a frame.
    """

    parts: tuple[tuple[str, ArraySpec], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.parts]
        if not names or len(set(names)) != len(names):
            raise SpecViolation(f"parts {names}", "at least one part, each named once")

    def __iter__(self) -> Iterator[tuple[str, ArraySpec]]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, name: str) -> ArraySpec:
        return dict(self.parts)[name]

    def to_plain(self) -> list[Any]:
        """Plain values for the wire and for checkpoints."""
        return [[name, spec.to_plain()] for name, spec in self.parts]

    @staticmethod
    def from_plain(plain: list[Any]) -> SpaceSpec:
        """The inverse of `to_plain`."""
        return SpaceSpec(parts=tuple((str(name), ArraySpec.from_plain(spec)) for name, spec in plain))
