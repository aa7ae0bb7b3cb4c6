"""What can be checked on this machine before Ray is there: the output directory, shared memory, the clock."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from common.clock import ClockSource
from common.errors import RegistryError
from common.runs_trial import try_directory
from deploy.preflight.check import Check, Outcome, judged
from deploy.preflight.node import NodeFacts

HERE = "this machine"
MOUNTS = Path("/proc/self/mountinfo")
NETWORK_KINDS = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "afs", "orangefs"),
        *("fuse.glusterfs", "fuse.sshfs", "fuse.gcsfuse", "fuse.s3fs", "fuse.mount-s3", "fuse.juicefs", "fuse.ceph"),
    )
)
SLOW_ALLOWED = "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE"  # Ray's own word for: the store may lie on a disk
SHM_FIX = (
    "enlarge /dev/shm (docker run --shm-size=2g; in a pod an emptyDir with medium: Memory), use fewer actors, lanes or "
    f"rows, or accept a slow store with {SLOW_ALLOWED}=1"
)
FINEST_CLOCK_S = 1e-3


def check_directory(out: Path, *, mounts: Path = MOUNTS) -> Check:
    """Whether runs can be recorded in `out`, which need not exist yet: SQLite's WAL works on no network file system."""
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    kind = file_system(place, mounts=mounts)
    try:
        try_directory(place)
        trouble = ""
    except (RegistryError, OSError) as error:
        trouble = str(getattr(error, "got", None) or getattr(error, "strerror", None) or error)
    shared = kind in NETWORK_KINDS
    return judged(
        HERE,
        "output directory",
        found=f"{out}, {kind or 'unknown file system'}{' (network)' if shared else ''}{trouble and f': {trouble}'}",
        needed="writable, local, takes SQLite's log",
        fits=not (shared or trouble),
        fix="choose a local disk or a volume of this node alone with --out",
    )


def file_system(place: Path, *, mounts: Path = MOUNTS) -> str:
    """Kind of the file system that holds `place`, as the kernel calls it; "" where that cannot be told."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")  # a space in it is written \040
        if place.resolve().is_relative_to(point) and len(point) >= len(best):  # a later mount hides an earlier one
            best, kind = point, after.split()[0]
    return kind


def check_clock(where: str, clock: ClockSource) -> Check:
    """Deadlines and rates come from the monotonic clock."""
    return judged(
        where,
        "clock",
        found=f"{clock.name}, {clock.resolution_s:g} s, kernel source {clock.kernel or 'unknown'}",
        needed=f"never goes back, {FINEST_CLOCK_S:g} s or finer",
        fits=clock.monotonic and clock.resolution_s <= FINEST_CLOCK_S,
        fix="boot with a clock source that is stable (tsc, kvm-clock, arch_sys_counter)",
    )


def check_shared_memory(
    facts: NodeFacts, *, needed_bytes: int, store_bytes: int, environment: Mapping[str, str] = os.environ
) -> Check:
    """Whether an object store of `store_bytes`, of which fragments take `needed_bytes`, is in memory.

    One that does not fit is put on a disk by Ray. Where not even the fragments fit, that is a shortfall.
    """
    free = facts.shm_free_bytes
    slow = environment.get(SLOW_ALLOWED) == "1"
    otherwise = Outcome.WARNING if needed_bytes <= free or slow else Outcome.SHORT
    return judged(
        HERE,
        "/dev/shm",
        found=f"{sized(free)} free",
        needed=f"{sized(needed_bytes)} for fragments, a store of {sized(store_bytes)}",
        fits=store_bytes <= free,
        fix=SHM_FIX,
        otherwise=otherwise,
    )


def sized(num_bytes: float) -> str:
    """Bytes in words, in the largest unit of which there is one."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes / 2**10:,.1f} KiB"
