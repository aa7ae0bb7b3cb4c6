"""A run from configuration to verdict: `train` and `resume`, for the command line and for Python.

    check everything that can be checked ──► name, directory, registry ──► processes ──► driver ──► status and verdict

Whatever happens, processes are ended, ports are closed and the registry says how the run stands.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from types import FrameType
from typing import Any

from common.checkpoints import CheckpointStore
from common.clock import Clock, MonotonicClock
from common.errors import (
    EXIT_FINISHED,
    EXIT_RESUMABLE,
    CheckpointError,
    ConfigError,
    OutputError,
    TruestepError,
)
from common.metrics import (
    ActorMetrics,
    DriverMetrics,
    LearnerMetrics,
    MetricsServer,
    Registry,
    Target,
    new_registry,
    serve,
)
from common.process_identity import ProcessIdentity
from common.runs import RunRecord, RunRegistry, RunStatus
from deploy.compose import FRAMES_OF_AN_ACTOR, Composition, compose
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import Cut, Finish
from deploy.config import RunConfig, parse_config
from deploy.display import Display, Silent
from deploy.driver import Driver, StopFlag
from deploy.engines import Engine, LearnerStart
from deploy.facts import fingerprint, gather_facts
from deploy.record import Record
from deploy.saved import SavedRun, read_saved, save_cut, with_frames
from deploy.watch import Watch
from deploy.writer import CheckpointWriter

REGISTRY_FILE = "runs.sqlite"
RUN_PROCESSES_BESIDES_ACTORS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How driving a run ended.

    Attributes:
        run: its name.
        out: the output directory it lies in.
        status: finished, interrupted or failed.
        verdict: one sentence.
        error: what ended it, if an error did.
    """

    run: str
    out: Path
    status: RunStatus
    verdict: str
    error: TruestepError | None = None

    @property
    def exit_code(self) -> int:
        """0 finished, 75 checkpointed and resumable, else that of the error (1 failed, 2 bad input)."""
        if self.error is not None:
            return self.error.exit_code
        return EXIT_FINISHED if self.status == "finished" else EXIT_RESUMABLE


def open_registry(out: Path, *, create: bool = False, write: bool = False) -> RunRegistry:
    """The registry of an output directory, read-only unless asked. Raises OutputError where there is none."""
    if not create and not (out / REGISTRY_FILE).is_file():
        raise OutputError("no runs there", got=out, allowed="a directory that `truestep train --out` wrote to")
    if create or write:
        _check_writable(out)
    return RunRegistry.open(out / REGISTRY_FILE, read_only=not (create or write))


def _check_writable(out: Path) -> None:
    probe = out / f".writable-{token_hex(4)}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise OutputError(
            "output directory cannot be written", got=f"{out} ({error.strerror})", fix="choose another with --out"
        ) from None


def checkpoint_store(out: Path, run: str, *, keep_last: int = 3) -> CheckpointStore:
    """The checkpoints of a run."""
    return CheckpointStore(out / run / "checkpoints", keep_last=keep_last)


def train(
    config: RunConfig,
    *,
    out: Path | str = "runs",
    run: str = "",
    init_from: str = "",
    display: Display | None = None,
    stop: StopFlag | None = None,
) -> Outcome:
    """Train a new run to its end.

    Args:
        config: what to do.
        out: output directory: registry and one directory per run.
        run: its name; made from environment, algorithm and seed if empty.
        init_from: begin from the newest weights of this run in the same output directory.
        display: where progress is shown; nowhere by default.
        stop: lets the caller ask the run to checkpoint and end.

    Raises:
        UserError: bad input; nothing was started.
    """
    out = Path(out)
    composition = compose(run, config)
    with open_registry(out, create=True) as registry:
        start = _initial_weights(out, registry, init_from) if init_from else LearnerStart(version=0, term=0)
        with _session(config, display, stop, who=run or config.env.id) as session:
            name = _create_run(registry, config, out, run, session)
            composition = Composition(run=name, config=config, layout=composition.layout)
            return _drive(session, registry, composition, out, start=start, saved=None)


def resume(
    run: str,
    *,
    out: Path | str = "runs",
    take_over: bool = False,
    display: Display | None = None,
    stop: StopFlag | None = None,
) -> Outcome:
    """Go on with a run from its newest good checkpoint; from its beginning if it never wrote one.

    Raises:
        UserError: no such run, or it is still being driven.
        CheckpointError: it has checkpoints and none is good.
    """
    out = Path(out)
    with open_registry(out, create=False, write=True) as registry:
        record = registry.run(run)
        config = parse_config(record.config)
        composition = compose(run, config)
        with _session(config, display, stop, who=run) as session:
            registry.acquire(run, lease=session.lease, take_over=take_over)
            _compare_fingerprint(registry, record, session)
            saved = _newest(out, registry, composition, session)
            start = LearnerStart(version=0, term=0)
            if saved is not None:
                start = LearnerStart(version=0, term=saved.cut.term, state=saved.learner)
            registry.set_status(run, "running")
            return _drive(session, registry, composition, out, start=start, saved=saved, record=record)


