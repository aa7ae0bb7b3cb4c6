"""What a driver says to probes: begun, alive, ready, each from what the driver's own thread has noted (C54)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from actors.evaluate import EvaluationResult
from common.clock import ManualClock
from common.errors import ConfigError, RunFailedError
from common.probes import Probe, ProbeAnswer
from deploy.conductor.messages import (
    ActorLost,
    ActorSnapshot,
    ActorStarted,
    CheckpointWritten,
    EvaluationMade,
    Event,
    Fatal,
    FragmentMade,
    GroupJoined,
    JoinFailed,
    LearnerSnapshot,
    LearnerStarted,
    RankLost,
    RankStarted,
    StateAdopted,
    StopAsked,
    WeightsHeld,
)
from deploy.conductor.seats import Seat, SeatStatus
from deploy.config import parse_config
from deploy.config_sections import MetricsConfig
from deploy.probes import LOOK_EVERY_S, MOST_WORDS, RunHealth
from learner.reports import Standing as RankStanding
from tests.deploy.simulation import FACTS, summary_of
from tests.deploy.standing import Standing, committed

STALL_S = 60.0
ENV: dict[str, Any] = {"env": {"id": "CartPole-v1"}}
RESULT = EvaluationResult(version=3, returns=(1.0,), lengths=(1,), unfinished=0)
RANK: dict[str, Any] = {
    "rank": 1,
    "lease": "l",
    "standing": RankStanding(rank=1, updates=0, state_digest="", parameter_digest=""),
}
PUBLISHED = LearnerStarted(version=1, updates=0, weights=None, parameter_digest="")


def started(actor: int) -> ActorStarted:
    return ActorStarted(actor=actor, incarnation=0, lease="l", facts=FACTS)


FORWARD: list[tuple[Event, str]] = [
    (FragmentMade(summary=summary_of(actor=4), frame=None), "a fragment of actor 4"),
    (started(2), "the start of actor 2"),
    (ActorSnapshot(actor=2, lease="l", update=7, snapshot=None), "a snapshot of actor 2"),
    (RankStarted(**RANK), "a step of rank 1 towards the group"),
    (StateAdopted(**RANK), "a step of rank 1 towards the group"),
    (GroupJoined(formation=1, **RANK), "a step of rank 1 towards the group"),
    (PUBLISHED, "weights of version 1"),
    (LearnerSnapshot(update=7, state=None, rank=1), "a snapshot of rank 1"),
    (EvaluationMade(update=7, final=False, result=RESULT), "the evaluation after update 7"),
    (CheckpointWritten(update=7, name="update-7", digest="d"), "the checkpoint of update 7"),
]
NO_PROGRESS: list[Event] = [
    ActorLost(actor=2, lease="l", cause="its process ended"),
    RankLost(rank=1, lease="l", cause="its process ended"),
    JoinFailed(formation=1, rank=1, lease="l", cause="nobody came"),
    WeightsHeld(actor=2, lease="l", version=4),
    EvaluationMade(update=7, final=False, result=None),
    CheckpointWritten(update=7, name="", digest="", error="no space left on device"),
    StopAsked(reason="SIGTERM"),
    Fatal(error=RunFailedError("it broke")),
]


@dataclass
class Driven:
    """A run's health, its clock, and a conductor that stands still."""

    clock: ManualClock = field(default_factory=ManualClock)
    standing: Standing = field(default_factory=Standing)

    def __post_init__(self) -> None:
        self.clock.advance(5.0)
        self.health = RunHealth(self.clock, stall_s=STALL_S)

    def look(self) -> None:
        self.clock.advance(LOOK_EVERY_S)
        self.health.look(self.standing.conductor)

    def alive(self) -> ProbeAnswer:
        return self.health.ask(Probe.LIVE)


@pytest.fixture
def driven() -> Driven:
    return Driven()


# ── begun ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_has_begun_once_it_is_in_its_record(driven: Driven) -> None:
    """Before, it says what is awaited; afterwards it has begun whatever becomes of it."""
    assert driven.health.ask(Probe.STARTUP) == ProbeAnswer(
        yes=False, why="waiting for the run's record, or the checkpoint to resume from"
    )
    driven.health.begin()
    driven.clock.advance(10 * STALL_S)
    assert driven.health.ask(Probe.STARTUP).yes


def test_a_start_that_never_ends_is_stuck_too(driven: Driven) -> None:
    """A record on a disk that hangs: alive for as long as anything else may take, and no longer."""
    driven.clock.advance(STALL_S)
    assert driven.alive() == ProbeAnswer(yes=True, why="the driver was started, 60 s ago")
    driven.clock.advance(1.0)
    assert not driven.alive().yes
    driven.health.begin()
    assert driven.alive() == ProbeAnswer(yes=True, why="the run began, 0 s ago")


# ── alive ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_waiting_for_places_is_not_stuck_before_its_own_deadline(driven: Driven) -> None:
    """However long an autoscaler may take; once they are there, the start of processes has its time."""
    driven.health.begin()
    driven.health.wait_for_places(600.0)
    driven.clock.advance(600.0 + STALL_S)
    assert driven.alive().yes
    driven.clock.advance(1.0)
    answer = driven.alive()
    assert not answer.yes and answer.why.endswith("since the run asked for places; waiting for places in the cluster")
    driven.health.have_places()
    driven.clock.advance(STALL_S)
    assert driven.alive().why == "the run had its places, 60 s ago"
    driven.clock.advance(1.0)
    assert not driven.alive().yes


