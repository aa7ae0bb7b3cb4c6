"""Ranks of engine inline: where they compute, and what becomes of what they raise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from common.clock import MonotonicClock
from common.errors import CheckpointError, ConfigError, DeadlineError, RunFailedError, SyncError, TruestepError
from deploy.conductor.messages import (
    AdoptState,
    Event,
    Fatal,
    GroupJoined,
    JoinFailed,
    JoinGroup,
    RankLost,
    RankStarted,
    RankUpdated,
    Share,
    StartRank,
    StateAdopted,
    StopRank,
    Update,
)
from deploy.inline_ranks import InlineRanks
from learner.reports import Formation, OrderStatus, Standing, UpdateReport

BARRIER_S = 30.0


class Stand:
    """A rank that does what the test says when it is called."""

    def __init__(self, config: Any, clock: Any, *, rank: int) -> None:
        self.script: dict[str, Callable[[int], Any]] = config.script
        self.rank = rank

    def _do(self, what: str) -> None:
        if (script := self.script.get(what)) is not None:
            script(self.rank)

    def standing(self) -> Standing:
        self._do("start")
        return Standing(rank=self.rank, updates=0, state_digest="s", parameter_digest="p")

    def adopt(self, state: Any) -> Standing:
        self._do("adopt")
        return self.standing()

    def open_meeting(self) -> str:
        return "127.0.0.1:1"

    def leave(self) -> None:
        self._do("leave")

    def join(self, formation: Formation) -> Standing:
        assert formation.address == ("127.0.0.1:1" if len(formation.ranks) > 1 else "")
        self._do("join")
        return self.standing()

    def update(self, order: Any, documents: Any, audited: Any) -> tuple[UpdateReport, Any]:
        self._do("update")
        report = UpdateReport(
            rank=self.rank,
            status=OrderStatus.MADE,
            update=order.update,
            term=0,
            version=1,
            trained=True,
            verdicts=(),
            steps=1,
            skipped_steps=0,
            skipped_at="",
            lag=0,
            gaps=0,
            parameter_digest="p",
            learning_rate=0.1,
        )
        return report, np.zeros(1, np.uint8) if self.rank == 0 else None


class Counted:
    """Counts what is observed."""

    observed = 0

    def observe(self, **values: Any) -> None:
        self.observed += 1


@contextmanager
def engine(
    monkeypatch: pytest.MonkeyPatch, num: int, *, update_s: float = 30.0, **script: Callable[[int], Any]
) -> Iterator[tuple[InlineRanks, Counted]]:
    """`num` ranks that have been started."""
    monkeypatch.setattr("deploy.inline_ranks.LearnerRank", Stand)
    learner = SimpleNamespace(ranks=num, threads=1)
    deadlines = SimpleNamespace(start_s=30.0, snapshot_s=30.0, update_s=update_s)
    composition: Any = SimpleNamespace(
        rank=lambda: SimpleNamespace(learner=learner, script=script), config=SimpleNamespace(deadlines=deadlines)
    )
    metrics: Any = Counted()
    ranks = InlineRanks(composition, MonotonicClock(), metrics)
    for rank in range(num):
        (started,) = ranks.carry_out(StartRank(rank=rank))
        assert isinstance(started, RankStarted)
    yield ranks, metrics
    ranks.close()


def update(num: int) -> Update:
    shares = tuple(Share(rank=rank, frames=()) for rank in range(num))
    return Update(update=0, attempt=1, term=0, version=1, keys=(), shares=shares)


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


def on(rank: int, error: BaseException) -> Callable[[int], None]:
    """Raise `error` on one rank."""

    def do(mine: int) -> None:
        if mine == rank:
            raise error

    return do


def test_one_rank_computes_in_the_caller_s_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own number of threads, and the caller's afterwards."""
    seen: list[tuple[threading.Thread, int]] = []

    def note(rank: int) -> None:
        seen.append((threading.current_thread(), torch.get_num_threads()))

    before = torch.get_num_threads()
    with engine(monkeypatch, 1, update=note) as (ranks, _):
        assert kinds(ranks.carry_out(update(1))) == [RankUpdated]
    assert seen == [(threading.current_thread(), 1)] and torch.get_num_threads() == before


