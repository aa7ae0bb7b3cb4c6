"""A pod without Kubernetes: namespaces, a read-only root, a user without rights, a small /dev/shm, a limit of memory.

What the container is and may is read off the rendered manifests; what the kubelet and KubeRay add is written here.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.clock import MonotonicClock, wait_until
from tests.kubernetes.quantities import amount
from tests.kubernetes.rendering import Manifests, Template

ROOT = Path(__file__).parents[2]
INIT = Path(__file__).with_name("init.sh")
MEMORY = Path("/sys/fs/cgroup/memory")
UNSHARED = ("--mount", "--pid", "--net", "--ipc", "--uts", "--fork")
EXEC_S = 60.0
LISTENS_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command in the pod came to."""

    code: int
    out: str


class Pod:
    """A running container; `pod` makes it."""

    def __init__(
        self,
        unshare: subprocess.Popen[bytes],
        log: Path,
        environment: Mapping[str, str],
        user: int,
        cgroup: Path | None,
    ) -> None:
        self._unshare = unshare
        self._log = log
        self._environment = environment
        self._user = user
        self._cgroup = cgroup
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def logs(self) -> str:
        """What the container has printed."""
        return self._log.read_text(errors="replace")

    def start(self, *command: str, shown: Path) -> subprocess.Popen[bytes]:
        """A command in the pod, as `kubectl exec` starts it; its output goes to the file `shown`. Ends with the pod."""
        with shown.open("wb") as file:
            inside = self._inside(command)
            started = subprocess.Popen(inside, stdout=file, stderr=subprocess.STDOUT, env=self._environment)
        self._started.append(started)
        return started

    def run(self, *command: str, limit_s: float = EXEC_S) -> Said:
        """The same to its end."""
        done = subprocess.run(
            self._inside(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(self._environment),
            timeout=limit_s,
            check=False,
        )
        return Said(code=done.returncode, out=done.stdout.strip())

    def wait_for(self, *command: str, code: int, limit_s: float = LISTENS_S) -> Said:
        """Run a command until it ends with `code`."""
        said: list[Said] = []

        def ended() -> bool:
            said[:] = [self.run(*command)]
            return said[0].code == code

        met = wait_until(ended, clock=MonotonicClock(), seconds=limit_s, poll_s=0.5)
        assert met, f"{command}: {said[0]}\n{self.logs}"
        return said[0]

    def terminate(self, *pre_stop: str, grace_s: float) -> Said:
        """As the kubelet ends a pod: preStop, SIGTERM to the first process, SIGKILL after the grace.

        Returns:
            What preStop came to.
        """
        clock = MonotonicClock()
        begun_ns = clock.now_ns()
        said = self.run(*pre_stop, limit_s=grace_s)
        left_s = max(2.0, grace_s - (clock.now_ns() - begun_ns) / 1e9)  # the kubelet gives two seconds at least
        self.kill(signal.SIGTERM)
        if not wait_until(lambda: self._unshare.poll() is not None, clock=clock, seconds=left_s):
            self.kill(signal.SIGKILL)
            self._unshare.wait(EXEC_S)
        return said

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the first process; with SIGKILL all others end with it."""
        os.kill(self._first(), number)

    def close(self) -> None:
        """End process 1, and with it all of them; nothing is left on return."""
        if self._unshare.poll() is None:
            self.kill(signal.SIGKILL)
        for process in [self._unshare, *self._started]:
            process.wait(EXEC_S)

    def memory_used(self) -> int:
        """The most so far, in bytes; 0 where there is no limit."""
        return 0 if self._cgroup is None else int((self._cgroup / "memory.max_usage_in_bytes").read_text())

    def _first(self) -> int:
        """Process 1 of the pod, as it is called outside."""
        pid = self._unshare.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def _inside(self, command: tuple[str, ...]) -> list[str]:
        enter = [
            "nsenter",
            "--target",
            str(self._first()),
            "--mount",
            "--pid",
            "--net",
            "--ipc",
            "--uts",
            "--root",
            "--wd",
        ]
        user = str(self._user)
        rights = ["--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
        joined = [*enter, "setpriv", *rights, "--inh-caps=-all", *command]
        if self._cgroup is None:
            return joined
        return ["sh", "-c", f'echo 0 > "{self._cgroup}/cgroup.procs"; exec "$@"', "sh", *joined]


@contextmanager
def pod(manifests: Manifests, runs: Path, *, ray_start: str) -> Iterator[Pod]:
    """The driver's pod of `manifests`, with `runs` as its volume; its processes are gone with the block.

    Args:
        ray_start: the command that KubeRay would generate from `rayStartParams`.
    """
    template = manifests.pod("driver")
    user = int(template.spec["securityContext"]["runAsUser"])
    runs.mkdir(exist_ok=True)
    os.chown(runs, user, user)  # as fsGroup makes it
    environment = _environment(template, ray_start)
    with tempfile.TemporaryDirectory() as scratch, _memory_limit(_memory(manifests)) as cgroup:
        place = Path(scratch)
        (place / "root").mkdir()
        (place / "train.toml").write_text(manifests.one("ConfigMap")["data"]["train.toml"])
        told = environment | {
            "ROOT": str(place / "root"),
            "APP": str(ROOT),
            "VENV": sys.prefix,
            "BASE": sys.base_prefix,
            "RUNS": str(runs),
            "CONFIG": str(place / "train.toml"),
            "SHM_BYTES": str(int(amount(template.mounted_at("/dev/shm")["emptyDir"]["sizeLimit"]))),
            "TMP_BYTES": str(int(amount(template.mounted_at("/tmp")["emptyDir"]["sizeLimit"]))),
            "MADE": str(place / "made"),
            "CGROUP": str(cgroup or ""),
            "HOSTNAME_OF_POD": template.spec["hostname"],
            "USER_ID": str(user),
        }
        command = [*template.container["command"], *template.container["args"]]
        log = place / "log"
        with log.open("wb") as file:
            started = subprocess.Popen(
                ["unshare", *UNSHARED, "sh", str(INIT), *command], stdout=file, stderr=subprocess.STDOUT, env=told
            )
        running = Pod(started, log, environment, user, cgroup)
        try:
            made = wait_until(lambda: _made(place, started), clock=MonotonicClock(), seconds=EXEC_S)
            assert made and started.poll() is None, running.logs
            yield running
        finally:
            running.close()


def _made(place: Path, started: subprocess.Popen[bytes]) -> bool:
    """Whether the sandbox is complete, or has failed."""
    return (place / "made").exists() or started.poll() is not None


def _environment(template: Template, ray_start: str) -> dict[str, str]:
    """Of the image, of the manifest, and what KubeRay adds."""
    image = {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": "/app",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    added = {
        "KUBERAY_GEN_RAY_START_CMD": ray_start,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return image | template.environment() | added


def _memory(manifests: Manifests) -> int:
    """Limits of all pods together: here they are one."""
    return int(sum(amount(each.container["resources"]["limits"]["memory"]) for each in manifests.pods()))


@contextmanager
def _memory_limit(num_bytes: int) -> Iterator[Path | None]:
    """A group of the memory controller with this limit; None where there is no such controller."""
    if not (MEMORY / "memory.limit_in_bytes").exists():
        yield None
        return
    group = MEMORY / f"truestep-{os.getpid()}-{secrets.token_hex(4)}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(num_bytes))
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text(), clock=MonotonicClock(), seconds=EXEC_S)
        group.rmdir()
