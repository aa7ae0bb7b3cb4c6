"""Engine ray: every actor and the learner in a process of its own; the driver moves references, never data."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from actors.worker import CollectOrder, EvaluateOrder
from common.clock import Clock, Deadline
from common.errors import EnvironmentFault, RunFailedError, TruestepError, UserError
from common.metrics import Target
from deploy.compose import Composition
from deploy.conductor.messages import (
    ActorLost,
    ActorSnapshot,
    ActorStarted,
    Collect,
    Evaluate,
    EvaluationMade,
    Event,
    Fatal,
    FragmentMade,
    Handle,
    LearnerSnapshot,
    LearnerStarted,
    SnapshotActor,
    SnapshotLearner,
    StartActor,
    Update,
    UpdateMade,
)
from deploy.engines import EngineCommand, LearnerStart
from deploy.ray_processes import ActorProcess, ProcessSetup, RankProcess, Serving
from learner.reports import UpdateOrder
from learner.state import LearnerState

LEARNER = -1
FETCH_S = 60.0
CLOSE_S = 10.0


@dataclass(slots=True, kw_only=True)
class _Process:
    """A process of ours and what is asked of it."""

    index: int
    lease: str
    handle: Any
    incarnation: int = 0
    report: Path | None = None
    serving: Serving | None = None
    calls: list[Any] = field(default_factory=list)

    @property
    def who(self) -> str:
        return "learner rank 0" if self.index == LEARNER else f"actor {self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call in flight: what becomes of its answer, and until when it may take."""

    process: _Process
    what: str
    deadline_s: float
    answer: Callable[[Any], Event]


