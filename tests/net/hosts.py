"""Hosts on a network of their own, all on this machine: namespaces joined by a bridge in a further namespace.

A host has its own network, processes, host name, semaphores, shared memory and temporary files (SCRATCH), so nothing of
it is seen from another, and `ray stop` reaches no other Ray. Other files are this machine's. Root and iproute2 only.
Every process of a host ends with the test that made it, even if that is killed.

    switch       br0 ── a bridge; a host whose port is taken out of it is cut off: packets vanish, nothing is refused
    head         eth0 10.77.0.1 ── port "head"
    worker       eth0 10.77.0.2 ── port "worker"
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.clock import MonotonicClock, wait_until

NETWORK = "10.77.0"
SCRATCH = "/mnt"  # of each host its own; the name is short, since sockets lie in it
COMMAND_S = 20.0
TOOLS = ("ip", "nsenter", "setpriv", "unshare")
INIT = """
set -e
hostname "$1"
mount -t tmpfs -o size=1g tmpfs /dev/shm
mount -t tmpfs -o size=1g tmpfs "$2"
ip link set lo up
echo up
while :; do sleep 3600 & wait; done  # orphans are taken in and buried
"""


def missing() -> str:
    """What this machine lacks for hosts, in words; "" if nothing."""
    if sys.platform != "linux":
        return "needs Linux's namespaces"
    if os.geteuid() != 0:
        return "needs root: network namespaces are made"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"needs {', '.join(absent)} (Debian: iproute2, util-linux)" if absent else ""


def _run(command: Sequence[str], limit_s: float = COMMAND_S, env: Mapping[str, str] | None = None) -> str:
    """Run to the end within a limit; returns what it said. Fails with it unless the exit code is 0."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=env)
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Host:
    """A host; `start()` brings it up.

    Attributes:
        name: host name, and that of its port.
        address: in the network.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self._keeper: subprocess.Popen[str] | None = None
        self._init = 0

    def start(self) -> None:
        """Make the namespaces; its first process lives until `close`."""
        kinds = ("--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child=SIGKILL")
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *kinds, "sh", "-c", INIT, "sh", self.name, SCRATCH]
        self._keeper = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._keeper.stdout is not None and self._keeper.stderr is not None
        said = self._keeper.stdout.readline()
        assert said == "up\n", f"host {self.name} did not come up: {self._keeper.stderr.read()}"
        keeper = self._keeper.pid
        self._init = int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text())

    @property
    def pid(self) -> int:
        """Its first process, as this machine counts."""
        return self._init

    def command(self, words: Sequence[str]) -> list[str]:
        """`words` as a command of this machine that runs them on the host."""
        inside = ("--net", "--pid", "--mount", "--uts", "--ipc", "--wdns=" + str(Path.cwd()))
        return ["nsenter", "--target", str(self._init), *inside, *words]

    def run(self, words: Sequence[str], *, limit_s: float = COMMAND_S, env: Mapping[str, str] | None = None) -> str:
        """Run a command on the host to its end; returns what it said."""
        return _run(self.command(words), limit_s, env)

    def processes(self, words: str) -> list[int]:
        """Processes of the host with `words` in their command line, as this machine counts."""
        own = Path(f"/proc/{self._init}/ns/pid").readlink()
        found = []
        for path in Path("/proc").iterdir():
            try:
                if path.name.isdigit() and (path / "ns/pid").readlink() == own:
                    line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found += [int(path.name)] if words in line else []
            except OSError:  # gone meanwhile
                continue
        return sorted(found)

    def close(self) -> None:
        """End every process of the host."""
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.communicate(timeout=COMMAND_S)


class Network:
    """Hosts joined by a bridge: `with Network("head", "worker") as network`."""

    def __init__(self, *names: str) -> None:
        self.hosts = {name: Host(name, f"{NETWORK}.{place}") for place, name in enumerate(names, start=1)}
        self._switch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Network:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for host in self.hosts.values():
            host.close()
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait(COMMAND_S)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def cut(self, name: str) -> None:
        """Nothing that is sent to or by the host arrives any more; its own port stays up, so it is not told."""
        self._ip("link", "set", name, "nomaster")

    def kill(self, name: str) -> None:
        """The host ends, as if its plug were pulled: every process at once, and its half of the cable with it."""
        self.hosts[name].close()
        gone = wait_until(lambda: name not in self._ports(), clock=MonotonicClock(), seconds=COMMAND_S)
        assert gone, f"the port of {name} is still there"

    def boot(self, name: str) -> None:
        """A host that was killed is there again, with nothing of what it was."""
        self._join(self.hosts[name])

    def mend(self, name: str) -> None:
        """The host is reached again."""
        self._ip("link", "set", name, "master", "br0")

    def _start(self) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"]
        self._switch = subprocess.Popen(command)
        own, theirs = Path("/proc/self/ns/net").readlink(), Path(f"/proc/{self._switch.pid}/ns/net")
        apart = wait_until(lambda: theirs.readlink() != own, clock=MonotonicClock(), seconds=COMMAND_S)
        assert apart, "no network namespace for the switch"
        self._ip("link", "add", "br0", "type", "bridge")
        self._ip("link", "set", "br0", "up")
        for host in self.hosts.values():
            self._join(host)

    def _join(self, host: Host) -> None:
        host.start()
        peer = ("peer", "name", "eth0", "netns", str(host.pid))
        self._ip("link", "add", host.name, "type", "veth", *peer)
        self._ip("link", "set", host.name, "master", "br0", "up")
        host.run(["ip", "addr", "add", f"{host.address}/24", "dev", "eth0"])
        host.run(["ip", "link", "set", "eth0", "up"])
        host.run(["ip", "route", "add", "default", "dev", "eth0"])  # Ray asks the kernel which address is its own

    def _ports(self) -> set[str]:
        lines = self._ip("-oneline", "link", "show").splitlines()
        return {line.split(":")[1].strip().partition("@")[0] for line in lines}

    def _ip(self, *words: str) -> str:
        assert self._switch is not None
        return _run(["nsenter", "--target", str(self._switch.pid), "--net", "ip", *words])
