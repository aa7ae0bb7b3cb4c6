"""py-spy, which looks into another process of this machine from outside: it sees one whose interpreter lock is held."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common.profiling import ThreadStack, short_name
from deploy.profiling.folded import Folded, parse_folded

LINE = re.compile(r":\d+\)$")
GRACE_S = 30.0  # beyond the seconds asked for: to find the interpreter in the process, and to write
DUMP_S = 20.0
WAITERS = {  # functions that do nothing but wait; py-spy takes their threads for active ones on some kernels
    "Condition.wait (threading.py)",
    "EpollSelector.select (selectors.py)",
    "MonotonicClock.sleep (common/clock.py)",
    "Worker.main_loop (ray/_private/worker.py)",
}
INSTALL = "py-spy is not installed; pip install 'truestep[profile]'"


class PySpyUnable(Exception):
    """py-spy could not do it; the message says why, in a few words."""


def find_py_spy() -> str:
    """The program, beside this Python or on the path. Raises PySpyUnable."""
    beside = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if (program := beside or shutil.which("py-spy")) is None:
        raise PySpyUnable(INSTALL)
    return program


def record(pid: int, *, seconds: float, rate: float, idle: bool) -> Folded:
    """Sample a process of this machine. Raises PySpyUnable."""
    program = find_py_spy()
    with TemporaryDirectory(prefix="truestep-") as directory:
        file = Path(directory) / "samples"
        options = ["--format", "raw", "--nolineno", "--threads", "--full-filenames", *(["--idle"] if idle else [])]
        numbers = ["--duration", f"{max(1, round(seconds))}", "--rate", f"{max(1, round(rate))}"]
        _run([program, "record", "--pid", str(pid), *numbers, *options, "--output", str(file)], seconds + GRACE_S)
        try:
            counts = parse_folded(file.read_text(encoding="utf-8", errors="replace"))
        except (OSError, ValueError) as error:
            raise PySpyUnable(f"py-spy wrote nothing to be read: {error}") from None
    shortened = _shortened(counts)
    if not idle:
        shortened = {stack: count for stack, count in shortened.items() if stack[-1] not in WAITERS}
    return Folded(counts=shortened, remarks=(f"sampled by py-spy, {rate:g} times a second",))


def dump(pid: int) -> list[ThreadStack]:
    """Every thread of a process of this machine, now. Raises PySpyUnable."""
    answer = _run([find_py_spy(), "dump", "--json", "--full-filenames", "--pid", str(pid)], DUMP_S)
    try:
        return [_thread(thread) for thread in json.loads(answer)]
    except (ValueError, KeyError, TypeError) as error:
        raise PySpyUnable(f"py-spy answered in another form than expected: {error}") from None


def _thread(thread: dict[str, Any]) -> ThreadStack:
    frames = [f"{frame['name']} ({short_name(frame['filename'])}:{frame['line']})" for frame in thread["frames"]]
    name = thread.get("thread_name") or f"thread {thread.get('os_thread_id') or thread['thread_id']}"
    waits = not (frames and thread.get("active")) or LINE.sub(")", frames[0]) in WAITERS
    state = "waits" if waits else "holds the interpreter lock" if thread.get("owns_gil") else "computes"
    return ThreadStack(thread=f"{name} ({state})", frames=tuple(reversed(frames)))


def _shortened(counts: dict[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    """With file names as the module search path has them, as the other sampler gives them."""
    names: dict[str, str] = {}

    def shorten(label: str) -> str:
        if label not in names:
            function, bracket, file = label.rpartition(" (")
            names[label] = f"{function} ({short_name(file[:-1])})" if bracket and file.startswith("/") else label
        return names[label]

    short: dict[tuple[str, ...], int] = {}
    for stack, count in counts.items():
        key = tuple(shorten(label) for label in stack)
        short[key] = short.get(key, 0) + count
    return short


def _run(command: list[str], limit_s: float) -> str:
    environment = {**os.environ, "RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PySpyUnable(f"py-spy did not end within {limit_s:g} s") from None
    except OSError as error:
        raise PySpyUnable(f"py-spy cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        raise PySpyUnable(_why(done.stderr))
    return done.stdout


def _why(stderr: str) -> str:
    said = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("permission denied" in line.lower() for line in said):
        return "ptrace is not permitted; it takes root, or the capability SYS_PTRACE in a container"
    error = next((line for line in said if line.startswith("Error:")), said[-1] if said else "it said nothing")
    return f"py-spy: {error.removeprefix('Error: ')}"
