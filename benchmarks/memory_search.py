"""Where in its own memory a process holds certain bytes (Linux): the honest way to count copies.

Only pages that the process has touched are read, so a shared mapping of many gigabytes costs nothing and no page comes
to be by looking at it. What was freed but not written over is found too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CHUNK_PAGES = 4096
PRESENT = np.uint64(1 << 63)
UNREADABLE = ("[vvar]", "[vvar_vclock]", "[vsyscall]", "[vdso]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the bytes were found.

    Attributes:
        address: of the first byte.
        mapping: name of the mapping it lies in; "" for memory of no file.
    """

    address: int
    mapping: str

    @property
    def shared(self) -> bool:
        """In Ray's object store."""
        return "plasma" in self.mapping


def places_of(pattern: bytes) -> list[Place]:
    """All places of `pattern` in the memory of this process, apart from the object `pattern` itself.

    Raises:
        ValueError: an empty pattern, or one too long to be looked for in pieces of memory.
    """
    if not 0 < len(pattern) <= CHUNK_PAGES * PAGE_BYTES:
        raise ValueError(f"pattern of {len(pattern)} bytes; allowed: 1 to {CHUNK_PAGES * PAGE_BYTES:,}")
    scratch = bytearray(CHUNK_PAGES * PAGE_BYTES + len(pattern) - 1)
    own = np.frombuffer(scratch, np.uint8).ctypes.data
    beside = [(own, own + len(scratch)), (id(pattern), id(pattern) + len(pattern) + 64)]
    found = []
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        for start, stop, name in list(_touched()):
            for first in range(start, stop, CHUNK_PAGES * PAGE_BYTES):
                last = min(stop, first + CHUNK_PAGES * PAGE_BYTES + len(pattern) - 1)
                memory.seek(first)
                length = memory.readinto(memoryview(scratch)[: last - first]) or 0
                found += [Place(address=first + at, mapping=name) for at in _occurrences(scratch, pattern, length)]
    unique = {place.address: place for place in found}
    return [place for place in unique.values() if not any(low <= place.address < high for low, high in beside)]


def _occurrences(scratch: bytearray, pattern: bytes, length: int) -> Iterator[int]:
    at = scratch.find(pattern, 0, length)
    while at >= 0:
        yield at
        at = scratch.find(pattern, at + 1, length)


def _touched() -> Iterator[tuple[int, int, str]]:
    """Runs of pages that are present: first and last address, and the name of their mapping."""
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, mode, *_, name = (line + " ").split(" ", 5)
            name = name.strip()
            if not mode.startswith("r") or name in UNREADABLE:
                continue
            start, stop = (int(each, 16) for each in addresses.split("-"))
            pagemap.seek(start // PAGE_BYTES * 8)
            entries = np.frombuffer(pagemap.read((stop - start) // PAGE_BYTES * 8) or b"", np.uint64)
            present = np.concatenate([[False], (entries & PRESENT) != 0, [False]])
            borders = np.flatnonzero(present[1:] != present[:-1]) * PAGE_BYTES + start
            for first, last in borders.reshape(-1, 2).tolist():
                yield first, last, name
