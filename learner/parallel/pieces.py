"""64-bit words as float32 numbers that survive a sum: four pieces of 16 bits, each exact in float32.

A rank writes its words into its own slot of a zeroed tail; the sum over ranks then holds every rank's words, exactly,
because each element is one piece plus zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PIECES_PER_WORD = 4


def to_pieces(words: bytes) -> NDArray[np.float32]:
    """k words, little-endian, as [4 k] numbers from 0 to 65535, lowest piece first."""
    return np.frombuffer(words, dtype="<u2").astype(np.float32)


def from_pieces(pieces: NDArray[np.float32]) -> NDArray[np.uint64] | None:
    """The inverse of `to_pieces` for [..., 4 k]; None if some number is no piece: what carried it was damaged."""
    with np.errstate(invalid="ignore"):
        whole = pieces.astype(np.uint16)  # outside 0 to 65535 the result is unspecified, and then unequal below
    if not np.array_equal(whole, pieces):
        return None
    return np.ascontiguousarray(whole).view("<u8").astype(np.uint64, copy=False)
