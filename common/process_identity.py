"""Which process, on which machine, in which boot: enough to say later whether it still lives.

A pid alone names nobody for long: pids are reused, and every container has a pid 1. A process is named by host, boot,
pid namespace, pid and the tick at which it started. No clock takes part.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from common.clock import MonotonicClock

GONE_STATES = frozenset("ZXx")  # zombie, dead (proc_pid_stat(5)): they will write nothing more


class Liveness(Enum):
    """What can be said about a process from here."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process start.

    Attributes:
        host: host name; in Kubernetes the name of the pod.
        boot_id: the kernel's id of this boot.
        pid_namespace: the namespace that `pid` counts in; "" where the system has none.
        pid: process id.
        start_ticks: clock ticks from boot to the start of the process; 0 where the system does not tell.
    """

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int

    @staticmethod
    def current() -> ProcessIdentity:
        """The calling process."""
        pid = os.getpid()
        return ProcessIdentity(
            host=platform.node(),
            boot_id=MonotonicClock().clock_id,
            pid_namespace=_pid_namespace(),
            pid=pid,
            start_ticks=_state_and_start(pid)[1],
        )

    def liveness(self, seen_from: ProcessIdentity) -> Liveness:
        """Whether this process lives, as far as `seen_from` (the calling process) can tell.

        Another host cannot be looked into: UNKNOWN. The same host after a reboot, or the same host name in a new pid
        namespace (a container that was restarted in its pod), means that the process is gone: DEAD.
        """
        if self.host != seen_from.host:
            return Liveness.UNKNOWN
        if self.boot_id != seen_from.boot_id or self.pid_namespace != seen_from.pid_namespace:
            return Liveness.DEAD
        state, start_ticks = _state_and_start(self.pid)
        if state in GONE_STATES or start_ticks != self.start_ticks:
            return Liveness.DEAD
        return Liveness.ALIVE if state else _liveness_by_signal(self.pid)

    def describe(self) -> str:
        """For error messages."""
        return f"process {self.pid} on host {self.host}"


def _state_and_start(pid: int) -> tuple[str, int]:
    """State letter and start tick; ("X", -1) when there is no such process; ("", 0) on systems without /proc."""
    if not Path("/proc/self/stat").exists():
        return "", 0
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "X", -1
    fields = text[text.rindex(")") + 2 :].split()  # the name in brackets may itself hold spaces and brackets
    return fields[0], int(fields[19])


def _liveness_by_signal(pid: int) -> Liveness:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Liveness.DEAD
    except PermissionError:
        return Liveness.ALIVE
    return Liveness.ALIVE


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