class RayEngine:
    """Carries out commands as calls to Ray actors; an answer, a death or a missed deadline becomes an event."""

    def __init__(self, composition: Composition, setup: ProcessSetup, clock: Clock) -> None:
        self._composition = composition
        self._setup = setup
        self._clock = clock
        self._deadlines = composition.config.deadlines
        self._actors: dict[int, _Process] = {}
        self._learner: _Process | None = None
        self._calls: dict[Any, _Call] = {}
        self._heads: dict[int, tuple[Any, Deadline]] = {}
        self._events: list[Event] = []
        self._reports = Path(tempfile.mkdtemp(prefix="truestep-"))
        self._actor_class: Any = ray.remote(ActorProcess)
        self._rank_class: Any = ray.remote(RankProcess)

    # ---- commands --------------------------------------------------------------------------------------------------

    def start_learner(self, start: LearnerStart) -> None:
        handle = self._rank_class.options(num_cpus=1).remote(self._setup, self._composition.rank())
        self._learner = process = _Process(index=LEARNER, lease=token_hex(8), handle=handle)
        weights, facts = handle.start.options(num_returns=2).remote(start)

        def started(answer: Any) -> Event:
            digest, updates, process.serving = answer
            return LearnerStarted(version=start.version, updates=updates, weights=weights, parameter_digest=digest)

        self._expect(process, facts, "start", self._deadlines.start_s, started)

    def carry_out(self, command: EngineCommand) -> None:
        match command:
            case StartActor():
                self._start_actor(command)
            case Update():
                self._update(command)
            case SnapshotLearner():
                assert self._learner is not None
                state, updates = self._learner.handle.state.options(num_returns=2).remote()
                self._expect(
                    self._learner,
                    updates,
                    "hand over its state",
                    self._deadlines.snapshot_s,
                    lambda answer: LearnerSnapshot(update=answer, state=state),
                )
            case Collect() | SnapshotActor() | Evaluate():
                process = self._actors.get(command.actor)
                if process is not None:  # else its loss is on the way to the conductor, who will tell it again
                    self._tell_actor(process, command)

    def _start_actor(self, command: StartActor) -> None:
        lease = token_hex(8)
        report = self._reports / f"actor-{command.actor}-{lease}.txt"
        config = self._composition.actor(
            command.actor, incarnation=command.incarnation, lease=lease, fault_report=str(report)
        )
        evaluation = self._composition.config.evaluation
        handle = self._actor_class.options(num_cpus=1).remote(self._setup, config, evaluation)
        process = _Process(
            index=command.actor, lease=lease, handle=handle, incarnation=command.incarnation, report=report
        )
        self._actors[command.actor] = process

        def started(answer: Any) -> Event:
            facts, process.serving = answer
            return ActorStarted(
                actor=command.actor,
                incarnation=command.incarnation,
                lease=lease,
                facts=facts,
                metrics_port=process.serving.port,
            )

        self._expect(process, handle.start.remote(command.snapshot), "start", self._deadlines.start_s, started)

    def _update(self, command: Update) -> None:
        assert self._learner is not None
        order = UpdateOrder(update=command.update, term=command.term, publish_as=command.version)
        weights, report = self._learner.handle.update.options(num_returns=2).remote(order, *command.frames)
        self._expect(
            self._learner,
            report,
            f"make update {command.update}",
            self._deadlines.update_s,
            lambda answer: UpdateMade(report=answer, weights=weights),
        )

    def _tell_actor(self, process: _Process, command: Collect | SnapshotActor | Evaluate) -> None:
        match command:
            case Collect():
                order = CollectOrder(update=command.update, term=command.term, version=command.version)
                frame, summary = process.handle.collect.options(num_returns=2).remote(order, command.weights)
                what, limit_s = f"collect for update {command.update}", self._deadlines.collect_s
                self._expect(process, summary, what, limit_s, lambda answer: FragmentMade(summary=answer, frame=frame))
            case SnapshotActor():
                index, lease, update = process.index, process.lease, command.update
                self._expect(
                    process,
                    process.handle.snapshot.remote(),
                    "hand over its state",
                    self._deadlines.snapshot_s,
                    lambda answer: ActorSnapshot(actor=index, lease=lease, update=update, snapshot=answer),
                )
            case Evaluate():
                judged = EvaluateOrder(update=command.update, episodes=command.episodes, final=command.final)
                self._expect(
                    process,
                    process.handle.evaluate.remote(judged, command.weights),
                    f"evaluate update {command.update}",
                    self._deadlines.evaluate_s,
                    lambda answer: EvaluationMade(update=judged.update, final=judged.final, result=answer),
                )

    def _expect(
        self, process: _Process, reference: Any, what: str, deadline_s: float, answer: Callable[[Any], Event]
    ) -> None:
        """A process answers in order, so only its oldest call is being worked on, and only that one's time runs."""
        self._calls[reference] = _Call(process=process, what=what, deadline_s=deadline_s, answer=answer)
        process.calls.append(reference)
        if len(process.calls) == 1:
            self._heads[process.index] = (reference, Deadline(self._clock, deadline_s))

    # ---- events ----------------------------------------------------------------------------------------------------

    def next_event(self, timeout_s: float) -> Event | None:
        if self._events:
            return self._events.pop(0)
        waiting = [reference for reference, _ in self._heads.values()]
        if not waiting:
            self._clock.sleep(timeout_s)
            return None
        ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout_s, fetch_local=True)
        if ready:
            return self._answered(ready[0])
        return self._overdue()

    def _answered(self, reference: Any) -> Event:
        call = self._calls.pop(reference)
        process = call.process
        process.calls.remove(reference)
        self._heads.pop(process.index, None)
        try:
            event = call.answer(ray.get(reference, timeout=FETCH_S))
        except RayError as error:
            return self._failed(call, error)
        if process.calls:
            head = process.calls[0]
            self._heads[process.index] = (head, Deadline(self._clock, self._calls[head].deadline_s))
        return event

    def _failed(self, call: _Call, error: RayError) -> Event:
        """Bad input ends the run; whatever else an actor raises or dies of costs it its process, not the run."""
        cause: BaseException = error
        if isinstance(error, RayTaskError) and error.cause is not None:
            cause = error.cause
        if isinstance(cause, UserError):
            return Fatal(error=cause)
        if call.process.index == LEARNER:
            if isinstance(cause, TruestepError):
                return Fatal(error=cause)
            return Fatal(
                error=RunFailedError(
                    f"the learner was lost while it should {call.what}",
                    got=type(cause).__name__,
                    fix="resume the run: it goes on from the newest checkpoint",
                    detail=_traceback(cause),
                )
            )
        return self._lose(call.process, *self._why(call, cause))

    def _why(self, call: _Call, cause: BaseException) -> tuple[str, str]:
        who = f"{call.process.who} (incarnation {call.process.incarnation})"
        if isinstance(cause, EnvironmentFault | TruestepError):
            return str(cause), cause.detail
        if isinstance(cause, RayActorError):
            return f"{who}: the process ended while it should {call.what}", self._last_words(call.process)
        return f"{who}: {type(cause).__name__} while it should {call.what}: {cause}", _traceback(cause)

    def _last_words(self, process: _Process) -> str:
        """What the watchdog wrote before it ended the process."""
        if process.report is None or not process.report.is_file():
            return ""
        return process.report.read_text(errors="replace").strip()

    def _overdue(self) -> Event | None:
        for reference, deadline in list(self._heads.values()):
            if deadline.expired():
                call = self._calls[reference]
                cause = f"{call.process.who} did not {call.what} within {deadline.seconds:g} s"
                if call.process.index == LEARNER:
                    fix = "look at the learner's process, or raise the deadline; then resume the run"
                    return Fatal(error=RunFailedError(cause, fix=fix))
                return self._lose(call.process, cause, self._last_words(call.process))
        return None

    def _lose(self, process: _Process, cause: str, detail: str) -> Event:
        """End what is left of a process; none of its calls is waited for any more."""
        ray.kill(process.handle, no_restart=True)
        for reference in process.calls:
            self._calls.pop(reference, None)
        process.calls.clear()
        self._heads.pop(process.index, None)
        if self._actors.get(process.index) is process:
            del self._actors[process.index]
        return ActorLost(actor=process.index, lease=process.lease, cause=cause, detail=detail)

    # ---- data, for checkpoints only --------------------------------------------------------------------------------

    def put_frame(self, frame: bytes) -> Handle:
        return ray.put(np.frombuffer(frame, dtype=np.uint8))

    def get_frame(self, handle: Handle) -> bytes:
        document: Any = ray.get(handle, timeout=FETCH_S)
        return bytes(document.data)

    def get_state(self, handle: Handle) -> LearnerState:
        state: Any = ray.get(handle, timeout=FETCH_S)
        assert isinstance(state, LearnerState)
        return state

    # ---- the rest --------------------------------------------------------------------------------------------------

    def targets(self) -> list[Target]:
        processes = list(self._actors.values()) + ([self._learner] if self._learner else [])
        return [
            Target(
                role="learner" if process.index == LEARNER else "actor",
                index=max(0, process.index),
                lease=process.lease,
                address=f"{process.serving.host}:{process.serving.port}",
                run=self._composition.run,
            )
            for process in processes
            if process.serving is not None and process.serving.port
        ]

    def close(self) -> None:
        """Actors close their environments (asynchronous ones have children), then every process is ended."""
        closing = [process.handle.close.remote() for process in self._actors.values() if process.serving is not None]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
        for process in [*self._actors.values(), *([self._learner] if self._learner else [])]:
            ray.kill(process.handle, no_restart=True)
        self._actors.clear()
        for file in self._reports.iterdir():
            file.unlink(missing_ok=True)
        self._reports.rmdir()


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).strip()
