"""The conductor: every decision of a run, as a function of the events so far.

Time does not exist here, so neither can a race: two engines that deliver the same events get the same commands, and
what an update is made of (which fragments, in which order, by which weights) depends on no arrival order at all.

    committed   updates whose report has arrived
    issued      updates told to the learner (at most one ahead, so the learner never waits for the driver)
    Collect(j)  is told once committed = j - lag, with the weights after max(0, j - lag) updates
    Update(j)   is told once every live seat's fragment for j is there
"""

from __future__ import annotations

from collections.abc import Iterator

from actors.evaluate import EvaluationResult
from common.errors import EnvironmentFault, RunFailedError, TruestepError
from deploy.conductor.accounts import OLD_LEASE, SKIPPED, Accounts
from deploy.conductor.cuts import CutInProgress
from deploy.conductor.evaluations import Evaluations
from deploy.conductor.messages import (
    ActorLost,
    ActorSnapshot,
    ActorStarted,
    CheckpointWritten,
    Collect,
    Command,
    Cut,
    EvaluationMade,
    Event,
    Fatal,
    Finish,
    FragmentMade,
    Handle,
    Held,
    LearnerSnapshot,
    LearnerStarted,
    Note,
    SnapshotActor,
    SnapshotLearner,
    StartActor,
    StopAsked,
    Update,
    UpdateMade,
    WriteCheckpoint,
)
from deploy.conductor.plan import Plan
from deploy.conductor.seats import Seat, SeatStatus

UPDATES_AHEAD = 2  # one running, one queued behind it


