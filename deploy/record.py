"""What the run registry is told, and when. Rows are gathered and written together; nothing here decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from actors.evaluate import EvaluationResult
from common.checkpoints import CheckpointStore
from common.clock import NS_PER_S, Clock
from common.ledger import LedgerFragment
from common.runs import ROLLBACK_EVENT, STARVED, CheckpointRecord, EvaluationRecord, RunRegistry, UpdateRecord
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import (
    ActorStarted,
    CheckpointWritten,
    EvaluationMade,
    Event,
    FragmentMade,
    Note,
    RecordUpdate,
    RollBack,
    WriteCheckpoint,
)
from deploy.harvest import Harvest

FLUSH_EVERY_S = 1.0
ACCOUNTS = "ACCOUNTS"  # kind of the event that holds the accounts at the end of driving
DRIVING = "DRIVING"  # kind of the event that begins a driving: ties this clock to `seconds_driving` of the updates


class Listener(Protocol):
    """Is told of rows as they are recorded, in the driver's thread; an update's a moment before it is on disk."""

    def updated(self, record: UpdateRecord) -> None:
        """An update was committed."""
        ...

    def evaluated(self, record: EvaluationRecord) -> None:
        """An evaluation was recorded."""
        ...

    def rolled_back(self, update: int, env_steps: int) -> None:
        """Rows of updates later than `update`, behind which the run stood at `env_steps`, were taken back."""
        ...


class Record:
    """Writes one run into the registry that this process drives, and tells `listeners`."""

    def __init__(
        self,
        registry: RunRegistry,
        store: CheckpointStore,
        run: str,
        clock: Clock,
        *,
        wall_before_s: float,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._registry = registry
        self._store = store
        self._run = run
        self._clock = clock
        self._wall_before_s = wall_before_s
        self._listeners = listeners
        self._start_ns = clock.now_ns()
        self._flushed_ns = self._start_ns
        self._rows: list[UpdateRecord] = []
        self._fragments: list[LedgerFragment] = []
        self._harvest = Harvest()
        self._facts_noted: set[str] = set()
        self._version = 0
        self._starved = 0
        self._given_up: list[tuple[int, int]] = []  # by rollback: the update gone back to, the last version before it

    @property
    def wall_s(self) -> float:
        """Seconds of driving so far, over all resumes, on the monotonic clock."""
        return self._wall_before_s + (self._clock.now_ns() - self._start_ns) / NS_PER_S

    def begin(self) -> None:
        """Driving begins: how many seconds of it there were before, so that events can be placed among the updates."""
        self._registry.record_event(self._run, DRIVING, {"driving_s": round(self.wall_s, 3)})

    def observe(self, event: Event, conductor: Conductor) -> None:
        """Take an event that the conductor has taken in."""
        match event:
            case FragmentMade():
                self._harvest.add(event.summary)
            case EvaluationMade(result=EvaluationResult() as result) if not self._is_given_up(event.update, result):
                self.flush()
                self._evaluated(evaluation_record(self._run, event.update, result))
            case CheckpointWritten(error=""):
                self._checkpoint(event)
            case ActorStarted():
                self._note_facts(event)
            case _:
                pass
        self._version = conductor.version

    def commit(self, command: RecordUpdate, conductor: Conductor) -> None:
        """Take an update that every rank of the group agreed on; the conductor stands right behind it."""
        row = self._update_record(command, conductor)
        self._rows.append(row)
        for listener in self._listeners:
            listener.updated(row)
        self._fragments += command.ledger
        self._harvest.clear()
        if (self._clock.now_ns() - self._flushed_ns) / NS_PER_S >= FLUSH_EVERY_S:
            self.flush()

    def roll_back(self, command: RollBack) -> None:
        """Take back what was recorded of later updates, checkpoints included.

        Checkpoints go first: a driver that dies in between is resumed from what is left, and that resume takes back
        the rest of the record. The other way round it would go on from a checkpoint that was given up.
        """
        self.flush()
        self._harvest.clear()
        self._given_up.append((command.update, self._version))
        self._store.discard_after(command.update)
        self._registry.roll_back(self._run, command.update, term=command.term, reason=command.reason)
        if self._listeners:
            stands_at = self._registry.run(self._run)
            for listener in self._listeners:
                listener.rolled_back(stands_at.updates, stands_at.env_steps)

    def note(self, note: Note) -> None:
        """Record a fact as an event; a rollback's is recorded with what it takes back, by `roll_back`."""
        if note.kind != ROLLBACK_EVENT:
            self._registry.record_event(self._run, note.kind, note.data)

    def save(self, command: WriteCheckpoint) -> None:
        """A cut is about to be written: all that was decided before it is on record first."""
        self._fragments += command.ledger
        self.flush()

    def flush(self) -> None:
        """Write the gathered rows."""
        self._flushed_ns = self._clock.now_ns()
        if self._rows:
            self._registry.record_updates(self._rows, self._fragments, wall_s=self.wall_s)
        else:
            self._registry.record_fragments(self._run, self._fragments)
        self._rows, self._fragments = [], []

    def close(self, conductor: Conductor) -> None:
        """Write what is left, and the accounts as they stand: fragments may have come since the last update."""
        self.flush()
        accounts = {"update": conductor.committed, **conductor.accounts.to_plain()}
        self._registry.record_event(self._run, ACCOUNTS, accounts)

    def _evaluated(self, row: EvaluationRecord) -> None:
        self._registry.record_evaluation(row)
        for listener in self._listeners:
            listener.evaluated(row)

    def _is_given_up(self, update: int, result: EvaluationResult) -> bool:
        """Whether an evaluation is of weights that a rollback has taken back while it was played."""
        return any(update > kept and result.version <= last for kept, last in self._given_up)

    def _update_record(self, command: RecordUpdate, conductor: Conductor) -> UpdateRecord:
        report, accounts = command.report, conductor.accounts
        statistics: dict[str, float] = {
            **report.statistics,
            **{f"gradient_norm_{group}": norm for group, norm in report.layer_norms.items()},
            **{f"seconds_{phase}": seconds for phase, seconds in report.seconds.items()},
            **{f"seconds_sync_{phase}": seconds for phase, seconds in report.sync.seconds.items()},
            "verified_steps": report.sync.verified_steps,
            "reduced_bytes": report.sync.reduced_bytes,
            "learning_rate": report.learning_rate,
            "seconds_driving": round(self.wall_s, 3),
            **self._harvest.statistics(),
            **self._flow_statistics(conductor),
        }
        return UpdateRecord(
            run=self._run,
            update=report.update + 1,
            term=report.term,
            version=report.version,
            env_steps=conductor.env_steps,
            parameter_digest=report.parameter_digest,
            state_digest=report.state_digest,
            chain=command.chain,
            num_ranks=command.num_ranks,
            produced=accounts.produced,
            trained=accounts.trained,
            in_flight=accounts.in_flight,
            dropped=dict(accounts.dropped),
            fragments_lost=accounts.fragments_lost,
            lag=float(report.lag),
            statistics=statistics,
        )

    def _flow_statistics(self, conductor: Conductor) -> dict[str, float]:
        """Whether the learner starved before this update (its share of what has been counted since the one before)."""
        flow = conductor.policy.statistics(conductor.seats)
        if flow is None:
            return {}
        starved, self._starved = flow.starved - self._starved, flow.starved
        return {STARVED: starved}

    def _checkpoint(self, event: CheckpointWritten) -> None:
        best = self._store.best()
        record = CheckpointRecord(
            run=self._run,
            update=event.update,
            name=event.name,
            digest=event.digest,
            best=best is not None and best.name == event.name,
        )
        self._registry.record_checkpoint(record)
        self._registry.prune_checkpoints(self._run, self._store.names())

    def _note_facts(self, event: ActorStarted) -> None:
        """Once a run (and again if it differs): how environments are vectorised, seeded, and whether restorable."""
        facts: dict[str, Any] = {name: getattr(event.facts, name) for name in event.facts.__slots__}
        key = repr(sorted(facts.items()))
        if key not in self._facts_noted:
            self._facts_noted.add(key)
            self._registry.record_event(self._run, "ENVIRONMENT", {"actor": event.actor, **facts})


def evaluation_record(run: str, update: int, result: EvaluationResult) -> EvaluationRecord:
    """An evaluation as the registry keeps it."""
    return EvaluationRecord(
        run=run,
        update=update,
        version=result.version,
        mean=result.mean,
        std=float(np.std(result.returns)),
        minimum=min(result.returns),
        maximum=max(result.returns),
        episodes=len(result.returns),
        returns=result.returns,
    )
