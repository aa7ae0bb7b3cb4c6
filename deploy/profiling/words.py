"""Profiles as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from common.profiling import ThreadStack

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def stacks_words(stacks: Iterable[ThreadStack]) -> str:
    """Each thread with its frames, innermost first."""
    blocks = []
    for stack in stacks:
        frames = stack.frames or ("outside of Python",)
        blocks.append("\n".join([stack.thread, *(f"    {frame}" for frame in reversed(frames))]))
    return "\n\n".join(blocks) + "\n"


def memory_words(held: Mapping[str, Any], who: str) -> str:
    """What was allocated and kept, the largest first; takes `common.allocations.Allocations` in plain values."""
    lines = [
        f"{who}: allocated by Python within {held['seconds']:g} s and still held: {in_bytes(held['held_bytes'])}, "
        f"at most {in_bytes(held['peak_bytes'])}",
        "memory of torch, numpy buffers of C libraries and what was there before are not in it",
        "",
    ]
    for place in held["places"]:
        lines.append(f"{in_bytes(place['held_bytes']):>11} in {place['held_blocks']:,} blocks")
        lines += [f"    {frame}" for frame in reversed(place["stack"])]
    return "\n".join(lines) + "\n"


def in_bytes(count: float) -> str:
    """A number of bytes, to three digits."""
    at = 0
    while abs(count) >= 1024 and at < len(UNITS) - 1:
        count, at = count / 1024, at + 1
    return f"{count:.0f} {UNITS[at]}" if at == 0 else f"{count:.3g} {UNITS[at]}"
