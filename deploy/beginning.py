"""Where a run begins: a new record, the weights of another run, or its own newest good checkpoint.

A resume goes on whatever has changed since the run was made; where that may cost bits, run and record say so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.errors import CheckpointError, ConfigError
from common.runs import RunRecord, RunRegistry
from deploy.compose import Composition
from deploy.config import RunConfig
from deploy.facts import fingerprint, gather_facts
from deploy.outputs import checkpoint_store
from deploy.resources import Session
from deploy.saved import SavedRun, read_saved
from learner.state import InitialWeights


def compare_fingerprint(registry: RunRegistry, record: RunRecord, session: Session) -> None:
    """Bits are promised for equal fingerprints only: where it differs, the run and its record say so."""
    before, now = record.facts.get("fingerprint", ""), _facts()["fingerprint"]
    if before != now:
        registry.record_event(record.run, "FINGERPRINT_CHANGED", {"before": before, "now": now})
        session.display.tell(
            "WARNING: code, versions or processor differ from when the run was made: it goes on, but its parameters "
            "may differ in the last bits from those of the unbroken run"
        )


def compare_ranks(registry: RunRegistry, run: str, session: Session, *, before: int, now: int) -> None:
    """Sums over another number of parts are rounded otherwise."""
    if before != now:
        registry.record_event(run, "RANKS_CHANGED", {"before": before, "now": now})
        session.display.tell(
            f"WARNING: {now} learner ranks instead of the {before} that the run was made with: it goes on, but its "
            "parameters may differ in rounding from those of the unbroken run"
        )


def create_run(
    registry: RunRegistry, config: RunConfig, out: Path, run: str, session: Session, origin: dict[str, str]
) -> str:
    """Put a new run on record, driven by this process, and return its name.

    Args:
        run: its name; made from environment, algorithm and seed if empty.
        origin: the checkpoint that it begins with, if it does.
    """
    facts = _facts() | ({"init_from": origin} if origin else {})
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


def initial_weights(
    out: Path, registry: RunRegistry, source: str, composition: Composition
) -> tuple[InitialWeights, dict[str, str]]:
    """The newest weights of another run, and which they are, for the record."""
    registry.run(source)
    checkpoint = checkpoint_store(out, source).newest_good(lambda name, error: None)
    if checkpoint is None:
        raise ConfigError(f"--init-from: run {source!r} has no checkpoint", fix="choose another run")
    state = read_saved(checkpoint).learner
    if state.manifest_fingerprint != composition.network:
        raise ConfigError(
            f"--init-from: run {source!r} trained another network",
            got=f"network {state.manifest_fingerprint[:12]}",
            allowed=f"network {composition.network[:12]}",
            fix="use the spaces and the net configuration of that run",
        )
    origin = {"run": source, "checkpoint": checkpoint.info.name, "parameter_digest": state.parameter_digest}
    return state.as_beginning(), origin


def newest_saved(out: Path, registry: RunRegistry, composition: Composition, session: Session) -> SavedRun | None:
    """The newest good checkpoint; damaged ones are named, loudly, and what lies behind it is given up."""
    run = composition.run
    store = checkpoint_store(out, run, keep_last=composition.config.checkpoint.keep_last)

    def skipped(name: str, error: CheckpointError) -> None:
        session.display.tell(f"WARNING: checkpoint {name} is damaged and was passed over: {error}")
        registry.record_event(run, "CHECKPOINT_SKIPPED", {"name": name, "error": str(error)})

    checkpoint = store.newest_good(skipped)
    saved = None if checkpoint is None else read_saved(checkpoint)
    update = 0 if saved is None else saved.cut.update
    store.discard_after(update)
    registry.truncate_after(run, update, term=None if saved is None else saved.cut.term)
    registry.prune_checkpoints(run, store.names())
    return saved


def _facts() -> dict[str, Any]:
    facts = gather_facts()
    return {**facts, "fingerprint": fingerprint(facts)}
