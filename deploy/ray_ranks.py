"""Learner ranks in processes of their own: commands become calls, answers and losses become events."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

import ray
from ray.exceptions import RayError

from deploy.compose import Composition
from deploy.conductor.messages import (
    AdoptState,
    Event,
    Fatal,
    HurryRank,
    JoinGroup,
    LearnerSnapshot,
    LearnerStarted,
    Publish,
    RankCommand,
    RankLost,
    RankStarted,
    RankUpdated,
    Share,
    SnapshotLearner,
    StartRank,
    StateAdopted,
    StopRank,
    Update,
)
from deploy.ranks import FATAL, joined, order_of
from deploy.ray_calls import Failure, Process, Processes
from deploy.ray_placement import Placement
from deploy.ray_processes import ProcessSetup, RankProcess
from learner.reports import Formation, UpdateOrder

CLOSE_S = 5.0  # two more than a process gives its collector


class RayRanks:
    """Carries out what ranks are told.

    Args:
        placement: where Ray puts each.
    """

    def __init__(
        self, composition: Composition, setup: ProcessSetup, processes: Processes, placement: Placement
    ) -> None:
        self._composition = composition
        self._setup = setup
        self._processes = processes
        self._calls = processes.calls
        self._placement = placement
        self._deadlines = composition.config.deadlines
        self._class: Any = ray.remote(RankProcess)
        self._closing: list[Any] = []

    def carry_out(self, command: RankCommand) -> None:
        """Begin a command; one to a rank that is lost is dropped."""
        match command:
            case StartRank():
                self._start(command.rank)
            case JoinGroup():
                self._join(command)
            case Update():
                self._update(command)
            case Publish():
                self._publish(command)
            case AdoptState() | SnapshotLearner() | HurryRank() | StopRank():
                if (process := self._processes.get(command.rank)) is not None:
                    self._tell(process, command)

    def _start(self, rank: int) -> None:
        lease, options = token_hex(8), self._placement.of_rank(rank)
        handle = self._class.options(**options).remote(self._setup, self._composition.rank(), rank)
        process = Process(role="learner", index=rank, lease=lease, who=f"learner rank {rank}", handle=handle)
        self._processes.add(process)

        def started(answer: Any) -> Event:
            standing, process.presence = answer
            return RankStarted(rank=rank, lease=lease, standing=standing, metrics_port=process.presence.metrics_port)

        self._calls.expect(process, handle.start.remote(), "start", self._deadlines.start_s, started)

    def _join(self, command: JoinGroup) -> None:
        """The first rank opens the meeting; where it is goes from there to the others, not through the driver."""
        formation = Formation(number=command.formation, ranks=command.ranks, delay_s=command.delay_s)
        meeting: tuple[Any, ...] = ()
        if len(command.ranks) > 1 and (first := self._processes.get(command.ranks[0])) is not None:
            meeting = (first.handle.open_meeting.remote(),)
        for rank in command.ranks:
            if (process := self._processes.get(rank)) is not None:
                self._expect_join(process, formation, meeting)

    def _expect_join(self, process: Process, formation: Formation, meeting: tuple[Any, ...]) -> None:
        self._calls.expect(
            process,
            process.handle.join.remote(formation, meeting),
            f"join formation {formation.number}",
            self._deadlines.snapshot_s,
            lambda got: joined(got, formation=formation.number, rank=process.index, lease=process.lease),
        )

    def _update(self, command: Update) -> None:
        order = order_of(command)
        for share in command.shares:
            if (process := self._processes.get(share.rank)) is not None:
                self._expect_update(process, order, share)

    def _expect_update(self, process: Process, order: UpdateOrder, share: Share) -> None:
        frames = (*share.frames, *share.audited_frames)
        update = process.handle.update.options(num_returns=2)
        weights, report = update.remote(order, len(share.frames), *frames)

        def updated(answer: Any) -> Event:
            told, publishes = answer
            return RankUpdated(lease=process.lease, report=told, weights=weights if publishes else None)

        self._calls.expect(
            process, report, f"make update {order.update}", self._deadlines.update_s, updated, load=weights
        )

    def _publish(self, command: Publish) -> None:
        """One rank publishes; the others note the version, since fragments made by it will reach them too."""
        version, limit_s = command.version, self._deadlines.snapshot_s
        for process in self._processes:
            publishes = process.index == command.rank
            method = process.handle.publish.options(num_returns=2)
            weights, standing = method.remote(version, command.term, publishes)

            def published(got: Any, weights: Any = weights, publishes: bool = publishes) -> Event | None:
                if not publishes:
                    return None
                return LearnerStarted(
                    version=version, updates=got.updates, weights=weights, parameter_digest=got.parameter_digest
                )

            self._calls.expect(process, standing, f"publish version {version}", limit_s, published, load=weights)

    def _tell(self, process: Process, command: AdoptState | SnapshotLearner | HurryRank | StopRank) -> None:
        expect, handle, rank, lease = self._calls.expect, process.handle, process.index, process.lease
        limit_s = self._deadlines.snapshot_s
        match command:
            case AdoptState():
                adopted = handle.adopt.remote(command.state)
                what = "adopt a state"
                expect(process, adopted, what, limit_s, lambda got: StateAdopted(rank=rank, lease=lease, standing=got))
            case SnapshotLearner():
                state, updates = handle.state.options(num_returns=2).remote()
                expect(
                    process,
                    updates,
                    "hand over its state",
                    limit_s,
                    lambda got: LearnerSnapshot(update=got, state=state, rank=rank, lease=lease),
                    load=state,
                )
            case HurryRank():
                self._calls.hurry(process, command.within_s)
            case StopRank():
                self._processes.end(process)

    def _complaints(self) -> list[str]:
        done, _ = ray.wait(self._closing, num_returns=len(self._closing), timeout=CLOSE_S)
        try:
            return [complaint for complaint in ray.get(done, timeout=CLOSE_S) if complaint][:1]
        except RayError as error:  # a rank that dies while it closes has nothing left to lose
            return [f"a learner rank did not send its last spans: {error}"]

    def failed(self, failure: Failure) -> Event:
        """What a new process would raise again ends the run; whatever else costs the rank its process."""
        if isinstance(failure.cause, FATAL):
            return Fatal(error=failure.cause)
        process = failure.call.process
        cause, detail = failure.words()
        self._processes.end(process)
        return RankLost(rank=process.index, lease=process.lease, cause=cause, detail=detail)

    def prepare_close(self) -> None:
        """Those that have spans to send begin to send what is left."""
        if self._setup.spans is not None:
            self._closing = [p.handle.close.remote() for p in self._processes if p.presence is not None]

    def close(self) -> list[str]:
        """Every process is told to end; one that still sends spans gets a few seconds for it.

        Returns:
            What the first of those that had a complaint says of its collector: the log of a process is seldom read.
        """
        complaints = self._complaints() if self._closing else []
        for process in self._processes:
            self._processes.end(process)
        return complaints
