"""What breaks while a run goes on costs what it must and no more, and is said with its cause."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.worker import ActorWorker
from common.runs import EventRecord, RunRecord, RunRegistry, UpdateRecord
from deploy.config import RunConfig, parse_config
from deploy.session import Outcome, train
from tests.e2e.command import SMALL, Started, alive, answer, checkpoints, processes_of, truestep, updates_made
from tests.e2e.in_process import beside, children, embedded_ray, wait_for, wait_for_updates, wait_gone

pytest.importorskip("ray")
FAULTY = "tests.envs:truestep-tests/Faulty-v0"
SILENT_S = 2.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    yield from embedded_ray(4)


def config(**changes: Any) -> RunConfig:
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1", "step_deadline_s": SILENT_S},
        "engine": "ray",
        "seed": 3,
        "steps": 1280,
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 32},
        "evaluation": {"every": 0, "final_episodes": 2, "lanes": 2, "max_ticks": 10},
        "metrics": {"enabled": False},
    }
    return parse_config(plain | changes)


def faulty(**kwargs: Any) -> dict[str, Any]:
    """An environment that misbehaves at tick 100 of its only episode, which no check before the start comes to."""
    return {"id": FAULTY, "step_deadline_s": SILENT_S, "kwargs": {"where": "step", "at": 100, **kwargs}}


def record(out: Path, run: str = "r") -> tuple[RunRecord, list[UpdateRecord], list[EventRecord]]:
    """What the registry says of a run; the accounts hold in each of its updates."""
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        found, rows, events = registry.run(run), registry.updates(run), registry.events(run)
    for row in rows:
        assert row.produced == row.trained + sum(row.dropped.values()) + row.in_flight
    return found, rows, events


def of_kind(events: list[EventRecord], kind: str) -> list[dict[str, Any]]:
    return [event.data for event in events if event.kind == kind]


def while_it_runs(out: Path, script: Callable[[], None], **changes: Any) -> Outcome:
    """Train without end while `script` does its worst; its end asks the run to stop."""
    endless = config(steps=10**9, **changes)
    return beside(lambda stop: train(endless, out=out, run="r", stop=stop), script)


# ---- processes -----------------------------------------------------------------------------------------------------


def test_a_killed_actor_comes_back_and_what_it_was_making_is_counted(cluster: None, tmp_path: Path) -> None:
    """kill -9: a new incarnation of that actor, its fragment in `fragments_lost`, the other's work untouched."""

    def script() -> None:
        wait_for_updates(tmp_path, 2)
        os.kill(processes_of(os.getpid(), "ray::ActorProcess")[0], signal.SIGKILL)
        wait_for(lambda: bool(of_kind(record(tmp_path)[2], "ACTOR_LOST")))
        wait_for_updates(tmp_path, 2)

    outcome = while_it_runs(tmp_path, script)
    assert outcome.status == "interrupted", outcome.verdict
    _, rows, events = record(tmp_path)
    (lost,) = of_kind(events, "ACTOR_LOST")
    assert lost["new_incarnation"] == 1 and "process ended" in lost["cause"]
    assert f"actor {lost['actor']}" in lost["cause"]
    shown = answer(truestep("show", "r", "--out", str(tmp_path), "--json"))
    assert shown["fragments_lost"] == rows[-1].fragments_lost == lost["fragments_lost"] <= 1  # 0 if it was idle
    assert shown["produced"] == shown["trained"] + sum(shown["dropped"].values()) + shown["in_flight"]
    wait_gone(children)


@pytest.mark.parametrize(
    ("kind", "cause", "detail"),
    [
        ("raise", ["tick 100", "RuntimeError", "lane"], ["the simulator lost its licence", "_maybe"]),
        pytest.param("exit", ["process ended"], [], marks=pytest.mark.slow),
        pytest.param("segv", ["process ended"], [], marks=pytest.mark.slow),
        ("hang", ["process ended"], ["step did not return within 2 s", "tick", "_maybe"]),
        ("hold_gil", ["process ended"], ["step", "tick", "_maybe"]),
    ],
)
def test_an_environment_that_fails_once_costs_one_actor_one_life(
    kind: str, cause: list[str], detail: list[str], cluster: None, tmp_path: Path
) -> None:
    """Cause and the user's own frame are in the event; the other actor goes on, and the run comes to its end."""
    outcome = train(config(env=faulty(kind=kind, once=str(tmp_path / "once"))), out=tmp_path, run="r")
    assert outcome.status == "finished", outcome.verdict
    _, rows, events = record(tmp_path)
    (lost,) = of_kind(events, "ACTOR_LOST")
    assert f"actor {lost['actor']}" in lost["cause"]
    assert all(word in lost["cause"] for word in cause), lost["cause"]
    assert all(word in lost["detail"] for word in detail), lost["detail"]
    assert lost["new_incarnation"] == 1 and rows[-1].fragments_lost == 1
    wait_gone(children)


