"""What the record of a run is told, handed to every writer as rows of scalars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from common.clock import Clock, Deadline
from common.runs import EvaluationRecord, UpdateRecord
from deploy.writers.outbox import Outbox, Tally
from deploy.writers.scalars import evaluation_scalars, update_scalars
from deploy.writers.writer import NOTHING_STANDS

CLOSE_S = 30.0  # for all writers together, at the end of a run: an upload takes seconds
REMEMBERED = 16_384  # updates whose steps are known when their evaluation comes: it comes a few updates later


class Feed:
    """Listens to `deploy.record.Record`, in the driver's thread, and never waits. A context manager: its block is the
    driving of the run, behind which the writers finish.

    Args:
        outboxes: one a writer.
        clock: for the deadline of the end.
        tell: where a person is told how many rows were left out.
        remedy: what to do about them.
    """

    def __init__(self, outboxes: Sequence[Outbox], clock: Clock, tell: Callable[[str], None], *, remedy: str) -> None:
        self._outboxes = outboxes
        self._clock = clock
        self._tell = tell
        self._remedy = remedy
        self._steps = {0: 0}
        self._unplaced = 0
        self._tallies: list[Tally] = []

    def resumed(self, update: int, env_steps: int) -> None:
        """Driving goes on behind this update: what writers have of later ones is undone; of all, if `update` is 0."""
        self._steps[update] = env_steps
        for outbox in self._outboxes:
            outbox.undo_after(env_steps if update else NOTHING_STANDS)

    def updated(self, record: UpdateRecord) -> None:
        """A row of the update."""
        self._steps[record.update] = record.env_steps
        if len(self._steps) > REMEMBERED:
            del self._steps[next(iter(self._steps))]
        self._put(record.env_steps, update_scalars(record))

    def evaluated(self, record: EvaluationRecord) -> None:
        """A row of the evaluation, at the steps of its update."""
        step = self._steps.get(record.update)
        if step is None:
            self._unplaced += 1
        else:
            self._put(step, evaluation_scalars(record))

    def rolled_back(self, update: int, env_steps: int) -> None:
        """What came behind this update is undone."""
        self._steps = {known: steps for known, steps in self._steps.items() if known <= update}
        for outbox in self._outboxes:
            outbox.undo_after(env_steps if update else NOTHING_STANDS)

    def __enter__(self) -> Feed:
        for outbox in self._outboxes:
            outbox.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let every writer finish, all at once, by one deadline."""
        deadline = Deadline(self._clock, CLOSE_S)
        for outbox in self._outboxes:
            outbox.end()
        self._tallies = [outbox.close(deadline) for outbox in self._outboxes]
        for tally in self._tallies:
            if left_out := tally.left_out + self._unplaced:
                why = f" ({tally.error})" if tally.error else ""
                self._tell(f"WARNING: writer {tally.name} left out {left_out:,} of the rows{why}; {self._remedy}")

    def left_out(self) -> dict[str, Any]:
        """Rows left out by writer, after the end; empty where there are none."""
        counts = {tally.name: tally.left_out + self._unplaced for tally in self._tallies}
        return {name: count for name, count in counts.items() if count}

    def _put(self, step: int, values: dict[str, float]) -> None:
        for outbox in self._outboxes:
            outbox.put(step, values)
