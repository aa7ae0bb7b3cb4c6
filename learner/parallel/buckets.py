"""The flat gradient cut into buckets that are sent off while the backward pass still fills the others.

Parameters are used in the order of the vector, so the backward pass fills it from its end: bucket 0 is the end of the
vector with the tail behind it, and buckets go off in this order on every rank, whatever the order of hooks there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from common.parameters import FlatParameters
from common.weights import ParameterManifest
from learner.parallel.digests import chunk_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Part of the flat gradient that is reduced at once.

    Attributes:
        index: place in the order of sending.
        start, stop: elements of the gradient; bucket 0 is sent with the tail behind `stop`.
        parameters: which parameters lie in it, by index in the manifest.
    """

    index: int
    start: int
    stop: int
    parameters: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Part of a bucket that has a digest of its own. Chunks are numbered by `start`, over the whole vector."""

    bucket: int
    start: int
    stop: int


def plan_buckets(manifest: ParameterManifest, capacity: int) -> tuple[Bucket, ...]:
    """Whole parameters, from the last to the first, until a bucket holds `capacity` elements or more."""
    buckets: list[Bucket] = []
    members: list[int] = []
    for i in range(len(manifest.entries) - 1, -1, -1):
        members.insert(0, i)
        first, last = manifest.entries[members[0]], manifest.entries[members[-1]]
        if last.offset + last.size - first.offset >= capacity or i == 0:
            stop = last.offset + last.size
            buckets.append(Bucket(index=len(buckets), start=first.offset, stop=stop, parameters=tuple(members)))
            members = []
    return tuple(buckets)


def plan_chunks(buckets: tuple[Bucket, ...], num_tail: int) -> tuple[Chunk, ...]:
    """All chunks in the order of the vector; the last one of bucket 0 ends behind the tail."""
    chunks: list[Chunk] = []
    for bucket in sorted(buckets, key=lambda bucket: bucket.start):
        stop = bucket.stop + (num_tail if bucket.index == 0 else 0)
        chunks += [Chunk(bucket=bucket.index, start=a, stop=b) for a, b in chunk_bounds(bucket.start, stop)]
    return tuple(chunks)


def names_between(manifest: ParameterManifest, start: int, stop: int) -> tuple[str, ...]:
    """Parameters that have an element in [start, stop)."""
    return tuple(e.name for e in manifest.entries if e.offset < stop and start < e.offset + e.size)


class BackwardOrder:
    """Watches a backward pass: calls `send` with each bucket, in order, as soon as its gradients are complete."""

    def __init__(self, parameters: FlatParameters, buckets: tuple[Bucket, ...], send: Callable[[Bucket], None]) -> None:
        self._buckets = buckets
        self._send = send
        self._missing = [0] * len(buckets)
        self._next = len(buckets)
        trained = [part.requires_grad for part in parameters.parts]
        self._due = [sum(trained[i] for i in bucket.parameters) for bucket in buckets]
        self._handles = [
            self._watch(parameters.parts[i], bucket.index)
            for bucket in buckets
            for i in bucket.parameters
            if trained[i]
        ]

    def begin(self) -> None:
        """The next gradient that comes in is of a new backward pass."""
        self._missing = list(self._due)
        self._next = 0

    def finish(self) -> None:
        """Send what no gradient came in for: unused parameters, or a rank without rows."""
        while self._next < len(self._buckets):
            self._send_next()

    def close(self) -> None:
        """Watch no more."""
        for handle in self._handles:
            handle.remove()

    def _watch(self, parameter: Tensor, bucket: int) -> RemovableHandle:
        def arrived(parameter: Tensor) -> None:
            if self._next == len(self._buckets):
                return  # nobody has begun a pass: a recomputation
            self._missing[bucket] -= 1
            while self._next < len(self._buckets) and self._missing[self._next] <= 0:
                self._send_next()

        return parameter.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call,no-any-return]

    def _send_next(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        self._send(bucket)
