"""What runs inside Ray's processes: an actor and a learner rank, each with its own clock, metrics and driver watch.

process         consumes                  produces                    waits for      unblocked by
ActorProcess    collect, evaluate ...     frames, summaries, states   environments   their step, or the watchdog
RankProcess     orders with their frames  reports, weights            other ranks    their collective, or its deadline
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray import ObjectRef
from ray.exceptions import RayError

from actors.env.lanes import LaneFacts
from actors.evaluate import EvaluationConfig, EvaluationResult
from actors.spans import rollout_span
from actors.worker import ActorConfig, ActorWorker, CollectOrder, EvaluateOrder
from common.clock import NS_PER_S, Clock, MonotonicClock
from common.errors import OutputError, RunFailedError
from common.fragment import FragmentSummary
from common.gpu_watch import Binding
from common.harmless import harmless
from common.metrics import ActorMetrics, LearnerMetrics, MetricsServer, PortRange, Registry, new_registry, serve
from common.metrics_token import MetricsToken
from common.ports import listening_host, reachable_host
from common.process import GarbageCollector, die_with_parent, keep_freed_memory
from common.process_identity import Liveness, ProcessIdentity
from common.process_metrics import ProcessMetrics
from common.profile_pages import ProfilePages
from common.profiling import name_this_thread
from common.spans import SpansConfig, open_spans
from deploy.compose import ACTOR_THREADS
from deploy.drill_border import Border
from deploy.drill_faults import Drill
from deploy.facts import package_digests
from deploy.ranks import NotMet, join, observe, send_spans
from learner.gpu import gpu_uuid
from learner.rank import LearnerRank, RankConfig
from learner.reports import Formation, Standing, UpdateOrder, UpdateReport
from learner.state import InitialWeights, LearnerState
from learner.tracing import UpdateTracer

DRIVER_CHECK_S = 1.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSetup:
    """What every process of a run is told by its driver.

    Attributes:
        driver: identity of the driver's process: ours ends when it is gone.
        sources: digests of the four packages; a process with other code refuses to start.
        python_path: the driver's module search path, so that the user's own packages are found.
        metrics_host: address to serve `/metrics` on; "" serves none.
        metrics_ports: port or range.
        metrics_token: what a request has to bear, if anything.
        meeting_host: address at which learner ranks meet; "" is that of the node on which the first of them runs.
        drill: what goes wrong on purpose.
        spans: where spans go; None sends none.
    """

    driver: ProcessIdentity
    sources: dict[str, str]
    python_path: tuple[str, ...]
    metrics_host: str
    metrics_ports: PortRange
    metrics_token: MetricsToken | None = None
    meeting_host: str = ""
    drill: Drill = field(default_factory=Drill)
    spans: SpansConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What a process says of itself once it has started.

    Attributes:
        identity: which process it is.
        metrics_host, metrics_port: where others can scrape it; port 0 is nowhere.
    """

    identity: ProcessIdentity
    metrics_host: str
    metrics_port: int


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


def start_serving(
    setup: ProcessSetup, registry: Registry, who: str, clock: Clock, *, tracer: UpdateTracer | None = None
) -> tuple[Presence, MetricsServer | None]:
    """Serve `/metrics` and profiles of this process, if the run wants it."""
    identity = ProcessIdentity.current()
    if not setup.metrics_host:
        return Presence(identity=identity, metrics_host="", metrics_port=0), None
    pages = ProfilePages(who, clock, tracer=tracer)
    host = listening_host(setup.metrics_host)
    try:
        server = serve(
            registry,
            host=host,
            ports=setup.metrics_ports,
            pages=pages,
            token=setup.metrics_token,
            elsewhere=True,
            who=who,
        )
    except OutputError as error:  # the driver could listen there, this node cannot: no reason to end the run
        logger.warning("%s; this process serves no metrics", error)
        return Presence(identity=identity, metrics_host="", metrics_port=0), None
    return Presence(identity=identity, metrics_host=reachable_host(host), metrics_port=server.port), server


class ActorProcess:
    """One actor in a process of its own."""

    def __init__(self, setup: ProcessSetup, config: ActorConfig, evaluation: EvaluationConfig) -> None:
        self._setup = setup
        self._config = replace(config, env=setup.drill.environment(config.actor, config.env))
        self._evaluation = evaluation

    def start(self, snapshot: bytes | None) -> tuple[LaneFacts, Presence]:
        """Make everything; returns what the environments are like, and which process this is."""
        self._clock = clock = MonotonicClock()
        prepare(self._setup, clock, threads=ACTOR_THREADS)
        registry = new_registry()
        self._metrics = harmless(ActorMetrics(registry), who=self._config.who)
        self._process_metrics = ProcessMetrics(registry, clock, who=self._config.who)
        self._process_metrics.start()
        self._worker = ActorWorker(self._config, self._evaluation, clock)
        facts = self._worker.start(snapshot)
        self._spans = open_spans(self._setup.spans, clock, who=self._config.who)  # not before environments are forked
        presence, self._server = start_serving(self._setup, registry, self._config.who, clock)
        name_this_thread(self._config.who)
        return facts, presence

    @ray.method(concurrency_group="control")
    def offer(self, weights: Any) -> int:
        """Take newer weights, while a fragment is being made; returns their version."""
        return self._worker.offer(weights)

    def collect(self, order: CollectOrder, weights: Any) -> tuple[NDArray[np.uint8], FragmentSummary]:
        """One fragment: its frame goes to the object store, its summary to the driver."""
        self._setup.drill.before_collect(self._config.actor, order.update, self._clock)
        frame, summary = self._worker.collect(order, weights)
        self._setup.drill.after_collect(self._config.actor, order.update, frame, self._clock)
        self._setup.drill.made(self._config.actor, summary.incarnation, summary.sequence, self._clock)
        self._metrics.observe(summary, self._worker.timings())
        self._spans.send(f"actor-{summary.actor}", lambda identity: [rollout_span(identity, summary)])
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
        """Close the environments and send what is left to send; the process is ended afterwards."""
        self._worker.close()
        self._spans.close()
        if self._server is not None:
            self._server.close()


