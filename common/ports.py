"""TCP ports: a range to choose from, and who holds one that is taken."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from common.errors import ConfigError
from common.listeners import PROC, is_listened_on, listeners

MAX_PORT = 65_535
ANYWHERE = {"", "0.0.0.0", "::"}  # addresses to listen on, where nobody can be reached
NODE = "node"  # the address of whichever machine it is said on
ELSEWHERE = ("192.0.2.1", 9)  # of TEST-NET-1 (RFC 5737): an address that no route treats in a way of its own
PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRange:
    """Ports to try in order; 0 to 0 is any free one.

    Attributes:
        first: lowest port.
        last: highest port, included.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if not (self.first == self.last == 0 or 1 <= self.first <= self.last <= MAX_PORT):
            raise ConfigError(
                "ports for metrics", got=str(self), allowed=f'"0", a port, or "first-last" within 1 to {MAX_PORT}'
            )

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @staticmethod
    def parse(text: str) -> PortRange:
        """ "0" any free port, "9100" exactly that one, "9100-9199" the first free one. Raises ConfigError."""
        match = PORTS.fullmatch(text.strip())
        if match is None:
            raise ConfigError("ports for metrics", got=repr(text), allowed='"0", "9100" or "9100-9199"')
        first, last = match.groups()
        return PortRange(first=int(first), last=int(last or first))


def address_of(host: str, port: int) -> str:
    """The two as one, as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_host(bound: str) -> str:
    """Where others reach what listens on `bound`: there, or at this machine's own address if that means all of them."""
    return own_address() if bound in ANYWHERE else bound


def listening_host(host: str) -> str:
    """What to bind for the configured `host`: this machine's own address if it is `node`, else as it stands."""
    return own_address() if host == NODE else host


def own_address() -> str:
    """The address from which this machine speaks to others; its name where it has no route. Nothing is sent."""
    return address_towards(*ELSEWHERE) or socket.gethostname()


def address_towards(host: str, port: int) -> str | None:
    """The address from which this machine speaks to `host`: a loopback one to itself; None where no route is.

    Nothing is sent.
    """
    try:
        family, kind, _, _, peer = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(peer)
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return None


def port_holder(port: int) -> str | None:
    """Who listens on `port`, as far as this user may see."""
    pids = sorted(int(entry.name) for entry in PROC.glob("[0-9]*"))
    for pid in pids:
        if any(listener.port == port for listener in listeners([pid])):
            return f"held by process {pid} ({_name(pid)})"
    return "held by a process of another user" if is_listened_on(port) else None


def _name(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return "it has ended meanwhile"