@pytest.mark.parametrize(("event", "what"), FORWARD, ids=lambda each: type(each).__name__)
def test_what_brings_a_run_forward_keeps_it_alive(event: Event, what: str, driven: Driven) -> None:
    """The time is counted anew, and the answer names the last step forward."""
    driven.clock.advance(STALL_S + 1)
    assert not driven.alive().yes
    driven.health.observe(event)
    driven.clock.advance(STALL_S)
    assert driven.alive() == ProbeAnswer(yes=True, why=f"{what}, 60 s ago")


@pytest.mark.parametrize("event", NO_PROGRESS, ids=lambda each: type(each).__name__)
def test_losses_and_failures_are_no_progress(event: Event, driven: Driven) -> None:
    """However many there are: a run that only loses actors is stuck."""
    driven.clock.advance(STALL_S)
    driven.health.observe(event)
    driven.clock.advance(1.0)
    assert not driven.alive().yes


def test_every_kind_of_event_is_one_or_the_other() -> None:
    """But for a rank's answer: only the commit that may follow counts."""
    known = {type(event).__name__ for event, _ in FORWARD} | {type(event).__name__ for event in NO_PROGRESS}
    assert {kind.__name__ for kind in Event.__args__} - known == {"RankUpdated"}


def test_a_committed_update_is_progress(driven: Driven) -> None:
    """It is named."""
    driven.clock.advance(STALL_S + 1)
    driven.health.commit(committed(41))
    assert driven.alive() == ProbeAnswer(yes=True, why="update 41, 0 s ago")


def test_a_stuck_run_says_since_when_and_what_it_waits_for(driven: Driven) -> None:
    """As the conductor has it, and not without end; `/healthz` is the same question."""
    driven.health.begin()
    driven.look()
    driven.clock.advance(STALL_S)
    why = "no progress for 61 s (60 s are allowed) since the run began; waiting for nothing"
    assert driven.alive() == driven.health.ask(Probe.HEALTH) == ProbeAnswer(yes=False, why=why)
    driven.standing.awaited = "x" * 10_000
    driven.look()
    assert driven.alive().why.endswith(f"waiting for {'x' * MOST_WORDS} ...")


def test_looking_is_done_once_a_second(driven: Driven) -> None:
    """The loop turns up to fifty times a second, and a crowd of actors makes many words."""
    driven.standing.awaited = "actor 0"
    driven.look()
    driven.standing.awaited = "actor 1"
    for _ in range(9):
        driven.clock.advance(LOOK_EVERY_S / 10)
        driven.health.look(driven.standing.conductor)
    driven.clock.advance(STALL_S)
    assert driven.alive().why.endswith("waiting for actor 0")
    driven.look()
    assert driven.alive().why.endswith("waiting for actor 1")


# ── ready ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_is_ready_once_weights_are_out_and_every_actor_was_heard(driven: Driven) -> None:
    """Until then it says who is missing; actors that are not wanted, or given up, are not waited for."""
    actors = [SeatStatus.RUNNING, SeatStatus.STARTING, SeatStatus.ABSENT, SeatStatus.QUARANTINED]
    driven.standing.seats = [Seat(actor=actor, status=status) for actor, status in enumerate(actors)]
    driven.standing.seats.append(Seat(actor=4, status=SeatStatus.RUNNING, leaving=True))
    for event, missing in (
        (started(0), "the learner's weights, actor 1"),
        (PUBLISHED, "actor 1"),
        (started(1), ""),
    ):
        driven.health.observe(event)
        driven.look()
        said = driven.health.ask(Probe.READY)
        assert said == ProbeAnswer(yes=not missing, why=f"waiting for {missing}" if missing else "ok")


def test_a_run_that_was_ready_stays_so(driven: Driven) -> None:
    """A lost actor is mended by the run; whoever routes to the driver has nothing to take away from it."""
    driven.standing.seats = [Seat(actor=0, status=SeatStatus.RUNNING)]
    driven.health.observe(PUBLISHED)
    driven.health.observe(started(0))
    driven.look()
    driven.standing.seats = [Seat(actor=each, status=SeatStatus.STARTING) for each in range(3)]
    driven.look()
    assert driven.health.ask(Probe.READY) == ProbeAnswer(yes=True, why="ok")


# ── how long ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_probe_says_no_before_the_run_has_had_its_chance_to_mend_itself() -> None:
    """900 s for an evaluation, 180 s for the process that takes the place of the one that hung, and a minute."""
    assert parse_config(ENV).stall_s == 1140.0
    deadlines = {"collect_s": 10, "update_s": 40, "evaluate_s": 20, "snapshot_s": 30, "checkpoint_s": 20, "start_s": 50}
    sync = {"sync": {"collective_s": 5}}
    given = ENV | {"deadlines": {name: float(value) for name, value in deadlines.items()}, "learner": sync}
    assert parse_config(given).stall_s == 40 + 50 + 60
    assert parse_config(given | {"metrics": {"stall_s": 7.5}}).stall_s == 7.5


@pytest.mark.parametrize("stall_s", [-1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(stall_s: float) -> None:
    """With what is allowed."""
    with pytest.raises(ConfigError, match=r"metrics\.stall_s.*allowed: 0"):
        MetricsConfig(stall_s=stall_s)
