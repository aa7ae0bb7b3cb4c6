"""Profiles and screens of a live Ray run: the planted hot function is named, and the run neither stops nor changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.cli import Profile, Top, run_command
from deploy.config import RunConfig, parse_config
from deploy.session import resume, train
from tests.e2e.command import digests
from tests.e2e.in_process import beside, embedded_ray, wait_for, wait_for_updates

HOT = "planted_spin (tests/envs/spinning.py)"
COMPARED = 6  # updates

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    yield from embedded_ray(3)


def config(**changes: object) -> RunConfig:
    plain = {
        "env": {"id": "tests.envs:truestep-tests/SpinningCartPole-v0"},
        "algo": "ppo",
        "seed": 3,
        "steps": 10_000_000,
        "engine": "ray",
        "actors": {"num": 2, "lanes": 4, "rows": 64},
        "ppo": {"minibatch": 256},
        "net": {"hidden": [16]},
        "evaluation": {"every": 0, "final_episodes": 2},
    }
    return parse_config(plain | changes)


def profile(out: Path, process: str, **options: object) -> int:
    return run_command(Profile(run="r", process=process, out=out, **options))  # type: ignore[arg-type]


def test_a_live_run_is_profiled_and_watched_and_keeps_its_bits(
    cluster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From outside where that may be, from inside, as a trace: updates go on meanwhile, and they are those of a run
    that nobody looked at."""
    flames = {sampler: tmp_path / f"{sampler}.svg" for sampler in ("auto", "inside")}
    trace = tmp_path / "trace.json"

    def script() -> None:
        wait_for_updates(tmp_path, 1)
        for sampler, file in flames.items():
            assert profile(tmp_path, "actor-1", seconds=3.0, sampler=sampler, output=file) == 0
        assert profile(tmp_path, "rank-0", kind="torch", seconds=0.5, output=trace) == 0
        assert profile(tmp_path, "actor-0", kind="stacks", sampler="inside") == 0
        assert profile(tmp_path, "driver", kind="memory", seconds=1.0) == 0
        assert run_command(Top(run="r", out=tmp_path, once=True)) == 0
        wait_for_updates(tmp_path, 2)
        wait_for(lambda: len(digests(tmp_path, "r")) >= COMPARED)

    outcome = beside(lambda stop: train(config(), out=tmp_path, run="r", stop=stop), script)
    assert outcome.status == "interrupted", outcome.verdict
    for file in flames.values():
        assert HOT in file.read_text(), file
    assert "aten::addmm" in {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    said = capsys.readouterr().out
    assert "ActorWorker.collect" in said and "allocated by Python within 1 s" in said
    assert "2 running" in said or "blocked" in said
    assert "no answer" not in said
    unseen = config(engine="inline", steps=COMPARED * 2 * 4 * 64, metrics={"enabled": False})
    assert train(unseen, out=tmp_path, run="unseen").status == "finished"
    found = digests(tmp_path, "unseen")
    assert len(found) >= COMPARED - 1
    common = found.keys() & digests(tmp_path, "r").keys()
    assert len(common) >= COMPARED - 1
    assert {update: found[update] for update in common} == {update: digests(tmp_path, "r")[update] for update in common}


def test_a_resumed_run_is_found_where_it_serves_now(
    cluster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The address of the driver before is nobody's any more; the totals go on."""
    outcome = beside(
        lambda stop: train(config(), out=tmp_path, run="r", stop=stop), lambda: wait_for_updates(tmp_path, 2)
    )
    assert outcome.status == "interrupted", outcome.verdict
    assert run_command(Top(run="r", out=tmp_path, once=True)) == 2
    assert "is not running; got interrupted" in capsys.readouterr().err

    def script() -> None:
        wait_for_updates(tmp_path, 1)
        assert run_command(Top(run="r", out=tmp_path, once=True)) == 0

    assert beside(lambda stop: resume("r", out=tmp_path, stop=stop), script).status == "interrupted"
    shown = capsys.readouterr().out
    assert "learner-0" in shown and "actor-1" in shown
