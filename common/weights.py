"""Weight bundles: every parameter of the policy in one flat float32 vector, and the manifest that says which is where.

    module parameters ──► flat vector ──► encode_weights ──► frame ──► decode_weights ──► views by the manifest

A bundle is a frame of `common.frames`, digest last, so an actor proves what it got before acting on it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import WireError
from common.frames import FrameBuffer, FrameLayout, decode_frame
from common.records import record_from_plain, record_to_plain
from common.wire import Buffer, pack_plain

PARAMETER_DTYPE = "float32"
PARAMETERS = "parameters"  # name of the only array of a bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterEntry:
    """One parameter in the flat vector.

    Attributes:
        name: as the module names it.
        shape: C order.
        dtype: always float32.
        offset: first element in the vector.
        size: elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterManifest:
    """The parameters in order, without gaps. Make it with `of`."""

    entries: tuple[ParameterEntry, ...]

    @staticmethod
    def of(parameters: Iterable[tuple[str, tuple[int, ...], str]]) -> ParameterManifest:
        """From name, shape and dtype of each parameter, in the order of the module.

        Raises:
            WireError: a dtype other than float32, a name twice, a negative size.
        """
        entries: list[ParameterEntry] = []
        names: set[str] = set()
        offset = 0
        for name, shape, dtype in parameters:
            if dtype != PARAMETER_DTYPE:
                raise WireError(
                    f"parameter {name}: dtype", got=dtype, allowed=PARAMETER_DTYPE, fix="convert the module"
                )
            if name in names or any(size < 0 for size in shape):
                raise WireError(f"parameter {name}", got=f"shape {shape}", allowed="each name once, no negative size")
            names.add(name)
            size = math.prod(shape)
            entries.append(ParameterEntry(name=name, shape=tuple(shape), dtype=dtype, offset=offset, size=size))
            offset += size
        return ParameterManifest(entries=tuple(entries))

    @property
    def num_elements(self) -> int:
        """Length of the flat vector."""
        return sum(entry.size for entry in self.entries)

    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of `to_plain` as a plain document: names, shapes, dtypes and their order."""
        return hashlib.sha256(pack_plain(self.to_plain(), what="parameter manifest")).hexdigest()

    def to_plain(self) -> list[Any]:
        """`[name, shape, dtype]` each; offsets follow from the order."""
        return [[entry.name, list(entry.shape), entry.dtype] for entry in self.entries]

    @staticmethod
    def from_plain(plain: object) -> ParameterManifest:
        """The inverse of `to_plain`. Raises WireError naming the entry."""
        if type(plain) is not list:
            raise WireError("parameter manifest", got=type(plain).__name__, allowed="a list")
        return ParameterManifest.of(_read_parameter(row) for row in plain)

    def views(self, flat: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Each parameter as a view of `flat`, in order."""
        return {
            entry.name: flat[entry.offset : entry.offset + entry.size].reshape(entry.shape) for entry in self.entries
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsHeader:
    """What a bundle is.

    Attributes:
        run: the run's name.
        term: the learner's term.
        version: names the publication; only grows.
        update: committed updates that the weights contain.
        fingerprint: of the manifest.
        extra: plain values that travel with the weights: the statistics of `common.normalize`, where observations are
            normalised.
    """

    run: str
    term: int
    version: int
    update: int
    fingerprint: str
    extra: dict[str, Any] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Plain values for the wire."""
        return record_to_plain(self)

    @staticmethod
    def from_plain(plain: object) -> WeightsHeader:
        """The inverse of `to_plain`. Raises WireError naming the field."""
        return record_from_plain(WeightsHeader, plain, what="weights header")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """A decoded bundle.

    Attributes:
        header: what it is.
        flat: float32 `[num_elements]`, a read-only view of the document.
        digest: xxh3-64 of the frame.
    """

    header: WeightsHeader
    flat: NDArray[np.float32]
    digest: int


def encode_weights(manifest: ParameterManifest, flat: NDArray[np.float32], header: WeightsHeader) -> NDArray[np.uint8]:
    """One bundle in a buffer of its own (bundles live on while the next is made), copied once.

    Raises:
        WireError: `flat` is not float32 `[num_elements]`, or the header names another manifest.
    """
    _check_fingerprint(header, manifest)
    if flat.dtype != np.float32 or flat.shape != (manifest.num_elements,):
        got, allowed = f"{flat.dtype} {flat.shape}", f"{PARAMETER_DTYPE} ({manifest.num_elements},)"
        raise WireError(f"weights {header.version}: flat vector", got=got, allowed=allowed)
    plain = header.to_plain()
    room = len(pack_plain(plain, what="weights header"))
    frame = FrameBuffer(_frame_layout(manifest), "weights", header_room=room)
    frame.arrays[PARAMETERS][:] = flat
    return frame.seal(plain)


def decode_weights(document: Buffer, manifest: ParameterManifest) -> Weights:
    """Verify a bundle and view its vector; nothing is copied.

    Raises:
        WireError: not a sound frame, or made for another manifest: names both fingerprints.
    """
    frame = decode_frame(document, kind="weights")
    header = WeightsHeader.from_plain(frame.header)
    _check_fingerprint(header, manifest)
    if frame.layout != _frame_layout(manifest):
        got, allowed = frame.layout.to_plain(), _frame_layout(manifest).to_plain()
        raise WireError(f"weights {header.version}: arrays", got=got, allowed=allowed)
    return Weights(header=header, flat=frame.arrays[PARAMETERS], digest=frame.digest)


def parameter_digest(flat: NDArray[np.float32]) -> str:
    """SHA-256 (hexadecimal) of the vector's little-endian bytes: the digest for the record, equal bits only.

    The ledger keeps it for each update; -0.0 and 0.0 differ, and so do two NaNs of different bits.
    """
    return hashlib.sha256(np.ascontiguousarray(flat, dtype="<f4").data).hexdigest()


def _frame_layout(manifest: ParameterManifest) -> FrameLayout:
    return FrameLayout.of({PARAMETERS: (PARAMETER_DTYPE, (manifest.num_elements,))})


def _check_fingerprint(header: WeightsHeader, manifest: ParameterManifest) -> None:
    fingerprint = manifest.fingerprint()
    if header.fingerprint != fingerprint:
        raise WireError(
            f"weights {header.version} of run {header.run!r}: manifest",
            got=header.fingerprint,
            allowed=fingerprint,
            fix="actor and learner must build the same network",
        )


def _read_parameter(row: object) -> tuple[str, tuple[int, ...], str]:
    match row:
        case [str(name), list(shape), str(dtype)] if all(type(size) is int for size in shape):
            return name, tuple(shape), dtype
    raise WireError("parameter manifest: entry", got=f"{row!r:.200}", allowed="[name, shape, dtype]")
