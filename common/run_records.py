"""What the run registry stores, and how each record becomes a row. Pure: no database in here.

JSON columns are strict (`common/plain_json`). SQLite stores NaN as NULL, so a NULL in a float column reads as NaN.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from common import plain_json
from common.errors import ConfigError, OutputError, RegistryError
from common.process_identity import Liveness, ProcessIdentity

RunStatus = Literal["running", "finished", "failed", "interrupted"]
Row = Mapping[str, Any]
RUN_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run, as of its last recorded update.

    Attributes:
        run: unique name; also the name of its directory.
        status: running; finished; failed (the verdict says why); interrupted (a checkpoint is there: resumable).
            A run whose driver was killed still says running: `RunRegistry.owner` and `liveness` tell the difference.
        env: environment id.
        algo: name of the algorithm.
        seed: root seed.
        engine: inline or ray.
        config: the whole configuration, plain.
        facts: `deploy.facts.gather_facts` of the process that made the run.
        out: the run's output directory, as the driver saw it.
        created_wall: wall-clock label (UTC), for people.
        ended_wall: likewise; None while running.
        wall_s: seconds of driving over all resumes, monotonic.
        updates: last recorded update.
        env_steps: environment steps up to it.
        version: highest version recorded.
        term: learner's term.
        parameter_digest: of the parameters after the last recorded update.
        chain: of digests, up to the last recorded update; "" if that was recorded by a truestep without chains.
        verdict: one sentence on how it ended; "" while running.
    """

    run: str
    status: RunStatus
    env: str
    algo: str
    seed: int
    engine: str
    config: dict[str, Any]
    facts: dict[str, Any]
    out: str
    created_wall: str
    ended_wall: str | None
    wall_s: float
    updates: int
    env_steps: int
    version: int
    term: int
    parameter_digest: str
    chain: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRecord:
    """One committed update. Transition counts are totals since the start of the run.

    Attributes:
        run: name of the run.
        update: its index; unique within the run.
        term: learner's term.
        version: what was published after it.
        env_steps: total environment steps.
        parameter_digest: of the parameters after it.
        state_digest: of parameters, moments and counters after it, as every rank reported it; "" if none was recorded.
        chain: of the digests of this update and all before it; equal chains mean equal histories. "" likewise.
        produced: valid transitions whose summary reached the driver.
        trained: valid transitions committed.
        in_flight: neither trained nor dropped yet.
        dropped: by reason.
        fragments_lost: unfinished fragments of dead actors.
        lag: mean versions behind of what was trained.
        statistics: the algorithm's numbers; may hold NaN and infinities.
        num_ranks: learner ranks that made it together; 0 if that was not recorded.
    """

    run: str
    update: int
    term: int
    version: int
    env_steps: int
    parameter_digest: str
    state_digest: str
    chain: str
    produced: int
    trained: int
    in_flight: int
    dropped: dict[str, int]
    fragments_lost: int
    lag: float
    statistics: dict[str, float]
    num_ranks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """One evaluation; at most one per update. `returns` holds the return of each episode, in order."""

    run: str
    update: int
    version: int
    mean: float
    std: float
    minimum: float
    maximum: float
    episodes: int
    returns: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """Something worth telling.

    Attributes:
        run: name of the run.
        sequence: 1, 2, ... in the order recorded.
        monotonic_ns: when, on the clock `clock_id`; compare only readings of one clock.
        clock_id: which clock.
        wall: wall-clock label (UTC), for people.
        kind: a word in capitals.
        data: plain values.
    """

    run: str
    sequence: int
    monotonic_ns: int
    clock_id: str
    wall: str
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """One checkpoint of the run's store: its update, directory name, digest, and whether it is the best so far."""

    run: str
    update: int
    name: str
    digest: str
    best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who drives a run: the process and its lease (a random token per process start)."""

    lease: str
    process: ProcessIdentity


def check_run_name(run: str) -> None:
    """A run's name is also a directory's. Raises ConfigError."""
    if RUN_NAME.fullmatch(run) is None:
        allowed = "1 to 100 letters, digits, '.', '_' and '-', not beginning with a sign nor ending with '.'"
        raise ConfigError("run name", got=repr(run), allowed=allowed)


def unused_run_name(base: str, used: Collection[str]) -> str:
    """`base` made fit for a run's name, with -2, -3, ... until it is not in `used`.

    >>> unused_run_name("ALE/Pong-v5 ppo", {"ALE-Pong-v5-ppo"})
    'ALE-Pong-v5-ppo-2'
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", base).strip("-._")[:90].rstrip("-._") or "run"
    candidate, number = stem, 1
    while candidate in used:
        number += 1
        candidate = f"{stem}-{number}"
    return candidate


