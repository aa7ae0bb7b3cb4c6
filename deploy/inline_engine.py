"""Engine inline: the whole run in this process, one command after the other. No Ray; a debugger sees everything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from secrets import token_hex

import numpy as np
from numpy.typing import NDArray

from actors.worker import ActorWorker, CollectOrder, EvaluateOrder
from common.clock import NS_PER_S, Clock
from common.errors import EnvironmentFault, TruestepError, UserError
from common.metrics import ActorMetrics, LearnerMetrics, Target
from common.process import intra_op_threads, keep_freed_memory
from deploy.compose import ACTOR_THREADS, Composition
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
    LearnerSnapshot,
    LearnerStarted,
    SnapshotActor,
    SnapshotLearner,
    StartActor,
    Update,
    UpdateMade,
)
from deploy.engines import EngineCommand, LearnerStart
from deploy.learner_loop import LearnerLoop
from learner.reports import UpdateOrder
from learner.state import LearnerState


class InlineEngine:
    """Carries out commands in the order given, each when its event is asked for."""

    def __init__(
        self, composition: Composition, clock: Clock, actor_metrics: ActorMetrics, learner_metrics: LearnerMetrics
    ) -> None:
        self._composition = composition
        self._clock = clock
        self._actor_metrics = actor_metrics
        self._learner = LearnerLoop(composition.rank(), clock, learner_metrics)
        self._workers: dict[int, tuple[str, ActorWorker]] = {}
        self._todo: deque[Callable[[], Event | None]] = deque()
        keep_freed_memory()

    def start_learner(self, start: LearnerStart) -> None:
        self._todo.append(lambda: self._start_learner(start))

    def carry_out(self, command: EngineCommand) -> None:
        self._todo.append(lambda: self._do(command))

    def next_event(self, timeout_s: float) -> Event | None:
        """Carry out commands until one has an event; sleep `timeout_s` if there are none."""
        while self._todo:
            try:
                event = self._todo.popleft()()
            except UserError as error:
                event = Fatal(error=error)
            if event is not None:
                return event
        self._clock.sleep(timeout_s)
        return None

    def _start_learner(self, start: LearnerStart) -> Event:
        with intra_op_threads(self._composition.config.learner.threads):
            weights, digest, updates = self._learner.start(start)
        return LearnerStarted(version=start.version, updates=updates, weights=weights, parameter_digest=digest)

    def _do(self, command: EngineCommand) -> Event | None:
        match command:
            case Update():
                order = UpdateOrder(update=command.update, term=command.term, publish_as=command.version)
                with intra_op_threads(self._composition.config.learner.threads):
                    report, weights = self._learner.update(order, list(command.frames))
                return UpdateMade(report=report, weights=weights)
            case SnapshotLearner():
                return LearnerSnapshot(update=command.update, state=self._learner.state())
            case StartActor() | Collect() | SnapshotActor() | Evaluate():
                return self._do_as_actor(command)

    def _do_as_actor(self, command: StartActor | Collect | SnapshotActor | Evaluate) -> Event | None:
        """A command to an actor that is gone is dropped: the conductor hears of the loss, and tells it again."""
        lease = token_hex(8) if isinstance(command, StartActor) else self._workers.get(command.actor, ("", None))[0]
        if not lease:
            return None
        try:
            with intra_op_threads(ACTOR_THREADS):
                return self._act(command, lease)
        except (EnvironmentFault, TruestepError) as error:
            if isinstance(error, UserError):
                raise
            self._workers.pop(command.actor, None)
            return ActorLost(actor=command.actor, lease=lease, cause=str(error), detail=error.detail)

    def _act(self, command: StartActor | Collect | SnapshotActor | Evaluate, lease: str) -> Event:
        if isinstance(command, StartActor):
            return self._start_actor(command, lease)
        worker = self._workers[command.actor][1]
        match command:
            case Collect():
                order = CollectOrder(update=command.update, term=command.term, version=command.version)
                frame, summary = worker.collect(order, command.weights)
                self._actor_metrics.observe(summary)
                return FragmentMade(summary=summary, frame=frame.copy())
            case SnapshotActor():
                return ActorSnapshot(
                    actor=command.actor, lease=lease, update=command.update, snapshot=worker.snapshot()
                )
            case Evaluate():
                judged = EvaluateOrder(update=command.update, episodes=command.episodes, final=command.final)
                start_ns = self._clock.now_ns()
                result = worker.evaluate(judged, command.weights)
                seconds = (self._clock.now_ns() - start_ns) / NS_PER_S
                self._actor_metrics.observe_evaluation(seconds, len(result.returns))
                return EvaluationMade(update=command.update, final=command.final, result=result)

    def _start_actor(self, command: StartActor, lease: str) -> Event:
        config = self._composition.actor(command.actor, incarnation=command.incarnation, lease=lease, fault_report="")
        worker = ActorWorker(config, self._composition.config.evaluation, self._clock)
        facts = worker.start(command.snapshot)
        self._workers[command.actor] = (lease, worker)
        return ActorStarted(actor=command.actor, incarnation=command.incarnation, lease=lease, facts=facts)

    def put_frame(self, frame: bytes) -> NDArray[np.uint8]:
        return np.frombuffer(frame, dtype=np.uint8)

    def get_frame(self, handle: NDArray[np.uint8]) -> bytes:
        return handle.tobytes()

    def get_state(self, handle: LearnerState) -> LearnerState:
        return handle

    def targets(self) -> list[Target]:
        return []

    def close(self) -> None:
        self._todo.clear()
        for _, worker in self._workers.values():
            worker.close()
        self._workers.clear()