def test_several_ranks_make_an_update_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for all of them: in one thread nobody would get through. It counts as one update."""
    barrier = threading.Barrier(3)
    with engine(monkeypatch, 3, update=lambda rank: barrier.wait(BARRIER_S)) as (ranks, metrics):
        events = ranks.carry_out(update(3))
        assert [(type(event), event.report.rank) for event in events if isinstance(event, RankUpdated)] == [
            (RankUpdated, rank) for rank in range(3)
        ]
        assert [event.weights is None for event in events if isinstance(event, RankUpdated)] == [False, True, True]
        assert metrics.observed == 1


def test_a_rank_that_raises_is_lost_and_the_others_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the lease it started with; then commands to it are dropped until another is started."""
    with engine(monkeypatch, 2, update=on(1, SyncError("no reduce", detail="story"))) as (ranks, _):
        made, lost = ranks.carry_out(update(2))
        assert isinstance(made, RankUpdated) and isinstance(lost, RankLost)
        assert (lost.rank, lost.cause, lost.detail) == (1, "no reduce", "story")
        assert ranks.carry_out(AdoptState(rank=1, state=None)) == []
        (again,) = ranks.carry_out(StartRank(rank=1))
        assert isinstance(again, RankStarted) and again.lease != lost.lease


@pytest.mark.parametrize("error", [ConfigError("bad"), RunFailedError("not alike"), CheckpointError("other network")])
def test_what_a_new_rank_would_raise_again_ends_the_run(error: TruestepError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input, ranks that are not alike, a state that does not fit."""
    with engine(monkeypatch, 2, adopt=on(1, error)) as (ranks, _):
        (fatal,) = ranks.carry_out(AdoptState(rank=1, state=None))
        assert isinstance(fatal, Fatal) and fatal.error is error


@pytest.mark.parametrize("error", [DeadlineError("nobody came"), SyncError("no agreement")])
def test_a_rank_that_meets_nobody_lives(error: TruestepError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its join has failed, and it can be told to join again."""
    with engine(monkeypatch, 2, join=on(1, error)) as (ranks, _):
        events = ranks.carry_out(JoinGroup(formation=4, ranks=(0, 1)))
        assert kinds(events) == [GroupJoined, JoinFailed]
        assert isinstance(events[1], JoinFailed) and events[1].formation == 4 and events[1].cause == str(error)
        assert kinds(ranks.carry_out(AdoptState(rank=1, state=None))) == [StateAdopted]


def test_a_rank_that_hangs_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread can be ended: said, with who and what."""
    release = threading.Event()
    hang: Callable[[int], Any] = lambda rank: release.wait(BARRIER_S) if rank == 1 else None
    with engine(monkeypatch, 2, update_s=0.2, update=hang) as (ranks, _):
        (fatal,) = ranks.carry_out(update(2))
        release.set()
        assert isinstance(fatal, Fatal) and isinstance(fatal.error, DeadlineError)
        assert "learner rank 1 did not make update 0 within 0.2 s" in str(fatal.error)


def test_a_fault_of_the_code_is_raised_in_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no loss that a new rank would mend."""
    with engine(monkeypatch, 2, update=on(1, ZeroDivisionError())) as (ranks, _), pytest.raises(ZeroDivisionError):
        ranks.carry_out(update(2))


def test_a_rank_that_was_stopped_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event says so, and none comes from it; it has left the group, so that nobody waits for it."""
    left: list[int] = []
    with engine(monkeypatch, 2, leave=left.append) as (ranks, _):
        assert ranks.carry_out(StopRank(rank=1)) == [] and left == [1]
        assert kinds(ranks.carry_out(update(2))) == [RankUpdated]
        assert kinds(ranks.carry_out(JoinGroup(formation=2, ranks=(0,)))) == [GroupJoined]
