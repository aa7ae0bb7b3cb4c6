"""Learner ranks of engine inline: one computes in the caller's thread; several in a thread each, since they wait for
one another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from secrets import token_hex

import torch

from common.clock import Clock
from common.errors import DeadlineError, TruestepError
from common.metrics import LearnerMetrics
from common.process import intra_op_threads
from common.spans import NoSpans, Spans
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
from deploy.ranks import FATAL, join, joined, observe, order_of, send_spans
from learner.rank import LearnerRank
from learner.reports import Formation


class _Seat:
    """A rank, and where it computes."""

    def __init__(self, rank: int, make: Callable[[], LearnerRank], *, threads: int, alone: bool) -> None:
        self.index = rank
        self.lease = token_hex(8)
        self._make = make
        self._threads = threads
        self._made: LearnerRank | None = None
        self._thread = (
            None if alone else ThreadPoolExecutor(1, f"learner-rank-{rank}", torch.set_num_threads, (threads,))
        )

    @property
    def rank(self) -> LearnerRank:
        """Once it has started."""
        assert self._made is not None, f"learner rank {self.index} was told something before it had started"
        return self._made

    def submit(self, work: Callable[[], Event | None]) -> Future[Event | None]:
        """Have `work` done, after whatever was submitted before; what it raises is in the future too."""
        if self._thread is not None:
            return self._thread.submit(work)
        future: Future[Event | None] = Future()
        with intra_op_threads(self._threads):
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - as an executor does: raised again by result()
                future.set_exception(error)
        return future

    def start(self) -> Event:
        """Make the rank, where it computes."""
        self._made = self._make()
        return RankStarted(rank=self.index, lease=self.lease, standing=self.rank.standing())

    def end(self) -> None:
        """Take nothing more, and leave the group, whose threads would outlive the interpreter. A thread that hangs is
        left behind: nothing can end it but the process's own end."""
        if self._made is not None:
            self._made.leave()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


class InlineRanks:
    """Carries out one command at a time, with all ranks that it is for at once; waits for all of their answers."""

    def __init__(
        self, composition: Composition, clock: Clock, metrics: LearnerMetrics, spans: Spans | None = None
    ) -> None:
        self._config = composition.rank()
        self._deadlines = composition.config.deadlines
        self._clock = clock
        self._metrics = metrics
        self._spans = spans or NoSpans()
        self._seats: dict[int, _Seat] = {}

    def carry_out(self, command: RankCommand) -> list[Event]:
        """Do it; returns its events, by rank. A command to a rank that is lost is dropped."""
        match command:
            case StartRank(rank=rank):
                seat = self._seats[rank] = self._seat(rank)
                return self._await({seat: seat.submit(seat.start)}, "start", self._deadlines.start_s)
            case JoinGroup():
                return self._join(command)
            case Update():
                return self._update(command)
            case Publish():
                return self._publish(command)
            case AdoptState() | SnapshotLearner():
                present = self._seats.get(command.rank)
                return [] if present is None else self._tell(present, command)
            case StopRank(rank=rank):
                if (stopped := self._seats.pop(rank, None)) is not None:
                    stopped.end()
                return []
            case HurryRank():
                return []  # every answer is in before the next command is carried out

    def _seat(self, rank: int) -> _Seat:
        learner = self._config.learner

        def make() -> LearnerRank:
            return LearnerRank(self._config, self._clock, rank=rank)

        return _Seat(rank, make, threads=learner.threads, alone=learner.ranks == 1)

    def _join(self, command: JoinGroup) -> list[Event]:
        address = ""
        if len(command.ranks) > 1 and (first := self._seats.get(command.ranks[0])) is not None:
            address = first.rank.open_meeting()
        formation = Formation(number=command.formation, ranks=command.ranks, address=address, delay_s=command.delay_s)

        def work(seat: _Seat) -> Event:
            answer = join(seat.rank, formation)
            return joined(answer, formation=formation.number, rank=seat.index, lease=seat.lease)

        seats = [self._seats[rank] for rank in command.ranks if rank in self._seats]
        told = {seat: seat.submit(partial(work, seat)) for seat in seats}
        return self._await(told, f"join formation {formation.number}", self._deadlines.snapshot_s)

    def _update(self, command: Update) -> list[Event]:
        order = order_of(command)

        def work(seat: _Seat, share: Share) -> Event:
            report, document = seat.rank.update(order, share.frames, share.audited_frames)
            if share is command.shares[0]:  # one rank speaks for all: metrics of this process count an update once
                observe(self._metrics, report)
            published = document is not None
            send_spans(self._spans, seat.rank, report, clock_id=self._clock.clock_id, published=published)
            return RankUpdated(lease=seat.lease, report=report, weights=document)

        shares = [(self._seats[share.rank], share) for share in command.shares if share.rank in self._seats]
        told = {seat: seat.submit(partial(work, seat, share)) for seat, share in shares}
        return self._await(told, f"make update {order.update}", self._deadlines.update_s)

    def _publish(self, command: Publish) -> list[Event]:
        """One rank publishes; the others note the version, since fragments made by it will reach them too."""

        def work(seat: _Seat) -> Event | None:
            document = seat.rank.publish(version=command.version, term=command.term)
            if seat.index != command.rank:
                return None
            standing = seat.rank.standing()
            return LearnerStarted(
                version=command.version,
                updates=standing.updates,
                weights=document,
                parameter_digest=standing.parameter_digest,
            )

        told = {seat: seat.submit(partial(work, seat)) for seat in self._seats.values()}
        return self._await(told, f"publish version {command.version}", self._deadlines.snapshot_s)

    def _tell(self, seat: _Seat, command: AdoptState | SnapshotLearner) -> list[Event]:
        def work() -> Event:
            rank = seat.rank
            match command:
                case AdoptState(state=state):
                    return StateAdopted(rank=seat.index, lease=seat.lease, standing=rank.adopt(state))
                case SnapshotLearner():
                    made = rank.state()
                    return LearnerSnapshot(update=made.updates, state=made, rank=seat.index, lease=seat.lease)

        return self._await({seat: seat.submit(work)}, "answer", self._deadlines.snapshot_s)

    def _await(self, told: Mapping[_Seat, Future[Event | None]], what: str, limit_s: float) -> list[Event]:
        late = wait(told.values(), timeout=limit_s).not_done
        if late:
            who = ", ".join(f"learner rank {seat.index}" for seat, future in told.items() if future in late)
            fix = "a thread cannot be ended: use engine ray, which replaces what hangs, or raise the deadline"
            return [Fatal(error=DeadlineError(f"{who} did not {what} within {limit_s:g} s", fix=fix))]
        events = [self._answered(seat, future) for seat, future in told.items()]
        return [event for event in events if event is not None]

    def _answered(self, seat: _Seat, future: Future[Event | None]) -> Event | None:
        """An error that is not ours is a fault of the code: raised here, in the driver, where a debugger stops."""
        try:
            return future.result()
        except FATAL as error:
            return Fatal(error=error)
        except TruestepError as error:
            del self._seats[seat.index]
            seat.end()
            return RankLost(rank=seat.index, lease=seat.lease, cause=str(error), detail=error.detail)

    def close(self) -> None:
        """End every thread that is idle; forget the rest."""
        for seat in self._seats.values():
            seat.end()
        self._seats.clear()
