"""Planted slow-downs: that each is what it says, and how a matrix of verdicts is summed up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.attribution import Judged, confusion, summary
from benchmarks.envs.sleepy import SleepyCartPole
from benchmarks.stalls import CASES, NUM_ACTORS, NUM_RANKS, VICTIM, Case
from common.clock import ManualClock
from common.metrics import Stall
from deploy.drill_faults import Drill

BY_NAME = {case.name: case for case in CASES}


def judged(case: Case, verdict: Stall | None, *history: str) -> Judged:
    return Judged(case=case, verdict=verdict, history=history, words="", window=())


def test_there_are_seven_slow_downs_and_a_healthy_run() -> None:
    """Each has a verdict of its own, and a configuration that fits."""
    assert len(CASES) == 8 and len({case.verdict for case in CASES}) == 8
    for case in CASES:
        config = case.config(3)
        assert (config.actors.num, config.learner.ranks, config.asynchronous) == (NUM_ACTORS, NUM_RANKS, True)


def test_one_thing_is_wrong_in_each_case(tmp_path: Path) -> None:
    """The healthy run's load is the base of all; slow actor, slow disk, hogs and late rank are in one case each."""
    assert [case.name for case in CASES if case.hogs] == ["CPU hog"]
    assert [case.name for case in CASES if case.drill(tmp_path).of_actors] == ["one slow actor"]
    assert [case.name for case in CASES if case.drill(tmp_path).disk_s] == ["slow disk"]
    late = {}
    for case in CASES:
        seconds = [[fault.seconds for fault in case.drill(tmp_path).of_rank(rank)] for rank in range(NUM_RANKS)]
        late[case.name] = seconds[VICTIM][0] - seconds[0][0]
    assert {name for name, seconds in late.items() if seconds > 0} == {"delayed rank"}


def test_a_slow_disk_takes_longer_for_every_checkpoint() -> None:
    """And saves what it was given all the same."""
    clock = ManualClock()
    slowed = Drill(disk_s=1.5).slowed(lambda cut: cut, clock)  # type: ignore[arg-type, return-value]
    assert slowed("cut") == "cut"  # type: ignore[arg-type, comparison-overlap]
    assert clock.now_ns() == 1_500_000_000


def test_the_environment_sleeps_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step, and longer from the step of its fault on."""
    slept: list[float] = []
    env = SleepyCartPole(step_s=0.25, fault="sleep", at=2, seconds=1.0)
    monkeypatch.setattr(env._clock, "sleep", slept.append)
    env.reset(seed=0)
    for _ in range(3):
        env.step(0)
    assert slept == [0.25, 0.25, 1.25]


def test_the_matrix_has_a_line_for_each_case() -> None:
    """And a column for each verdict that was given or due."""
    healthy, disk = BY_NAME["healthy"], BY_NAME["slow disk"]
    runs = [judged(healthy, Stall.HEALTHY), judged(disk, Stall.HEALTHY), judged(disk, None)]
    assert confusion(runs).splitlines() == [
        "| planted   | healthy | io_blocked | failed |",
        "| --------- | ------- | ---------- | ------ |",
        "| healthy   | 1       | .          | .      |",
        "| slow disk | 1       | .          | 1      |",
    ]


def test_a_healthy_run_must_never_have_been_blamed() -> None:
    """Not even for a while; of the others one may be misjudged, and a run that failed is."""
    healthy, disk = BY_NAME["healthy"], BY_NAME["slow disk"]
    good = [judged(healthy, Stall.HEALTHY), judged(disk, Stall.IO_BLOCKED, "actor_bound", "io_blocked")]
    assert summary(good) == {"runs": 2, "healthy_blamed": 0, "misjudged": 0, "kept": True}
    assert summary([*good, judged(disk, Stall.HEALTHY)])["kept"]
    assert not summary([*good, judged(disk, Stall.HEALTHY), judged(disk, None)])["kept"]
    assert not summary([*good, judged(healthy, Stall.HEALTHY, "actor_bound", "healthy")])["kept"]
