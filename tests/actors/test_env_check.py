"""What `truestep check` finds: each probe sees its own flaw, and none in the well-behaved twin."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from actors.env import check as check_module
from actors.env.check import gather, run_probe
from actors.env.check_facts import ConstructFacts, PlainFacts, PlayFacts, SpeedFacts
from actors.env.config import EnvConfig
from actors.env.lanes import Verdict
from actors.env.probes import Check, first_difference, probe_construct, probe_plain, probe_play
from common.clock import MonotonicClock
from common.errors import ConfigError, ContractError, DeadlineError, EnvironmentFault, TruestepError
from tests.actors.env_driving import test_id
from tests.actors.test_env_faults import children


def check_of(name: str, *, ticks: int = 40, **config: Any) -> Check:
    id = name if "-v" in name else test_id(name)
    return Check(config=EnvConfig(id=id, **config), seed=0, lanes=2, ticks=ticks, clock=MonotonicClock())


def plain(name: str, **kwargs: Any) -> PlainFacts:
    found = run_probe(check_of(name, kwargs=kwargs), probe_plain)
    assert isinstance(found, PlainFacts), found
    return found


def play(name: str, shift_s: float = 0.0, **kwargs: Any) -> PlayFacts:
    found = run_probe(check_of(name, kwargs=kwargs), partial(probe_play, shift_s=shift_s))
    assert isinstance(found, PlayFacts), found
    return found


@pytest.mark.parametrize(
    ("name", "kwargs", "alike"),
    [
        ("CartPole-v1", {}, (True, True, True, True)),
        ("GlobalRng", {}, (True, True, True, True)),
        ("SeedIgnoring", {"mode": "never"}, (True, True, True, True)),
        ("SeedIgnoring", {"mode": "always"}, (False, False, True, False)),
        ("SeedIgnoring", {"mode": "after_first_reset"}, (True, False, True, False)),
        ("SeedIgnoring", {"mode": "space_only"}, (True, True, False, True)),
        ("Counting", {}, (True, True, False, True)),
    ],
)
def test_what_a_seed_decides(name: str, kwargs: dict[str, Any], alike: tuple[bool, ...]) -> None:
    """Fresh twins, a second reset, other seeds, a reset without a seed; every other generator stands alike."""
    found = plain(name, **kwargs)
    assert (found.fresh_alike, found.again_alike, found.seeds_matter, found.unseeded_follows) == alike
    assert found.action_samples_repeat


def test_what_an_environment_hands_out() -> None:
    """An array that it writes to again, an observation beyond its own bounds; neither of a sound one."""
    assert plain("NaNReward").reuses_buffers
    assert "step returned array([11." in plain("NaNReward", length=50).outside_space
    sound = plain("CartPole-v1")
    assert (sound.reuses_buffers, sound.outside_space) == (False, "")


@pytest.mark.parametrize(
    ("name", "kwargs", "difference"),
    [
        ("CartPole-v1", {}, ""),
        ("GlobalRng", {}, ""),
        ("Opaque", {}, ""),
        ("StatefulObject", {}, "obs at tick 1"),
        ("SeedIgnoring", {}, "obs at tick 0"),
    ],
)
def test_two_equal_plays(name: str, kwargs: dict[str, Any], difference: str) -> None:
    """The first tick and field in which they differ is named; tick 0 is the reset."""
    assert play(name, **kwargs).difference == difference


def test_what_is_drawn_from_process_wide_generators() -> None:
    """Which generators, and whether anything came of it."""
    drawing = play("GlobalRng")
    assert (drawing.drawn, drawing.depends_on_drawn) == (("python", "numpy"), True)
    sound = play("CartPole-v1")
    assert (sound.drawn, sound.depends_on_drawn) == ((), False)


@pytest.mark.parametrize(
    ("kwargs", "reads", "same"),
    [
        ({"asks": "time"}, True, False),
        ({"asks": "datetime"}, True, False),
        ({"asks": "time", "tells": False}, True, True),
        ({"asks": "nothing"}, False, True),
    ],
)
def test_an_environment_that_asks_what_time_it_is(kwargs: dict[str, Any], reads: bool, same: bool) -> None:
    """The false clock makes two plays of one process equal, and counts; at another time of day the play is another."""
    now, later = play("Clock", **kwargs), play("Clock", shift_s=1e8, **kwargs)
    assert now.difference == ""
    assert (now.clock_reads > 0) is reads
    assert (first_difference(now.digests, later.digests) == "") is same


def test_episodes_that_break_are_counted_whatever_the_run_would_do() -> None:
    """stop_run stops a run at the first NaN; a check goes on, and says where it was."""
    found = play("NaNReward")
    assert found.broken > 0 and "lane 1, tick 3: reward is nan" in found.first_broken


def test_processes_that_close_leaves_are_counted_and_ended() -> None:
    """They are in the process group of the check."""
    found = [run_probe(check_of("Leaky", kwargs={"leaks": leaks}), probe_construct) for leaks in (True, False)]
    assert [facts.children_left for facts in found] == [1, 0]
    assert children() == []


@pytest.mark.parametrize(
    ("kind", "where", "error", "words"),
    [
        ("raise", "step", EnvironmentFault, "tick 2: step raised RuntimeError"),
        ("exit", "step", EnvironmentFault, "ended during step at tick 2"),
        ("segv", "reset", EnvironmentFault, "ended during reset"),
        ("hang", "step", DeadlineError, "step at tick 2 did not return"),
        ("hold_gil", "late_close", DeadlineError, "close did not return"),
        ("none", "step", ContractError, "tick 2: step"),
        ("partial_reset", "reset", ContractError, "tick 0: reset"),
    ],
)
def test_whatever_it_does_is_the_finding(kind: str, where: str, error: type[TruestepError], words: str) -> None:
    """Raise, exit, crash, hang: named with its method and tick within the deadline, and no process is left."""
    check = check_of("Faulty", kwargs={"kind": kind, "where": where}, step_deadline_s=1.0)
    found = run_probe(check, partial(probe_play, shift_s=0.0))
    assert isinstance(found, error)
    assert words in found.what
    assert children() == []


def test_a_whole_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts are there; an environment with a vector form of its own is timed in every way."""
    monkeypatch.setattr(check_module, "SPEED_S", 0.01)
    told: list[str] = []
    report = gather(check_of("CartPole-v1"), told.append)
    assert isinstance(report.construct, ConstructFacts) and report.construct.plain and report.construct.own
    assert isinstance(report.plain, PlainFacts) and isinstance(report.play, PlayFacts)
    assert isinstance(report.shifted, PlayFacts) and report.shifted.digests == report.play.digests
    assert report.restores == Verdict(restores="state", reason="")
    assert all(isinstance(speed, SpeedFacts) and speed.steps_per_s > 0 for speed in report.speeds)
    assert [(speed.vectorised, speed.lanes) for speed in report.speeds] == [
        *[("sync", lanes) for lanes in (1, 8, 32)],
        ("async", 8),
        *[("own", lanes) for lanes in (1, 8, 32)],
    ]
    assert len(told) == 6
    assert children() == []


def test_what_cannot_be_constructed_is_not_played() -> None:
    """One finding; nothing else is tried."""
    report = gather(check_of("Faulty", kwargs={"where": "init"}), lambda words: None)
    assert isinstance(report.construct, EnvironmentFault)
    assert (report.plain, report.play, report.shifted, report.restores, report.speeds) == (None, None, None, None, ())


def test_what_is_no_environment_is_bad_input() -> None:
    """An unknown id or argument is the caller's mistake, not a finding."""
    for check in (check_of("Nonsense"), check_of("CartPole-v1", kwargs={"gravitation": 9})):
        with pytest.raises(ConfigError):
            gather(check, lambda words: None)