# ---- the parts of a session ----------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Session:
    """What lives as long as this process drives a run."""

    clock: Clock
    lease: str
    display: Display
    stop: StopFlag
    metrics: Registry
    server: MetricsServer | None
    install_signals: Callable[[], None]
    engine: Engine | None = None
    listening: str = ""

    def targets(self) -> list[Target]:
        """Every process of the run that can be scraped now."""
        return [] if self.engine is None else [*self.own_target, *self.engine.targets()]

    own_target: tuple[Target, ...] = ()


@contextmanager
def _session(config: RunConfig, display: Display | None, stop: StopFlag | None, *, who: str) -> Iterator[_Session]:
    """What this process needs to drive a run: the driver's port, and signals that end the run and not the process."""
    stop = stop or StopFlag()
    with ExitStack() as stack:
        session = _Session(
            clock=MonotonicClock(),
            lease=token_hex(8),
            display=display or Silent(),
            stop=stop,
            metrics=new_registry(),
            server=None,
            install_signals=stack.enter_context(_signals(stop)),
        )
        stack.callback(session.display.close)
        if config.metrics.enabled:
            session.server = serve(
                session.metrics,
                host=config.metrics.host,
                ports=config.metrics.driver_ports(),
                targets=session.targets,
                who=f"driver of {who}",
            )
            stack.callback(session.server.close)
            session.listening = f"{config.metrics.host}:{session.server.port}"
        yield session


def _facts() -> dict[str, Any]:
    facts = gather_facts()
    return {**facts, "fingerprint": fingerprint(facts)}


def _compare_fingerprint(registry: RunRegistry, record: RunRecord, session: _Session) -> None:
    """Bits are promised for equal fingerprints only: where it differs, the run and its record say so."""
    before, now = record.facts.get("fingerprint", ""), _facts()["fingerprint"]
    if before != now:
        registry.record_event(record.run, "FINGERPRINT_CHANGED", {"before": before, "now": now})
        session.display.tell(
            "WARNING: code, versions or processor differ from when the run was made: it goes on, but its parameters "
            "may differ in the last bits from those of the unbroken run"
        )


def _create_run(registry: RunRegistry, config: RunConfig, out: Path, run: str, session: _Session) -> str:
    facts = _facts()
    base = f"{config.env.id.rpartition(':')[2]}-{config.algo}-s{config.seed}"
    name = run or registry.unused_name(base.replace("/", "-"))
    registry.create_run(
        run=name,
        env=config.env.id,
        algo=config.algo,
        seed=config.seed,
        engine=config.engine,
        config=config.to_plain(),
        facts=facts,
        out=str((out / name).absolute()),
    )
    registry.acquire(name, lease=session.lease)
    return name


def _initial_weights(out: Path, registry: RunRegistry, source: str) -> LearnerStart:
    registry.run(source)
    checkpoint = checkpoint_store(out, source).newest_good(lambda name, error: None)
    if checkpoint is None:
        raise ConfigError(f"--init-from: run {source!r} has no checkpoint", fix="choose another run")
    state = read_saved(checkpoint).learner
    return LearnerStart(version=0, term=0, weights=state.parameters.tobytes(), fingerprint=state.manifest_fingerprint)


def _newest(out: Path, registry: RunRegistry, composition: Composition, session: _Session) -> SavedRun | None:
    """The newest good checkpoint; damaged ones are named, loudly, and what lies behind it is given up."""
    run = composition.run
    store = checkpoint_store(out, run, keep_last=composition.config.checkpoint.keep_last)

    def skipped(name: str, error: CheckpointError) -> None:
        session.display.tell(f"WARNING: checkpoint {name} is damaged and was passed over: {error}")
        registry.record_event(run, "CHECKPOINT_SKIPPED", {"name": name, "error": str(error)})

    checkpoint = store.newest_good(skipped)
    update = 0 if checkpoint is None else checkpoint.info.update
    store.discard_after(update)
    registry.truncate_after(run, update)
    registry.prune_checkpoints(run, store.names())
    return None if checkpoint is None else read_saved(checkpoint)


