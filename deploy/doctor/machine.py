"""What the machine is like that a run lives on, in the words of its owner: versions, memory, limits, environment."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path

from common.clock import clock_source
from common.host_memory import host_memory
from common.metrics_token import TOKEN_FILE_VARIABLE
from deploy.facts import SECRET, environment_facts
from deploy.preflight.local import file_system, sized
from deploy.preflight.node import installed, shm

OURS = ("RAY_ADDRESS", "RAY_AUTH_MODE", TOKEN_FILE_VARIABLE)
VERSIONS = ("truestep", "torch", "ray", "gymnasium", "numpy", "msgpack", "safetensors", "prometheus-client")
UNLIMITED = "unlimited"


def machine(out: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Facts by name, in the order in which they are read. No value of a variable that sounds like a credential."""
    clock, memory, (shm_bytes, shm_free) = clock_source(), host_memory(), shm()
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    variables = environment_facts(environment) | {name: environment[name] for name in OURS if environment.get(name)}
    return {
        "host": f"{platform.node()}, {platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {installed(name)}" for name in VERSIONS),
        "processors": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": "unknown" if memory is None else f"{memory.ratio:.0%} in use",
        "/dev/shm": f"{sized(shm_free)} free of {sized(shm_bytes)}",
        "output": f"{place}, {file_system(place) or 'unknown'}, {sized(shutil.disk_usage(place).free)} free",
        "open files": f"{_limit(files)}, at most {_limit(most_files)}",
        "processes": _limit(processes),
        "clock": f"{clock.name}, {clock.kernel or 'unknown'}",
        "environment": " ".join(f"{name}={value}" for name, value in variables.items()) or "nothing that matters here",
        "secrets": _secrets(environment),
    }


def _secrets(environment: Mapping[str, str]) -> str:
    """Names only."""
    names = sorted(name for name in environment if SECRET.search(name) and name not in OURS)
    return f"set, and shown nowhere: {', '.join(names)}" if names else "none in the environment"


def _limit(number: int) -> str:
    return UNLIMITED if number == resource.RLIM_INFINITY else f"{number:,}"
