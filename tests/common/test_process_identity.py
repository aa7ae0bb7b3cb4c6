"""Whether the process that holds a lock still lives."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from common.process_identity import Liveness, ProcessIdentity, _state_and_start

OWN = ProcessIdentity.current()


def identity_of(pid: int) -> ProcessIdentity:
    return replace(OWN, pid=pid, start_ticks=_state_and_start(pid)[1])


def test_the_calling_process_is_alive_and_says_the_same_twice() -> None:
    """Identity is a value."""
    assert ProcessIdentity.current() == OWN
    assert OWN.pid == os.getpid()
    assert OWN.liveness(OWN) is Liveness.ALIVE


def test_a_child_is_alive_then_a_zombie_then_gone() -> None:
    """A zombie has a pid but will write nothing more: dead."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        identity = identity_of(child.pid)
        assert identity.liveness(OWN) is Liveness.ALIVE
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has reaped it
        assert Path(f"/proc/{child.pid}").exists()
        assert identity.liveness(OWN) is Liveness.DEAD
    assert identity.liveness(OWN) is Liveness.DEAD


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"start_ticks": OWN.start_ticks - 1}, Liveness.DEAD),  # the pid was reused
        ({"boot_id": "another"}, Liveness.DEAD),  # the machine was started again
        ({"pid_namespace": "pid:[1]"}, Liveness.DEAD),  # the container was started again in its pod
        ({"host": "another"}, Liveness.UNKNOWN),
        ({"host": "another", "boot_id": "another"}, Liveness.UNKNOWN),
    ],
)
def test_what_can_be_said_of_another_process(changes: dict, expected: Liveness) -> None:
    """The table of the docstring."""
    assert replace(OWN, **changes).liveness(OWN) is expected


def test_a_name_full_of_brackets_and_spaces_is_parsed(tmp_path: Path) -> None:
    """The kernel puts the program's name in brackets, unescaped."""
    program = tmp_path / ") S 1 ("
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        identity = identity_of(child.pid)
        assert identity.start_ticks >= OWN.start_ticks
        assert identity.liveness(OWN) is Liveness.ALIVE


@pytest.mark.parametrize("alive", [True, False])
def test_without_proc_the_kernel_is_asked_by_signal_0(alive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no /proc; start ticks are 0 there and a pid that exists counts as alive."""
    monkeypatch.setattr("common.process_identity._state_and_start", lambda pid: ("", 0))
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        identity = replace(OWN, pid=child.pid, start_ticks=0)
        if alive:
            assert identity.liveness(OWN) is Liveness.ALIVE
    if not alive:
        assert identity.liveness(OWN) is Liveness.DEAD
