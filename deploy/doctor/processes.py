"""The processes of a run on this machine: the driver, what it started, and the Ray node that its processes live in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.listeners import PROC

RAYLET = "/raylet/raylet"
SESSION = "session_"  # how the directory begins that every process of one Ray node is told of


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A process as the kernel shows it.

    Attributes:
        pid, parent: ids.
        command: its command line, spaces between arguments; "" of another user's kernel thread.
    """

    pid: int
    parent: int
    command: str


def all_processes(*, proc: Path = PROC) -> dict[int, Seen]:
    """Every process of this machine that can be seen, by id."""
    found = {}
    for entry in proc.glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # gone
            continue
        parent = int(stat[stat.rindex(")") + 2 :].split()[1])  # the name in brackets may hold spaces and brackets
        found[int(entry.name)] = Seen(pid=int(entry.name), parent=parent, command=command)
    return found


def of_run(roots: Iterable[int], seen: Mapping[int, Seen]) -> dict[int, Seen]:
    """`roots`, all that descend from them, and every process of the Ray nodes that any of those belong to."""
    members = _descendants(roots, seen)
    above = {seen[pid].parent for pid in members if pid in seen and seen[pid].parent in seen}
    raylets = {pid for pid in members | above if RAYLET in seen[pid].command}
    sessions = {name for pid in raylets if (name := session_of(seen[pid].command))}
    kin = {pid for pid, process in seen.items() if session_of(process.command) in sessions}
    return {pid: seen[pid] for pid in sorted(members | _descendants(raylets | kin, seen))}


def session_of(command: str) -> str:
    """Name of the Ray session that a command line speaks of; "" if of none."""
    for part in command.replace("=", "/").replace(" ", "/").split("/"):
        if part.startswith(SESSION):
            return part
    return ""


def _descendants(roots: Iterable[int], seen: Mapping[int, Seen]) -> set[int]:
    children: dict[int, list[int]] = {}
    for process in seen.values():
        children.setdefault(process.parent, []).append(process.pid)
    members, waiting = set[int](), [pid for pid in roots if pid in seen]
    while waiting:
        pid = waiting.pop()
        if pid not in members:
            members.add(pid)
            waiting += children.get(pid, [])
    return members


NAMES = (  # part of a command line, and what people call the process
    ("/gcs/gcs_server", "Ray GCS"),
    (RAYLET, "Ray raylet"),
    ("ray::DashboardAgent", "Ray dashboard agent"),
    ("ray/dashboard/agent.py", "Ray dashboard agent"),
    ("ray::RuntimeEnvAgent", "Ray runtime env agent"),
    ("runtime_env/agent/main.py", "Ray runtime env agent"),
    ("ray/dashboard/dashboard.py", "Ray dashboard"),
    ("_private/monitor.py", "Ray autoscaler"),
    ("autoscaler/v2/monitor.py", "Ray autoscaler"),
    ("ray.util.client.server", "Ray client server"),
    ("ray::ActorProcess", "actor"),
    ("ray::RankProcess", "learner rank"),
    ("ray::", "Ray worker"),
)


def name_of(process: Seen) -> str:
    """What people call it."""
    for part, name in NAMES:
        if part in process.command:
            return name
    first = process.command.split(" ")[0].rpartition("/")[2]
    return first or "unknown"


def is_ray(process: Seen) -> bool:
    """Whether it is a process of Ray's own, or one that Ray started for us."""
    return any(part in process.command for part, _ in NAMES)
