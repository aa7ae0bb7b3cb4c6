"""Faults of drills strike once, where and when they are due, and nobody else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from actors.env.config import EnvConfig
from actors.env.sabotaged import SABOTAGED, SabotagedCartPole
from common.clock import ManualClock
from deploy import drill_faults
from deploy.drill_border import Border
from deploy.drill_faults import (
    LEARNER,
    WELL_AFTER,
    ActorFault,
    ActorFaultKind,
    BorderFault,
    BorderFaultKind,
    Drill,
    back_file,
    well_file,
)
from learner.reports import FragmentKey, UpdateOrder

CLOCK = ManualClock(42)


class Killed(Exception):
    """Instead of the end of the test's own process."""


@pytest.fixture
def mark(tmp_path: Path) -> str:
    return str(tmp_path / "mark")


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pids that were sent SIGKILL; to kill oneself raises."""
    pids: list[int] = []

    def kill_this_process() -> None:
        raise Killed

    monkeypatch.setattr(drill_faults, "kill_this_process", kill_this_process)
    monkeypatch.setattr("deploy.drill_faults.os.kill", lambda pid, number: pids.append(pid))
    return pids


def of_actor(kind: ActorFaultKind, mark: str, **fields: Any) -> Drill:
    return Drill(of_actors=(ActorFault(kind=kind, actor=1, update=3, mark=mark, **fields),))


def test_a_frame_is_corrupted_once_and_where_it_is_due(mark: str) -> None:
    """One bit of the frame of its update or the first after; not before, not of another actor, not twice."""
    drill = of_actor(ActorFaultKind.CORRUPT_FRAME, mark)
    frame = np.zeros(9, dtype=np.uint8)
    for actor, update in ((0, 3), (1, 2)):
        drill.after_collect(actor, update, frame, CLOCK)
    assert not frame.any() and not Path(mark).exists()
    drill.after_collect(1, 4, frame, CLOCK)
    assert frame.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0] and Path(mark).read_text() == "42"
    drill.after_collect(1, 5, frame, CLOCK)
    assert frame[4] == 1


def test_an_actor_kills_itself_once(mark: str, killed: list[int]) -> None:
    """Before the collect that is due; its next life lives."""
    drill = of_actor(ActorFaultKind.KILL, mark)
    drill.before_collect(1, 2, CLOCK)
    drill.before_collect(0, 3, CLOCK)
    with pytest.raises(Killed):
        drill.before_collect(1, 3, CLOCK)
    drill.before_collect(1, 4, CLOCK)


def test_a_node_goes_down_as_a_whole(mark: str, killed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before all its actors have collected once; then the others first, oneself last; nobody of another node."""
    drill = of_actor(ActorFaultKind.CUT_NODE, mark, node=(1, 2))
    drill.before_collect(1, 5, CLOCK)
    assert not Path(mark).exists(), "actor 2 is not there yet"
    for actor, pid in ((0, 100), (2, 102)):
        monkeypatch.setattr("deploy.drill_faults.os.getpid", lambda pid=pid: pid)
        drill.before_collect(actor, 0, CLOCK)
    monkeypatch.setattr("deploy.drill_faults.os.getpid", lambda: 101)
    with pytest.raises(Killed):
        drill.before_collect(1, 6, CLOCK)
    assert killed == [102] and Path(mark).read_text() == "42"


def test_who_comes_back_says_so_and_is_well_after_some_fragments(mark: str) -> None:
    """By its next life only, once its fault has been; a slow actor by the same life."""
    drill = of_actor(ActorFaultKind.KILL, mark)
    drill.made(1, 1, 0, CLOCK)
    assert not Path(back_file(mark, 1)).exists(), "nothing has happened yet"
    Path(mark).write_text("1")
    drill.made(0, 1, 0, CLOCK)
    drill.made(1, 0, 9, CLOCK)
    assert not Path(back_file(mark, 0)).exists() and not Path(back_file(mark, 1)).exists()
    drill.made(1, 1, 0, CLOCK)
    assert Path(back_file(mark, 1)).read_text() == "42" and not Path(well_file(mark, 1)).exists()
    drill.made(1, 1, WELL_AFTER, CLOCK)
    assert Path(well_file(mark, 1)).exists()


def test_only_the_victims_environments_are_told_of_their_fault(mark: str) -> None:
    """Beside what the configuration says."""
    drill = of_actor(ActorFaultKind.SLOW_ENV, mark, step=160, seconds=2.0)
    env = EnvConfig(id=SABOTAGED, kwargs={"fault": ""})
    assert drill.environment(0, env) == env
    told = {"fault": "sleep", "at": 160, "seconds": 2.0, "mark": mark}
    assert drill.environment(1, env) == dataclasses.replace(env, kwargs=told)
    assert Drill().environment(1, env) == env


