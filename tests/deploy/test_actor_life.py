"""Where actors are in their life: what a seat says, and what only its past tells."""

from __future__ import annotations

import pytest

from common.metrics import ActorState
from deploy.actor_life import ActorLives
from deploy.conductor.seats import Seat, SeatStatus
from tests.deploy.standing import busy

FATES = {"term": 0, "commits": 0, "window": 100}


@pytest.mark.parametrize(
    ("seat", "state"),
    [
        (Seat(actor=0), ActorState.CREATED),
        (busy(0), ActorState.RUNNING),
        (Seat(actor=0, status=SeatStatus.RUNNING), ActorState.BLOCKED),
        (Seat(actor=0, status=SeatStatus.QUARANTINED), ActorState.DEAD),
        (Seat(actor=0, status=SeatStatus.ABSENT), None),
    ],
    ids=["told to start", "has a fragment to make", "has none", "given up", "not wanted"],
)
def test_a_seat_says_most_of_it(seat: Seat, state: ActorState | None) -> None:
    """Of an actor that was never lost."""
    assert ActorLives().state_of(seat) is state


def test_a_lost_actor_is_dead_until_its_next_process_is_there() -> None:
    """And created once more only after it left its seat on purpose: the pool takes an actor back as a new one."""
    lives, seat = ActorLives(), busy(0)
    seat.lose(max_restarts=5, **FATES)
    lives.lose(0)
    assert lives.state_of(seat) is ActorState.DEAD
    seat.begin("next")
    lives.start(0)
    assert lives.state_of(seat) is ActorState.BLOCKED
    seat.stop()
    assert lives.state_of(seat) is None
    seat.status = SeatStatus.STARTING
    assert lives.state_of(seat) is ActorState.CREATED


def test_actors_are_counted_by_state() -> None:
    """Each wanted one once; an actor that was lost too often stays dead."""
    lives = ActorLives()
    seats = [busy(0), busy(1), Seat(actor=2), busy(3), Seat(actor=4, status=SeatStatus.ABSENT)]
    for actor, restarts in ((1, 5), (3, 0)):
        seats[actor].lose(max_restarts=restarts, **FATES)
        lives.lose(actor)
    assert lives.count(seats) == {ActorState.RUNNING: 1, ActorState.CREATED: 1, ActorState.DEAD: 2}
