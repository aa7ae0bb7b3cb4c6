"""A crowd of actors, most of which misbehave, each in its own way: found, named, replaced or given up; others go on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.clock import NS_PER_S, MonotonicClock, wait_until
from common.ledger import TRAINED, Ledger
from common.runs import EventRecord, RunRegistry, UpdateRecord
from deploy.config import RunConfig, parse_config
from deploy.session import Outcome, train
from tests.e2e.command import alive, processes_of, updates_made
from tests.e2e.in_process import beside, children, embedded_ray, wait_gone

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CROWD = 8
ROWS = 16
WAYS = ("raise", "sys_exit", "exit", "segv", "hold_gil", "sleep")
WAYS_THAT_ANSWER = ("raise", "none", *WAYS[2:])  # in reset and step one of them returns None: it breaks its contract
STEP_S, CONSTRUCT_S = 2.0, 6.0
PATIENT_S = 10.0
CLOSE_S = 20.0  # of actors, and of what Ray leaves behind
NOTICE_S = 10.0  # for what follows a deadline on a busy machine: watchdog, end of the process, Ray's word of it
LIMIT_S = 150.0
PROOF_STEPS = 100  # more than the environments of a proof make


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    yield from embedded_ray(CROWD + 1)


def config(env: dict[str, Any], **changes: Any) -> RunConfig:
    """IMPALA without end, `CROWD` actors of two lanes."""
    deadlines = {"step_deadline_s": STEP_S, "construct_deadline_s": CONSTRUCT_S}
    plain: dict[str, Any] = {
        "env": {"id": "tests.envs:truestep-tests/CrowdedCartPole-v0", **deadlines, **env},
        "algo": "impala",
        "engine": "ray",
        "seed": 3,
        "steps": 10**9,
        "actors": {"num": CROWD, "lanes": 2, "rows": ROWS},
        "flow": {"fragments": 2, "max_lag": 64},
        "net": {"hidden": [16]},
        "evaluation": {"every": 0, "final_episodes": 1, "lanes": 1, "max_ticks": 10},
        "metrics": {"enabled": False},
    }
    return parse_config(plain | changes)


def crowd(path: Path, where: str, ways: tuple[str, ...] = WAYS, **kwargs: Any) -> dict[str, Any]:
    """Two actors are well; those who come after them misbehave in `where`."""
    usual = {"path": str(path), "kinds": " ".join(ways), "well": CROWD - len(WAYS), "faults": len(WAYS)}
    fault = {"where": where, "at": PROOF_STEPS, "seconds": 1000.0}
    return {"kwargs": usual | fault | kwargs}


class Seen:
    """The record of run `r`, as far as it is written."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._file = out / "runs.sqlite"

    def events(self, kind: str) -> list[EventRecord]:
        if not updates_made(self._out, "r"):
            return []  # the registry may be half made
        with RunRegistry.open(self._file, read_only=True) as registry:
            return [event for event in registry.events("r") if event.kind == kind]

    def data(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.events(kind)]

    def ledger(self) -> Ledger:
        with RunRegistry.open(self._file, read_only=True) as registry:
            return registry.ledger("r")

    def updates(self) -> list[UpdateRecord]:
        """The accounts hold in each."""
        with RunRegistry.open(self._file, read_only=True) as registry:
            rows = registry.updates("r")
        for row in rows:
            assert row.produced == row.trained + sum(row.dropped.values()) + row.in_flight
        return rows

    def fragments(self, actor: int) -> int:
        """How many of an actor's were trained on or dropped."""
        return sum(each.actor == actor for each in self.ledger().fragments) if updates_made(self._out, "r") else 0

    def trained(self) -> set[tuple[int, int]]:
        """Lives, actor and incarnation, of whom fragments were trained on."""
        if not updates_made(self._out, "r"):
            return set()
        return {(each.actor, each.incarnation) for each in self.ledger().fragments if each.fate == TRAINED}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Processes take seconds to start, eight at once take long."""
    assert wait_until(condition, clock=MonotonicClock(), seconds=LIMIT_S, poll_s=0.25), what


def while_it_runs(config: RunConfig, out: Path, script: Callable[[], None]) -> Outcome:
    return beside(lambda stop: train(config, out=out, run="r", stop=stop), script)


def struck(path: Path) -> list[int]:
    """When faults happened, in ns of the monotonic clock, earliest first."""
    return sorted(int(note.read_text()) for note in path.parent.glob(f"{path.name}.*.*"))


def assert_found_in_time(path: Path, found: list[EventRecord], deadline_s: float) -> None:
    """As many as happened, the n-th of them no later than its deadline and the time to notice allow."""
    happened = struck(path)
    assert len(happened) == len(found)
    for fault_ns, event in zip(happened, sorted(found, key=lambda each: each.monotonic_ns), strict=True):
        assert 0 <= (event.monotonic_ns - fault_ns) / NS_PER_S <= deadline_s + NOTICE_S


TOLD = {  # what only the loss of one that misbehaved in this way says
    "raise": "raised RuntimeError",
    "sys_exit": "raised SystemExit",
    "none": r"tick \d+: {phase}; got None",
    "hold_gil": r"last seen in {phase}.*\n.*Timeout",  # what faulthandler's own thread has to say
    "sleep": "{phase} did not return within",
}
PHASES = {"init": "construct", "reset": "(?:construct|reset)", "step": "step"}  # a proof resets while it constructs


def assert_named(lost: list[dict[str, Any]], where: str, ways: tuple[str, ...] = WAYS, times: int = 1) -> None:
    """Each way of misbehaving is told of as often as it happened: the two that end their process by that alone."""
    stories = [f"{each['cause']}\n{each['detail']}" for each in lost]
    for words in (TOLD[way] for way in ways if way in TOLD):
        pattern = words.format(phase=PHASES[where])
        assert sum(bool(re.search(pattern, story)) for story in stories) == times, (pattern, stories)
    ended = [story for story in stories if "process ended" in story]
    assert len(ended) == 4 * times, stories
    assert sum("in fail_maybe" not in story for story in ended) == 2 * times, (
        "no stack of those that ended it themselves"
    )
    for each, story in zip(lost, stories, strict=True):
        assert f"actor {each['actor']}" in each["cause"]
        if "raised" in each["cause"]:
            assert "lane" in each["cause"] and "Traceback" in story and "fail_maybe" in story
        if where == "step" and "raised" in each["cause"]:
            assert re.search(r"tick \d+", each["cause"])


@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_six_of_eight_actors_misbehave_once_and_come_back(where: str, cluster: None, tmp_path: Path) -> None:
    """Each in its own way: found within the deadline, named with what is known of it, replaced under a new incarnation
    whose fragments are trained on; the two that are well never stop; the accounts hold, and no process is left."""
    seen, path = Seen(tmp_path), tmp_path / "came"
    ways = WAYS if where == "init" else WAYS_THAT_ANSWER

    def script() -> None:
        wait_for(lambda: len(seen.events("ACTOR_LOST")) >= len(WAYS), "all are found")
        lost = {each["actor"] for each in seen.data("ACTOR_LOST")}
        wait_for(lambda: {actor for actor, life in seen.trained() if life > 0} >= lost, "all are back")

    outcome = while_it_runs(config(crowd(path, where, ways)), tmp_path, script)
    assert outcome.status == "interrupted", outcome.verdict
    lost = seen.data("ACTOR_LOST")
    assert len({each["actor"] for each in lost}) == len(lost) == len(WAYS), "one life of each"
    assert {each["new_incarnation"] for each in lost} == {1}
    assert_named(lost, where, ways)
    assert_found_in_time(path, seen.events("ACTOR_LOST"), CONSTRUCT_S if where == "init" else STEP_S)
    assert {actor for actor, life in seen.trained() if life == 0} >= set(range(CROWD)) - {e["actor"] for e in lost}
    assert seen.updates()[-1].fragments_lost == sum(each["fragments_lost"] for each in lost)
    wait_gone(children)


def test_six_of_eight_actors_that_never_do_better_are_given_up(cluster: None, tmp_path: Path) -> None:
    """Each is restarted once and misbehaves again: then it is left alone, and the run is that of the other two."""
    seen, path = Seen(tmp_path), tmp_path / "came"

    def script() -> None:
        wait_for(lambda: len(seen.events("ACTOR_QUARANTINED")) >= len(WAYS), "all are given up")
        made = updates_made(tmp_path, "r")
        wait_for(lambda: updates_made(tmp_path, "r") > made + 2, "the others go on")

    actors = {"num": CROWD, "lanes": 2, "rows": ROWS, "max_restarts": 1}
    outcome = while_it_runs(config(crowd(path, "step", faults=1000), actors=actors), tmp_path, script)
    assert outcome.status == "interrupted", outcome.verdict
    lost, given_up = seen.data("ACTOR_LOST"), seen.data("ACTOR_QUARANTINED")
    assert sorted(each["actor"] for each in lost) == sorted(2 * [each["actor"] for each in given_up])
    assert_named(lost, "step", times=2)
    assert len(seen.updates()) > 0
    wait_gone(children)


@pytest.mark.parametrize("vectorise", ["sync", "async"])
def test_environments_that_do_not_close_hold_nothing_up(vectorise: str, cluster: None, tmp_path: Path) -> None:
    """Six actors misbehave in `close`, each in its own way: the run ends as it was to, and within the deadline of
    closing no process is left, nor any child of asynchronous environments."""
    seen, path = Seen(tmp_path), tmp_path / "came"
    ended: list[int] = []

    def script() -> None:
        enough = PROOF_STEPS // ROWS + 2  # for every environment to be past the step from which its close fails
        wait_for(lambda: min(seen.fragments(actor) for actor in range(CROWD)) >= enough, "all are past it")
        ended.append(MonotonicClock().now_ns())

    patient = {"construct_deadline_s": 60.0, "step_deadline_s": PATIENT_S}  # 16 children start on two cores
    env = crowd(path, "late_close") | {"vectorise": vectorise} | patient
    outcome = while_it_runs(config(env), tmp_path, script)
    assert outcome.status == "interrupted", outcome.verdict
    assert (MonotonicClock().now_ns() - ended[0]) / NS_PER_S <= PATIENT_S + CLOSE_S + NOTICE_S
    assert seen.data("ACTOR_LOST") == []
    wait_gone(lambda: [pid for pid in processes_of(os.getpid(), "ray::ActorProcess") if alive(pid)])
