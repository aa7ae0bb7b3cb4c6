"""Facts for the record: complete, plain, without secrets, and a fingerprint that moves when bits may (D3)."""

from __future__ import annotations

import copy
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import plain_json
from common.errors import ConfigError
from deploy import facts as room
from deploy.facts import cpu_facts, environment_facts, fingerprint, gather_facts, git_facts, package_digests

FACTS = gather_facts()


def git(directory: Path, *arguments: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(directory), *author, *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def test_facts_are_plain_and_tell_what_runs_here() -> None:
    """They fit the registry, and the versions are those of the running process."""
    assert plain_json.loads(plain_json.dumps(FACTS)) == FACTS
    assert FACTS["distributions"]["numpy"]["version"] == np.__version__
    assert FACTS["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert FACTS["cpu"]["allowed"] == len(os.sched_getaffinity(0))
    assert FACTS["memory"]["total_bytes"] > 2**20
    assert FACTS["torch"]["threads"] >= 1
    assert set(FACTS["sources"]) == {"actors", "common", "deploy", "learner"}


def test_a_distribution_is_known_by_the_hash_of_its_record() -> None:
    """RECORD lists the hash of every file that was installed; each distribution has its row, under its normal name."""
    record = importlib.metadata.distribution("numpy").read_text("RECORD")
    assert record is not None
    found = room.distributions()
    assert found["numpy"] == {"version": np.__version__, "record_sha256": sha256(record.encode()).hexdigest()}
    assert "prometheus-client" in found and list(found) == sorted(found)


def test_the_first_distribution_of_a_name_is_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with imports; one without a RECORD has no hash."""
    for place, version in (("first", "2"), ("second", "1")):
        metadata = tmp_path / place / "My_Env.Pkg-1.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: My_Env.Pkg\nVersion: {version}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert room.distributions() == {"my-env-pkg": {"version": "2", "record_sha256": None}}


# Git


def test_a_clean_tree_is_its_commit(repository: Path) -> None:
    """Commit, not dirty, no diff."""
    commit = git(repository, "rev-parse", "HEAD")
    nothing: dict[str, Any] = {"diff_sha256": None, "diff": "", "untracked": [], "reason": ""}
    assert git_facts(repository / "package") == {"commit": commit, "dirty": False, **nothing}


def test_a_changed_tree_is_its_commit_and_the_hash_of_the_difference(repository: Path) -> None:
    """Two different changes have two hashes; staging changes nothing; an untracked file makes it dirty too."""
    file, hashes = repository / "package" / "a.py", set()
    for text in ("a = 2\n", "a = 3\n"):
        file.write_text(text)
        found = git_facts(repository / "package")
        assert found["dirty"] is True
        assert f"-a = 1\n+{text}" in found["diff"]
        assert found["untracked"] == []
        hashes.add(found["diff_sha256"])
    assert len(hashes) == 2
    git(repository, "add", ".")
    assert git_facts(repository / "package")["diff_sha256"] in hashes
    git(repository, "commit", "-q", "-m", "two")
    (repository / "a new one.py").write_text("")
    found = git_facts(repository / "package")
    assert (found["dirty"], found["diff"], found["untracked"]) == (True, "", ["a new one.py"])


def test_a_long_difference_is_kept_in_part_and_hashed_whole(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hash is that of what git itself prints."""
    monkeypatch.setattr(room, "DIFF_BYTES", 150)
    (repository / "package" / "a.py").write_text("line\n" * 100)
    found = git_facts(repository / "package")
    whole = git(repository, "diff", "--binary", "HEAD") + "\n"
    assert (found["diff"], found["diff_sha256"]) == (whole[:150], sha256(whole.encode()).hexdigest())


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("+API_KEY = 'abcdefgh'\n+a = 1\n", "+API_KEY = <left out>\n+a = 1\n"),
        ('+"auth_token": "0123456789abcdef",', '+"auth_token": <left out>,'),
        ("+export WANDB_API_KEY=0123456789abcdef0123", "+export WANDB_API_KEY=<left out>"),
        ("+password: hunter2hunter2hunter2", "+password: <left out>"),
        ("+key = fragment.name\n+for key in keys:", "+key = fragment.name\n+for key in keys:"),
        ("+keys = sorted(found_in_all_of_them)", "+keys = sorted(found_in_all_of_them)"),
        ("+key = 'a'", "+key = 'a'"),
    ],
)
def test_a_difference_is_recorded_without_what_looks_like_a_secret(text: str, kept: str) -> None:
    """Literals that are assigned to a name that sounds like one; code that only has such names stays."""
    assert room.without_secrets(text) == kept


