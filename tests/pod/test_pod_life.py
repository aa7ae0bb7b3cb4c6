"""The RayJob of the manifests, lived through: started, probed, told to end, and started again elsewhere (C54, C55).

In namespaces of this machine, root only. The driver's container starts Ray as KubeRay has it do; the nodes of the other
groups, which are pods of their own in Kubernetes, are processes beside it. Ray's job submission starts the entry point.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from common.clock import MonotonicClock, wait_until
from common.errors import RegistryError, RunNotFoundError
from common.runs import RunRecord, RunRegistry
from tests.e2e.command import digests
from tests.kubernetes.rendering import Manifests, needs_kubectl, rendered
from tests.pod.sandbox import Pod, pod

pytest.importorskip("ray")
TOOLS = [tool for tool in ("unshare", "nsenter", "setpriv", "ip") if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_kubectl,
    pytest.mark.skipif(os.geteuid() != 0 or bool(TOOLS), reason="needs root, unshare, nsenter, setpriv and ip"),
]
RUN = "cartpole"
OWN_PORTS = ("metrics-export-port", "node-manager-port", "object-manager-port")  # one pod has them once
BEGINS_S = 240.0
PROBE = ("python", "-m", "deploy.pod")


def ray_start(manifests: Manifests) -> str:
    """Of the head, as KubeRay makes it of `rayStartParams`."""
    return " ".join(["ray start --head", *_flags(manifests.pod("driver").ray | {"dashboard-host": "0.0.0.0"})])


def start_groups(manifests: Manifests, running: Pod, shown: Path) -> None:
    """A node for each worker group, with the label that KubeRay gives it; as there, before the job is submitted."""
    for group in manifests.cluster["workerGroupSpecs"]:
        parameters = {name: value for name, value in group["rayStartParams"].items() if name not in OWN_PORTS}
        labelled = parameters | {"address": "127.0.0.1:6379", "labels": f"ray.io/node-group={group['groupName']}"}
        said = shown.with_suffix(f".{group['groupName']}")
        running.start("ray", "start", *_flags(labelled), shown=said)
        up = partial(_says, said, "Ray runtime started")
        assert wait_until(up, clock=MonotonicClock(), seconds=BEGINS_S), said.read_text()


def _says(file: Path, words: str) -> bool:
    return words in file.read_text(errors="replace")


def _flags(parameters: dict[str, str]) -> list[str]:
    return ["--block", *(f"--{name}={value}" for name, value in parameters.items())]


def submit(manifests: Manifests, running: Pod, shown: Path) -> subprocess.Popen[bytes]:
    """The entry point, submitted as KubeRay's submitter does: by the shell that Ray starts, with Ray's environment."""
    assert manifests.job is not None
    entry = manifests.job["spec"]["entrypoint"]
    words = ["ray", "job", "submit", "--address", "http://127.0.0.1:8265", "--submission-id", shown.stem, "--"]
    return running.start(*words, *entry.split(), shown=shown)


def record(out: Path) -> RunRecord | None:
    """Of the run, if there is one yet."""
    try:
        with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
            return registry.run(RUN)
    except (RunNotFoundError, RegistryError):
        return None


def wait_for_updates(out: Path, more_than: int, submitted: subprocess.Popen[bytes], shown: Path) -> None:
    """Until the run has made more updates than these; fails with what the driver has said."""

    def made() -> bool:
        return record(out) is not None and max(digests(out, RUN), default=0) > more_than

    wait_until(lambda: made() or submitted.poll() is not None, clock=MonotonicClock(), seconds=BEGINS_S)
    assert made(), shown.read_text(errors="replace")


def assert_confined(running: Pod, manifests: Manifests) -> None:
    """The sandbox is what it says: who it is, what it may not, what it has."""
    status = running.run("cat", "/proc/self/status").out
    assert re.search(r"Uid:\t10001\t10001", status) and re.search(r"NoNewPrivs:\t1", status)
    for capabilities in ("CapEff", "CapPrm", "CapBnd"):
        assert re.search(rf"{capabilities}:\t0+\n", status), status
    assert "Read-only file system" in running.run("touch", "/app/written").out
    assert "Read-only file system" in running.run("touch", "/written").out
    assert running.run("df", "--output=size", "-BM", "/dev/shm").out.split() == ["1M-blocks", "384M"]
    assert running.run("hostname").out == manifests.pod("driver").spec["hostname"]


def test_a_job_that_is_told_to_end_checkpoints_and_its_next_pod_goes_on(tmp_path: Path) -> None:
    """Alive and ready by Ray's word before there is a driver, then by the driver's. Deleted: preStop ends the driver at
    a checkpoint, exit code 75, well within the grace. The same command in a new pod resumes the same run."""
    manifests, out = rendered("kind-small"), tmp_path / "runs"
    grace_s = manifests.pod("driver").spec["terminationGracePeriodSeconds"]
    made, clock = 0, MonotonicClock()
    for life in ("first", "second"):
        shown = tmp_path / f"{life}.txt"
        with pod(manifests, out, ray_start=ray_start(manifests)) as running:
            assert "no driver; Ray" in running.wait_for(*PROBE, "readyz", code=0).out
            assert_confined(running, manifests)
            start_groups(manifests, running, shown)
            submitted = submit(manifests, running, shown)
            wait_for_updates(out, made, submitted, shown)
            alive = running.run(*PROBE, "livez")
            assert alive.code == 0 and "the driver's /livez: 200" in alive.out, alive
            assert "the driver's /readyz: 200 ok" in running.wait_for(*PROBE, "readyz", code=0).out
            begun_ns = clock.now_ns()
            stopped = running.terminate(*PROBE, "stop", grace_s=grace_s)
            seconds, memory = (clock.now_ns() - begun_ns) / 1e9, running.memory_used() / 2**30
            print(f"\n{life} life: ended within {seconds:.1f} s of {grace_s} s, {memory:.2f} GiB at most")
            assert stopped.code == 0 and "has ended" in stopped.out, stopped
            assert submitted.wait(60) != 0
        words = shown.read_text(errors="replace")
        assert f"interrupted  SIGTERM: checkpointed at update {max(digests(out, RUN))}, resumable" in words, words
        assert ("resuming     from" in words) == (life == "second"), words
        found = record(out)
        assert found is not None and found.status == "interrupted"
        assert max(digests(out, RUN)) > made
        made = max(digests(out, RUN))
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        assert [each.update for each in registry.updates(RUN)] == list(range(1, made + 1))
        assert [each.run for each in registry.runs()] == [RUN]