@pytest.mark.parametrize("engine", ["inline", "ray"])
def test_a_run_without_actors_ends_with_the_last_cause_as_its_verdict(
    engine: str, cluster: None, tmp_path: Path
) -> None:
    """Each actor lost more often than it may be restarted: exit code 1, the original traceback with the error."""
    actors = {"num": 2, "lanes": 2, "rows": 16, "max_restarts": 0}
    changes = {"engine": engine, "actors": actors, "env": faulty(kind="raise")}
    outcome = train(config(**changes), out=tmp_path, run="r")
    assert outcome.status == "failed" and outcome.exit_code == 1
    assert "no actor is left" in outcome.verdict and FAULTY in outcome.verdict and "tick 100" in outcome.verdict
    assert outcome.error is not None and "the simulator lost its licence" in outcome.error.detail
    found, _, events = record(tmp_path)
    assert found.status == "failed" and found.verdict == outcome.verdict
    assert len(of_kind(events, "ACTOR_QUARANTINED")) == 2
    wait_gone(children)


@pytest.mark.slow
def test_one_actor_that_is_given_up_leaves_the_run_to_the_other(cluster: None, tmp_path: Path) -> None:
    """With no restart left, updates are made of the fragments of whoever lives."""
    actors = {"num": 2, "lanes": 4, "rows": 16, "max_restarts": 0}
    changes = {"actors": actors, "env": faulty(kind="raise", once=str(tmp_path / "once"))}
    outcome = train(config(**changes), out=tmp_path, run="r")
    assert outcome.status == "finished", outcome.verdict
    _, rows, events = record(tmp_path)
    assert [event["actor"] for event in of_kind(events, "ACTOR_QUARANTINED")] == [
        event["actor"] for event in of_kind(events, "ACTOR_LOST")
    ]
    assert rows[-1].produced - rows[-2].produced <= 4 * 16


@pytest.mark.slow
def test_an_environment_that_does_not_close_holds_nothing_up(cluster: None, tmp_path: Path) -> None:
    """A hang in close is cut by its deadline: the run has finished, and no process is left."""
    outcome = train(config(env=faulty(kind="hang", where="late_close")), out=tmp_path, run="r")
    assert outcome.status == "finished", outcome.verdict
    wait_gone(children)


@pytest.mark.slow
def test_children_of_asynchronous_environments_are_gone_with_their_actor(cluster: None, tmp_path: Path) -> None:
    """After kill -9 of the actor, and after the end of the run."""
    env = {"id": "CartPole-v1", "vectorise": "async"}
    forked: list[int] = []

    def script() -> None:
        wait_for_updates(tmp_path, 1)
        actor = processes_of(os.getpid(), "ray::ActorProcess")[0]
        forked.extend(pid for pid in processes_of(actor, "") if pid != actor)
        assert len(forked) >= 2
        os.kill(actor, signal.SIGKILL)
        wait_gone(lambda: [pid for pid in forked if alive(pid)])
        wait_for_updates(tmp_path, 2)

    actors = {"num": 2, "lanes": 2, "rows": 16}
    outcome = while_it_runs(tmp_path, script, env=env, actors=actors)
    assert outcome.status == "interrupted", outcome.verdict
    assert len(forked) >= 2
    wait_gone(children)


