"""Who listens where, as /proc tells it: on this machine, and on a made-up one whose every byte is known."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from common.listeners import Listener, is_listened_on, listeners, socket_inodes

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TCP = (
    "   0: 0100007F:2393 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 101 1 0 100 0 0 10 0\n"
    "   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 102 1 0 100 0 0 10 0\n"
    "   2: 0202000A:C350 0100007F:2393 01 00000000:00000000 00:00000000 00000000     0        0 103 1 0 100 0 0 10 0\n"
)
TCP6 = (
    "   0: 00000000000000000000000001000000:1F90 0:0000 0A 0:0 00:0 0 0 0 104 1\n"
    "   1: 00000000000000000000000000000000:1F91 0:0000 0A 0:0 00:0 0 0 0 105 1\n"
    "   2: 0000000000000000FFFF00000100007F:1F92 0:0000 0A 0:0 00:0 0 0 0 106 1\n"
)
little_endian = pytest.mark.skipif(sys.byteorder != "little", reason="the tables above are of a little-endian machine")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Process 7 has all those sockets open, a file and a pipe; process 8 shares one of them."""
    for pid, inodes in ((7, (101, 102, 103, 104, 105, 106)), (8, (101,))):
        (tmp_path / str(pid) / "net").mkdir(parents=True)
        (tmp_path / str(pid) / "fd").mkdir()
        (tmp_path / str(pid) / "net" / "tcp").write_text(HEAD + TCP)
        (tmp_path / str(pid) / "net" / "tcp6").write_text(HEAD + TCP6)
        links = [*(f"socket:[{inode}]" for inode in inodes), "/etc/passwd", "pipe:[101]"]
        for number, target in enumerate(links):
            (tmp_path / str(pid) / "fd" / str(number)).symlink_to(target)
    return tmp_path


@little_endian
def test_rows_are_read_as_the_kernel_writes_them(proc: Path) -> None:
    """Worked out by hand: 0100007F is 127.0.0.1, 2393 is port 9107; a connection (state 01) is no listener."""
    expected = [
        (22, "0.0.0.0", False),
        (8080, "::1", True),
        (8081, "::", False),
        (8082, "127.0.0.1", True),
        (9107, "127.0.0.1", True),
    ]
    assert [(each.port, each.address, each.loopback) for each in listeners([7], proc=proc)] == expected


@little_endian
def test_a_shared_socket_is_told_of_both(proc: Path) -> None:
    """A child that inherits a socket can answer on it."""
    shared = [each for each in listeners([8, 7], proc=proc) if each.port == 9107]
    assert [each.pid for each in shared] == [7, 8]


def test_who_is_gone_or_hidden_has_no_sockets(proc: Path) -> None:
    """No such process, no tables, a descriptor that is closed while it is looked at."""
    (proc / "9" / "fd").mkdir(parents=True)
    (proc / "9" / "fd" / "0").write_text("no link")
    (proc / "9" / "fd" / "1").symlink_to("socket:[101]")
    assert socket_inodes(9, proc=proc) == {"101"}
    assert listeners([9, 10], proc=proc) == []


def test_a_socket_of_this_machine_is_found_with_its_owner() -> None:
    """Bound to one address or to all, by this process or by a child."""
    code = (
        "import socket, sys; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as own,
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child,
    ):
        assert child.stdout is not None
        port, own_port = int(child.stdout.readline()), own.getsockname()[1]
        found = listeners([os.getpid(), child.pid])
        child.communicate("")
    assert Listener(pid=os.getpid(), address="127.0.0.1", port=own_port) in found
    assert [each.loopback for each in found if each == Listener(pid=child.pid, address="0.0.0.0", port=port)] == [False]
    assert not is_listened_on(own_port)