class RankProcess:
    """One learner rank in a process of its own."""

    def __init__(self, setup: ProcessSetup, config: RankConfig, rank: int) -> None:
        self._setup = setup
        self._config = config
        self._index = rank
        self._stop_asked = ""

    def start(self) -> tuple[Standing, Presence]:
        """Make the model; returns where the rank stands, and which process this is."""
        self._clock = clock = MonotonicClock()
        self._border = Border(self._setup.drill.at_border)
        prepare(self._setup, clock, threads=self._config.learner.threads)
        registry = new_registry()
        who = f"learner rank {self._index}"
        self._metrics = harmless(LearnerMetrics(registry), who=who)
        self._spans = open_spans(self._setup.spans, clock, who=who)
        faults = self._setup.drill.of_rank(self._index)
        self._rank = LearnerRank(self._config, clock, rank=self._index, faults=faults)
        self._process_metrics = ProcessMetrics(registry, clock, who=who)
        self._process_metrics.start()
        if uuid := gpu_uuid(self._config.learner.torch_device()):
            given = ray.get_runtime_context().get_accelerator_ids()["GPU"]
            self._process_metrics.watch_gpu(Binding(computes_on=uuid, assigned=tuple(given)))
        self._tracer = UpdateTracer(clock)
        presence, self._server = start_serving(self._setup, registry, who, clock, tracer=self._tracer)
        name_this_thread(who)
        self._collector = GarbageCollector(clock)
        self._collector.freeze()
        self._note_sigterm()
        return self._rank.standing(), presence

    def adopt(self, state: LearnerState | InitialWeights) -> Standing:
        """Replace the rank's state."""
        return self._rank.adopt(state)

    def open_meeting(self) -> str:
        """host:port at which the others meet this rank."""
        host: str = self._setup.meeting_host or ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return self._rank.open_meeting(host)

    def join(self, formation: Formation, meeting: tuple[ObjectRef[str], ...]) -> Standing | NotMet:
        """Join the group that meets where `meeting` says, which is empty for a group of one.

        Ray leaves a reference within a tuple alone: taken as an argument of its own, the loss of the rank that opens
        the meeting would pass for a failure of this one.
        """
        if meeting:
            try:
                address = ray.get(meeting[0], timeout=self._config.learner.sync.collective_s)
            except RayError as error:
                opener = f"learner rank {formation.ranks[0]}"
                return NotMet(cause=f"{opener} opened no meeting for formation {formation.number}: {error}")
            formation = replace(formation, address=address)
        return join(self._rank, formation)

    def publish(self, version: int, term: int, publishes: bool) -> tuple[NDArray[np.uint8] | None, Standing]:
        """The weights as they are, as a document; only the version is noted where another rank publishes.

        The document is returned, so the driver owns it and it outlives this process.
        """
        document = self._rank.publish(version=version, term=term)
        return document if publishes else None, self._rank.standing()

    def update(
        self, order: UpdateOrder, num_frames: int, *frames: Any
    ) -> tuple[NDArray[np.uint8] | None, tuple[UpdateReport, bool]]:
        """One order; the first `num_frames` frames are this rank's share, the rest those that it audits.

        Returns:
            The weights document if this rank publishes, and (report, whether it does).
        """
        self._note_sigterm()
        share = self._border.let_in(order, frames[:num_frames], self._clock)
        with self._tracer.update():
            report, document = self._rank.update(order, share, frames[num_frames:])
        observe(self._metrics, report)
        published = document is not None
        send_spans(self._spans, self._rank, report, clock_id=self._clock.clock_id, published=published)
        self._collector.collect()  # between updates, never inside one
        gpu = self._process_metrics.gpu_utilization
        return document, (replace(report, stop_asked=self._stop_asked, gpu_utilization=gpu), published)

    def state(self) -> tuple[LearnerState, int]:
        """All that must survive, and the updates it contains: the driver waits for the number and leaves the state."""
        state = self._rank.state()
        return state, state.updates

    def close(self) -> str:
        """Send what is left to send; the process is ended afterwards. Returns what was wrong with that, in words."""
        return self._spans.close()

    def _note_sigterm(self) -> None:
        """SIGTERM to one rank is told with its next report and ends the run at a checkpoint.

        Ray's handler, which it may put in again, would end the process at once.
        """
        if signal.getsignal(signal.SIGTERM) != self._on_sigterm:
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._stop_asked = signal.Signals(number).name
