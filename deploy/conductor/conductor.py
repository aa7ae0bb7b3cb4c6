"""The conductor: every decision of a run, as a function of the events so far.

Time does not exist here, so neither can a race: two engines that deliver the same events get the same commands.

    committed   updates that every rank agreed on
    issued      updates told to the group of ranks (at most two ahead, so the ranks never wait for the driver)
    floor       the update at which the term began: 0, or where the last rollback led to

Who collects what by which weights, and which fragments make an update, is a policy's (`deploy/conductor/policies`):
synchronous (no order of arrival changes anything), asynchronous (the order of arrival is what is recorded), scripted
(what was recorded, again).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from common.errors import RunFailedError, TruestepError
from common.ledger import Script
from deploy.conductor import rank_notes
from deploy.conductor.accounts import Accounts
from deploy.conductor.checkpointing import Checkpointing
from deploy.conductor.collection import Collection
from deploy.conductor.commits import Commits
from deploy.conductor.cuts import Cuts
from deploy.conductor.ending import Ending
from deploy.conductor.evaluations import Evaluations
from deploy.conductor.fates import Fates
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
    FragmentDropped,
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
    RollBack,
    StateAdopted,
    StopAsked,
    WeightsHeld,
)
from deploy.conductor.orders import Order
from deploy.conductor.outcomes import Astray, Ended, Joined, Made, Outcome, Voided
from deploy.conductor.plan import Plan
from deploy.conductor.policies.asynchronous import Asynchronous
from deploy.conductor.policies.policy import Moment, Policy
from deploy.conductor.policies.scripted import Scripted
from deploy.conductor.policies.synchronous import Synchronous
from deploy.conductor.progress import Progress, Publications
from deploy.conductor.ranks import RankSeat
from deploy.conductor.safe import SafePoint
from deploy.conductor.seats import Seat


class Conductor:
    """Decides a run.

    Args:
        plan: what to do.
        versions: numbers for publications, in ascending order, each persisted before it is handed out.
        initial: the state that ranks adopt at the start (the learner's of `resumed`, or another run's weights);
            None = each makes its model by the seed.
        resumed: the cut to go on from.
        script: what is to be made again, instead of a run of its own.

    Attributes:
        plan: as given.
        policy: of collection.
        accounts: where every transition went.
        finish: how the run ended; None while it goes on.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        versions: Iterator[int],
        initial: Handle | None = None,
        resumed: Cut | None = None,
        script: Script | None = None,
    ) -> None:
        self.plan = plan
        self.policy = policy = _policy(plan, script)
        self.accounts = Accounts() if resumed is None else resumed.accounts.copy()
        self.finish: Finish | None = None
        self._versions = versions
        self._progress = Progress.at(resumed)
        self._weights = Publications(policy.keeps)
        self._cuts, self._fates = Cuts(), Fates()
        self._collection = Collection(
            plan, policy, self._progress, self.accounts, self._cuts, self._weights, self._fates
        )
        self._learners = Learners(plan, updates=self._progress.committed, initial=initial)
        self._commits = Commits(plan, self._progress, self.accounts, self._cuts, self._weights, self._fates)
        self._checkpointing = Checkpointing(
            plan,
            self._progress,
            self._cuts,
            self._collection,
            self._learners,
            judged=None if resumed is None else resumed.evaluation,
        )
        self._evaluations = Evaluations()
        self._ending = Ending(plan, length=policy.length)
        if resumed is not None:
            self._ending.judge(resumed.evaluation)
            self._collection.take_up(resumed)

    # ---- how the run stands ----------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """Of the learner, between two rollbacks."""
        return self._progress.term

    @property
    def committed(self) -> int:
        """Updates that every rank agreed on."""
        return self._progress.committed

    @property
    def issued(self) -> int:
        """Updates told to the group of ranks."""
        return self._progress.issued

    @property
    def env_steps(self) -> int:
        """Valid transitions of committed updates."""
        return self._progress.env_steps

    @property
    def version(self) -> int:
        """Last published."""
        return self._progress.version

    @property
    def parameter_digest(self) -> str:
        """Of the parameters after `committed` updates."""
        return self._progress.parameter_digest

    @property
    def chain(self) -> str:
        """Of the digests of all committed updates."""
        return self._progress.chain

    @property
    def rollbacks(self) -> int:
        """In this driving."""
        return self._commits.rollbacks.total

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

    def waiting_for(self) -> str:
        """What the run waits for, in words, for the error of a deadline."""
        awaited = self._collection.words() + self._learners.words()
        return "; ".join(awaited + self._evaluations.words() + self._cuts.words(self.seats)) or "nothing"

    # ---- events ----------------------------------------------------------------------------------------------------

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

    def _take_in(self, event: Event) -> Iterator[Command]:
        match event:
            case RankStarted() | StateAdopted() | GroupJoined() | JoinFailed() | RankLost():
                yield from self._on_rank_event(event)
            case LearnerStarted() | RankUpdated() | LearnerSnapshot():
                yield from self._on_rank_event(event)
            case ActorStarted():
                self._collection.take_started(event)
            case WeightsHeld():
                self._collection.take_weights(event)
            case FragmentMade():
                yield from self._collection.take_fragment(event)
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

    def _on_loss(self, event: ActorLost) -> Iterator[Command]:
        if not self._collection.holds_lease(event.actor, event.lease):
            return
        yield from self._collection.take_loss(event)
        for update, final in self._evaluations.lose(event.actor):
            yield self._give_up_evaluation(update, final=final)
        error = self._collection.verdict_on(event) or self._collection.hopeless(event.actor)
        if error is not None:
            yield self._finish("failed", str(error), error)

    def _on_evaluation(self, event: EvaluationMade) -> Iterator[Command]:
        if not self._evaluations.done(event.update, final=event.final, result=event.result):
            return
        if event.result is None:
            yield self._give_up_evaluation(event.update, final=event.final)
            return
        if not event.final and self._ending.judge(event.result):
            self._ending.update = event.update if self.policy.waits_for_target else self._collection.stop_at()
        self._checkpointing.judge(event.update, final=event.final, result=event.result)

    def _give_up_evaluation(self, update: int, *, final: bool) -> Note:
        self._checkpointing.judge(update, final=final, result=None)
        return Note(kind="EVALUATION_FAILED", data={"update": update})

    def _on_stop(self, event: StopAsked) -> Iterator[Command]:
        if self._ending.stop_reason:
            return
        self._ending.stop_reason = event.reason
        if self._ending.update is None:
            self._ending.update = self._collection.stop_at()
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

    # ---- the learner's side ----------------------------------------------------------------------------------------

    def _on_rank_event(self, event: RankEvent) -> Iterator[Command]:
        match event:
            case LearnerStarted():
                yield from self._on_published(event)
            case LearnerSnapshot() if self._learners.holds_lease(event.rank, event.lease):
                self._checkpointing.take_state(event)
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
                    self._collection.take_back(result.update)
                    self._progress.issued = min(self.issued, result.update)
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
        published = (event.version, event.weights)
        earlier = self.policy.stands_in(self.committed, self._collection.floor)
        self._weights.publish(self.committed, published, earlier=earlier)
        self._progress.version, self._progress.parameter_digest = event.version, event.parameter_digest
        for update, final in self._evaluations.supply(self.committed, published):
            yield self._give_up_evaluation(update, final=final)
        if self._ending.complete(self.env_steps):
            self._ending.update = self.committed

    def _learner_is_done(self) -> bool:
        """Whether nothing is wanted of the ranks any more: the last cut has their state, and its weights are there."""
        has_all = self._checkpointing.has_state(self.committed) and self.committed in self._weights
        return has_all and self.committed == self._ending.update

    def _commit(self, order: Order) -> Iterator[Command]:
        for result in self._commits.commit(order):
            if isinstance(result, RunFailedError):
                yield self._finish("failed", result.what, result)
            else:
                yield result
        self._collection.commit(order.update)
        self._checkpointing.commit()
        if self.policy.saves and self.plan.evaluates(self.committed):
            self._ask_evaluation(final=False)
        if self._ending.complete(self.env_steps):
            self._ending.update = self.committed

    # ---- rollback --------------------------------------------------------------------------------------------------

    def _roll_back(self, reason: str) -> Iterator[Command]:
        """Back to the newest state that the driver holds; before there is one nothing was committed, so start over."""
        safe = self._checkpointing.safe
        if safe is None:
            yield from self._obey(self._learners.start_over())
            return
        error = self._commits.refuse_rollback(reason)
        if error is not None:
            yield self._finish("failed", error.what, error)
            return
        places = {"from_update": self.committed, "to_update": safe.update, "term": self.term + 1, "reason": reason}
        self._return_to(safe)
        yield Note(kind="TRAINING_ROLLBACK", data=places)
        yield RollBack(update=safe.update, term=self.term, reason=reason)
        yield from self._obey(self._learners.roll_back(safe.state, updates=safe.update))

    def _return_to(self, safe: SafePoint) -> None:
        """The learner's side as it was after `safe.update` updates; the actors' side lives on under the new term."""
        self._commits.undo(safe)
        self._evaluations.forget()
        self._collection.roll_back(safe.update)
        self._checkpointing.return_to(safe)
        self._ending.reopen(safe.evaluation)
        if self._ending.stop_reason:
            self._ending.update = self._collection.stop_at()

    # ---- decisions -------------------------------------------------------------------------------------------------

    def _advance(self) -> Iterator[Command]:
        """Everything that has become possible."""
        if not self._weights:
            return
        self._open_cut_if_due()
        yield from self._collection.tell(self._moment())
        yield from self._tell_learners()
        yield from self._close_run()
        yield from self._checkpointing.ask_states()
        yield from self._evaluations.tell(self.seats)
        for write in self._checkpointing.write(self._fates):
            self._commits.rollbacks.keep(write.cut.update)
            yield write

    def _open_cut_if_due(self) -> None:
        if self.policy.saves:
            self._checkpointing.open_if_due(self._ending.update)

    def _moment(self) -> Moment:
        return Moment(
            term=self.term,
            committed=self.committed,
            issued=self.issued,
            floor=self._collection.floor,
            final=self._ending.update,
            judging=self._waits_for_target(),
            evaluating=self._evaluations.players,
            weights=self._weights,
        )

    def _waits_for_target(self) -> bool:
        """Whether the evaluation under way may turn out to be the end of the run."""
        awaited = self.policy.waits_for_target and self.plan.stop_at_return is not None
        return awaited and self._evaluations.judging

    def _tell_learners(self) -> Iterator[Command]:
        while self._may_update():
            yield from self._checkpointing.ask_states()
            held: tuple[Held, ...] = ()
            dropped = False
            for each in self._collection.compose(self.issued, idle=self._learners.idle):
                if isinstance(each, FragmentDropped):
                    dropped = True
                    yield each
                else:
                    held = each
            if dropped:  # there is room for others
                yield from self._collection.tell(self._moment())
            if not held:
                return
            yield self._learners.order(held, update=self.issued, term=self.term, version=next(self._versions))
            self._progress.issued += 1
            self._open_cut_if_due()

    def _may_update(self) -> bool:
        if not self._learners.takes_update or self._checkpointing.safe is None or self._waits_for_target():
            return False
        if self.issued == self._ending.update:
            return False
        if self.policy.length is None and self.env_steps + self._collection.steps_issued >= self.plan.total_steps:
            return False
        judged = self.policy.waits_for_target and self.plan.stop_at_return is not None
        return not (judged and self.issued > self.committed and self.plan.evaluates(self.issued))

    def _close_run(self) -> Iterator[Finish]:
        """Once the last update is committed: what its cut holds beyond the others."""
        if self.committed != self._ending.update or self._waits_for_target():
            return
        if not self.policy.saves:
            yield self._finish(*self._ending.status(update=self.committed, env_steps=self.env_steps))
            return
        if self.committed not in self._cuts:  # complete only now: it was not known to be the last when it was told
            self._checkpointing.open(self.committed)
        cut = self._cuts.get(self.committed)
        assert cut is not None
        if not cut.final and not cut.written:  # one that is being written is complete; the last one comes after it
            cut.final = True
            if self._ending.complete(self.env_steps):
                cut.evaluations_due.add(True)
                self._ask_evaluation(final=True)

    def _ask_evaluation(self, *, final: bool) -> None:
        episodes = self.plan.final_episodes if final else self.plan.episodes
        published = self._weights.get(self.committed)
        self._evaluations.ask(self.committed, final=final, published=published, episodes=episodes)


def _policy(plan: Plan, script: Script | None) -> Policy:
    if script is not None:
        return Scripted(script)
    if plan.flow is not None:
        return Asynchronous(plan.flow, num_actors=plan.num_actors)
    return Synchronous(plan.policy_lag)
