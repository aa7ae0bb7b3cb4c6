"""What runs inside Ray's processes: an actor and a learner rank, each with its own clock, metrics and driver watch.

process         consumes                  produces                    waits for      unblocked by
ActorProcess    collect, evaluate ...     frames, summaries, states   environments   their step, or the watchdog
RankProcess     orders with their frames  reports, weights            nothing        the driver's next call
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.env.lanes import LaneFacts
from actors.evaluate import EvaluationConfig, EvaluationResult
from actors.worker import ActorConfig, ActorWorker, CollectOrder, EvaluateOrder
from common.clock import NS_PER_S, Clock, MonotonicClock
from common.errors import RunFailedError
from common.fragment import FragmentSummary
from common.metrics import ActorMetrics, LearnerMetrics, MetricsServer, PortRange, Registry, new_registry, serve
from common.process import GarbageCollector, die_with_parent, keep_freed_memory
from common.process_identity import Liveness, ProcessIdentity
from deploy.compose import ACTOR_THREADS
from deploy.engines import LearnerStart
from deploy.facts import package_digests
from deploy.learner_loop import LearnerLoop
from learner.rank import RankConfig
from learner.reports import UpdateOrder, UpdateReport
from learner.state import LearnerState

DRIVER_CHECK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSetup:
    """What every process of a run is told by its driver.

    Attributes:
        driver: identity of the driver's process: ours ends when it is gone.
        sources: digests of the four packages; a process with other code refuses to start.
        python_path: the driver's module search path, so that the user's own packages are found.
        metrics_host: address to serve `/metrics` on; "" serves none.
        metrics_ports: port or range.
    """

    driver: ProcessIdentity
    sources: dict[str, str]
    python_path: tuple[str, ...]
    metrics_host: str
    metrics_ports: PortRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where a process can be scraped; port 0 is nowhere."""

    host: str
    port: int


def source_digests() -> dict[str, str]:
    """SHA-256 of each of the four packages as this process found them."""
    return {name: facts["sha256"] for name, facts in package_digests().items()}


def prepare(setup: ProcessSetup, clock: Clock, *, threads: int) -> None:
    """Make this process one of the run's. Raises RunFailedError if its code is not the driver's."""
    import torch

    die_with_parent()
    keep_freed_memory()
    torch.set_num_threads(threads)
    sys.path.extend(path for path in setup.python_path if path not in sys.path)
    if (ours := source_digests()) != setup.sources:
        differing = sorted(name for name in ours if ours[name] != setup.sources.get(name))
        raise RunFailedError(
            f"this process found other sources of {', '.join(differing)} than the driver",
            got={name: facts["path"] for name, facts in package_digests().items()},
            fix="install the same truestep on every node, and keep modules of these names off the path",
        )
    threading.Thread(target=_end_with_driver, args=(setup.driver, clock), name="driver-watch", daemon=True).start()


def _end_with_driver(driver: ProcessIdentity, clock: Clock) -> None:
    """A killed driver cannot say goodbye; environments must not run on for it."""
    own = ProcessIdentity.current()
    while driver.liveness(own) is not Liveness.DEAD:
        clock.sleep(DRIVER_CHECK_S)
    os._exit(0)


def start_serving(setup: ProcessSetup, registry: Registry, who: str) -> tuple[Serving, MetricsServer | None]:
    """Serve `/metrics`, if the run wants it."""
    if not setup.metrics_host:
        return Serving(host="", port=0), None
    server = serve(registry, host=setup.metrics_host, ports=setup.metrics_ports, who=who)
    return Serving(host=setup.metrics_host, port=server.port), server


class ActorProcess:
    """One actor in a process of its own."""

    def __init__(self, setup: ProcessSetup, config: ActorConfig, evaluation: EvaluationConfig) -> None:
        self._setup = setup
        self._config = config
        self._evaluation = evaluation

    def start(self, snapshot: bytes | None) -> tuple[LaneFacts, Serving]:
        """Make everything; returns what the environments are like and where to scrape."""
        self._clock = clock = MonotonicClock()
        prepare(self._setup, clock, threads=ACTOR_THREADS)
        registry = new_registry()
        self._metrics = ActorMetrics(registry)
        self._worker = ActorWorker(self._config, self._evaluation, clock)
        facts = self._worker.start(snapshot)
        serving, self._server = start_serving(self._setup, registry, self._config.who)
        return facts, serving

    def collect(self, order: CollectOrder, weights: Any) -> tuple[NDArray[np.uint8], FragmentSummary]:
        """One fragment: its frame goes to the object store, its summary to the driver."""
        frame, summary = self._worker.collect(order, weights)
        self._metrics.observe(summary)
        return frame, summary

    def snapshot(self) -> bytes | None:
        """The actor's state; None where the environment cannot be restored."""
        return self._worker.snapshot()

    def evaluate(self, order: EvaluateOrder, weights: Any) -> EvaluationResult:
        """Greedy episodes."""
        start_ns = self._clock.now_ns()
        result = self._worker.evaluate(order, weights)
        self._metrics.observe_evaluation((self._clock.now_ns() - start_ns) / NS_PER_S, len(result.returns))
        return result

    def close(self) -> None:
        """Close the environments; the process is ended afterwards."""
        self._worker.close()
        if self._server is not None:
            self._server.close()


class RankProcess:
    """One learner rank in a process of its own."""

    def __init__(self, setup: ProcessSetup, config: RankConfig) -> None:
        self._setup = setup
        self._config = config

    def start(self, start: LearnerStart) -> tuple[NDArray[np.uint8], tuple[str, int, Serving]]:
        """Returns the first weights document, and (parameter digest, updates, where to scrape)."""
        clock = MonotonicClock()
        prepare(self._setup, clock, threads=self._config.learner.threads)
        registry = new_registry()
        self._loop = LearnerLoop(self._config, clock, LearnerMetrics(registry))
        document, digest, updates = self._loop.start(start)
        serving, self._server = start_serving(self._setup, registry, "learner rank 0")
        self._collector = GarbageCollector(clock)
        self._collector.freeze()
        return document, (digest, updates, serving)

    def update(self, order: UpdateOrder, *frames: Any) -> tuple[NDArray[np.uint8], UpdateReport]:
        """One update; the weights document is returned, so the driver owns it and it outlives this process."""
        report, document = self._loop.update(order, frames)
        self._collector.collect()  # between updates, never inside one
        return document, report

    def state(self) -> tuple[LearnerState, int]:
        """All that must survive, and the updates it contains: the driver waits for the number and leaves the state."""
        state = self._loop.state()
        return state, state.updates
