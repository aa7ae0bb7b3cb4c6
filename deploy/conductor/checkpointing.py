"""When the run is cut, what a cut waits for, and the newest state that a rollback can go to."""

from __future__ import annotations

from collections.abc import Iterator

from actors.evaluate import EvaluationResult
from deploy.conductor.collection import Collection
from deploy.conductor.cuts import Cuts
from deploy.conductor.fates import Fates
from deploy.conductor.learners import Learners
from deploy.conductor.messages import LearnerSnapshot, Note, SnapshotLearner, WriteCheckpoint
from deploy.conductor.plan import Plan
from deploy.conductor.progress import Progress
from deploy.conductor.safe import SafePoint


class Checkpointing:
    """Opens cuts, asks ranks for their states, hands complete cuts over.

    Args:
        plan: when to cut.
        progress, cuts, collection, learners: of the run.
        judged: the evaluation of the weights that the run begins with, if there is one.

    Attributes:
        safe: where a rollback goes to; None until the ranks have handed over their first state.
    """

    def __init__(
        self,
        plan: Plan,
        progress: Progress,
        cuts: Cuts,
        collection: Collection,
        learners: Learners,
        *,
        judged: EvaluationResult | None,
    ) -> None:
        self.safe: SafePoint | None = None
        self._plan = plan
        self._progress = progress
        self._cuts = cuts
        self._collection = collection
        self._learners = learners
        self._judged = judged
        self._newest_judged: tuple[int, EvaluationResult | None] = (progress.committed, judged)
        self._began_at = self._last = progress.committed

    def open_if_due(self, final: int | None) -> None:
        """Right behind Update(k - 1) in the learner's queue, and behind Collect(k + lag - 1) in each actor's.

        Args:
            final: the update after which the run ends, if that is known.
        """
        issued = self._progress.issued
        last = issued == final and issued not in self._cuts
        if last or (self._plan.cuts(issued) and issued > self._last):
            self.open(issued)

    def open(self, update: int) -> None:
        """Begin the cut after `update` updates."""
        self._last = max(self._last, update)
        cut = self._collection.open_cut(update)
        judged_at, judged = self._newest_judged
        if update == judged_at:
            cut.evaluations[False] = judged
        elif self._plan.evaluates(update) and update > self._began_at:
            cut.evaluations_due.add(False)
        if self._progress.committed == update:
            self.commit()

    def judge(self, update: int, *, final: bool, result: EvaluationResult | None) -> None:
        """An evaluation was made, or given up. Its cut may be opened, or opened again as the last one, only later."""
        cut = self._cuts.get(update)
        if cut is not None:
            cut.evaluations[final] = result
        if not final:
            self._newest_judged = (update, result)

    def commit(self) -> None:
        """An update is committed; if a cut follows it, it is of this moment."""
        progress = self._progress
        cut = self._cuts.get(progress.committed)
        if cut is None or cut.committed:
            return
        cut.committed = True
        cut.term, cut.version = progress.term, progress.version
        cut.env_steps, cut.parameter_digest, cut.chain = progress.env_steps, progress.parameter_digest, progress.chain

    def ask_states(self) -> Iterator[SnapshotLearner | Note]:
        """Right behind Update(k - 1) in the queue of place 0: of a cut there, and of the first safe state."""
        if not self._learners.ready:
            return
        yield from self._miss()
        update = self._progress.issued
        cut = self._cuts.get(update)
        if self.safe is None or (cut is not None and cut.learner is None):
            asked = self._learners.snapshot(update)
            if asked is not None:
                yield asked

    def _miss(self) -> Iterator[Note]:
        """Give up cuts whose state was lost with its rank after the group had gone on: no rank holds it any more."""
        for cut in self._cuts.unwritten:
            lost = cut.learner is None and not self._learners.awaits_state(cut.update)
            if lost and cut.update < self._progress.committed:
                self._collection.give_up_cut(cut)
                yield Note(kind="CHECKPOINT_MISSED", data={"update": cut.update})

    def take_state(self, event: LearnerSnapshot) -> None:
        """A state that was asked for; behind an order that came to nothing it is of another update, and unwanted."""
        progress = self._progress
        cut = self._cuts.get(event.update)
        if cut is not None and cut.learner is None:
            cut.learner = event.state
        if self.safe is None and event.update == progress.committed:
            self.safe = SafePoint(
                update=progress.committed,
                env_steps=progress.env_steps,
                state=event.state,
                parameter_digest=progress.parameter_digest,
                chain=progress.chain,
                evaluation=self._judged,
            )

    def has_state(self, update: int) -> bool:
        """Whether the cut after `update` updates holds the learner's state."""
        cut = self._cuts.get(update)
        return cut is not None and cut.learner is not None

    def write(self, fates: Fates) -> Iterator[WriteCheckpoint]:
        """Hand over what is complete; a rollback goes no further back than there."""
        for cut in self._cuts.complete(self._collection.seats):
            self.safe = SafePoint.of(cut)
            yield WriteCheckpoint(cut=cut, ledger=fates.take())

    def return_to(self, safe: SafePoint) -> None:
        """A rollback: begin again there. Cuts in the making have been given up."""
        self._judged = safe.evaluation
        self._newest_judged = (safe.update, safe.evaluation)
        self._began_at = self._last = safe.update
