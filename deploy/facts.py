"""Facts about this process for the record: what ran, with what, on what.

A fact that cannot be had (no git, no GPU, a package that is absent) is a fact too: its value is None or a reason, never
an error. Everything is plain, so that it fits the registry and `fingerprint`. No secrets: environment variables are
taken from a closed list of prefixes, and never when their name sounds like a credential.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from common import plain_json
from common.errors import ConfigError

PACKAGES = ("actors", "common", "deploy", "learner")
BIT_PREFIXES = (  # what chooses kernels, thread counts or orders of summation
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "ATEN_", "CUBLAS_"),
    *("NVIDIA_TF32", "TORCH_ALLOW_TF32", "NCCL_ALGO", "NCCL_PROTO", "PYTHONHASHSEED"),
)
ENVIRONMENT_PREFIXES = (*BIT_PREFIXES, "CUDA_", "NCCL_", "NVIDIA_", "TORCH_", "PYTORCH_", "MALLOC_", "LD_PRELOAD")
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
WRITTEN_SECRET = re.compile(  # name = 'value', "name": "value", NAME=value; short values and expressions are none
    rf"""(?P<name>(?:{SECRET.pattern})\w*["']?\s*[:=]+\s*)"""
    r"""(?:"[^"\s]{8,}"|'[^'\s]{8,}'|(?=[\w+/-]*\d)[\w+/-]{16,}={0,2}(?=\s|$))""",
    re.IGNORECASE,
)
CPU_FLAGS = frozenset(
    (
        *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni"),
        *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
        *("amx_tile", "amx_int8", "amx_bf16"),
        *("asimd", "asimddp", "fphp", "sve", "sve2", "bf16", "i8mm"),
    )
)
GIT_TIMEOUT_S = 10.0
DIFF_BYTES = 2**16  # of a difference that are kept; its hash covers all
UNTRACKED_NAMES = 100
FINGERPRINT_DISTRIBUTIONS = ("numpy", "torch", "gymnasium")

Facts = dict[str, Any]


def gather_facts() -> Facts:
    """All facts, by topic.

    Keys: `sources` (per package of truestep: path and SHA-256), `git` (commit, whether the tree differs from it and
    how), `distributions` (per one that is installed: version and SHA-256 of its RECORD, which lists every file's hash),
    `python`, `system`, `cpu`, `memory`, `torch`, `gpu`, `environment`. Takes about 0.15 s with a hundred distributions
    once torch, if installed, is imported; makes no CUDA context. Thread counts are those of the moment: gather after
    setting them.
    """
    sources = package_digests()
    return {
        "sources": sources,
        "git": git_facts(Path(sources["deploy"]["path"])),
        "distributions": distributions(),
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
        },
        "system": _system(),
        "cpu": cpu_facts(_text(Path("/proc/cpuinfo"))),
        "memory": _memory(),
        "torch": _torch(),
        "gpu": _gpu(Path("/proc/driver/nvidia")),
        "environment": environment_facts(os.environ),
    }


def fingerprint(facts: Mapping[str, Any]) -> str:
    """SHA-256 over the facts that may change bits of a result; equal configuration and fingerprint, equal bits.

    In it: sources of truestep (not their paths), versions of numpy, torch and gymnasium, Python, libc (its libm serves
    environments), machine, CPU model, vendor and capability (BLAS picks kernels by them), torch's CPU capability, CUDA
    and thread counts, GPU models and driver, and the environment variables of `BIT_PREFIXES`. Not in it: host, paths,
    kernel, memory, number of CPUs, git (the sources are hashed themselves), and distributions that only move bytes.
    """
    torch = facts["torch"] or {}
    chosen = {
        "sources": {name: source["sha256"] for name, source in facts["sources"].items()},
        "versions": {
            name: (facts["distributions"].get(name) or {}).get("version") for name in FINGERPRINT_DISTRIBUTIONS
        },
        "python": [facts["python"]["version"], facts["python"]["implementation"]],
        "libc": facts["system"]["libc"],
        "machine": facts["system"]["machine"],
        "cpu": {name: facts["cpu"][name] for name in ("vendor", "model", "flags")},
        "torch": {name: torch.get(name) for name in ("cpu_capability", "cuda", "threads", "interop_threads")},
        "gpu": facts["gpu"],
        "environment": {name: value for name, value in facts["environment"].items() if name.startswith(BIT_PREFIXES)},
    }
    return sha256(plain_json.dumps(chosen, sort_keys=True).encode("ascii")).hexdigest()


def package_digests(packages: Sequence[str] = PACKAGES) -> dict[str, dict[str, str]]:
    """Per package: `path` of its directory and `sha256` over its Python sources.

    Every process compares these with the driver's, because the names of the packages are general: a stranger's `common`
    found first on sys.path, or a worker with other code, must not take part in a run.
    """
    return {name: _package_digest(name) for name in packages}


def tree_digest(root: Path) -> str:
    """SHA-256 over all `*.py` below `root`: relative path, size and content of each, in order of path."""
    digest = sha256()
    for file in sorted(root.rglob("*.py"), key=lambda file: file.relative_to(root).as_posix()):
        data = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()}\0{len(data)}\0".encode("utf-8", "surrogateescape"))
        digest.update(data)
    return digest.hexdigest()


