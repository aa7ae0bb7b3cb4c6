"""A run from configuration to verdict: `train` and `resume`, for the command line and for Python.

    check everything that can be checked ──► name, directory, registry ──► processes ──► driver ──► status and verdict

Whatever happens, processes are ended, ports are closed and the registry says how the run stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.clock import NS_PER_S
from common.errors import (
    EXIT_FINISHED,
    EXIT_RESUMABLE,
    TruestepError,
)
from common.harmless import harmless
from common.host_memory import host_memory
from common.metrics import DriverMetrics, ObjectStoreMetrics
from common.runs import RunRecord, RunRegistry, RunStatus
from common.spans import require_opentelemetry
from deploy.attribution.attribution import Attribution, Onlooker
from deploy.attribution.observer import Observer
from deploy.attribution.timed import TimedRecorder
from deploy.beginning import compare_fingerprint, compare_ranks, create_run, initial_weights, newest_saved
from deploy.compose import Composition, compose
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import Cut, Finish
from deploy.config import RunConfig, parse_config
from deploy.display import Display, Silent
from deploy.drill_faults import Drill
from deploy.driver import Driver, StopFlag
from deploy.engines import Engine
from deploy.outputs import REGISTRY_FILE, checkpoint_store, open_registry
from deploy.preflight.preflight import require_here
from deploy.record import Record
from deploy.resources import Session, claimed, running_engine
from deploy.saved import SavedRun, save_cut, with_frames
from deploy.serving import record_serving
from deploy.sync_tally import SyncTally
from deploy.watch import Watch
from deploy.writer import CheckpointWriter
from deploy.writers.feed import Feed
from deploy.writers.opening import feed_of, require_writers
from deploy.writers.writer import Writer
from learner.state import InitialWeights

ROWS_LEFT_OUT = "ROWS_LEFT_OUT"  # kind of the event that tells what writers missed, by writer


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


def train(
    config: RunConfig,
    *,
    out: Path | str = "runs",
    run: str = "",
    init_from: str = "",
    display: Display | None = None,
    stop: StopFlag | None = None,
    drill: Drill | None = None,
    onlooker: Onlooker | None = None,
    writers: Sequence[Writer] = (),
) -> Outcome:
    """Train a new run to its end.

    Args:
        config: what to do.
        out: output directory: registry and one directory per run.
        run: its name; made from environment, algorithm and seed if empty.
        init_from: begin from the newest weights of this run in the same output directory.
        display: where progress is shown; nowhere by default.
        stop: lets the caller ask the run to checkpoint and end.
        drill: what goes wrong on purpose; with engine ray only.
        onlooker: shown, once a second, what stall attribution judges and finds.
        writers: get the numbers of the run besides those that the configuration names, each on a thread of its own.

    Raises:
        UserError: bad input; nothing was started.
    """
    out = Path(out)
    if config.metrics.spans:
        require_opentelemetry()
    composition = compose(run, config)
    require_here(composition, out, (display or Silent()).tell)
    require_writers(config.writers)
    with open_registry(out, create=True) as registry:
        begin, origin = initial_weights(out, registry, init_from, composition) if init_from else (None, {})
        with claimed(config, display, stop, who=run or config.env.id) as session:
            session.onlooker, session.writers = onlooker, writers
            name = create_run(registry, config, out, run, session, origin)
            return _drive(session, registry, replace(composition, run=name), out, begin=begin, drill=drill)


def resume(
    run: str,
    *,
    out: Path | str = "runs",
    take_over: bool = False,
    learners: int | None = None,
    display: Display | None = None,
    stop: StopFlag | None = None,
    writers: Sequence[Writer] = (),
) -> Outcome:
    """Go on with a run from its newest good checkpoint; from its beginning if it never wrote one.

    Args:
        run: its name.
        out: the output directory it lies in.
        take_over: take it from a driver on another host that is known to be gone.
        learners: learner ranks from now on, this time; None = as when the run was made.
        display: where progress is shown; nowhere by default.
        stop: lets the caller ask the run to checkpoint and end.
        writers: as for `train`; told first what of their earlier rows is undone.

    Raises:
        UserError: no such run, it is still being driven, or a number of ranks that is not allowed.
        CheckpointError: it has checkpoints and none is good.
    """
    out = Path(out)
    with open_registry(out, create=False, write=True) as registry:
        record = registry.run(run)
        made_with = parse_config(record.config)
        config = made_with if learners is None else made_with.with_ranks(learners)
        composition = compose(run, config)
        require_here(composition, out, (display or Silent()).tell)
        with claimed(config, display, stop, who=run) as session:
            session.writers = writers
            registry.acquire(run, lease=session.lease, take_over=take_over)
            compare_fingerprint(registry, record, session)
            compare_ranks(registry, run, session, before=made_with.learner.ranks, now=config.learner.ranks)
            saved = newest_saved(out, registry, composition, session)
            registry.set_status(run, "running")
            return _drive(session, registry, composition, out, saved=saved, record=record)


def _drive(
    session: Session,
    registry: RunRegistry,
    composition: Composition,
    out: Path,
    *,
    begin: InitialWeights | None = None,
    saved: SavedRun | None = None,
    record: RunRecord | None = None,
    drill: Drill | None = None,
) -> Outcome:
    """From processes to verdict; `begin`, or else `saved`, is what the learner starts from."""
    run = composition.run
    clock = session.clock
    _announce(session, composition, out, saved)
    if session.listening:
        record_serving(registry, run, address=session.listening, lease=session.lease)
    wall_before_s = 0.0 if record is None else record.wall_s
    feed = feed_of(session, registry.run(run), composition.config.writers, out)
    if record is not None:
        feed.resumed(*((0, 0) if saved is None else (saved.cut.update, saved.cut.env_steps)))
    begun_ns = clock.now_ns()
    try:
        with feed, running_engine(session, composition, drill) as engine:
            finish = _run(
                session,
                registry,
                composition,
                out,
                engine,
                begin=begin,
                saved=saved,
                feed=feed,
                drill=drill or Drill(),
                before_s=wall_before_s,
            )
    except TruestepError as error:
        finish = Finish(status="failed", verdict=str(error), error=error)
    except BaseException as error:
        verdict = f"{type(error).__name__}: {error}"
        wall_s = wall_before_s + (clock.now_ns() - begun_ns) / NS_PER_S
        registry.finish(run, "failed", verdict=verdict, wall_s=wall_s)
        raise
    wall_s = wall_before_s + (clock.now_ns() - begun_ns) / NS_PER_S
    if left_out := feed.left_out():
        registry.record_event(run, ROWS_LEFT_OUT, left_out)
    status: RunStatus = finish.status  # type: ignore[assignment]
    registry.finish(run, status, verdict=finish.verdict, wall_s=wall_s)
    return Outcome(run=run, out=out, status=status, verdict=finish.verdict, error=finish.error)


def _run(
    session: Session,
    registry: RunRegistry,
    composition: Composition,
    out: Path,
    engine: Engine,
    *,
    begin: InitialWeights | None,
    saved: SavedRun | None,
    feed: Feed,
    drill: Drill,
    before_s: float,
) -> Finish:
    run, config, clock = composition.run, composition.config, session.clock
    store = checkpoint_store(out, run, keep_last=config.checkpoint.keep_last)
    versions = iter(lambda: registry.publish_version(run), None)
    resumed: Cut | None = None if saved is None else with_frames(saved.cut, engine.put_frame)
    state = begin if saved is None else saved.learner
    initial = None if state is None else engine.put_state(state)
    plan = config.plan(frame_bytes=composition.layout.frame_layout().payload_bytes)
    conductor = Conductor(plan, versions=versions, initial=initial, resumed=resumed)
    metrics = harmless(DriverMetrics(session.metrics, session.clock, shown=False), who="the driver")
    tally, starved = SyncTally.of_run(registry, run), registry.starved_updates(run)
    object_store = ObjectStoreMetrics(session.metrics)  # the same cells that the engine's watch writes
    observer = Observer(clock, in_turn=config.engine == "inline", memory=_memory_used, store=lambda: object_store.ratio)
    attribution = Attribution(observer, metrics, clock, onlooker=session.onlooker)
    watch = Watch(metrics, session.display, clock, tally, starved=starved, attribution=attribution)
    metrics.set_run(run=run, env=config.env.id, algo=config.algo)
    watch.tick(conductor)
    metrics.show()  # not before: a scrape of a resumed run must not find its totals back at 0
    save = drill.slowed(lambda cut: save_cut(store, cut, engine), clock)
    writer = CheckpointWriter(save, clock, deadline_s=config.deadlines.checkpoint_s)
    writer.start()
    listeners = (harmless(feed, who="the writers"),)
    record = Record(registry, store, run, clock, wall_before_s=before_s, listeners=listeners)
    record.begin()
    driver = Driver(
        conductor,
        engine,
        writer,
        TimedRecorder(record, clock, observer.recorded),
        watch,
        clock,
        session.stop,
        session.health,
        silence_s=2 * max(config.deadlines.start_s, config.deadlines.update_s, config.deadlines.evaluate_s),
    )
    return driver.run()


def _memory_used() -> float | None:
    memory = host_memory()
    return None if memory is None else memory.ratio


def _announce(session: Session, composition: Composition, out: Path, saved: SavedRun | None) -> None:
    config, tell = composition.config, session.display.tell
    actors = config.actors
    tell(f"run          {composition.run}")
    ranks = config.learner.ranks
    shape = f"{actors.num} actors x {actors.lanes} lanes x {actors.rows} rows"
    tell(f"environment  {config.env.id}, {shape}, engine {config.engine}")
    if config.asynchronous:
        flow = f"{config.fragments_per_update} fragments an update, dropped when more than {config.flow.max_lag} behind"
        tell(f"collection   asynchronous, {flow}")
    else:
        tell(f"collection   synchronous, policy lag {config.policy_lag}")
    if ranks > 1:
        tell(f"learner      {ranks} ranks, every gradient step verified")
    if (idle := ranks - config.fragments_per_update) > 0:
        tell(f"WARNING: {idle} learner ranks have no rows of their own: fragments are shared out whole")
    tell(f"checkpoints  {out / composition.run / 'checkpoints'}")
    tell(f"run record   {out / REGISTRY_FILE}")
    if session.listening:
        tell(f"metrics      http://{session.listening}/metrics, all processes: http://{session.listening}/targets")
    if config.metrics.spans:
        tell(f"spans        {config.metrics.spans}")
    if saved is not None:
        tell(f"resuming     from {saved.info.name}: update {saved.cut.update}, {saved.cut.env_steps:,} steps")