def _drive(
    session: _Session,
    registry: RunRegistry,
    composition: Composition,
    out: Path,
    *,
    start: LearnerStart,
    saved: SavedRun | None,
    record: RunRecord | None = None,
) -> Outcome:
    run = composition.run
    clock = session.clock
    _announce(session, composition, out, saved)
    wall_before_s = 0.0 if record is None else record.wall_s
    begun_ns = clock.now_ns()
    try:
        with _engine(session, composition) as engine:
            finish = _run(session, registry, composition, out, engine, start=start, saved=saved, before_s=wall_before_s)
    except TruestepError as error:
        finish = Finish(status="failed", verdict=str(error), error=error)
    except BaseException as error:
        verdict = f"{type(error).__name__}: {error}"
        _finish(registry, run, "failed", verdict, wall_before_s + (clock.now_ns() - begun_ns) / 1e9)
        raise
    wall_s = wall_before_s + (clock.now_ns() - begun_ns) / 1e9
    status: RunStatus = finish.status  # type: ignore[assignment]
    _finish(registry, run, status, finish.verdict, wall_s)
    return Outcome(run=run, out=out, status=status, verdict=finish.verdict, error=finish.error)


def _finish(registry: RunRegistry, run: str, status: RunStatus, verdict: str, wall_s: float) -> None:
    registry.finish(run, status, verdict=verdict, wall_s=wall_s)


def _run(
    session: _Session,
    registry: RunRegistry,
    composition: Composition,
    out: Path,
    engine: Engine,
    *,
    start: LearnerStart,
    saved: SavedRun | None,
    before_s: float,
) -> Finish:
    run, config, clock = composition.run, composition.config, session.clock
    store = checkpoint_store(out, run, keep_last=config.checkpoint.keep_last)
    versions = iter(lambda: registry.publish_version(run), None)
    resumed: Cut | None = None if saved is None else with_frames(saved.cut, engine.put_frame)
    conductor = Conductor(config.plan(), versions=versions, resumed=resumed)
    metrics = DriverMetrics(session.metrics)
    watch = Watch(metrics, session.display, clock)
    watch.tick(conductor)  # at once: a scrape of a resumed run must not find its totals back at 0
    metrics.set_run(run=run, env=config.env.id, algo=config.algo)
    writer = CheckpointWriter(lambda cut: save_cut(store, cut, engine), clock, deadline_s=config.deadlines.checkpoint_s)
    writer.start()
    driver = Driver(
        conductor,
        engine,
        writer,
        Record(registry, store, run, clock, wall_before_s=before_s),
        watch,
        clock,
        session.stop,
        silence_s=2 * max(config.deadlines.start_s, config.deadlines.update_s, config.deadlines.evaluate_s),
    )
    engine.start_learner(
        LearnerStart(
            version=next(versions),
            term=start.term,
            state=start.state,
            weights=start.weights,
            fingerprint=start.fingerprint,
        )
    )
    return driver.run()


@contextmanager
def _engine(session: _Session, composition: Composition) -> Iterator[Engine]:
    config = composition.config
    if config.engine == "inline":
        from deploy.inline_engine import InlineEngine

        engine: Engine = InlineEngine(
            composition, session.clock, ActorMetrics(session.metrics), LearnerMetrics(session.metrics)
        )
        with _used(session, composition, engine):
            yield engine
        return
    from deploy.ray_engine import RayEngine
    from deploy.ray_launch import connect, disconnect
    from deploy.ray_processes import ProcessSetup, source_digests

    num_processes = config.actors.num + RUN_PROCESSES_BESIDES_ACTORS
    frame_bytes = composition.layout.frame_layout().payload_bytes
    embedded = connect(
        num_processes=num_processes, object_store_bytes=FRAMES_OF_AN_ACTOR * config.actors.num * frame_bytes
    )
    session.install_signals()  # Ray has put its own in
    setup = ProcessSetup(
        driver=ProcessIdentity.current(),
        sources=source_digests(),
        python_path=tuple(sys.path),
        metrics_host=config.metrics.host if config.metrics.enabled else "",
        metrics_ports=config.metrics.other_ports(),
    )
    try:
        with _used(session, composition, RayEngine(composition, setup, session.clock)) as engine:
            yield engine
    finally:
        if embedded:
            disconnect()


@contextmanager
def _used(session: _Session, composition: Composition, engine: Engine) -> Iterator[Engine]:
    session.engine = engine
    if session.listening:
        own = Target(role="driver", index=0, lease=session.lease, address=session.listening, run=composition.run)
        session.own_target = (own,)
    try:
        yield engine
    finally:
        session.engine = None
        engine.close()


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


def _announce(session: _Session, composition: Composition, out: Path, saved: SavedRun | None) -> None:
    config, tell = composition.config, session.display.tell
    actors = config.actors
    tell(f"run          {composition.run}")
    shape = f"{actors.num} actors x {actors.lanes} lanes x {actors.rows} rows"
    tell(f"environment  {config.env.id}, {shape}, policy lag {config.policy_lag}, engine {config.engine}")
    tell(f"checkpoints  {out / composition.run / 'checkpoints'}")
    tell(f"run record   {out / REGISTRY_FILE}")
    if session.listening:
        tell(f"metrics      http://{session.listening}/metrics, all processes: http://{session.listening}/targets")
    if saved is not None:
        tell(f"resuming     from {saved.info.name}: update {saved.cut.update}, {saved.cut.env_steps:,} steps")
