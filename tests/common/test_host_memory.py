"""How full the memory is, by files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.host_memory import HostMemory, host_memory

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nHugePages_Total:   0\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    root = tmp_path / "proc"
    (root / "self").mkdir(parents=True)
    (root / "meminfo").write_text(MEMINFO)
    return root


def _group(root: Path, **files: object) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name.replace("__", ".")).write_text(f"{text}\n")


def test_without_a_limit_the_machine_counts(tmp_path: Path, proc: Path) -> None:
    """What could be given back is not used: 1000 kB less 400 kB available."""
    read = host_memory(cgroups=tmp_path / "none", proc=proc)
    assert read == HostMemory(used_bytes=600 * 1024, limit_bytes=1000 * 1024)
    assert read.ratio == 0.6


def test_a_container_of_version_2_counts_without_its_cache(tmp_path: Path, proc: Path) -> None:
    """The nearest group above with a limit: the process's own has none."""
    (proc / "self" / "cgroup").write_text("0::/pod/box\n")
    _group(tmp_path / "cg" / "pod", memory__max=1000, memory__current=950, memory__stat="anon 3\ninactive_file 50")
    _group(tmp_path / "cg" / "pod" / "box", memory__max="max", memory__current=5)
    assert host_memory(cgroups=tmp_path / "cg", proc=proc) == HostMemory(used_bytes=900, limit_bytes=1000)


def test_a_container_of_version_1_counts_too(tmp_path: Path, proc: Path) -> None:
    """Its files have other names, and "no limit" is a number."""
    (proc / "self" / "cgroup").write_text("7:cpu,cpuacct:/\n4:memory:/box\n")
    names = {"memory__stat": "cache 9\ntotal_inactive_file 100"}
    box = tmp_path / "cg" / "memory" / "box"
    _group(box, memory__limit_in_bytes=1000, memory__usage_in_bytes=900, **names)
    assert host_memory(cgroups=tmp_path / "cg", proc=proc) == HostMemory(used_bytes=800, limit_bytes=1000)
    _group(box, memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=900, **names)
    assert host_memory(cgroups=tmp_path / "cg", proc=proc) == HostMemory(used_bytes=614400, limit_bytes=1024000)


def test_the_fuller_one_counts(tmp_path: Path, proc: Path) -> None:
    """A container that is half empty helps nothing on a machine that is full."""
    (proc / "self" / "cgroup").write_text("0::/box\n")
    _group(tmp_path / "cg" / "box", memory__max=1000, memory__current=500)
    read = host_memory(cgroups=tmp_path / "cg", proc=proc)
    assert read is not None and read.ratio == 0.6


def test_elsewhere_nothing_is_known(tmp_path: Path) -> None:
    """No files, no figure, no error."""
    assert host_memory(cgroups=tmp_path, proc=tmp_path) is None


def test_this_machine_has_some() -> None:
    """Between empty and full, where there is anything to read."""
    read = host_memory()
    assert read is None or 0.0 < read.ratio < 1.5
