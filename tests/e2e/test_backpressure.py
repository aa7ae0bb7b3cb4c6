"""What one side could make and the other cannot take is not made: memory stays, and nothing is lost uncounted."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.clock import MonotonicClock
from common.runs import RunRegistry
from tests.e2e.command import ROOT, Started, environment, processes_of, updates_made
from tests.e2e.slow_learner import SLEEP_S

MINUTES = 10
WARM_UP_S = 60
SAMPLE_EVERY_S = 2.0


def memory_bytes(driver: int) -> dict[str, int]:
    """Of driver, actors and ranks what is their own (RssAnon); of the object store what is in use (RssShmem: the same
    pages show in every process that maps them, so the largest counts)."""
    own = {"driver": _status(driver, "RssAnon"), "actors": 0, "ranks": 0}
    for role, title in (("actors", "ray::ActorProcess"), ("ranks", "ray::RankProcess")):
        own[role] = sum(_status(pid, "RssAnon") for pid in processes_of(driver, title))
    return own | {"store": max(_status(pid, "RssShmem") for pid in [driver, *processes_of(driver, "")])}


def _status(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 300)
def test_a_slow_learner_holds_the_actors_back(tmp_path: Path) -> None:
    """Ten minutes with a learner slowed ten times: memory of driver, actors, ranks and object store together grows by
    less than 1 % a minute after the first one, and the accounts hold to the end."""
    updates = str(int(MINUTES * 60 / SLEEP_S))
    command = [sys.executable, "-m", "tests.e2e.slow_learner", str(tmp_path), updates]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL)
    clock, samples = MonotonicClock(), list[tuple[float, int]]()
    try:
        while updates_made(tmp_path, "r") < 1:
            assert process.poll() is None
            clock.sleep(SAMPLE_EVERY_S)
        start_ns = clock.now_ns()
        while (seconds := (clock.now_ns() - start_ns) / 1e9) < 60 * MINUTES:
            assert process.poll() is None
            samples.append((seconds, sum(memory_bytes(process.pid).values())))
            clock.sleep(SAMPLE_EVERY_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 75
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    early = statistics.median(used for seconds, used in samples if WARM_UP_S <= seconds < 2 * WARM_UP_S)
    late = statistics.median(used for seconds, used in samples if seconds >= 60 * MINUTES - 60)
    growth = (late / early - 1.0) / (MINUTES - 2)
    print(f"{early / 2**20:.0f} MiB, then {late / 2**20:.0f} MiB: {100 * growth:+.3f} % a minute")
    assert growth < 0.01
    assert_accounts_hold(tmp_path)


def actors_seen(out: Path) -> set[int]:
    """Whose fragments have a fate."""
    if not updates_made(out, "r"):
        return set()
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        return {fragment.actor for fragment in registry.ledger("r").fragments}


def assert_accounts_hold(out: Path) -> dict[str, Any]:
    """Every valid transition that reached the driver was trained on, dropped for a reason, or is in the checkpoint."""
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        accounts = next(event.data for event in reversed(registry.events("r")) if event.kind == "ACCOUNTS")
        tally = registry.ledger_tally("r")
    in_flight = accounts["produced"] - accounts["trained"] - sum(accounts["dropped"].values())
    assert in_flight >= 0
    assert tally.made > 0
    return accounts


@pytest.mark.slow
def test_slow_actors_starve_the_learner_and_the_pool_grows_to_its_bound(tmp_path: Path) -> None:
    """One actor whose environment sleeps, up to three allowed: the learner reports that it starves, and gets them.
    However long it takes for the machine to start them, fragments of all three are trained on.
    """
    arguments = ["train", "tests.envs:truestep-tests/Jitter-v0", "--algo", "impala"]
    arguments += ["--out", str(tmp_path), "--run", "r", "--steps", "1000000", "--json"]
    arguments += ["--actors", "1", "--lanes", "2", "--rows", "8", "--set", "actors.most=3"]
    arguments += ["--set", "env.kwargs={most_ms = 20}", "--set", "evaluation.every=0"]
    arguments += ["--set", "evaluation.final_episodes=1", "--set", "evaluation.max_ticks=50"]
    with Started(arguments) as run:
        run.wait_for(lambda: actors_seen(tmp_path) == {0, 1, 2}, "fragments of three actors")
        run.kill(signal.SIGTERM)
        assert run.finish().returncode == 75
    with RunRegistry.open(tmp_path / "runs.sqlite", read_only=True) as registry:
        assert registry.starved_updates("r") > 0
