"""What every process says of itself, whatever its part is: pauses, memory, its GPU. Beside the work, never in it."""

from __future__ import annotations

from types import TracebackType

from common import metric_catalogue as catalogue
from common.clock import Clock
from common.gc_watch import PauseWatch
from common.gpu_watch import Binding, GpuReader, GpuReading, GpuWatch, Nvml, load_nvml
from common.host_memory import host_memory
from common.metric_values import HasValues


class ProcessMetrics:
    """Watches this process from `start` to `close`; a context manager. One of each process at a time is enough.

    Args:
        registry: where its series are.
        clock: times pauses.
        who: the process in messages.
    """

    def __init__(self, registry: HasValues, clock: Clock, *, who: str) -> None:
        values = self._values = registry.values
        self._who = who
        self._pauses = PauseWatch(values.histogram(catalogue.PROCESS_GC_PAUSE_SECONDS), clock)
        self._gpu: GpuWatch | None = None
        self._utilization = values.gauge(catalogue.PROCESS_GPU_UTILIZATION)
        self._used = values.gauge(catalogue.PROCESS_GPU_MEMORY_USED)
        self._total = values.gauge(catalogue.PROCESS_GPU_MEMORY_TOTAL)
        self._misplaced = values.gauge(catalogue.PROCESS_GPU_MISPLACED)
        values.sample(values.gauge(catalogue.PROCESS_HOST_MEMORY), _memory_ratio)

    def start(self) -> None:
        """Begin with pauses and memory."""
        self._pauses.start()

    def watch_gpu(self, binding: Binding, nvml: Nvml | None = None) -> None:
        """Watch the GPU as well that this process computes on; without NVML nothing is exported.

        Args:
            binding: which it is, and which it should be.
            nvml: in place of the system's.
        """
        if (library := nvml or load_nvml()) is not None:
            self._gpu = GpuWatch(lambda: GpuReader(library, binding), self.set_gpu, who=self._who)
            self._gpu.start()

    def set_gpu(self, reading: GpuReading) -> None:
        """Export a reading; what it does not tell has no sample."""
        with self._values.recording():
            self._utilization.set(reading.utilization)
            self._used.set(reading.used_bytes)
            self._total.set(reading.total_bytes)
            self._misplaced.set(None if reading.misplaced is None else int(reading.misplaced))

    @property
    def gpu_utilization(self) -> float | None:
        """As exported last, 0 to 1; None where no GPU is watched, or does not tell."""
        return self._utilization.value

    def close(self) -> None:
        """End. May be called again."""
        self._pauses.close()
        if self._gpu is not None:
            self._gpu.close()

    def __enter__(self) -> ProcessMetrics:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _memory_ratio() -> float | None:
    memory = host_memory()
    return None if memory is None else memory.ratio
