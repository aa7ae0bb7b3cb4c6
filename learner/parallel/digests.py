"""Digests of float32 vectors by chunk, on the device where they live.

On a CPU: xxh3-64 of the bytes (15 GB/s and more on one core). On a GPU: a sum of products in integers modulo 2^64,

    d = Σ_i (bits(x_i) + 1) * w_i,     w_i odd, distinct in their low 33 bits, the same for every chunk

What the second one sees for certain: any change of a single element (the difference of two 32-bit patterns is not 0 and
below 2^32, and an odd factor keeps it from vanishing), and any swap of two unequal elements (their difference, at most
31 factors of two, times the difference of two weights, at most 32, is no multiple of 2^64). What neither can promise:
changes of several elements that cancel; by chance 1 in 2^64, and both are open to somebody who *wants* to forge one.
Neither sees what all ranks have alike: that is what conservation and audits are for.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

CHUNK_ELEMENTS = 16_384  # 64 KiB: 4 µs of hashing, so that the call itself (0.2 µs) does not count


def chunk_bounds(start: int, stop: int, size: int = CHUNK_ELEMENTS) -> list[tuple[int, int]]:
    """Chunks of `size` elements that cover [start, stop), the last one shorter."""
    return [(a, min(a + size, stop)) for a in range(start, stop, size)]


def digest_chunks(vector: Tensor, bounds: list[tuple[int, int]]) -> NDArray[np.uint64]:
    """A digest for each chunk of `vector` (float32, contiguous)."""
    return Digester(vector, bounds)()


class Digester:
    """Digests of the same chunks of the same vector, again and again."""

    def __init__(self, vector: Tensor, bounds: list[tuple[int, int]]) -> None:
        self._vector = vector
        self._bounds = bounds
        on_host = vector.device.type == "cpu"
        self._views = [vector.detach().numpy()[a:b].data for a, b in bounds] if on_host else None

    def __call__(self) -> NDArray[np.uint64]:
        """As the vector is now."""
        if self._views is None:
            return weighted_digests(self._vector, self._bounds)
        return np.array([xxhash.xxh3_64_intdigest(view) for view in self._views], dtype=np.uint64)


def weighted_digests(vector: Tensor, bounds: list[tuple[int, int]]) -> NDArray[np.uint64]:
    """The integer digest of each chunk, computed where `vector` lives, be it a CPU.

    `bounds` are those of `chunk_bounds`: adjacent, of one size but for the last.
    """
    if not bounds:
        return np.zeros(0, dtype=np.uint64)
    start, stop = bounds[0][0], bounds[-1][1]
    size = bounds[0][1] - start
    bits = vector.detach()[start:stop].view(torch.int32)
    weights = _weights(str(vector.device), size)
    whole = len(bits) - len(bits) % size
    sums = _weighted(bits[:whole].view(-1, size), weights)
    if whole < len(bits):
        sums = torch.cat([sums, _weighted(bits[None, whole:], weights)])
    return sums.cpu().numpy().view(np.uint64)


def _weighted(bits: Tensor, weights: Tensor) -> Tensor:
    return ((bits.to(torch.int64) + 1) * weights[: bits.shape[1]]).sum(1)


@cache
def _weights(device: str, size: int) -> Tensor:
    """Odd, and distinct below bit 33: bits 1 to 32 are the index times an odd number, modulo 2^32."""
    index = np.arange(size, dtype=np.uint64)
    with np.errstate(over="ignore"):
        low = (index * np.uint64(0x9E3779B1) & np.uint64(0xFFFFFFFF)) * np.uint64(2) + np.uint64(1)
        high = (index + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(33) << np.uint64(33)
    return torch.from_numpy((low | high).view(np.int64)).to(device)


def combined(digests: NDArray[np.uint64], step: int) -> int:
    """One digest of many, bound to the step they are of."""
    return xxhash.xxh3_64_intdigest(digests.tobytes(), seed=step & 0xFFFFFFFF)


def sha256_of(vector: Tensor, bounds: tuple[int, int]) -> str:
    """SHA-256 (hexadecimal) of a chunk's bytes, for the record."""
    return sha256(vector[bounds[0] : bounds[1]].detach().cpu().numpy().tobytes()).hexdigest()
