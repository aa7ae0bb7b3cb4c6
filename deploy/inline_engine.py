"""Engine inline: the whole run in this process, one command after the other. No Ray; a debugger sees everything."""

from __future__ import annotations

from collections import deque
from secrets import token_hex

import numpy as np
from numpy.typing import NDArray

from actors.spans import rollout_span
from actors.worker import ActorWorker, CollectOrder, EvaluateOrder
from common.clock import NS_PER_S, Clock
from common.errors import TruestepError, UserError
from common.metrics import ActorMetrics, LearnerMetrics, Target
from common.process import intra_op_threads, keep_freed_memory
from common.spans import NoSpans, Spans
from deploy.compose import ACTOR_THREADS, Composition
from deploy.conductor.messages import (
    ActorCommand,
    ActorLost,
    ActorSnapshot,
    ActorStarted,
    Collect,
    Evaluate,
    EvaluationMade,
    Event,
    Fatal,
    FragmentMade,
    OfferWeights,
    SnapshotActor,
    StartActor,
    StopActor,
    WeightsHeld,
)
from deploy.engines import EngineCommand, breach_of
from deploy.inline_ranks import InlineRanks
from learner.state import InitialWeights, LearnerState


class InlineEngine:
    """Carries out commands in the order given, each when its event is asked for."""

    def __init__(
        self,
        composition: Composition,
        clock: Clock,
        actor_metrics: ActorMetrics,
        learner_metrics: LearnerMetrics,
        spans: Spans | None = None,
    ) -> None:
        self._composition = composition
        self._clock = clock
        self._actor_metrics = actor_metrics
        self._spans = spans or NoSpans()
        self._ranks = InlineRanks(composition, clock, learner_metrics, spans)
        self._workers: dict[int, tuple[str, ActorWorker]] = {}
        self._todo: deque[EngineCommand] = deque()
        self._events: deque[Event] = deque()
        keep_freed_memory()

    def carry_out(self, command: EngineCommand) -> None:
        self._todo.append(command)

    def next_event(self, timeout_s: float) -> Event | None:
        """Carry out commands until one has an event; sleep `timeout_s` if there are none."""
        while not self._events and self._todo:
            self._events.extend(self._do(self._todo.popleft()))
        if self._events:
            return self._events.popleft()
        self._clock.sleep(timeout_s)
        return None

    def _do(self, command: EngineCommand) -> list[Event]:
        if not isinstance(command, ActorCommand):
            return self._ranks.carry_out(command)
        try:
            event = self._do_as_actor(command)
        except UserError as error:
            event = Fatal(error=error)
        return [] if event is None else [event]

    def _do_as_actor(self, command: ActorCommand) -> Event | None:
        """A command to an actor that is gone is dropped: the conductor hears of the loss, and tells it again."""
        lease = token_hex(8) if isinstance(command, StartActor) else self._workers.get(command.actor, ("", None))[0]
        if not lease:
            return None
        try:
            with intra_op_threads(ACTOR_THREADS):
                return self._act(command, lease)
        except TruestepError as error:
            breach = breach_of(error)
            if isinstance(error, UserError) and breach is None:
                raise
            self._workers.pop(command.actor, None)
            return ActorLost(actor=command.actor, lease=lease, cause=str(error), detail=error.detail, breach=breach)

    def _act(self, command: ActorCommand, lease: str) -> Event | None:
        if isinstance(command, StartActor):
            return self._start_actor(command, lease)
        worker = self._workers[command.actor][1]
        match command:
            case StopActor():
                del self._workers[command.actor]
                worker.close()
                return None
            case OfferWeights():
                return WeightsHeld(actor=command.actor, lease=lease, version=worker.offer(command.weights))
            case Collect():
                order = CollectOrder(update=command.update, term=command.term, version=command.version)
                frame, summary = worker.collect(order, command.weights)
                self._actor_metrics.observe(summary, worker.timings())
                self._spans.send(f"actor-{command.actor}", lambda identity: [rollout_span(identity, summary)])
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

    def put_state(self, state: LearnerState | InitialWeights) -> LearnerState | InitialWeights:
        return state

    def get_state(self, handle: LearnerState) -> LearnerState:
        return handle

    def targets(self) -> list[Target]:
        return []

    def close(self) -> list[str]:
        self._todo.clear()
        self._ranks.close()
        faults = []
        for _, worker in self._workers.values():
            try:
                worker.close()
            except TruestepError as error:
                faults.append(f"{error}\n{error.detail}".strip())
        self._workers.clear()
        return faults
