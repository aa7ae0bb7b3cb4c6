"""What a node says of itself. Looked at on the node; nothing heavy is imported and nothing is started."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from common.clock import ClockSource, clock_source
from deploy.facts import package_digests

SHM = Path("/dev/shm")
GPUS = Path("/proc/driver/nvidia/gpus")
ABSENT = "not installed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node as a process on it finds it.

    Attributes:
        host: its name.
        python, ray, torch: versions, "not installed" where there is none.
        sources: digest of each of the four packages.
        shm_bytes: size of /dev/shm, 0 where there is none.
        shm_free_bytes: of which nobody has taken.
        gpus: that the system shows here, be they given to Ray or not.
        clock: what durations are measured with.
    """

    host: str
    python: str
    ray: str
    torch: str
    sources: dict[str, str]
    shm_bytes: int
    shm_free_bytes: int
    gpus: int
    clock: ClockSource


def look_around() -> NodeFacts:
    """The facts of the machine, or the container, in which this process runs."""
    size, free = shm()
    return NodeFacts(
        host=platform.node(),
        python=platform.python_version(),
        ray=installed("ray"),
        torch=installed("torch"),
        sources={name: facts["sha256"] for name, facts in package_digests().items()},
        shm_bytes=size,
        shm_free_bytes=free,
        gpus=len(list(GPUS.glob("*"))),
        clock=clock_source(),
    )


def installed(distribution: str) -> str:
    """The version of a distribution, without importing it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ABSENT


def shm(path: Path = SHM) -> tuple[int, int]:
    """Size and free bytes of shared memory."""
    try:
        numbers = os.statvfs(path)
    except OSError:
        return 0, 0
    return numbers.f_frsize * numbers.f_blocks, numbers.f_frsize * numbers.f_bavail