# ---- environments --------------------------------------------------------------------------------------------------


def steps(env: gymnasium.Env[Any, Any], number: int) -> list[Any]:
    """Observations of `number` steps from the beginning of an episode."""
    env.reset(seed=5)
    return [env.step(step % 2)[0].tolist() for step in range(number)]


def test_a_sabotaged_environment_is_cartpole_until_its_fault_and_after(mark: str) -> None:
    """The same bits; the fault comes with its step, and never again once it has its mark."""
    expected = steps(gymnasium.make("CartPole-v1"), 8)
    assert steps(SabotagedCartPole(), 8) == expected
    env = SabotagedCartPole(fault="raise", at=4, mark=mark)
    assert steps(env, 3) == expected[:3]
    with pytest.raises(RuntimeError, match="told to raise"):
        env.step(1)
    assert int(Path(mark).read_text()) > 0
    assert steps(SabotagedCartPole(fault="raise", at=4, mark=mark), 8) == expected


def test_a_sabotaged_environment_that_sleeps_goes_on(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it was told, once; one that hangs sleeps longer than any deadline."""
    slept: list[float] = []
    monkeypatch.setattr("common.clock.MonotonicClock.sleep", lambda _, seconds: slept.append(seconds))
    expected = steps(gymnasium.make("CartPole-v1"), 8)
    assert steps(SabotagedCartPole(fault="sleep", at=4, seconds=2.0, mark=mark), 8) == expected
    Path(mark).unlink()
    steps(SabotagedCartPole(fault="hang", at=4, mark=mark), 4)
    assert slept[0] == 2.0 and slept[1] > 10_000


# ---- the border of the learner -------------------------------------------------------------------------------------


def order(update: int, *actors: int) -> UpdateOrder:
    keys = tuple(FragmentKey(actor=actor, incarnation=0, sequence=place) for place, actor in enumerate(actors))
    return UpdateOrder(update=update, term=0, publish_as=0, keys=keys)


def border(kind: BorderFaultKind, mark: str, actor: int | None) -> Border:
    return Border((BorderFault(kind=kind, actor=actor, update=2, mark=mark),))


def frames(*values: int) -> tuple[Any, ...]:
    return tuple(np.array([value], dtype=np.uint8) for value in values)


def values(arrived: tuple[Any, ...]) -> list[int]:
    return [int(frame[0]) for frame in arrived]


def test_a_frame_comes_again_in_the_place_of_the_next_one(mark: str) -> None:
    """From its update on, as soon as the actor has one, and once."""
    learner = border(BorderFaultKind.DUPLICATE, mark, 1)
    assert values(learner.let_in(order(1, 0, 1), frames(10, 11), CLOCK)) == [10, 11]
    assert values(learner.let_in(order(2, 0, 0), frames(20, 21), CLOCK)) == [20, 21]
    assert not Path(mark).exists()
    assert values(learner.let_in(order(3, 1, 0), frames(31, 30), CLOCK)) == [11, 30]
    assert values(learner.let_in(order(4, 1, 0), frames(41, 40), CLOCK)) == [41, 40]
    assert not Path(well_file(mark, LEARNER)).exists()
    learner.let_in(order(3 + WELL_AFTER, 0), frames(50), CLOCK)
    assert Path(well_file(mark, LEARNER)).exists()


def test_two_frames_of_one_actor_change_places(mark: str) -> None:
    """In the first update from its own on that has two of one, and once."""
    learner = border(BorderFaultKind.REORDER, mark, None)
    assert values(learner.let_in(order(1, 0, 0), frames(1, 2), CLOCK)) == [1, 2]
    assert values(learner.let_in(order(2, 0, 1), frames(3, 4), CLOCK)) == [3, 4]
    assert values(learner.let_in(order(3, 2, 0, 1, 0), frames(5, 6, 7, 8), CLOCK)) == [5, 8, 7, 6]
    assert values(learner.let_in(order(4, 0, 0), frames(9, 10), CLOCK)) == [9, 10]
    assert Path(mark).read_text() == "42"


def test_without_a_fault_nothing_is_touched_or_kept() -> None:
    """The same tuple, not a copy."""
    arriving = frames(1, 2)
    assert Border(()).let_in(order(9, 0, 0), arriving, CLOCK) is arriving