@pytest.mark.parametrize("whose", ["ours", pytest.param("Ray's too", marks=pytest.mark.slow)])
def test_kill_9_of_the_driver_takes_everything_with_it(whose: str, tmp_path: Path) -> None:
    """Actors, learner and environments' children within moments; Ray's own processes when they notice, in a minute."""
    words = ["--steps", "10000000", "--out", str(tmp_path), "--run", "r", *SMALL, "--set", "env.vectorise=async"]
    with Started(["train", "CartPole-v1", *words, "--set", "evaluation.every=0"]) as started:
        started.wait_for(lambda: updates_made(tmp_path, "r") > 0, "an update")
        watched = [pid for pid in processes_of(started.process.pid, "") if pid != started.process.pid]
        ours = {pid for title in ("ray::Actor", "ray::Rank") for pid in processes_of(started.process.pid, title)}
        assert len(ours) == 2 + 1 + 2 * 4  # actors, the learner, lanes
        watched = sorted(ours) if whose == "ours" else watched
        started.kill(signal.SIGKILL)
        started.finish()
        wait_gone(lambda: [pid for pid in watched if alive(pid)])
    status = answer(truestep("show", "r", "--out", str(tmp_path), "--json"))["status"]
    assert status == "died"


# ---- data and disk -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["inline"])
def test_a_damaged_frame_is_refused_and_counted(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flipped byte: refused as corrupt, its transitions dropped under that name, and training goes on."""
    sound, made = ActorWorker.collect, []

    def collect(self: ActorWorker, order: Any, weights: Any) -> Any:
        frame, summary = sound(self, order, weights)
        made.append(summary.num_valid)
        if len(made) == 4:
            frame = np.array(frame)
            frame[len(frame) // 2] ^= 1
        return frame, summary

    monkeypatch.setattr(ActorWorker, "collect", collect)
    outcome = train(config(engine=engine), out=tmp_path, run="r")
    assert outcome.status == "finished", outcome.verdict
    _, rows, events = record(tmp_path)
    assert rows[-1].dropped == {"corrupt": made[3]}
    (refused,) = of_kind(events, "FRAGMENT_REFUSED")
    assert refused["reason"] == "corrupt" and refused["detail"]
    assert rows[-1].trained > rows[1].trained


@contextmanager
def small_disk(place: Path, kib: int) -> Iterator[None]:
    """A file system of `kib` at `place`; skips the test where that needs rights we do not have."""
    place.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all the space that is left."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1024))
        except OSError:
            return filler


def failed_checkpoints(out: Path) -> list[dict[str, Any]]:
    return of_kind(record(out)[2], "CHECKPOINT_FAILED")


@pytest.mark.parametrize("relieved", [True, False])
def test_a_full_disk_costs_checkpoints_and_not_the_run(relieved: bool, tmp_path: Path) -> None:
    """Each failure is recorded and the last good checkpoint stays; only a final one that fails, fails the run."""
    place = tmp_path / "r" / "checkpoints"

    def script() -> None:
        wait_for(lambda: len(checkpoints(tmp_path, "r")) >= 3)
        filler = fill(place)
        wait_for(lambda: len(failed_checkpoints(tmp_path)) >= 2)
        wait_for_updates(tmp_path, 2)
        if relieved:
            filler.unlink()

    with small_disk(place, 1024):
        outcome = while_it_runs(tmp_path, script, engine="inline", checkpoint={"every": 2})
        found, _, _ = record(tmp_path)
        assert "space" in failed_checkpoints(tmp_path)[0]["error"]
        if relieved:
            assert found.status == "interrupted" and outcome.exit_code == 75
        else:
            assert found.status == "failed" and outcome.exit_code == 1
            assert "the last checkpoint could not be written" in found.verdict and "space" in found.verdict
        kept = checkpoints(tmp_path, "r")
        assert kept
        evaluated = answer(truestep("evaluate", "r", "--episodes", "2", "--out", str(tmp_path), "--json"))
        assert evaluated["checkpoint"] == kept[-1]


def test_a_registry_on_a_full_disk_ends_the_run_with_that_as_its_message(tmp_path: Path) -> None:
    """The record is what the run is for: without it there is no going on. One message, exit code 1, no traceback."""
    out = tmp_path / "out"
    with small_disk(out, 2048):
        words = ["--engine", "inline", "--out", str(out), "--run", "r", *SMALL, "--set", "evaluation.every=0"]
        with Started(["train", "CartPole-v1", "--steps", "100000000", *words]) as started:
            started.wait_for(lambda: len(checkpoints(out, "r")) > 0 or updates_made(out, "r") > 2, "an update")
            filler = fill(out)
            completed = started.finish()
        assert completed.returncode == 1
        assert "run registry" in completed.stderr and "free space" in completed.stderr
        assert completed.stderr.count("truestep: ") == 1 and "Traceback" not in completed.stderr
        filler.unlink()
        assert answer(truestep("show", "r", "--out", str(out), "--json"))["status"] in ("died", "failed")