def test_the_difference_of_a_repository_is_recorded_without_secrets(repository: Path) -> None:
    """Its hash is that of the difference as it is."""
    (repository / "package" / "a.py").write_text("api_key = 'abcdefgh12345678'\n")
    found = git_facts(repository / "package")
    assert "abcdefgh12345678" not in found["diff"] and "+api_key = <left out>" in found["diff"]


def test_looking_does_not_write_to_the_repository(repository: Path) -> None:
    """The index is not even refreshed: a training run must not race with its user's git."""
    (repository / "package" / "a.py").touch()
    before = {file.name: file.stat().st_mtime_ns for file in (repository / ".git").iterdir()}
    git_facts(repository / "package")
    assert {file.name: file.stat().st_mtime_ns for file in (repository / ".git").iterdir()} == before


def test_the_repository_around_site_packages_is_not_ours(repository: Path) -> None:
    """An installed truestep inside somebody's project does not claim that project's commit."""
    (repository / ".gitignore").write_text("venv\n")
    (repository / "venv").mkdir()
    (repository / "venv" / "b.py").write_text("")
    found = git_facts(repository / "venv")
    assert (found["commit"], found["reason"]) == (None, "the sources are not tracked by a git repository")


def test_no_repository_no_commit_no_git_and_a_slow_git_are_facts(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never an error; the reason is there."""
    outside = tmp_path_factory.mktemp("outside")
    assert "not a git repository" in git_facts(outside)["reason"]
    git(outside, "init", "-q")
    (outside / "a.py").write_text("")
    git(outside, "add", ".")
    unborn = git_facts(outside)
    assert unborn["commit"] is None
    assert unborn["reason"]
    with monkeypatch.context() as patch:
        patch.setattr(room, "GIT_TIMEOUT_S", -1.0)
        assert "longer than" in git_facts(repository)["reason"]
    monkeypatch.setenv("PATH", "")
    assert "git cannot be run" in git_facts(repository)["reason"]


def test_a_surrounding_git_hook_does_not_redirect_us(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIT_DIR, which hooks set, is another repository's."""
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    assert git_facts(repository)["reason"] == ""


# Sources


def test_the_digest_of_a_tree_is_worked_out_by_hand(tmp_path: Path) -> None:
    """Golden: relative path, NUL, size, NUL, content, in order of path; only Python sources count."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.py").write_bytes(b"xy")
    (tmp_path / "a.py").write_bytes(b"")
    (tmp_path / "a.txt").write_bytes(b"ignored")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(b"ignored")
    assert room.tree_digest(tmp_path) == sha256(b"a.py\x000\0b/c.py\x002\0xy").hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "a.py").write_text("a = 2\n"),
        lambda root: (root / "a.py").rename(root / "b.py"),
        lambda root: (root / "new.py").write_text(""),
        lambda root: (root / "sub.py").write_text((root / "a.py").read_text()),
    ],
)
def test_every_change_of_a_source_changes_the_digest(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """Content, name, a further file."""
    (tmp_path / "a.py").write_text("a = 1\n")
    before = room.tree_digest(tmp_path)
    change(tmp_path)
    assert room.tree_digest(tmp_path) != before


def test_package_digests_are_those_of_the_packages_that_python_imports() -> None:
    """Path and digest of the code that runs; a package that is not there is said."""
    found = package_digests()
    assert Path(room.__file__).resolve().parent == Path(found["deploy"]["path"])
    assert found["deploy"]["sha256"] == room.tree_digest(Path(found["deploy"]["path"]))
    with pytest.raises(ConfigError, match=r"'no_such_package' of truestep is not on sys.path"):
        package_digests(["no_such_package"])


# Machine and environment


def test_cpu_facts_of_two_architectures() -> None:
    """Text of /proc/cpuinfo on x86 and ARM; only flags that choose kernels are kept; none at all is a fact."""
    intel = "vendor_id\t: GenuineIntel\nmodel name\t: Xeon: 1\nflags\t\t: fpu avx2 avx512f amx_tile\n\nflags\t: avx\n"
    assert {key: cpu_facts(intel)[key] for key in ("vendor", "model", "flags")} == {
        "vendor": "GenuineIntel",
        "model": "Xeon: 1",
        "flags": ["amx_tile", "avx2", "avx512f"],
    }
    arm = "processor : 0\nFeatures : fp asimd sve\nCPU implementer : 0x41\nCPU part : 0xd40\n"
    found = cpu_facts(arm)
    assert (found["vendor"], found["model"], found["flags"]) == ("0x41", "0xd40", ["asimd", "sve"])
    assert cpu_facts(None)["flags"] == []


def test_gpu_facts_come_from_the_kernel_module(tmp_path: Path) -> None:
    """Driver and models, in order of bus id; no module, no GPU."""
    assert room._gpu(tmp_path) is None
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 570.1\nGCC version: 12\n")
    for bus, model in (("0000:02", "B"), ("0000:01", "A")):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        (tmp_path / "gpus" / bus / "information").write_text(f"Model: \t\t NVIDIA {model}\nIRQ:   1\n")
    expected = {"driver": "NVRM version: NVIDIA UNIX x86_64 570.1", "models": ["NVIDIA A", "NVIDIA B"]}
    assert room._gpu(tmp_path) == expected


def test_no_secret_is_recorded() -> None:
    """Only listed prefixes, and never a name that sounds like a credential."""
    environment = {
        "OMP_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "AWS_SECRET_ACCESS_KEY": "s",
        "WANDB_API_KEY": "s",
        "TORCH_HUB_TOKEN": "s",
        "NVIDIA_api_key": "s",
        "PATH": "/bin",
        "HOME": "/root",
    }
    assert environment_facts(environment) == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "1"}


# Fingerprint


def changed(path: str, value: Any) -> dict[str, Any]:
    facts = copy.deepcopy(FACTS)
    inner: Any = facts
    *parents, last = path.split("/")
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return facts


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sources/learner/sha256", "0"),
        ("distributions/numpy/version", "0"),
        ("distributions/torch/version", "0"),
        ("distributions/torch", None),
        ("distributions/gymnasium/version", "0"),
        ("python/version", "3.99.0"),
        ("system/libc", "musl"),
        ("system/machine", "aarch64"),
        ("cpu/model", "another"),
        ("cpu/flags", ["avx2"]),
        ("torch/threads", 99),
        ("torch/cpu_capability", "DEFAULT"),
        ("torch", None),
        ("gpu", {"driver": "570", "models": ["NVIDIA H200"]}),
        ("environment/OMP_NUM_THREADS", "99"),
        ("environment/NVIDIA_TF32_OVERRIDE", "1"),
    ],
)
def test_what_may_change_bits_changes_the_fingerprint(path: str, value: Any) -> None:
    """Each of the facts that the docstring names."""
    assert fingerprint(changed(path, value)) != fingerprint(FACTS)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sources/learner/path", "/elsewhere"),
        ("system/host", "another"),
        ("system/kernel", "another"),
        ("git/commit", "another"),
        ("memory/total_bytes", 1),
        ("cpu/allowed", 1000),
        ("python/executable", "/elsewhere/python"),
        ("distributions/ray/version", "0"),
        ("distributions/numpy/record_sha256", "0"),
        ("git/diff", "another"),
        ("environment/CUDA_VISIBLE_DEVICES", "7"),
    ],
)
def test_what_cannot_change_bits_does_not(path: str, value: Any) -> None:
    """Where it ran is no part of what it computes."""
    assert fingerprint(changed(path, value)) == fingerprint(FACTS)


def test_the_fingerprint_is_a_function_of_the_facts_alone() -> None:
    """Neither the order of keys nor another process with another hash seed changes it."""
    turned = changed("sources", dict(reversed(FACTS["sources"].items())))
    assert fingerprint(turned) == fingerprint(FACTS)
    imports = "import sys; from common.plain_json import loads; from deploy.facts import fingerprint"
    code = f"{imports}; print(fingerprint(loads(sys.stdin.read())))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        input=plain_json.dumps(FACTS),
        env={**os.environ, "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert found.stdout.strip() == fingerprint(FACTS)
