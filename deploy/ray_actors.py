"""Actors in processes of their own: commands become calls, answers and losses become events."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex
from typing import Any

import ray
from ray.exceptions import RayActorError

from actors.worker import CollectOrder, EvaluateOrder
from common.errors import UserError
from deploy.compose import Composition
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
from deploy.engines import breach_of
from deploy.ray_calls import Call, Failure, Process, Processes, outcome_of
from deploy.ray_placement import Placement
from deploy.ray_processes import ActorProcess, ProcessSetup

CLOSE_S = 10.0
GET_A_PROCESS = "get a process from Ray"
NODE_DIED = "its node has died"  # Ray tells it in words only; where it finds others, this is a loss as any other


class RayActors:
    """Carries out what actors are told.

    Args:
        placement: where Ray puts each.
        last_words: directory for what watchdogs write before they end a process.
    """

    def __init__(
        self,
        composition: Composition,
        setup: ProcessSetup,
        processes: Processes,
        placement: Placement,
        *,
        last_words: Path,
    ) -> None:
        self._composition = composition
        self._setup = setup
        self._processes = processes
        self._calls = processes.calls
        self._placement = placement
        self._last_words = last_words
        self._deadlines = composition.config.deadlines
        self._stopping: set[str] = set()
        self._without_process: dict[str, StartActor] = {}  # by lease
        remote: Any = ray.remote
        self._class: Any = remote(concurrency_groups={"control": 1})(ActorProcess)  # offers are taken while it collects

    def carry_out(self, command: ActorCommand) -> None:
        """Begin a command; one to an actor that is lost is dropped."""
        if isinstance(command, StartActor):
            self._start(command)
        elif (process := self._processes.get(command.actor)) is not None:
            self._tell(process, command)

    def _start(self, command: StartActor) -> None:
        lease = token_hex(8)
        last_words = self._last_words / f"actor-{command.actor}-{lease}.txt"
        config = self._composition.actor(
            command.actor, incarnation=command.incarnation, lease=lease, fault_report=str(last_words)
        )
        evaluation = self._composition.config.evaluation
        process = Process(
            role="actor",
            index=command.actor,
            lease=lease,
            who=f"actor {command.actor} (incarnation {command.incarnation})",
            handle=self._class.options(**self._placement.of_actor()).remote(self._setup, config, evaluation),
            last_words=last_words,
        )
        self._processes.add(process)
        self._without_process[lease] = command

        def started(answer: Any) -> Event:
            facts, process.presence = answer
            return ActorStarted(
                actor=command.actor,
                incarnation=command.incarnation,
                lease=lease,
                facts=facts,
                metrics_port=process.presence.metrics_port,
            )

        def arrived(_: Any) -> None:
            del self._without_process[lease]

        start_s = self._deadlines.start_s
        self._calls.expect(process, process.handle.__ray_ready__.remote(), GET_A_PROCESS, start_s, arrived)
        reference = process.handle.start.remote(command.snapshot)
        self._calls.expect(process, reference, "start", start_s, started)

    def _tell(self, process: Process, command: StopActor | OfferWeights | Collect | SnapshotActor | Evaluate) -> None:
        deadlines, handle, lease = self._deadlines, process.handle, process.lease
        match command:
            case StopActor():
                self._stop(process)
            case OfferWeights(actor=actor):
                self._calls.expect_aside(
                    process,
                    handle.offer.remote(command.weights),
                    f"take version {command.version}",
                    deadlines.snapshot_s,
                    lambda got: WeightsHeld(actor=actor, lease=lease, version=got),
                )
            case Collect(update=update):
                order = CollectOrder(update=update, term=command.term, version=command.version)
                frame, summary = handle.collect.options(num_returns=2).remote(order, command.weights)
                self._calls.expect(
                    process,
                    summary,
                    f"collect for update {update}",
                    deadlines.collect_s,
                    lambda got: FragmentMade(summary=got, frame=frame),
                    load=frame,
                )
            case SnapshotActor(actor=actor, update=update):
                self._calls.expect(
                    process,
                    handle.snapshot.remote(),
                    "hand over its state",
                    deadlines.snapshot_s,
                    lambda got: ActorSnapshot(actor=actor, lease=lease, update=update, snapshot=got),
                )
            case Evaluate(final=final, update=update):
                judged = EvaluateOrder(update=update, episodes=command.episodes, final=final)
                self._calls.expect(
                    process,
                    handle.evaluate.remote(judged, command.weights),
                    f"evaluate update {update}",
                    deadlines.evaluate_s,
                    lambda got: EvaluationMade(update=update, final=final, result=got),
                )

    def _stop(self, process: Process) -> None:
        """Its environments are closed, then it ends. Its seat may be taken by another process meanwhile."""
        self._stopping.add(process.lease)
        closed = process.handle.close.remote()
        self._calls.expect(process, closed, "close", CLOSE_S, lambda _: self._stopped(process))

    def _stopped(self, process: Process) -> None:
        self._stopping.discard(process.lease)
        self._processes.end(process)

    def failed(self, failure: Failure) -> Event | None:
        """Bad input ends the run; whatever else an actor raises or dies of costs it its process. Whether a broken
        contract is bad input the conductor says: it knows of the others.
        """
        process = failure.call.process
        if failure.call.what == GET_A_PROCESS and self._wants_a_place(failure):
            return None
        self._without_process.pop(process.lease, None)
        if process.lease in self._stopping:
            self._stopped(process)
            return None
        breach = breach_of(failure.cause)
        if isinstance(failure.cause, UserError) and breach is None:
            return Fatal(error=failure.cause)
        cause, detail = failure.words()
        self._processes.end(process)
        return ActorLost(actor=process.index, lease=process.lease, cause=cause, detail=detail, breach=breach)

    def _wants_a_place(self, failure: Failure) -> bool:
        """Whether nobody is to blame: no place is free in the cluster, or the node that had one died before the actor
        was there. It goes on waiting for a place, in the same life.
        """
        if failure.cause is None and not self._placement.has_room_for_an_actor():
            self._calls.renew(failure.call)
            return True
        if isinstance(failure.cause, RayActorError) and NODE_DIED in str(failure.cause):
            process = failure.call.process
            self._processes.end(process)
            self._start(self._without_process.pop(process.lease))
            return True
        return False

    def close(self) -> list[str]:
        """Environments are closed (asynchronous ones have children), then every process is told to end.

        Returns:
            Which did not close as they should, in words, with traceback or last words.
        """
        calls = [self._told_to_close(process) for process in self._processes if process.presence is not None]
        references = [call.reference for call in calls]
        done, _ = ray.wait(references, num_returns=len(calls), timeout=CLOSE_S) if calls else ([], [])
        outcomes = [
            outcome_of(call) if call.reference in done else Failure(call=call, cause=None, within_s=CLOSE_S)
            for call in calls
        ]
        for process in self._processes:
            self._processes.end(process)
        return ["\n".join(each.words()).strip() for each in outcomes if isinstance(each, Failure)]

    @staticmethod
    def _told_to_close(process: Process) -> Call:
        return Call(
            process=process,
            reference=process.handle.close.remote(),
            what="close its environments",
            limit_s=CLOSE_S,
            answered=lambda _: None,
        )
