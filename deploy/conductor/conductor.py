"""The conductor: every decision of a run, as a function of the events so far.

Time does not exist here, so neither can a race: two engines that deliver the same events get the same commands, and
what an update is made of (which fragments, in which order, by which weights) depends on no arrival order at all.

    committed   updates that every rank agreed on
    issued      updates told to the group of ranks (at most two ahead, so the ranks never wait for the driver)
    floor       the update at which the term began: 0, or where the last rollback led to
    Collect(j)  is told once committed = j - lag, with the weights after max(floor, j - lag) updates
    Update(j)   is told once every live seat's fragment for j is there, and the group is formed
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from actors.evaluate import EvaluationResult
from common.errors import RunFailedError, TruestepError
from deploy.conductor import rank_notes
from deploy.conductor.accounts import SKIPPED, Accounts
from deploy.conductor.collection import Collection
from deploy.conductor.cuts import Cuts
from deploy.conductor.ending import Ending
from deploy.conductor.evaluations import Evaluations, Publication
from deploy.conductor.learners import Learners, RankEvent
from deploy.conductor.messages import (
    ActorLost,
    ActorSnapshot,
    ActorStarted,
    CheckpointWritten,
    Command,
    Cut,
    EvaluationMade,
    Event,
    Fatal,
    Finish,
    FragmentMade,
    GroupJoined,
    Handle,
    Held,
    JoinFailed,
    LearnerSnapshot,
    LearnerStarted,
    Note,
    RankLost,
    RankStarted,
    RankUpdated,
    RecordUpdate,
    RollBack,
    StateAdopted,
    StopAsked,
    WriteCheckpoint,
)
from deploy.conductor.orders import Order
from deploy.conductor.outcomes import Astray, Ended, Joined, Made, Outcome, Voided
from deploy.conductor.plan import Plan
from deploy.conductor.ranks import RankSeat
from deploy.conductor.safe import SafePoint, extend_chain
from deploy.conductor.seats import Seat
from learner.reports import UpdateReport


class Conductor:
    """Decides a run of synchronous updates, with a policy lag of 0 or 1.

    Args:
        plan: what to do.
        versions: numbers for publications, in ascending order, each persisted before it is handed out.
        initial: the state that ranks adopt at the start (the learner's of `resumed`, or another run's weights);
            None = each makes its model by the seed.
        resumed: the cut to go on from.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        versions: Iterator[int],
        initial: Handle | None = None,
        resumed: Cut | None = None,
    ) -> None:
        self.plan = plan
        self.accounts = Accounts() if resumed is None else resumed.accounts.copy()
        self.term = 0 if resumed is None else resumed.term
        self.committed = self.issued = 0 if resumed is None else resumed.update
        self.env_steps = 0 if resumed is None else resumed.env_steps
        self.version = 0
        self.parameter_digest = "" if resumed is None else resumed.parameter_digest
        self.chain = "" if resumed is None else resumed.chain
        self.rollbacks = 0
        self.finish: Finish | None = None
        self._versions = versions
        self._weights: dict[int, Publication] = {}
        self._safe: SafePoint | None = None
        self._trained: dict[int, int] = {}
        self._rollbacks_in_a_row = 0
        self._furthest = 0
        self._cuts = Cuts()
        self._collection = Collection(plan, self.accounts, self._cuts)
        self._learners = Learners(plan, updates=self.committed, initial=initial)
        self._evaluations = Evaluations()
        self._ending = Ending(plan)
        self._judged = None if resumed is None else resumed.evaluation
        self._barrier: int | None = None
        self._skipped_in_a_row = 0
        self._began_at = self._last_cut = self.committed
        if resumed is not None:
            self._ending.judge(resumed.evaluation)
            self._collection.take_up(resumed)

    @property
    def seats(self) -> list[Seat]:
        """Every actor, by index."""
        return self._collection.seats

    @property
    def ranks(self) -> list[RankSeat]:
        """Every learner rank, by rank."""
        return self._learners.seats

    @property
    def formation(self) -> int:
        """Number of the last forming of the group of ranks."""
        return self._learners.formation

    def begin(self) -> list[Command]:
        """The first commands: actors start while the ranks do."""
        return [*self._learners.begin(), *self._collection.begin()]

    def handle(self, event: Event) -> list[Command]:
        """Take one event in; returns what is to be done now, in order."""
        if self.finish is not None:
            return []
        commands = list(self._take_in(event))
        if self.finish is None:
            commands += self._advance()
        return commands

    def waiting_for(self) -> str:
        """What the run waits for, in words, for the error of a deadline."""
        awaited = self._collection.words() + self._learners.words()
        return "; ".join(awaited + self._evaluations.words() + self._cuts.words(self.seats)) or "nothing"

    def _take_in(self, event: Event) -> Iterator[Command]:
        match event:
            case RankStarted() | StateAdopted() | GroupJoined() | JoinFailed() | RankLost():
                yield from self._on_rank_event(event)
            case LearnerStarted() | RankUpdated() | LearnerSnapshot():
                yield from self._on_rank_event(event)
            case ActorStarted():
                self._collection.take_started(event)
            case FragmentMade():
                yield from self._collection.take_fragment(event, term=self.term)
            case ActorLost():
                yield from self._on_loss(event)
            case ActorSnapshot():
                self._collection.take_snapshot(event)
            case EvaluationMade():
                yield from self._on_evaluation(event)
            case CheckpointWritten():
                yield from self._on_written(event)
            case StopAsked():
                yield from self._on_stop(event)
            case Fatal():
                yield self._finish("failed", str(event.error), event.error)

    # ---- the actors' side ------------------------------------------------------------------------------------------

    def _on_loss(self, event: ActorLost) -> Iterator[Command]:
        if not self._collection.holds_lease(event.actor, event.lease):
            return
        yield from self._collection.take_loss(event, term=self.term)
        for update, final in self._evaluations.lose(event.actor):
            yield self._give_up_evaluation(update, final=final)
        error = self._collection.hopeless(event.actor)
        if error is not None:
            yield self._finish("failed", str(error), error)

    def _on_evaluation(self, event: EvaluationMade) -> Iterator[Command]:
        if not self._evaluations.done(event.update, final=event.final, result=event.result):
            return
        if event.result is None:
            yield self._give_up_evaluation(event.update, final=event.final)
            return
        if not event.final and self._ending.judge(event.result):
            self._ending.update = event.update
        self._judge(event.update, event.final, event.result)

    def _give_up_evaluation(self, update: int, *, final: bool) -> Note:
        self._judge(update, final, None)
        return Note(kind="EVALUATION_FAILED", data={"update": update})

    def _judge(self, update: int, final: bool, result: EvaluationResult | None) -> None:
        if self._barrier == update:
            self._barrier = None
        cut = self._cuts.get(update)
        if cut is not None:
            cut.evaluations[final] = result

    # ---- the learner's side ----------------------------------------------------------------------------------------

    def _on_rank_event(self, event: RankEvent) -> Iterator[Command]:
        match event:
            case LearnerStarted():
                yield from self._on_published(event)
            case LearnerSnapshot() if self._learners.holds_lease(event.rank, event.lease):
                self._on_state(event)
            case RankLost() if self._learner_is_done():
                yield rank_notes.lost(self.ranks[event.rank], event)
                return
            case _:
                pass
        yield from self._obey(self._learners.take(event))
        if isinstance(event, RankUpdated) and event.report.stop_asked and self.finish is None:
            yield from self._on_stop(StopAsked(reason=f"{event.report.stop_asked} at learner rank {event.report.rank}"))

    def _obey(self, results: Iterable[Command | Outcome]) -> Iterator[Command]:
        """Carry on what the group of ranks has come to, in order."""
        for result in results:
            match result:
                case Made():
                    yield from self._commit(result.order)
                case Voided():
                    self._collection.fragments.take_back(result.update)
                    self.issued = min(self.issued, result.update)
                case Joined():
                    yield from self._go_on()
                case Astray():
                    yield from self._roll_back(result.reason)
                case Ended():
                    yield self._finish("failed", str(result.error), result.error)
                case _:
                    yield result
            if self.finish is not None:
                return

    def _go_on(self) -> Iterator[Command]:
        """The group stands at `committed`: publish, unless the weights were published before."""
        if self.committed in self._weights:
            yield from self._learners.run()
        else:
            yield self._learners.publish(version=next(self._versions), term=self.term)

    def _on_published(self, event: LearnerStarted) -> Iterator[Command]:
        """Weights of the state as it is. Where those of an earlier update were lost with a rank, these act instead."""
        published = (event.version, event.weights)
        for update in range(max(self._collection.floor, self.committed - self.plan.policy_lag), self.committed):
            self._weights.setdefault(update, published)
        self._weights[self.committed] = published
        self.version, self.parameter_digest = event.version, event.parameter_digest
        for update, final in self._evaluations.supply(self.committed, published):
            yield self._give_up_evaluation(update, final=final)
        if self._ending.complete(self.env_steps):
            self._ending.update = self.committed

    def _on_state(self, event: LearnerSnapshot) -> None:
        """A state that was asked for; behind an order that came to nothing it is of another update, and unwanted."""
        cut = self._cuts.get(event.update)
        if cut is not None and cut.learner is None:
            cut.learner = event.state
        if self._safe is None and event.update == self.committed:
            self._safe = SafePoint(
                update=self.committed,
                env_steps=self.env_steps,
                state=event.state,
                parameter_digest=self.parameter_digest,
                chain=self.chain,
                evaluation=self._judged,
            )

    def _learner_is_done(self) -> bool:
        """Whether nothing is wanted of the ranks any more: the last cut has their state, and its weights are there."""
        cut = self._cuts.get(self.committed)
        has_all = cut is not None and cut.learner is not None and self.committed in self._weights
        return has_all and self.committed == self._ending.update

    def _commit(self, order: Order) -> Iterator[Command]:
        report = order.merged()
        yield from self._count(order.held, report)
        self._collection.fragments.settle(report.update)
        self.committed = report.update + 1
        self.version, self.parameter_digest = report.version, report.parameter_digest
        self.chain = extend_chain(
            self.chain,
            update=report.update,
            parameter_digest=report.parameter_digest,
            state_digest=report.state_digest,
        )
        if order.weights is not None:
            self._weights[self.committed] = (report.version, order.weights)
        self._weights.pop(self.committed - self.plan.policy_lag - 1, None)
        if self.committed > self._furthest:
            self._rollbacks_in_a_row = 0
        yield RecordUpdate(report=report, chain=self.chain)
        yield from self._on_skips(report)
        self._commit_cut()
        if self.plan.evaluates(self.committed):
            self._ask_evaluation(final=False)
        if self._ending.complete(self.env_steps):
            self._ending.update = self.committed

    def _count(self, held: tuple[Held, ...], report: UpdateReport) -> Iterator[Note]:
        trained = 0
        for fragment, verdict in zip(held, report.verdicts, strict=True):
            summary = fragment.summary
            self.env_steps += summary.num_valid
            if verdict.refusal:
                self.accounts.drop(verdict.refusal, summary.num_valid)
                data = {"actor": summary.actor, "reason": verdict.refusal, "detail": verdict.detail}
                yield Note(kind="FRAGMENT_REFUSED", data=data)
            elif report.trained:
                trained += summary.num_valid
            else:
                self.accounts.drop(SKIPPED, summary.num_valid)
        self.accounts.trained += trained
        self._trained[report.update] = trained

    def _on_skips(self, report: UpdateReport) -> Iterator[Command]:
        if report.skipped_steps:
            data = {"update": report.update, "steps": report.skipped_steps, "parameter": report.skipped_at}
            yield Note(kind="STEPS_SKIPPED", data=data)
        self._skipped_in_a_row = 0 if report.trained else self._skipped_in_a_row + 1
        if self._skipped_in_a_row >= self.plan.max_skipped_updates > 0:
            verdict = f"{self._skipped_in_a_row} updates in a row committed no gradient step: "
            if report.skipped_steps:
                verdict += f"non-finite gradients (first in {report.skipped_at})"
                fix = "lower optimiser.learning_rate, or look for NaN in rewards; then resume"
            else:
                verdict += "no fragment of theirs held a transition to train on"
                fix = "see the record for refused fragments and broken episodes; then resume"
            yield self._finish("failed", verdict, RunFailedError(verdict, fix=fix))

    # ---- rollback --------------------------------------------------------------------------------------------------

    def _roll_back(self, reason: str) -> Iterator[Command]:
        """Back to the newest state that the driver holds; before there is one nothing was committed, so start over."""
        safe = self._safe
        if safe is None:
            yield from self._obey(self._learners.start_over())
            return
        self._rollbacks_in_a_row += 1
        self._furthest = max(self._furthest, self.committed)
        if self._rollbacks_in_a_row > self.plan.max_rollbacks:
            yield self._finish_astray(reason)
            return
        self.term += 1
        self.rollbacks += 1
        places = {"from_update": self.committed, "to_update": safe.update, "term": self.term, "reason": reason}
        yield Note(kind="TRAINING_ROLLBACK", data=places)
        yield RollBack(update=safe.update, term=self.term, reason=reason)
        self._return_to(safe)
        yield from self._obey(self._learners.roll_back(safe.state, updates=safe.update))

    def _finish_astray(self, reason: str) -> Finish:
        verdict = (
            f"rolled back {self.plan.max_rollbacks} times without getting beyond update {self._furthest}: {reason}"
        )
        fix = "see the record's SYNC_ and RANK_ events for who and where, mend that machine, then resume the run"
        return self._finish("failed", verdict, RunFailedError(verdict, fix=fix))

    def _return_to(self, safe: SafePoint) -> None:
        """The learner's side as it was after `safe.update` updates; the actors' side lives on under the new term."""
        undone = [update for update in self._trained if update >= safe.update]
        self.accounts.undo(
            trained=sum(self._trained.pop(update) for update in undone),
            updates=self.committed - safe.update,
            steps=self.env_steps - safe.env_steps,
        )
        self.committed = self.issued = self._began_at = self._last_cut = safe.update
        self.env_steps, self.parameter_digest, self.chain = safe.env_steps, safe.parameter_digest, safe.chain
        self._judged = safe.evaluation
        self._weights.clear()
        self._barrier = None
        self._skipped_in_a_row = 0
        self._evaluations.forget()
        self._collection.roll_back(safe.update)
        self._ending.reopen(safe.evaluation)
        if self._ending.stop_reason:
            self._ending.update = self._ending.stop_at(issued=self.issued, told=self._collection.told)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _on_stop(self, event: StopAsked) -> Iterator[Command]:
        if self._ending.stop_reason:
            return
        self._ending.stop_reason = event.reason
        if self._ending.update is None:
            self._ending.update = self._ending.stop_at(issued=self.issued, told=self._collection.told)
        yield Note(kind="STOP_ASKED", data={"reason": event.reason, "ends_at_update": self._ending.update})

    def _on_written(self, event: CheckpointWritten) -> Iterator[Command]:
        cut = self._cuts.done(event.update)
        for seat in self.seats:
            seat.snapshot_told.discard(event.update)
        if event.error:
            yield Note(kind="CHECKPOINT_FAILED", data={"update": event.update, "error": event.error})
        if not cut.final:
            return
        if event.error:
            error = RunFailedError(f"the last checkpoint could not be written: {event.error}")
            yield self._finish("failed", str(error), error)
        else:
            yield self._finish(*self._ending.status(update=cut.update, env_steps=self.env_steps))

    def _finish(self, status: str, verdict: str, error: TruestepError | None = None) -> Finish:
        self.finish = Finish(status=status, verdict=verdict, error=error)
        return self.finish

    # ---- decisions -------------------------------------------------------------------------------------------------

    def _advance(self) -> Iterator[Command]:
        """Everything that has become possible."""
        if not self._weights:
            return
        self._open_cut_if_due()
        yield from self._collection.tell(term=self.term, until=self._collect_until(), weights=self._weights)
        yield from self._tell_learners()
        self._close_run()
        yield from self._ask_states()
        yield from self._evaluations.tell(self.seats)
        yield from self._write_cuts()

    def _collect_until(self) -> int:
        """The first update for which no fragment may be begun yet."""
        frontier = self.committed + self.plan.policy_lag
        if self._ending.update is not None:
            return min(frontier + 1, self._ending.update + self.plan.policy_lag)
        return frontier + (self._barrier is None)

    def _tell_learners(self) -> Iterator[Command]:
        while self._may_update():
            yield from self._ask_states()
            held = self._collection.fragments.issue(self.issued)
            yield self._learners.order(held, update=self.issued, term=self.term, version=next(self._versions))
            self.issued += 1
            self._open_cut_if_due()

    def _may_update(self) -> bool:
        if not self._learners.takes_update or self._safe is None or self._barrier is not None:
            return False
        steps = self.env_steps + self._collection.fragments.steps_issued
        if steps >= self.plan.total_steps or self.issued == self._ending.update:
            return False
        if self.plan.stop_at_return is not None and self.issued > self.committed and self.plan.evaluates(self.issued):
            return False
        return self._collection.fragments.complete(self.issued, self.seats)

    def _ask_states(self) -> Iterator[Command]:
        """Right behind Update(k - 1) in the queue of place 0: of a cut there, and of the first safe state."""
        if not self._learners.ready:
            return
        yield from self._miss_cuts()
        cut = self._cuts.get(self.issued)
        if self._safe is None or (cut is not None and cut.learner is None):
            asked = self._learners.snapshot(self.issued)
            if asked is not None:
                yield asked

    def _miss_cuts(self) -> Iterator[Note]:
        """Whose state was lost with its rank after the group had gone on: no rank holds it any more."""
        for cut in self._cuts.unwritten:
            lost = cut.learner is None and not self._learners.awaits_state(cut.update)
            if lost and cut.update < self.committed:
                self._collection.give_up_cut(cut)
                yield Note(kind="CHECKPOINT_MISSED", data={"update": cut.update})

    # ---- cuts and evaluations --------------------------------------------------------------------------------------

    def _open_cut_if_due(self) -> None:
        """Right behind Update(k - 1) in the learner's queue, and behind Collect(k + lag - 1) in each actor's."""
        last = self.issued == self._ending.update and self.issued not in self._cuts
        if last or (self.plan.cuts(self.issued) and self.issued > self._last_cut):
            self._last_cut = max(self._last_cut, self.issued)
            self._open_cut(self.issued)

    def _close_run(self) -> None:
        """Once the last update is committed: what its cut holds beyond the others."""
        if self.committed != self._ending.update or self._barrier is not None:
            return
        if self.committed not in self._cuts:  # complete only now: it was not known to be the last when it was told
            self._open_cut(self.committed)
        cut = self._cuts.get(self.committed)
        assert cut is not None
        if not cut.final and not cut.written:  # one that is being written is complete; the last one comes after it
            cut.final = True
            if self._ending.complete(self.env_steps):
                cut.evaluations_due.add(True)
                self._ask_evaluation(final=True)

    def _open_cut(self, update: int) -> None:
        later = range(update, update + self.plan.policy_lag)
        cut = self._cuts.open(update, {j: self._collection.fragments.of(j) for j in later})
        if self.plan.evaluates(update) and update > self._began_at:
            cut.evaluations_due.add(False)
        elif update == self._began_at:
            cut.evaluations[False] = self._judged
        if self.committed == update:
            self._commit_cut()

    def _commit_cut(self) -> None:
        cut = self._cuts.get(self.committed)
        if cut is None or cut.accounts is not None:
            return
        cut.accounts = self.accounts.copy()
        cut.term, cut.version = self.term, self.version
        cut.env_steps, cut.parameter_digest, cut.chain = self.env_steps, self.parameter_digest, self.chain

    def _write_cuts(self) -> Iterator[Command]:
        for cut in self._cuts.complete(self.seats):
            self._safe = SafePoint.of(cut)
            self._trained = {update: trained for update, trained in self._trained.items() if update >= cut.update}
            yield WriteCheckpoint(cut=cut)

    def _ask_evaluation(self, *, final: bool) -> None:
        episodes = self.plan.final_episodes if final else self.plan.episodes
        published = self._weights.get(self.committed)
        self._evaluations.ask(self.committed, final=final, published=published, episodes=episodes)
        if self.plan.stop_at_return is not None and not final:
            self._barrier = self.committed
