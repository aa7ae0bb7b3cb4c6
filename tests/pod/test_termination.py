"""SIGTERM to one process of a run of several: an actor is replaced, a rank ends the run for all of them (C55)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.runs import RunRegistry
from deploy.config import parse_config
from deploy.drill_faults import Drill
from deploy.session import Outcome, resume, train
from learner.parallel.faults import FaultKind, RankFault
from tests.e2e.command import alive, checkpoints, processes_of, updates_made
from tests.e2e.in_process import beside, children, embedded_ray, wait_for, wait_for_updates, wait_gone

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
RANK, ACTOR = "ray::RankProcess", "ray::ActorProcess"
SLOW_S = 3.0  # of a step of the rank that all others wait for
SLOW_UPDATE = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    yield from embedded_ray(6)


def while_it_runs(out: Path, script: Callable[[], None], *, ranks: int = 1, drill: Drill | None = None) -> Outcome:
    """Train without end while `script` does its worst; its end asks the run to stop."""
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "engine": "ray",
        "steps": 10**9,
        "actors": {"num": 3, "lanes": 4, "rows": 16},
        "learner": {"ranks": ranks, "sync": {"collective_s": 20.0}},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 96},
        "evaluation": {"every": 0, "final_episodes": 1, "lanes": 1, "max_ticks": 10},
        "metrics": {"enabled": False},
    }
    return beside(lambda stop: train(parse_config(plain), out=out, run="r", stop=stop, drill=drill), script)


def pids(title: str) -> list[int]:
    return [pid for pid in processes_of(os.getpid(), title) if alive(pid)]


def events(out: Path, kind: str) -> list[dict[str, Any]]:
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        return [event.data for event in registry.events("r") if event.kind == kind]


def over(out: Path) -> bool:
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        return registry.run("r").status != "running"


def assert_accounts(out: Path) -> None:
    """Produced = trained + dropped + in flight, after every update; none is missing."""
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        rows = registry.updates("r")
    assert [row.update for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert row.produced == row.trained + sum(row.dropped.values()) + row.in_flight


def assert_ended_at_one_checkpoint(outcome: Outcome, out: Path) -> None:
    """Exit code 75, nobody lost, a checkpoint of the last update and none besides; the run goes on from there."""
    assert outcome.status == "interrupted" and outcome.exit_code == 75, outcome.verdict
    assert not events(out, "RANK_LOST") and not events(out, "ACTOR_LOST")
    assert len(events(out, "STOP_ASKED")) == 1
    made = updates_made(out, "r")
    assert [int(name.removeprefix("update-")) for name in checkpoints(out, "r")] == [made]
    again = beside(lambda stop: resume("r", out=out, stop=stop), lambda: wait_for_updates(out, 2))
    assert again.exit_code == 75 and updates_made(out, "r") >= made + 2, again.verdict
    assert_accounts(out)
    wait_gone(children)


def test_sigterm_to_an_actor_costs_one_actor_one_life(cluster: None, tmp_path: Path) -> None:
    """As a machine that is taken away sends it: the actor ends at once and another takes its place; what it was making
    is counted, and the run goes on."""

    def script() -> None:
        wait_for_updates(tmp_path, 2)
        os.kill(pids(ACTOR)[0], signal.SIGTERM)
        wait_for(lambda: bool(events(tmp_path, "ACTOR_LOST")))
        wait_for_updates(tmp_path, 2)

    outcome = while_it_runs(tmp_path, script)
    assert outcome.exit_code == 75, outcome.verdict
    (lost,) = events(tmp_path, "ACTOR_LOST")
    assert lost["new_incarnation"] == 1 and lost["fragments_lost"] <= 1
    assert_accounts(tmp_path)
    wait_gone(children)


def test_sigterm_to_the_only_rank_ends_the_run_at_a_checkpoint(cluster: None, tmp_path: Path) -> None:
    """Twice, as somebody does who thinks that the first one was not heard."""

    def script() -> None:
        wait_for_updates(tmp_path, 2)
        (rank,) = pids(RANK)
        for _ in range(2):
            os.kill(rank, signal.SIGTERM)
        wait_for(lambda: over(tmp_path))

    outcome = while_it_runs(tmp_path, script)
    assert outcome.verdict.startswith("SIGTERM at learner rank 0")
    assert_ended_at_one_checkpoint(outcome, tmp_path)


def test_sigterm_to_one_of_three_ranks_in_the_middle_of_a_collective(cluster: None, tmp_path: Path) -> None:
    """Two ranks wait in a reduce for the third, whose step takes long, when one of them is told: it stays until all
    have made the update, and all end at the same one."""
    reached = tmp_path / "reached"
    fault = RankFault(kind=FaultKind.DELAY, rank=2, update=SLOW_UPDATE, seconds=SLOW_S, mark=str(reached))

    def script() -> None:
        wait_for(reached.exists)
        os.kill(pids(RANK)[0], signal.SIGTERM)
        wait_for(lambda: over(tmp_path))

    outcome = while_it_runs(tmp_path, script, ranks=3, drill=Drill(of_ranks=(fault,)))
    assert "SIGTERM at learner rank" in outcome.verdict
    assert updates_made(tmp_path, "r") > SLOW_UPDATE
    assert_ended_at_one_checkpoint(outcome, tmp_path)
