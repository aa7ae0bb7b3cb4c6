"""`truestep reproduce`: a run made again from its ledger, compared fragment by fragment and update by update.

    registry (read only) ──► script ──► conductor, engine and processes as in training ──► check ──► verdict

Nothing is written: neither to the run, nor to the registry, nor checkpoints of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

from common.errors import CheckpointError, ConfigError, RunFailedError
from common.harmless import harmless
from common.ledger import Ledger, Script
from common.metrics import DriverMetrics
from common.runs import RunRecord, UpdateRecord
from common.script import script_of
from deploy.compare import UpdateDifference
from deploy.compose import Composition, compose
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import Cut, Finish
from deploy.config import RunConfig, parse_config
from deploy.display import Display, Silent
from deploy.divergence import Check, Diverged, FragmentDifference, suspect_of
from deploy.driver import Driver, Recorder
from deploy.facts import Facts, fingerprint, gather_facts
from deploy.outputs import checkpoint_store, open_registry
from deploy.reproduction import Reproduction, Verdict
from deploy.resources import Session, claimed, running_engine
from deploy.saved import read_saved
from deploy.watch import Watch
from deploy.writer import CheckpointWriter
from learner.state import InitialWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """What is to be made again.

    Attributes:
        record: of the run.
        config: to make it with.
        script: what is to be done.
        ledger: the fragments to compare with.
        updates: the updates to compare with, from the first.
        initial: the weights it began with; None = those of its seed.
    """

    record: RunRecord
    config: RunConfig
    script: Script
    ledger: Ledger
    updates: tuple[UpdateRecord, ...]
    initial: InitialWeights | None


def reproduce(
    run: str,
    *,
    out: Path | str = "runs",
    updates: int | None = None,
    engine: Literal["ray", "inline"] | None = None,
    display: Display | None = None,
) -> Reproduction:
    """Make a run again and compare.

    Args:
        run: its name.
        out: the output directory it lies in.
        updates: how many; None = all that are recorded.
        engine: to make it with; None = the run's own. Both give the same bits.
        display: where progress is shown; nowhere by default.

    Raises:
        UserError: no such run, or nothing of it can be made again.
        CheckpointError: the weights that it began with are gone.
        TruestepError: what ended the reproduction before it could differ.
    """
    display = display or Silent()
    original = read_original(run, out=Path(out), updates=updates, engine=engine)
    wanted = len(original.updates)
    display.tell(f"reproducing  {run}: {wanted} updates, engine {original.config.engine}; nothing is recorded")
    composition = compose(run, original.config)
    with claimed(original.config, display, None, who=f"reproduction of {run}") as session:
        here = _facts()
        check = Check(original.ledger, original.updates, num_ranks=original.config.learner.ranks)
        difference, stopped = None, ""
        try:
            stopped = make_again(session, composition, original, check)
        except Diverged as diverged:
            difference = diverged.difference
    return verdict_on(original, check, difference, stopped=stopped, here=here)


def read_original(
    run: str, *, out: Path, updates: int | None = None, engine: Literal["ray", "inline"] | None = None
) -> Original:
    """Everything that the record of a run says about how to make it again; see `reproduce` for arguments and errors."""
    with open_registry(out) as registry:
        record, ledger, recorded = registry.run(run), registry.ledger(run), registry.updates(run)
    if updates is not None and not 1 <= updates <= len(recorded):
        raise ConfigError("--updates", got=updates, allowed=f"1 to {len(recorded)}, the updates that are recorded")
    script = script_of(ledger, through=updates)
    if not script.updates:
        raise ConfigError(
            f"run {run!r} cannot be made again",
            got=script.cut_short or "no update is recorded",
            fix="only runs made by a truestep that keeps a ledger, and that committed an update, can be",
        )
    config = parse_config(record.config)
    if ledger.updates[0].num_ranks:
        config = config.with_ranks(ledger.updates[0].num_ranks)
    return Original(
        record=record,
        config=config if engine is None else dataclasses.replace(config, engine=engine),
        script=script,
        ledger=ledger,
        updates=tuple(recorded[:updates]),
        initial=_initial_weights(out, record),
    )


def verdict_on(
    original: Original,
    check: Check,
    difference: FragmentDifference | UpdateDifference | None,
    *,
    stopped: str,
    here: Facts,
) -> Reproduction:
    """What a comparison came to. `stopped` says why it ended early without a difference; "" if it did not."""
    recorded, wanted = original.record.facts, len(original.updates)
    if difference is not None:
        same_fingerprint = recorded.get("fingerprint") == here["fingerprint"]
        verdict, why = Verdict.DIFFERENT, suspect_of(difference, same_fingerprint=same_fingerprint)
    elif check.identical_through < wanted:
        verdict, why = Verdict.INCOMPLETE, stopped or original.script.cut_short
    else:
        verdict, why = Verdict.IDENTICAL, ""
    return Reproduction(
        run=original.record.run,
        verdict=verdict,
        updates=wanted,
        identical_through=check.identical_through,
        fragments=check.fragments,
        difference=difference,
        why=why,
        recorded=recorded,
        here=here,
    )


def _facts() -> Facts:
    facts = gather_facts()
    return {**facts, "fingerprint": fingerprint(facts)}


def _initial_weights(out: Path, record: RunRecord) -> InitialWeights | None:
    """The weights of another run that this one began with, if it did."""
    source = record.facts.get("init_from")
    if not source:
        return None
    run, name, digest = source["run"], source["checkpoint"], source["parameter_digest"]
    store = checkpoint_store(out, run)
    if name not in store.names():
        raise CheckpointError(
            f"run {record.run!r} began with checkpoint {name} of run {run!r}, which is gone",
            fix="without those weights it cannot be made again; put the checkpoint back if there is a copy",
        )
    state = read_saved(store.load(name)).learner
    if state.parameter_digest != digest:
        raise CheckpointError(
            f"checkpoint {name} of run {run!r} is not the one that run {record.run!r} began with",
            got=f"parameters {state.parameter_digest}",
            allowed=digest,
        )
    return state.as_beginning()


def make_again(session: Session, composition: Composition, original: Original, recorder: Recorder) -> str:
    """Follow the script to its end, or until `recorder` raises: why it was not followed to its end, "" if it was.

    Raises:
        TruestepError: what made the run fail.
    """
    return _finish(_make(session, composition, original, recorder))


def _make(session: Session, composition: Composition, original: Original, recorder: Recorder) -> Finish:
    """From processes to the end of the script."""
    config, clock = original.config, session.clock
    with running_engine(session, composition) as engine:
        initial = None if original.initial is None else engine.put_state(original.initial)
        plan = config.plan(frame_bytes=composition.layout.frame_layout().payload_bytes)
        conductor = Conductor(plan, versions=count(1), initial=initial, script=original.script)
        metrics = harmless(DriverMetrics(session.metrics, session.clock), who="the driver")
        metrics.set_run(run=composition.run, env=config.env.id, algo=config.algo)
        with _no_checkpoints(session) as writer:
            driver = Driver(
                conductor,
                engine,
                writer,
                recorder,
                Watch(metrics, session.display, clock),
                clock,
                session.stop,
                session.health,
                silence_s=2 * max(config.deadlines.start_s, config.deadlines.update_s, config.deadlines.evaluate_s),
            )
            return driver.run()


@contextmanager
def _no_checkpoints(session: Session) -> Iterator[CheckpointWriter]:
    def refuse(cut: Cut) -> Any:
        raise CheckpointError(f"a reproduction writes no checkpoint, and was told to after update {cut.update}")

    yield CheckpointWriter(refuse, session.clock, deadline_s=1.0)


def _finish(finish: Finish) -> str:
    """Why the script was not followed to its end; "" if it was. Raises what made the run fail."""
    if finish.error is not None:
        raise finish.error
    if finish.status == "failed":
        raise RunFailedError(f"the run could not be made again: {finish.verdict}")
    return "" if finish.status == "finished" else f"{finish.status}: {finish.verdict}"
