"""The GPU of this process as NVIDIA's management library (NVML) sees it: load, memory, and whether it is the right one.

    NVML ──► GpuReading, every POLL_S, in a thread of its own ──► gauges

A thread, because a driver in trouble can make NVML wait: no scrape and no update waits with it. Without the library,
the package that speaks to it (`pip install truestep[gpu]`) or a GPU there are no series, and that is no error.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from common.errors import RunFailedError

POLL_S = 5.0
CLOSE_S = 2.0
INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of Linux: pids that NVML reports are counted there
logger = logging.getLogger(__name__)


class Nvml(Protocol):
    """What is used of the module `pynvml`, whose words these are."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...  # noqa: N802
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Sequence[Any]: ...  # noqa: N802


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Which GPU a process has, and which it should have.

    Attributes:
        computes_on: UUID of the GPU that its tensors live on, as CUDA tells it.
        assigned: what it was given: numbers in NVML's order, or UUIDs or their beginnings, as in CUDA_VISIBLE_DEVICES;
            None if it may use any.
    """

    computes_on: str
    assigned: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU at one moment; None is what NVML does not tell of it.

    Attributes:
        utilization: share of time in which it computed, 0 to 1.
        used_bytes, total_bytes: of its memory.
        misplaced: whether the process uses a GPU that it was not given.
    """

    utilization: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    misplaced: bool | None = None


def visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """What the environment gives to a process: the words of CUDA_VISIBLE_DEVICES; None where it does not say."""
    words = environ.get("CUDA_VISIBLE_DEVICES")
    return None if words is None else tuple(word.strip() for word in words.split(",") if word.strip())


def load_nvml() -> Nvml | None:
    """NVML, ready; None where there is none."""
    try:
        import pynvml
    except ImportError:
        return None
    nvml: Nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no library, no driver, or no GPU
        return None
    return nvml


class GpuReader:
    """Reads one process's GPU. Raises `nvml.NVMLError` where NVML does not know that GPU."""

    def __init__(self, nvml: Nvml, binding: Binding) -> None:
        self._nvml = nvml
        self._handles = {
            _plain(nvml.nvmlDeviceGetUUID(handle)): handle
            for handle in (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount()))
        }
        self._own = _plain(binding.computes_on)
        self._allowed = _allowed(binding.assigned, list(self._handles))
        self._sees_pids = _pid_namespace() == INITIAL_PID_NAMESPACE

    def read(self) -> GpuReading:
        """The GPU now."""
        handle = self._handles.get(self._own)
        rates = memory = None
        if handle is not None:
            rates = self._asked(partial(self._nvml.nvmlDeviceGetUtilizationRates, handle))
            memory = self._asked(partial(self._nvml.nvmlDeviceGetMemoryInfo, handle))
        return GpuReading(
            utilization=None if rates is None else rates.gpu / 100.0,
            used_bytes=None if memory is None else int(memory.used),
            total_bytes=None if memory is None else int(memory.total),
            misplaced=None if self._allowed is None else bool(self._in_use() - self._allowed),
        )

    def mistake(self) -> RunFailedError:
        """The wrong binding in words."""
        return RunFailedError(
            f"process {os.getpid()} computes on a GPU that it was not given",
            got=", ".join(sorted(self._in_use())),
            allowed=", ".join(sorted(self._allowed or ())) or "none",
            fix="set CUDA_DEVICE_ORDER=PCI_BUS_ID on every node, and CUDA_VISIBLE_DEVICES nowhere but in Ray",
        )

    def _in_use(self) -> set[str]:
        """UUIDs of the GPUs that this process computes on."""
        found = {self._own}
        if self._sees_pids:
            for uuid, handle in self._handles.items():
                running = self._asked(partial(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle))
                if any(process.pid == os.getpid() for process in running or ()):
                    found.add(uuid)
        return found

    def _asked(self, question: Callable[[], Any]) -> Any:
        """The answer; None where this GPU or this user's rights have none (a slice has no load of its own)."""
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def _allowed(assigned: tuple[str, ...] | None, uuids: list[str]) -> set[str] | None:
    """UUIDs of what was assigned; None if that is anything, or cannot be told (a slice of a GPU)."""
    if assigned is None or any(name.startswith("MIG-") for name in assigned):
        return None
    numbered = {uuids[int(name)] for name in assigned if name.isdigit() and int(name) < len(uuids)}
    named = {_plain(name) for name in assigned if not name.isdigit()}
    return numbered | {uuid for uuid in uuids if any(name and uuid.startswith(name) for name in named)}


def _plain(uuid: str) -> str:
    """CUDA leaves out what NVML begins with."""
    return uuid.removeprefix("GPU-")


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


class GpuWatch:
    """Reads every `POLL_S` and tells `record`, from `start` to `close`."""

    def __init__(self, reader: Callable[[], GpuReader], record: Callable[[GpuReading], None], *, who: str) -> None:
        self._reader = reader
        self._record = record
        self._who = who
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gpu of {who}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, or leave a reading that hangs to the process's own end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            reader, told = self._reader(), False
            while not self._stop.is_set():
                reading = reader.read()
                self._record(reading)
                if reading.misplaced and not told:
                    told = True
                    logger.error("%s: %s", self._who, reader.mistake())
                self._stop.wait(POLL_S)
        except Exception:
            logger.exception("GPU of %s: cannot be read any more; the run goes on", self._who)
            self._record(GpuReading())
