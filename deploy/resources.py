"""What this process claims while it drives a run, and gives back whatever happens: port, signals, processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from secrets import token_hex
from types import FrameType
from typing import Any

from common.clock import Clock, MonotonicClock
from common.gpu_watch import Binding, visible_gpus
from common.harmless import harmless
from common.metrics import (
    ActorMetrics,
    LearnerMetrics,
    MetricsServer,
    ObjectStoreMetrics,
    Registry,
    Target,
    new_registry,
    serve,
)
from common.metrics_token import MetricsToken, read_token, token_file
from common.ports import address_of, listening_host, reachable_host
from common.process_identity import ProcessIdentity
from common.process_metrics import ProcessMetrics
from common.profile_pages import ProfilePages
from common.spans import SpanIdentity, SpansConfig, open_spans
from deploy.attribution.attribution import Onlooker
from deploy.compose import Composition, num_frames
from deploy.config import RunConfig
from deploy.display import Display, Silent
from deploy.drill_faults import Drill
from deploy.driver import StopFlag
from deploy.engines import Engine
from deploy.preflight.preflight import require_cluster
from deploy.probes import RunHealth
from deploy.writers.writer import Writer
from learner.gpu import gpu_uuid

LOOPBACK = "127.0.0.1"


@dataclass(slots=True, kw_only=True)
class Session:
    """What lives as long as this process drives a run."""

    clock: Clock
    lease: str
    display: Display
    stop: StopFlag
    metrics: Registry
    process_metrics: ProcessMetrics
    server: MetricsServer | None
    install_signals: Callable[[], None]
    health: RunHealth
    engine: Engine | None = None
    listening: str = ""
    onlooker: Onlooker | None = None
    writers: Sequence[Writer] = ()
    token: MetricsToken | None = None

    def targets(self) -> list[Target]:
        """Every process of the run that can be scraped now."""
        return [] if self.engine is None else [*self.own_target, *self.engine.targets()]

    own_target: tuple[Target, ...] = ()


@contextmanager
def claimed(config: RunConfig, display: Display | None, stop: StopFlag | None, *, who: str) -> Iterator[Session]:
    """What this process needs to drive a run: the driver's port, and signals that end the run and not the process."""
    stop = stop or StopFlag()
    with ExitStack() as stack:
        clock, registry = MonotonicClock(), new_registry()
        process_metrics = ProcessMetrics(registry, clock, who=f"driver of {who}")
        session = Session(
            clock=clock,
            lease=token_hex(8),
            display=display or Silent(),
            stop=stop,
            metrics=registry,
            process_metrics=stack.enter_context(process_metrics),
            server=None,
            install_signals=stack.enter_context(_signals(stop)),
            health=RunHealth(clock, stall_s=config.stall_s),
        )
        stack.callback(session.display.close)
        if config.metrics.enabled:
            host = listening_host(config.metrics.host)
            session.token = read_token(token_file(config.metrics.token_file))
            session.server = serve(
                session.metrics,
                host=host,
                ports=config.metrics.driver_ports(),
                targets=session.targets,
                prober=session.health,
                pages=ProfilePages(f"driver of {who}", session.clock),
                token=session.token,
                elsewhere=True,
                who=f"driver of {who}",
            )
            stack.callback(session.server.close)
            session.listening = address_of(config.metrics.advertise or reachable_host(host), session.server.port)
        yield session


@contextmanager
def running_engine(session: Session, composition: Composition, drill: Drill | None = None) -> Iterator[Engine]:
    """The engine that the configuration asks for; its processes are ended with the block.

    Args:
        drill: what goes wrong on purpose; with engine ray only.
    """
    config = composition.config
    session.health.begin()
    if config.engine == "inline":
        from deploy.inline_engine import InlineEngine

        if uuid := gpu_uuid(config.learner.torch_device()):
            session.process_metrics.watch_gpu(Binding(computes_on=uuid, assigned=visible_gpus(os.environ)))
        with closing(open_spans(_spans(composition), session.clock, who="this process")) as spans:
            engine: Engine = InlineEngine(
                composition,
                session.clock,
                harmless(ActorMetrics(session.metrics), who="actors"),
                harmless(LearnerMetrics(session.metrics), who="the learner"),
                spans,
            )
            with _used(session, composition, engine):
                yield engine
        return
    from deploy.ray_engine import RayEngine
    from deploy.ray_launch import connect, disconnect
    from deploy.ray_placement import placed
    from deploy.ray_processes import ProcessSetup, source_digests
    from deploy.ray_store import StoreWatch

    num_actors, num_ranks = config.actors.bounds[1], config.learner.ranks
    frame_bytes = composition.layout.frame_layout().payload_bytes
    embedded = connect(
        num_processes=num_actors + num_ranks,
        num_spare=num_ranks,
        object_store_bytes=num_frames(config, frame_bytes) * frame_bytes,
    )
    session.install_signals()  # Ray has put its own in
    setup = ProcessSetup(
        driver=ProcessIdentity.current(),
        sources=source_digests(),
        python_path=tuple(sys.path),
        metrics_host=config.metrics.host if config.metrics.enabled else "",
        metrics_ports=config.metrics.other_ports(),
        metrics_token=session.token,
        meeting_host=LOOPBACK if embedded else "",
        drill=drill or Drill(),
        spans=_spans(composition),
    )
    tell, stopped = session.display.tell, lambda: session.stop.reason
    try:
        session.health.wait_for_places(config.placement.wait_s)
        with placed(config, session.clock, embedded=embedded, stopped=stopped, tell=tell) as placement:
            session.health.have_places()
            if not embedded:
                require_cluster(composition, tell)
            engine = RayEngine(composition, setup, session.clock, placement)
            with _used(session, composition, engine), StoreWatch(ObjectStoreMetrics(session.metrics)):
                yield engine
    finally:
        if embedded:
            disconnect()


def _spans(composition: Composition) -> SpansConfig | None:
    config = composition.config
    if not config.metrics.spans:
        return None
    identity = SpanIdentity(run=composition.run, synchronous=not config.asynchronous)
    return SpansConfig(endpoint=config.metrics.spans, identity=identity)


@contextmanager
def _used(session: Session, composition: Composition, engine: Engine) -> Iterator[Engine]:
    session.engine = engine
    if session.listening:
        own = ProcessIdentity.current()
        session.own_target = (
            Target(
                role="driver",
                index=0,
                lease=session.lease,
                address=session.listening,
                run=composition.run,
                host=own.host,
                pid=own.pid,
            ),
        )
    try:
        yield engine
    finally:
        session.engine = None
        for fault in engine.close():
            session.display.tell(f"WARNING: {fault}")


@contextmanager
def _signals(stop: StopFlag) -> Iterator[Callable[[], None]]:
    """SIGINT and SIGTERM ask the run to checkpoint and end; yields what puts the handlers in (again)."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in numbers}

    def ask(number: int, frame: FrameType | None) -> None:
        stop.ask(signal.Signals(number).name)

    def install() -> None:
        for number in numbers:
            signal.signal(number, ask)

    install()
    try:
        yield install
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
