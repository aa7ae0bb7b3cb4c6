"""The driver's own metrics and what people see: fed by events, drawn at the loop's pace."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from actors.evaluate import EvaluationResult
from common.clock import NS_PER_S, Clock, per_second
from common.ledger import TRAINED
from common.metrics import ActorState, DriverMetrics, RankState, SaveResult
from common.runs import ROLLBACK_EVENT
from deploy.actor_life import ActorLives
from deploy.attribution.attribution import VERDICT, Attribution
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import (
    ActorStarted,
    CheckpointWritten,
    Command,
    EvaluationMade,
    Event,
    FragmentDropped,
    FragmentMade,
    LearnerStarted,
    Note,
    RecordUpdate,
)
from deploy.conductor.policies.policy import FlowStatistics
from deploy.conductor.seats import SeatStatus
from deploy.display import Display, Progress, brief
from deploy.flow_watch import Arrivals
from deploy.sync_tally import RECOVERED, SyncTally, Trouble

RATE_WINDOW_S = 10.0
RETURN_WINDOW = 100
TICK_EVERY_S = 0.2


class Watch:
    """Keeps the figures that are shown.

    Args:
        metrics: where they are exported.
        display: where people see them.
        clock: times rates and recoveries.
        tally: what sync came to before this driving, so that its totals go on; from nothing by default.
        starved: updates before which the learner had nothing to do, before this driving.
        attribution: says what holds the run up; None = nobody does.
    """

    def __init__(
        self,
        metrics: DriverMetrics,
        display: Display,
        clock: Clock,
        tally: SyncTally | None = None,
        *,
        starved: int = 0,
        attribution: Attribution | None = None,
    ) -> None:
        self._metrics = metrics
        self._display = display
        self._clock = clock
        self._returns: deque[float] = deque(maxlen=RETURN_WINDOW)
        self._steps: deque[tuple[int, int]] = deque()
        self._evaluation: float | None = None
        self._lag = 0
        self._ticked_ns = 0
        self._told: set[str] = set()
        self._tally = tally or SyncTally()
        self._trouble = Trouble(clock)
        self._starved_before = starved
        self._lives = ActorLives()
        self._arrivals = Arrivals(clock)
        self._attribution = attribution

    def told(self, command: Command) -> None:
        """Take a command that is about to be carried out."""
        if self._attribution is not None:
            self._attribution.observer.told(command)

    def observe(self, event: Event) -> None:
        """Take an event that the conductor has taken in."""
        if self._attribution is not None:
            self._attribution.observer.happened(event)
        match event:
            case FragmentMade():
                summary = event.summary
                self._returns.extend(summary.episode_returns)
                self._arrivals.arrive((summary.actor, summary.incarnation, summary.sequence))
            case ActorStarted():
                self._lives.start(event.actor)
            case LearnerStarted():
                self._trouble.group_published()
            case EvaluationMade(result=EvaluationResult() as result):
                self._evaluation = result.mean
                self._metrics.set_evaluation(return_mean=result.mean, episodes=len(result.returns))
                unfinished = f", {result.unfinished} cut before their end" if result.unfinished else ""
                self._display.tell(
                    f"evaluation after update {event.update}: mean return {result.mean:.2f} "
                    f"over {len(result.returns)} greedy episodes{unfinished}"
                )
            case _:
                pass

    def commit(self, command: RecordUpdate) -> Note | None:
        """An update is committed; returns the end of a trouble, if this is one, for the record."""
        report = command.report
        self._lag = report.lag
        self._observe_fragments(command)
        self._tally.commit(report.update + 1, verified=report.state_digest != "")
        if (recovered := self._trouble.over_at_commit()) is None:
            return None
        cause, seconds = recovered
        self._metrics.observe_recovery(seconds=seconds, cause=cause)
        return Note(kind=RECOVERED, data={"from": cause.value, "seconds": round(seconds, 3)})

    def _observe_fragments(self, command: RecordUpdate) -> None:
        decided = [(each, self._arrivals.decide(each.name)) for each in command.ledger]
        trained = [(each, wait_s) for each, wait_s in decided if each.fate == TRAINED]
        self._metrics.observe_fragments(
            lags=[each.update - 1 - each.weights for each, _ in trained if each.weights >= 0],
            waits_s=[wait_s for _, wait_s in trained if wait_s is not None],
        )

    def drop(self, dropped: FragmentDropped) -> None:
        """A fragment was dropped as the flow has it."""
        self._arrivals.decide((dropped.actor, dropped.incarnation, dropped.sequence))

    def checkpoint(self, written: CheckpointWritten, seconds: float) -> None:
        """A checkpoint was written, or not."""
        result = SaveResult.FAILED if written.error else SaveResult.OK
        self._metrics.observe_checkpoint(seconds=seconds, result=result)

    def note(self, note: Note) -> None:
        """Say what happened."""
        if note.kind == VERDICT:
            self._note_verdict(note)
            return
        self._tally.count(note.kind, note.data)
        self._trouble.note(note.kind)
        self._follow(note)
        facts = {key: value for key, value in note.data.items() if key != "detail" and value != ""}
        words = "  ".join(f"{key}={brief(value)}" for key, value in facts.items())
        self._display.tell(f"{note.kind}  {words}")
        detail = str(note.data.get("detail", ""))
        if detail and detail not in self._told:  # eight actors that fall over the same fault say it once
            self._told.add(detail)
            self._display.tell(detail)

    def _note_verdict(self, note: Note) -> None:
        """The line that is shown live has it too, so it is told now and then only."""
        if self._attribution is not None and self._attribution.tells(note):
            self._display.tell(f"{note.kind}  {note.data['words']}")

    def _follow(self, note: Note) -> None:
        """What a note says of actors and fragments."""
        match note:
            case Note(kind="ACTOR_LOST", data={"actor": int(actor)}):
                self._lives.lose(actor)
            case Note(kind="FRAGMENT_REFUSED", data={"actor": actor, "incarnation": life, "sequence": sequence}):
                self._arrivals.decide((actor, life, sequence))
            case Note(kind=kind) if kind == ROLLBACK_EVENT:
                self._arrivals.forget()
            case _:
                pass

    def tick(self, conductor: Conductor) -> list[Note]:
        """Bring metrics and display up to date, a few times a second; returns what is to be recorded of it."""
        now_ns = self._clock.now_ns()
        if (now_ns - self._ticked_ns) / NS_PER_S < TICK_EVERY_S and conductor.finish is None:
            return []
        self._ticked_ns = now_ns
        self._steps.append((now_ns, conductor.env_steps + conductor.accounts.steps_undone))  # a rollback undoes no work
        while (now_ns - self._steps[0][0]) / NS_PER_S > RATE_WINDOW_S:
            self._steps.popleft()
        lives, flow = self._lives.count(conductor.seats), conductor.policy.statistics(conductor.seats)
        changed = None if self._attribution is None else self._attribution.look(conductor)
        progress = self._progress(conductor, flow)
        self._export(conductor, progress)
        self._export_flow(conductor, lives, flow)
        self._display.show(progress)
        return [] if changed is None else [changed]

    def _progress(self, conductor: Conductor, flow: FlowStatistics | None) -> Progress:
        (first_ns, first), (last_ns, last) = self._steps[0], self._steps[-1]
        staying = sum(seat.running and not seat.leaving for seat in conductor.seats)
        joined = sum(rank.status.value == RankState.JOINED for rank in conductor.ranks)
        return Progress(
            steps=conductor.env_steps,
            total_steps=conductor.plan.total_steps,
            steps_per_s=per_second(last - first, last_ns - first_ns),
            updates=conductor.committed,
            episode_return=sum(self._returns) / len(self._returns) if self._returns else None,
            evaluation=self._evaluation,
            lag=self._lag,
            actors=(staying, _wanted(conductor, flow)),
            ranks=(joined, len(conductor.ranks)),
            waiting=conductor.waiting_for() if conductor.committed == 0 else "",
            held_up="" if self._attribution is None else self._attribution.brief,
        )

    def _export(self, conductor: Conductor, progress: Progress) -> None:
        accounts = conductor.accounts
        self._metrics.set_accounts(
            produced=accounts.produced,
            trained=accounts.trained + accounts.undone,
            undone=accounts.undone,
            in_flight=accounts.in_flight,
            dropped=accounts.dropped,
            fragments_lost=accounts.fragments_lost,
            voided=accounts.voided,
            episodes=accounts.episodes,
        )
        self._metrics.set_progress(
            updates=conductor.committed + accounts.updates_undone,
            env_steps=conductor.env_steps + accounts.steps_undone,
            version=conductor.version,
            term=conductor.term,
            policy_lag=self._lag,
            per_second=progress.steps_per_s,
        )
        self._export_sync(conductor)

    def _export_flow(self, conductor: Conductor, lives: Mapping[ActorState, int], flow: FlowStatistics | None) -> None:
        restarts = sum(seat.restarts for seat in conductor.seats)
        self._metrics.set_actors(states=lives, wanted=_wanted(conductor, flow), restarts=restarts)
        self._metrics.set_oldest_fragment(age_s=self._arrivals.oldest_s)
        if flow is not None:
            self._metrics.set_flow(
                in_flight=flow.in_flight,
                capacity=flow.capacity,
                queued=flow.queued,
                starved=self._starved_before + flow.starved,
            )

    def _export_sync(self, conductor: Conductor) -> None:
        tally = self._tally
        self._metrics.set_sync(
            verified=tally.verified,
            mismatches=tally.faults,
            failures=tally.failures,
            retries=tally.retries,
            rollbacks=tally.rollbacks,
        )
        states = Counter(rank.status.value for rank in conductor.ranks)
        self._metrics.set_ranks(states=states, restarts=tally.ranks_lost)


def _wanted(conductor: Conductor, flow: FlowStatistics | None) -> int:
    """Actors that there should be, those who are lost or given up included."""
    if flow is not None:
        return flow.target
    return sum(seat.status is not SeatStatus.ABSENT for seat in conductor.seats)
