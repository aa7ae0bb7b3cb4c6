"""How full the memory is that this process lives in: that of its container, if it has a limit, else the machine's.

What the kernel would give back at once (page cache, reclaimable slabs) does not count as used. Linux only; elsewhere
nothing is known, and that is no error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")
UNLIMITED_BYTES = 2**60  # version 1 says "no limit" by a number near 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Memory at one moment.

    Attributes:
        used_bytes: that nothing but the end of a process gives back.
        limit_bytes: of the container or the machine.
    """

    used_bytes: int
    limit_bytes: int

    @property
    def ratio(self) -> float:
        """0 empty, 1 full."""
        return self.used_bytes / self.limit_bytes


def host_memory(*, cgroups: Path = CGROUPS, proc: Path = PROC) -> HostMemory | None:
    """The fuller of container and machine; None where neither can be read.

    Args:
        cgroups: where control groups are mounted.
        proc: where the kernel's files are.
    """
    known = [read for read in (_container(cgroups, proc), _machine(proc)) if read is not None]
    return max(known, key=lambda memory: memory.ratio, default=None)


def _machine(proc: Path) -> HostMemory | None:
    fields = _numbers(proc / "meminfo", lambda words: (words[0].rstrip(":"), int(words[1]) * 1024))
    if "MemTotal" not in fields or "MemAvailable" not in fields:
        return None
    total = fields["MemTotal"]
    return HostMemory(used_bytes=total - fields["MemAvailable"], limit_bytes=total)


def _container(cgroups: Path, proc: Path) -> HostMemory | None:
    """The nearest group above this process that has a limit."""
    for root, path, names in _hierarchies(cgroups, proc):
        group = root / path.lstrip("/")
        while group.is_relative_to(root):
            if (found := _group(group, *names)) is not None:
                return found
            group = group.parent
    return None


def _hierarchies(cgroups: Path, proc: Path) -> list[tuple[Path, str, tuple[str, str, str]]]:
    """Mount, path of this process and names of files of versions 2 and 1, where they are in use."""
    found = []
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found.append((cgroups, path, ("memory.max", "memory.current", "inactive_file")))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found.append((cgroups / "memory", path, names))
    return found


def _group(group: Path, limit: str, usage: str, cache: str) -> HostMemory | None:
    try:
        limit_bytes, usage_bytes = (int((group / name).read_text()) for name in (limit, usage))
    except (OSError, ValueError):  # no such controller here, or "max"
        return None
    if not 0 < limit_bytes < UNLIMITED_BYTES:
        return None
    cached = _numbers(group / "memory.stat", lambda words: (words[0], int(words[1]))).get(cache, 0)
    return HostMemory(used_bytes=max(0, usage_bytes - cached), limit_bytes=limit_bytes)


def _numbers(path: Path, parse: Callable[[list[str]], tuple[str, int]]) -> dict[str, int]:
    return dict(parse(line.split()) for line in _lines(path) if len(line.split()) > 1)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