def git_facts(directory: Path) -> Facts:
    """Commit of the work tree that holds `directory`, and what differs from it.

    `dirty` is None without a commit, else whether any file is changed or untracked; `diff` holds the changes of tracked
    files against the commit, up to `DIFF_BYTES`, without what looks like a written-down secret; `diff_sha256` covers
    all of them as they are; `untracked` names files that git does not know, up to `UNTRACKED_NAMES`. Where there is
    nothing to tell, `reason` says why (no git, no repository, or a directory that the repository around it does not
    track, such as site-packages inside another project).
    """
    nothing: Facts = {"commit": None, "dirty": None, "diff_sha256": None, "diff": "", "untracked": []}
    try:
        if not _git(directory, "ls-files", "--", "."):
            return {**nothing, "reason": "the sources are not tracked by a git repository"}
        commit = _git(directory, "rev-parse", "HEAD").decode().strip()
        status = _git(directory, "status", "--porcelain", "-z").decode(errors="replace")
        if not status:
            return {**nothing, "commit": commit, "dirty": False, "reason": ""}
        difference = _git(directory, "diff", "--no-ext-diff", "--binary", "HEAD")
        return {
            "commit": commit,
            "dirty": True,
            "diff_sha256": sha256(difference).hexdigest(),
            "diff": without_secrets(difference[:DIFF_BYTES].decode(errors="replace")),
            "untracked": [entry[3:] for entry in status.split("\0") if entry.startswith("?? ")][:UNTRACKED_NAMES],
            "reason": "",
        }
    except subprocess.CalledProcessError as error:
        return {**nothing, "reason": error.stderr.decode(errors="replace").strip() or f"git exited {error.returncode}"}
    except subprocess.TimeoutExpired:
        return {**nothing, "reason": f"git took longer than {GIT_TIMEOUT_S:.0f} s"}
    except OSError as error:
        return {**nothing, "reason": f"git cannot be run: {error.strerror}"}


def without_secrets(text: str) -> str:
    """`text` in which what is assigned to a name that sounds like a credential is left out.

    >>> without_secrets('api_key = "0123456789"')
    'api_key = <left out>'
    """
    return WRITTEN_SECRET.sub(r"\g<name><left out>", text)


def distributions() -> dict[str, Facts]:
    """Every distribution on sys.path, by its normal name; the first of a name is the one that is imported.

    `record_sha256` is None where an installer left no RECORD.
    """
    found: dict[str, Facts] = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if name and name not in found:
            record = distribution.read_text("RECORD")
            digest = None if record is None else sha256(record.encode("utf-8")).hexdigest()
            found[name] = {"version": distribution.version, "record_sha256": digest}
    return dict(sorted(found.items()))


def environment_facts(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may change numbers or speed, sorted by name."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(ENVIRONMENT_PREFIXES) and SECRET.search(name) is None
    }


def cpu_facts(cpuinfo: str | None) -> Facts:
    """Vendor, model and capability flags from the text of /proc/cpuinfo (None where there is none), and CPU counts.

    `allowed` is what this process may run on (its affinity); `quota` is the cgroup's limit, as the kernel writes it.
    """
    fields = dict(_fields((cpuinfo or "").partition("\n\n")[0]))
    flags = fields.get("flags", fields.get("Features", "")).split()
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "vendor": fields.get("vendor_id", fields.get("CPU implementer")),
        "model": fields.get("model name", fields.get("CPU part", platform.processor() or None)),
        "flags": sorted(CPU_FLAGS.intersection(flags)),
        "allowed": len(affinity(0)) if affinity else os.cpu_count(),
        "quota": _text(Path("/sys/fs/cgroup/cpu.max")),
    }


def _package_digest(name: str) -> dict[str, str]:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"package {name!r} of truestep is not on sys.path", fix="install truestep anew")
    root = Path(next(iter(spec.submodule_search_locations))).resolve()
    return {"path": str(root), "sha256": tree_digest(root)}


def git_environment() -> dict[str, str]:
    """Of a git that answers in English, and not about the repository of a hook that we may run in (GIT_DIR)."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {"LC_ALL": "C"}


def _git(directory: Path, *arguments: str) -> bytes:
    environment = git_environment() | {"GIT_OPTIONAL_LOCKS": "0"}  # only looking: the index is not refreshed
    command = ["git", "-C", str(directory), *arguments]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=GIT_TIMEOUT_S
    ).stdout


def _system() -> Facts:
    return {
        "host": platform.node(),
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
    }


def _memory() -> Facts:
    total = dict(_fields(_text(Path("/proc/meminfo")) or "")).get("MemTotal", "").removesuffix(" kB")
    return {
        "total_bytes": int(total) * 1024 if total else None,
        "limit": _text(Path("/sys/fs/cgroup/memory.max")),
    }


def _torch() -> Facts | None:
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return {
        "version": str(torch.__version__),  # a subclass of str, which plain JSON does not take
        "cuda": torch.version.cuda,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
    }


def _gpu(root: Path) -> Facts | None:
    """Driver and models as the kernel module tells them: asking CUDA would make a context in the driver process."""
    version = _text(root / "version")
    if version is None:
        return None
    cards = [dict(_fields(_text(file) or "")) for file in sorted(root.glob("gpus/*/information"))]
    return {"driver": version.splitlines()[0], "models": [card.get("Model") for card in cards]}


def _fields(text: str) -> Iterable[tuple[str, str]]:
    """The lines `name : value` of a file in /proc."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), value.strip()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
