"""How full Ray's object stores are, for the driver's metrics: asked by a thread of its own, for which nothing waits.

Ray has no public question for it, only the one behind `ray memory`. Where that is not as expected (another Ray, nodes
that cannot be reached) there are no series, and one line in the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import ray

POLL_S = 5.0
ASK_S = 2.0  # an answer takes 2 ms on one node
CLOSE_S = 2.0
logger = logging.getLogger(__name__)


class StoreRecorder(Protocol):
    """`common.metrics.ObjectStoreMetrics`."""

    def set(self, filling: tuple[int, int] | None) -> None:
        """Bytes used and bytes held, all nodes together; None if nobody knows."""
        ...


def store_filling() -> tuple[int, int]:
    """Bytes in use, and bytes that fit, in the object stores of all nodes together. Raises whatever Ray does."""
    from ray._private.internal_api import get_memory_info_reply

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    node = next(node for node in nodes if node["Alive"])
    address, port = node["NodeManagerAddress"], node["NodeManagerPort"]
    reply: Any = get_memory_info_reply(None, address, port, timeout_seconds=ASK_S)  # type: ignore[no-untyped-call]
    stores = reply.store_stats
    return int(stores.object_store_bytes_used), int(stores.object_store_bytes_avail)


class StoreWatch:
    """Asks every `POLL_S`, from `start` to `close`; a context manager."""

    def __init__(self, record: StoreRecorder, ask: Callable[[], tuple[int, int]] = store_filling) -> None:
        self._record = record
        self._ask = ask
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="object-store", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; a question that is never answered is left behind."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def __enter__(self) -> StoreWatch:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        told = False
        while not self._stop.is_set():
            try:
                self._record.set(self._ask())
            except Exception as error:  # noqa: BLE001 - Ray's own insides raise anything
                self._record.set(None)
                if not told:
                    told = True
                    logger.warning("the object stores do not say how full they are: %s; told once", error)
            self._stop.wait(POLL_S)