class Conductor:
    """Decides a run of synchronous updates, with a policy lag of 0 or 1.

    Args:
        plan: what to do.
        versions: numbers for publications, in ascending order, each persisted before it is handed out.
        resumed: the cut to go on from.
    """

    def __init__(self, plan: Plan, *, versions: Iterator[int], resumed: Cut | None = None) -> None:
        self.plan = plan
        self.accounts = Accounts() if resumed is None else resumed.accounts.copy()
        self.term = 0 if resumed is None else resumed.term
        self.committed = self.issued = 0 if resumed is None else resumed.update
        self.env_steps = 0 if resumed is None else resumed.env_steps
        self.version = 0
        self.parameter_digest = ""
        self.finish: Finish | None = None
        self._steps_issued = self.env_steps
        self._versions = versions
        self._weights: dict[int, tuple[int, Handle]] = {}
        self._frames: dict[int, dict[int, Held]] = {}
        self._issued_frames: dict[int, list[Held]] = {}
        self._cuts: dict[int, CutInProgress] = {}
        self._evaluations = Evaluations()
        self._judged = None if resumed is None else resumed.evaluation
        self._barrier: int | None = None
        self._final_update: int | None = None
        self._stop_reason = ""
        self._target_reached: float | None = None
        self._skipped_in_a_row = 0
        self._started_at = self._last_cut = self.committed
        self.seats = [Seat(actor=actor) for actor in range(plan.num_actors)]
        self._snapshots: dict[int, bytes | None] = {}
        if resumed is not None:
            self._take_up(resumed)

    def _take_up(self, cut: Cut) -> None:
        self.parameter_digest = cut.parameter_digest
        if cut.evaluation is not None and self._reaches_target(cut.evaluation):
            self._target_reached = cut.evaluation.mean
        for update, frames in cut.frames.items():
            self._frames[update] = {held.summary.actor: held for held in frames}
        for state in cut.seats:
            seat = self.seats[state.actor]
            seat.restarts = state.restarts
            seat.next_collect = cut.update + self.plan.policy_lag
            seat.incarnation = state.incarnation + (state.snapshot is None)
            if state.quarantined:
                seat.status = SeatStatus.QUARANTINED
            self._snapshots[state.actor] = state.snapshot

    def begin(self) -> list[Command]:
        """The first commands: actors start while the learner does."""
        commands: list[Command] = []
        for seat in self.seats:
            if not seat.live:
                continue
            snapshot = self._snapshots.get(seat.actor)
            commands.append(StartActor(actor=seat.actor, incarnation=seat.incarnation, snapshot=snapshot))
            if seat.actor in self._snapshots and snapshot is None:
                commands.append(Note(kind="ACTOR_NOT_RESTORED", data={"actor": seat.actor, "new": seat.incarnation}))
        return commands

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
        starting = [f"actor {seat.actor} to start" for seat in self.seats if seat.status is SeatStatus.STARTING]
        collecting = [f"actor {s.actor} to collect for update {s.outstanding[0]}" for s in self.seats if s.outstanding]
        learning = [f"update {self.committed} to be made"] if self.issued > self.committed else []
        if not self._weights:
            learning.append("the learner to start")
        cuts = self._cuts.values()
        cutting = [f"checkpoint {cut.update}: {', '.join(cut.missing(self.seats)) or 'the disk'}" for cut in cuts]
        return "; ".join(starting + collecting + learning + self._evaluations.words() + cutting) or "nothing"

    def _take_in(self, event: Event) -> Iterator[Command]:
        match event:
            case LearnerStarted():
                self._weights[event.updates] = (event.version, event.weights)
                self.version = event.version
                self.parameter_digest = event.parameter_digest
                if self._complete():
                    self._final_update = self.committed
            case ActorStarted():
                self.seats[event.actor].begin(event.lease)
            case FragmentMade():
                yield from self._on_fragment(event)
            case UpdateMade():
                yield from self._on_update(event)
            case ActorLost():
                yield from self._on_loss(event)
            case ActorSnapshot():
                self._on_actor_snapshot(event)
            case LearnerSnapshot():
                self._cuts[event.update].learner = event.state
            case EvaluationMade():
                yield from self._on_evaluation(event)
            case CheckpointWritten():
                yield from self._on_written(event)
            case StopAsked():
                yield from self._on_stop(event)
            case Fatal():
                yield self._finish("failed", str(event.error), event.error)

    # ---- events ----------------------------------------------------------------------------------------------------

    def _on_fragment(self, event: FragmentMade) -> Iterator[Command]:
        summary = event.summary
        seat = self.seats[summary.actor]
        self.accounts.produce(summary)
        if summary.lease != seat.lease or not seat.outstanding or seat.outstanding[0] != summary.update:
            self.accounts.drop(OLD_LEASE, summary.num_valid)
            yield Note(kind="FRAGMENT_REFUSED", data={"actor": seat.actor, "reason": OLD_LEASE})
            return
        seat.outstanding.pop(0)
        held = Held(summary=summary, frame=event.frame)
        self._frames.setdefault(summary.update, {})[seat.actor] = held
        for cut in self._cuts.values():
            cut.receive(held)

    def _on_update(self, event: UpdateMade) -> Iterator[Command]:
        report = event.report
        fragments = self._issued_frames.pop(report.update)
        for held, verdict in zip(fragments, report.verdicts, strict=True):
            self.env_steps += held.summary.num_valid
            if verdict.refusal:
                self.accounts.drop(verdict.refusal, held.summary.num_valid)
                data = {"actor": held.summary.actor, "reason": verdict.refusal, "detail": verdict.detail}
                yield Note(kind="FRAGMENT_REFUSED", data=data)
            elif report.trained:
                self.accounts.trained += held.summary.num_valid
            else:
                self.accounts.drop(SKIPPED, held.summary.num_valid)
        self.committed = report.update + 1
        self.version, self.parameter_digest = report.version, report.parameter_digest
        self._weights[self.committed] = (report.version, event.weights)
        self._weights.pop(self.committed - self.plan.policy_lag - 1, None)
        yield from self._on_skips(event)
        self._commit_cut()
        if self.plan.evaluates(self.committed):
            self._ask_evaluation(final=False)
        if self._complete():
            self._final_update = self.committed

    def _on_skips(self, event: UpdateMade) -> Iterator[Command]:
        report = event.report
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

    def _on_loss(self, event: ActorLost) -> Iterator[Command]:
        seat = self.seats[event.actor]
        if event.lease and seat.lease and event.lease != seat.lease:
            return
        seat.last_fault = event.cause if not event.detail else f"{event.cause}\n{event.detail}"
        lost = seat.lose(max_restarts=self.plan.max_restarts)
        self.accounts.fragments_lost += lost
        for cut in self._cuts.values():
            cut.lose(seat.actor, lost)
        data = {"actor": seat.actor, "cause": event.cause, "detail": event.detail, "fragments_lost": lost}
        yield Note(kind="ACTOR_LOST", data=data | {"new_incarnation": seat.incarnation})
        for update, final in self._evaluations.lose(seat.actor):
            yield from self._on_evaluation(EvaluationMade(update=update, final=final, result=None))
        if seat.live:
            yield StartActor(actor=seat.actor, incarnation=seat.incarnation, snapshot=None)
            return
        yield Note(kind="ACTOR_QUARANTINED", data={"actor": seat.actor, "restarts": seat.restarts})
        if not any(other.live for other in self.seats):
            yield self._finish_without_actors(seat)

    def _finish_without_actors(self, seat: Seat) -> Finish:
        cause, _, detail = seat.last_fault.partition("\n")
        error = EnvironmentFault(
            f"no actor is left: each was lost {self.plan.max_restarts + 1} times; last, actor {seat.actor}: {cause}",
            fix="mend what it names, then resume the run",
            detail=detail,
        )
        return self._finish("failed", str(error), error)

    def _on_actor_snapshot(self, event: ActorSnapshot) -> None:
        seat, cut = self.seats[event.actor], self._cuts.get(event.update)
        if cut is not None and event.lease == seat.lease:
            cut.snapshots[seat.actor] = (seat.incarnation, event.snapshot)

    def _on_evaluation(self, event: EvaluationMade) -> Iterator[Command]:
        self._evaluations.done(event.update, final=event.final)
        if self._barrier == event.update:
            self._barrier = None
        if event.result is None:
            yield Note(kind="EVALUATION_FAILED", data={"update": event.update})
        elif self._reaches_target(event.result) and not event.final:
            self._target_reached = event.result.mean
            self._final_update = event.update
        if event.update in self._cuts:
            self._cuts[event.update].evaluations[event.final] = event.result

    def _reaches_target(self, result: EvaluationResult) -> bool:
        return self.plan.stop_at_return is not None and result.mean >= self.plan.stop_at_return

    def _on_stop(self, event: StopAsked) -> Iterator[Command]:
        """End at the first update whose cut no actor has been told to pass; one that was given up since counts too,
        so that no fragment lies beyond the cut."""
        if self._stop_reason:
            return
        self._stop_reason = event.reason
        if self._final_update is None:
            told = max(seat.next_collect for seat in self.seats)
            self._final_update = max(self.issued, told - self.plan.policy_lag)
        yield Note(kind="STOP_ASKED", data={"reason": event.reason, "ends_at_update": self._final_update})

    def _on_written(self, event: CheckpointWritten) -> Iterator[Command]:
        cut = self._cuts.pop(event.update)
        for seat in self.seats:
            seat.snapshot_told.discard(event.update)
        if event.error:
            yield Note(kind="CHECKPOINT_FAILED", data={"update": event.update, "error": event.error})
        if not cut.final:
            return
        if event.error:
            error = RunFailedError(f"the last checkpoint could not be written: {event.error}")
            yield self._finish("failed", str(error), error)
        elif self._stop_reason and not self._complete():
            yield self._finish("interrupted", f"{self._stop_reason}: checkpointed at update {cut.update}, resumable")
        else:
            reached, target = self._target_reached, self.plan.stop_at_return
            why = (
                f"{self.env_steps:,} steps done"
                if reached is None
                else f"mean return {reached:g} reached the target {target:g}"
            )
            yield self._finish("finished", why)

    # ---- decisions -------------------------------------------------------------------------------------------------

    def _advance(self) -> Iterator[Command]:
        """Everything that has become possible."""
        if not self._weights:
            return
        yield from self._open_cut_if_due()
        for seat in self.seats:
            yield from self._tell_seat(seat)
        yield from self._tell_learner()
        yield from self._close_run()
        yield from self._evaluations.tell(self.seats)
        yield from self._write_cuts()

    def _tell_seat(self, seat: Seat) -> Iterator[Command]:
        """The next steps of a seat's program, as far as they may be told."""
        while seat.running:
            for update, cut in sorted(self._cuts.items()):
                due = update + self.plan.policy_lag == seat.next_collect and seat.actor not in cut.snapshots
                if due and update not in seat.snapshot_told:
                    seat.snapshot_told.add(update)
                    yield SnapshotActor(actor=seat.actor, update=update)
            if not self._may_collect(seat.next_collect):
                return
            basis = max(0, seat.next_collect - self.plan.policy_lag)
            version, weights = self._weights[basis]
            seat.outstanding.append(seat.next_collect)
            yield Collect(actor=seat.actor, update=seat.next_collect, term=self.term, version=version, weights=weights)
            seat.next_collect += 1

    def _may_collect(self, update: int) -> bool:
        """Whether the fragment for `update` may be begun."""
        frontier = self.committed + self.plan.policy_lag
        if self._final_update is not None:
            return update < min(frontier + 1, self._final_update + self.plan.policy_lag)
        return update < frontier or (update == frontier and self._barrier is None)

    def _tell_learner(self) -> Iterator[Command]:
        while self._may_update():
            frames = self._frames.pop(self.issued)
            ordered = [frames[actor] for actor in sorted(frames)]
            self._issued_frames[self.issued] = ordered
            self._steps_issued += sum(held.summary.num_valid for held in ordered)
            yield Update(
                update=self.issued,
                term=self.term,
                version=next(self._versions),
                frames=tuple(held.frame for held in ordered),
            )
            self.issued += 1
            yield from self._open_cut_if_due()

    def _may_update(self) -> bool:
        if self.issued - self.committed >= UPDATES_AHEAD or self._barrier is not None:
            return False
        if self._steps_issued >= self.plan.total_steps or self.issued == self._final_update:
            return False
        if self.plan.stop_at_return is not None and self.issued > self.committed and self.plan.evaluates(self.issued):
            return False
        frames = self._frames.get(self.issued, {})
        return bool(frames) and all(seat.actor in frames for seat in self.seats if seat.live)

    def _complete(self) -> bool:
        return self.env_steps >= self.plan.total_steps or self._target_reached is not None

    # ---- cuts and evaluations --------------------------------------------------------------------------------------

    def _open_cut_if_due(self) -> Iterator[Command]:
        """Right behind Update(k - 1) in the learner's queue, and behind Collect(k + lag - 1) in each actor's."""
        last = self.issued == self._final_update and self.issued not in self._cuts
        if last or (self.plan.cuts(self.issued) and self.issued > self._last_cut):
            self._last_cut = self.issued
            yield from self._open_cut(self.issued)

    def _close_run(self) -> Iterator[Command]:
        """Once the last update is committed: what its cut holds beyond the others."""
        if self.committed != self._final_update or self._barrier is not None:
            return
        cut = self._cuts.get(self.committed)
        if cut is None:  # complete only now: the last update was not known to be the last when it was told
            yield from self._open_cut(self.committed)
            cut = self._cuts[self.committed]
        if not cut.final and not cut.written:  # one that is being written is complete; the last one comes after it
            cut.final = True
            if self._complete():
                cut.evaluations_due.add(True)
                self._ask_evaluation(final=True)

    def _open_cut(self, update: int) -> Iterator[Command]:
        later = range(update, update + self.plan.policy_lag)
        frames = {j: dict(self._frames.get(j, {})) for j in later}
        cut = self._cuts[update] = CutInProgress(update=update, frames=frames)
        if self.plan.evaluates(update) and update > self._started_at:
            cut.evaluations_due.add(False)
        elif update == self._started_at:
            cut.evaluations[False] = self._judged
        if self.committed == update:
            self._commit_cut()
        yield SnapshotLearner(update=update)

    def _write_cuts(self) -> Iterator[Command]:
        """In order of updates, so the run's last cut is also the last to be written, and no evaluation is passed by."""
        for _, cut in sorted(self._cuts.items()):
            if cut.written:
                continue
            if cut.missing(self.seats):
                return
            cut.written = True
            yield WriteCheckpoint(cut=cut.assemble(self.seats))

    def _commit_cut(self) -> None:
        cut = self._cuts.get(self.committed)
        if cut is None or cut.accounts is not None:
            return
        cut.accounts = self.accounts.copy()
        cut.term, cut.version = self.term, self.version
        cut.env_steps, cut.parameter_digest = self.env_steps, self.parameter_digest

    def _ask_evaluation(self, *, final: bool) -> None:
        episodes = self.plan.final_episodes if final else self.plan.episodes
        weights = self._weights[self.committed][1]
        self._evaluations.ask(self.committed, final=final, weights=weights, episodes=episodes)
        if self.plan.stop_at_return is not None and not final:
            self._barrier = self.committed

    def _finish(self, status: str, verdict: str, error: TruestepError | None = None) -> Finish:
        self.finish = Finish(status=status, verdict=verdict, error=error)
        return self.finish
