"""Which process listens on which address and port, from /proc: no library, no right beyond reading one's own processes.

/proc/PID/fd ──► inodes of sockets ──► /proc/PID/net/tcp, tcp6 of its own network ──► Listener
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LISTENS = "0A"  # state of proc(5)
WORD = 8  # hexadecimal digits of 32 bits, which the kernel prints in the machine's own order of bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A TCP socket on which a process listens.

    Attributes:
        pid: of the process.
        address: that it is bound to; 0.0.0.0 or :: is all of them.
        port: likewise.
    """

    pid: int
    address: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.address).is_loopback


def listeners(pids: Iterable[int], *, proc: Path = PROC) -> list[Listener]:
    """Every TCP socket on which one of `pids` listens, by pid and port; one that two processes share is told twice.

    Of processes that have ended, or are another user's, nothing is told.
    """
    found = [listener for pid in pids for listener in _of_process(pid, proc)]
    return sorted(set(found), key=lambda each: (each.pid, each.port, each.address))


def _of_process(pid: int, proc: Path) -> Iterator[Listener]:
    inodes = socket_inodes(pid, proc=proc)
    if not inodes:
        return
    for table in ("tcp", "tcp6"):
        for address, port, inode in _listening(proc / str(pid) / "net" / table):
            if inode in inodes:
                yield Listener(pid=pid, address=address, port=port)


def is_listened_on(port: int, *, proc: Path = PROC) -> bool:
    """Whether anybody in this process's network listens on `port`, whoever it is."""
    return any(port == each for table in ("tcp", "tcp6") for _, each, _ in _listening(proc / "net" / table))


def socket_inodes(pid: int, *, proc: Path = PROC) -> set[str]:
    """Of all sockets that the process has open, as far as this user may see."""
    inodes = set()
    try:
        for link in (proc / str(pid) / "fd").iterdir():
            target = _target(link)
            if target.startswith("socket:["):
                inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    except OSError:
        return inodes  # gone, or another user's
    return inodes


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed meanwhile
        return ""


def _listening(table: Path) -> list[tuple[str, int, str]]:
    """Address, port and inode of the rows of a table of sockets that listen."""
    try:
        rows = [row.split() for row in table.read_text(encoding="ascii").splitlines()[1:]]
    except OSError:  # gone, or no IPv6 in this kernel
        return []
    found = []
    for row in rows:
        if row[3] == LISTENS:
            address, _, port = row[1].partition(":")
            found.append((_address(address), int(port, 16), row[9]))
    return found


def _address(digits: str) -> str:
    """An address as the kernel prints it, in words of 32 bits each in the machine's order of bytes.

    One of IPv4 in the clothes of IPv6 (::ffff:a.b.c.d) is told as what it is.
    """
    words = [int(digits[at : at + WORD], 16) for at in range(0, len(digits), WORD)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    ip = ipaddress.ip_address(packed)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)
