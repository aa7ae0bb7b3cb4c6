"""A crowd of actors, most of which misbehave, each in its own way: found, named, replaced or given up; others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.clock import NS_PER_S, MonotonicClock, wait_until
from common.ledger import TRAINED, Ledger
from common.runs import EventRecord, RunRegistry, UpdateRecord
from deploy.config import RunConfig, parse_config
from deploy.session import Outcome, train
from tests.e2e.command import updates_made
from tests.e2e.in_process import beside, children, embedded_ray, wait_gone

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CROWD = 8
WAYS = ("raise", "sys_exit", "exit", "segv", "hold_gil", "sleep")
STEP_S, CONSTRUCT_S = 2.0, 6.0
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
        "actors": {"num": CROWD, "lanes": 2, "rows": 16},
        "flow": {"fragments": 2, "max_lag": 64},
        "net": {"hidden": [16]},
        "evaluation": {"every": 0, "final_episodes": 1, "lanes": 1, "max_ticks": 10},
        "metrics": {"enabled": False},
    }
    return parse_config(plain | changes)


def crowd(path: Path, where: str, **kwargs: Any) -> dict[str, Any]:
    """Two actors are well; those who come after them misbehave in `where`."""
    usual = {"path": str(path), "kinds": " ".join(WAYS), "well": CROWD - len(WAYS), "faults": len(WAYS)}
    fault = {"where": where, "at": PROOF_STEPS, "seconds": 1000.0}
    return {"kwargs": usual | fault | kwargs}


class Seen:
    """The record of run `r`, as far as it is written."""

    def __init__(self, out: Path) -> None:
        self._file = out / "runs.sqlite"

    def events(self, kind: str) -> list[EventRecord]:
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

    def trained(self) -> set[tuple[int, int]]:
        """Lives, actor and incarnation, of whom fragments were trained on."""
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


@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_six_of_eight_actors_misbehave_once_and_come_back(where: str, cluster: None, tmp_path: Path) -> None:
    """Each in its own way and once: found within the deadline, named with what is known of it, replaced under a new
    incarnation whose fragments are trained on; the two that are well lose nothing; the accounts hold."""
    seen, path = Seen(tmp_path), tmp_path / "came"

    def script() -> None:
        wait_for(lambda: updates_made(tmp_path, "r") > 0, "an update")
        wait_for(lambda: len(seen.events("ACTOR_LOST")) >= len(WAYS), "all are found")
        lost = {each["actor"] for each in seen.data("ACTOR_LOST")}
        wait_for(lambda: {actor for actor, life in seen.trained() if life > 0} >= lost, "all are back")

    outcome = while_it_runs(config(crowd(path, where)), tmp_path, script)
    assert outcome.status == "interrupted", outcome.verdict
    lost = seen.data("ACTOR_LOST")
    for each in lost:
        print(each)
    assert len({each["actor"] for each in lost}) == len(WAYS), "one life of each"
    assert_found_in_time(path, seen.events("ACTOR_LOST"), CONSTRUCT_S if where == "init" else STEP_S)
    wait_gone(children)
