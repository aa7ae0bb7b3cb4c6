"""The driver's own metrics and what people see: fed by events, drawn at the loop's pace."""

from __future__ import annotations

from collections import Counter, deque

from actors.evaluate import EvaluationResult
from common.clock import NS_PER_S, Clock, per_second
from common.metrics import DriverMetrics, RankState, SaveResult
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import (
    CheckpointWritten,
    EvaluationMade,
    Event,
    FragmentDropped,
    FragmentMade,
    LearnerStarted,
    Note,
    RecordUpdate,
)
from deploy.display import Display, Progress, brief
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
    """

    def __init__(self, metrics: DriverMetrics, display: Display, clock: Clock, tally: SyncTally | None = None) -> None:
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

    def observe(self, event: Event) -> None:
        """Take an event that the conductor has taken in."""
        match event:
            case FragmentMade():
                self._returns.extend(event.summary.episode_returns)
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
        self._tally.commit(report.update + 1, verified=report.state_digest != "")
        if (recovered := self._trouble.over_at_commit()) is None:
            return None
        cause, seconds = recovered
        self._metrics.observe_recovery(seconds=seconds, cause=cause)
        return Note(kind=RECOVERED, data={"from": cause.value, "seconds": round(seconds, 3)})

    def drop(self, dropped: FragmentDropped) -> None:
        """A fragment was dropped as the flow has it."""

    def checkpoint(self, written: CheckpointWritten, seconds: float) -> None:
        """A checkpoint was written, or not."""
        result = SaveResult.FAILED if written.error else SaveResult.OK
        self._metrics.observe_checkpoint(seconds=seconds, result=result)

    def note(self, note: Note) -> None:
        """Say what happened."""
        self._tally.count(note.kind, note.data)
        self._trouble.note(note.kind)
        facts = {key: value for key, value in note.data.items() if key != "detail" and value != ""}
        words = "  ".join(f"{key}={brief(value)}" for key, value in facts.items())
        self._display.tell(f"{note.kind}  {words}")
        detail = str(note.data.get("detail", ""))
        if detail and detail not in self._told:  # eight actors that fall over the same fault say it once
            self._told.add(detail)
            self._display.tell(detail)

    def tick(self, conductor: Conductor) -> None:
        """Bring metrics and display up to date, a few times a second."""
        now_ns = self._clock.now_ns()
        if (now_ns - self._ticked_ns) / NS_PER_S < TICK_EVERY_S and conductor.finish is None:
            return
        self._ticked_ns = now_ns
        self._steps.append((now_ns, conductor.env_steps + conductor.accounts.steps_undone))  # a rollback undoes no work
        while (now_ns - self._steps[0][0]) / NS_PER_S > RATE_WINDOW_S:
            self._steps.popleft()
        progress = self._progress(conductor)
        self._export(conductor, progress)
        self._display.show(progress)

    def _progress(self, conductor: Conductor) -> Progress:
        (first_ns, first), (last_ns, last) = self._steps[0], self._steps[-1]
        running = sum(seat.running for seat in conductor.seats)
        joined = sum(rank.status.value == RankState.JOINED for rank in conductor.ranks)
        return Progress(
            steps=conductor.env_steps,
            total_steps=conductor.plan.total_steps,
            steps_per_s=per_second(last - first, last_ns - first_ns),
            updates=conductor.committed,
            episode_return=sum(self._returns) / len(self._returns) if self._returns else None,
            evaluation=self._evaluation,
            lag=self._lag,
            actors=(running, len(conductor.seats)),
            ranks=(joined, len(conductor.ranks)),
            waiting=conductor.waiting_for() if conductor.committed == 0 else "",
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
        states = Counter(seat.status.value for seat in conductor.seats)
        self._metrics.set_actors(states=states, restarts=sum(seat.restarts for seat in conductor.seats))
        self._export_sync(conductor)

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
