"""A live run looked at from its machine: whose sockets there are, and what each says to a stranger."""

from __future__ import annotations

import ipaddress
import platform
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from common.listeners import PROC, Listener, listeners
from deploy.doctor.asking import Said, Stranger, stranger
from deploy.doctor.exposure import Exposure, Socket, judge
from deploy.doctor.processes import RAYLET, Seen, all_processes, is_ray, name_of, of_run
from deploy.watched import LiveProcess

AT_ONCE = 16
RANK = "learner rank"
OURS = ("actor", RANK, "Ray worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """The part of a run that lives on this machine.

    Attributes:
        driver: process id of its driver; 0 if that is elsewhere.
        listed: processes as the driver lists them, those of other machines too.
    """

    driver: int
    listed: Sequence[LiveProcess]

    @property
    def here(self) -> dict[int, LiveProcess]:
        """Those of this machine, by process id."""
        return {process.pid: process for process in self.listed if process.pid and process.host == platform.node()}


def examine(patient: Patient, asker: Stranger | None = None) -> list[Exposure]:
    """Every socket on which a process of the run, or of its Ray node, listens on this machine; each is asked."""
    asker = asker or stranger()
    members = of_run({patient.driver, *patient.here}, all_processes())
    found = listeners(members)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="doctor") as pool:
        sockets = list(pool.map(lambda each: _socket(each, members[each.pid], patient, asker), found))
    return judge(sockets, ray_token=ray_token(members.values()))


def _socket(listener: Listener, process: Seen, patient: Patient, asker: Stranger) -> Socket:
    """Ray binds its servers to every address, and its own processes hold nothing else. Whatever a process of ours has
    bound to one address, besides its metrics, is its ranks' or its environments': no stranger's bytes go there."""
    listed, is_driver = patient.here.get(listener.pid), listener.pid == patient.driver
    metrics = listed is not None and listed.address.rpartition(":")[2] == str(listener.port)
    ours = is_driver or listed is not None or name_of(process) in OURS
    asked = metrics or (_is_everywhere(listener) if ours else is_ray(process))
    learns = is_driver or name_of(process) == RANK or (listed is not None and listed.role == "learner")
    return Socket(
        process="driver" if is_driver else listed.name if listed is not None else name_of(process),
        listener=listener,
        metrics=metrics,
        collectives=learns and not asked,
        said=asker.ask(_reach(listener), listener.port) if asked else Said.NOT_ASKED,
    )


def _is_everywhere(listener: Listener) -> bool:
    return ipaddress.ip_address(listener.address).is_unspecified


def _reach(listener: Listener) -> str:
    return "127.0.0.1" if _is_everywhere(listener) else listener.address


def ray_token(members: Iterable[Seen], *, proc: Path = PROC) -> bool | None:
    """Whether the raylets among `members` were started with token authentication; None if that cannot be seen."""
    raylets = [process for process in members if RAYLET in process.command]
    modes = [environment.get("RAY_AUTH_MODE", "") for each in raylets if (environment := _environment(each.pid, proc))]
    return all(mode.lower() == "token" for mode in modes) if modes else None


def _environment(pid: int, proc: Path) -> Mapping[str, str]:
    try:
        text = (proc / str(pid) / "environ").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