def check_replaceable(run: str, owner: Owner, own: ProcessIdentity, *, take_over: bool) -> None:
    """Raises OutputError unless `owner` is dead, or out of sight and `take_over` says that it is gone."""
    match owner.process.liveness(own):
        case Liveness.ALIVE:
            raise OutputError(
                f"run {run!r} is being driven by {owner.process.describe()}", fix="wait for it, or stop it first"
            )
        case Liveness.UNKNOWN if not take_over:
            raise OutputError(
                f"run {run!r} was last driven by {owner.process.describe()}, which cannot be looked at from here",
                fix="if that machine is gone for certain, resume with take-over; two drivers would spoil the run",
            )


def json_text(value: Any, what: str) -> str:
    """`value` as strict JSON. Raises RegistryError naming `what` and the path in it."""
    try:
        return plain_json.dumps(value)
    except plain_json.NotPlainError as error:
        raise RegistryError(f"{what} cannot be recorded", got=str(error)) from None


def run_from_row(row: Row) -> RunRecord:
    """A row of `runs`."""
    fields = {name: row[name] for name in RunRecord.__slots__}
    fields |= {"config": _plain(row, "config"), "facts": _plain(row, "facts")}
    return RunRecord(**fields)


def update_to_row(record: UpdateRecord) -> dict[str, Any]:
    """Columns of `updates`, without run_id. Numbers become Python's own: sqlite3 stores numpy scalars as blobs."""
    what = f"update {record.update} of run {record.run!r}"
    statistics = {name: float(value) for name, value in record.statistics.items()}
    dropped = {reason: int(count) for reason, count in record.dropped.items()}
    return {
        "update_number": int(record.update),
        "term": int(record.term),
        "version": int(record.version),
        "env_steps": int(record.env_steps),
        "parameter_digest": str(record.parameter_digest),
        "state_digest": str(record.state_digest),
        "chain": str(record.chain),
        "produced": int(record.produced),
        "trained": int(record.trained),
        "in_flight": int(record.in_flight),
        "dropped": json_text(dropped, f"dropped of {what}"),
        "fragments_lost": int(record.fragments_lost),
        "lag": float(record.lag),
        "statistics": json_text(statistics, f"statistics of {what}"),
        "num_ranks": int(record.num_ranks),
    }


def update_from_row(row: Row, run: str) -> UpdateRecord:
    """A row of `updates`."""
    fields = {name: row[name] for name in UpdateRecord.__slots__ if name not in ("run", "update")}
    fields |= {"dropped": _plain(row, "dropped"), "statistics": _plain(row, "statistics")}
    fields["lag"] = _real(row["lag"])
    return UpdateRecord(run=run, update=row["update_number"], **fields)


def evaluation_to_row(record: EvaluationRecord) -> dict[str, Any]:
    """Columns of `evaluations`, without run_id."""
    returns = [float(value) for value in record.returns]
    return {
        "update_number": int(record.update),
        "version": int(record.version),
        "mean": float(record.mean),
        "std": float(record.std),
        "minimum": float(record.minimum),
        "maximum": float(record.maximum),
        "episodes": int(record.episodes),
        "returns": json_text(returns, f"returns at update {record.update} of run {record.run!r}"),
    }


def evaluation_from_row(row: Row, run: str) -> EvaluationRecord:
    """A row of `evaluations`."""
    reals = {name: _real(row[name]) for name in ("mean", "std", "minimum", "maximum")}
    return EvaluationRecord(
        run=run,
        update=row["update_number"],
        version=row["version"],
        episodes=row["episodes"],
        returns=tuple(_plain(row, "returns")),
        **reals,
    )


def event_from_row(row: Row, run: str) -> EventRecord:
    """A row of `events`."""
    fields = {name: row[name] for name in EventRecord.__slots__ if name not in ("run", "data")}
    return EventRecord(run=run, data=_plain(row, "data"), **fields)


def checkpoint_from_row(row: Row, run: str) -> CheckpointRecord:
    """A row of `checkpoints`."""
    return CheckpointRecord(
        run=run, update=row["update_number"], name=row["name"], digest=row["digest"], best=bool(row["best"])
    )


def owner_from_row(row: Row) -> Owner:
    """A row of `owners`."""
    fields = {name: row[name] for name in ProcessIdentity.__slots__}
    return Owner(lease=row["lease"], process=ProcessIdentity(**fields))


def _real(value: float | None) -> float:
    return math.nan if value is None else value


def _plain(row: Row, column: str) -> Any:
    """A JSON column. SQLite has no checksums: damage inside a text shows only here."""
    try:
        return plain_json.loads(row[column])
    except plain_json.NotPlainError as error:
        raise RegistryError(f"column {column} of the run registry is damaged", got=str(error)) from None
