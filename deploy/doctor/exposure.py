"""Sockets and what they said, judged: who can reach each, and what keeps strangers out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from common.listeners import Listener
from deploy.doctor.asking import Said


class Protection(StrEnum):
    """What keeps a stranger out."""

    TOKEN = "token"
    LOOPBACK = "loopback"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """A socket on which a process of a run listens.

    Attributes:
        process: what people call it.
        listener: where.
        serves: what can be had there.
        protection: what keeps strangers out.
        how: that is known.
    """

    process: str
    listener: Listener
    serves: str
    protection: Protection
    how: str

    @property
    def open(self) -> bool:
        """Whether another machine reaches it, and nothing known keeps a stranger out."""
        return self.protection in (Protection.NOTHING, Protection.UNKNOWN)

    def to_plain(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "protection": self.protection.value, "open": self.open}


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """What is known of a socket before it is judged.

    Attributes:
        process: name of the process.
        listener: where.
        metrics: whether it is the one that the process serves metrics on.
        collectives: whether it is one by which learner ranks meet or reduce.
        said: to a stranger.
    """

    process: str
    listener: Listener
    metrics: bool
    collectives: bool
    said: Said


def judge(sockets: Sequence[Socket], *, ray_token: bool | None) -> list[Exposure]:
    """Every socket, by process and port.

    Args:
        ray_token: whether Ray's processes were started with token authentication, as their environment says; None if
            nobody knows. Believed only where nothing could be asked.
    """
    refusing = {socket.listener.pid for socket in sockets if socket.said is Said.REFUSED and not socket.metrics}
    judged = [_judge(socket, ray_token=ray_token, refusing=refusing) for socket in sockets]
    return sorted(_merged(judged), key=lambda each: (each.process, each.listener.pid, each.listener.port))


def _judge(socket: Socket, *, ray_token: bool | None, refusing: set[int]) -> Exposure:
    protection, how = _protection(socket, ray_token=ray_token, sibling=socket.listener.pid in refusing)
    if protection in (Protection.NOTHING, Protection.UNKNOWN) and socket.listener.loopback:
        protection, how = Protection.LOOPBACK, "only this machine reaches it"
    return Exposure(
        process=socket.process, listener=socket.listener, serves=_serves(socket), protection=protection, how=how
    )


def _protection(socket: Socket, *, ray_token: bool | None, sibling: bool) -> tuple[Protection, str]:
    if socket.collectives:
        return Protection.NOTHING, "torch.distributed knows no token; not asked, since that could end the group"
    match socket.said:
        case Said.REFUSED:
            return Protection.TOKEN, "asked: a stranger is refused"
        case Said.ANSWERED:
            return Protection.NOTHING, "asked: anybody is answered"
        case Said.NO_SUCH if sibling:
            return Protection.TOKEN, "another port of the same process refuses strangers"
        case Said.NOT_CALLED if ray_token is not None:
            told = Protection.TOKEN if ray_token else Protection.NOTHING
            return told, "by RAY_AUTH_MODE of its process; not asked, for which grpcio is needed"
        case Said.NOT_ASKED:
            return Protection.UNKNOWN, "not asked: it is neither Ray's nor metrics"
    return Protection.UNKNOWN, f"asked: it {socket.said.value}"


def _serves(socket: Socket) -> str:
    if socket.collectives:
        return "collectives of learner ranks"
    if socket.metrics:
        return "metrics, profiles" + (", discovery" if socket.process == "driver" else "")
    return SERVES.get(socket.process, "calls of Ray")


SERVES: Mapping[str, str] = {
    "Ray GCS": "the cluster's state",
    "Ray raylet": "starting of processes, transfer of objects",
    "Ray dashboard": "jobs, logs, state",
    "Ray dashboard agent": "logs, metrics, health",
    "Ray autoscaler": "metrics of the autoscaler",
    "Ray client server": "remote drivers",
}


def _merged(exposures: Iterable[Exposure]) -> list[Exposure]:
    """A child that inherited a socket tells it again: once is enough."""
    once: dict[tuple[str, int], Exposure] = {}
    for exposure in exposures:
        key = (exposure.listener.address, exposure.listener.port)
        if key not in once or exposure.listener.pid < once[key].listener.pid:
            once[key] = exposure
    return list(once.values())
