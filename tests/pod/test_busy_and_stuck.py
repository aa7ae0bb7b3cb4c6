"""Probes of a run of several processes: a busy one is left alone, one in which everybody hangs is not (C54)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from common.clock import MonotonicClock
from common.manifest import CheckpointInfo
from common.probes import Probe
from deploy.config import RunConfig, parse_config
from deploy.saved import save_cut
from deploy.session import train
from tests.e2e.command import alive, checkpoints, processes_of
from tests.e2e.in_process import beside, embedded_ray, wait_for, wait_for_updates
from tests.pod.polling import Kubelet, Tally

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RANK, ACTOR = "ray::RankProcess", "ray::ActorProcess"
STALL_S = 25.0
HELD_S = 10.0
DISK_S = 30.0
BUSY = 8  # threads that do nothing but compute, beside the run's own processes


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    yield from embedded_ray(3)


def config() -> RunConfig:
    """No watchdog and no deadline of a process strikes before the probes do."""
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1", "step_deadline_s": 300.0},
        "engine": "ray",
        "steps": 10**9,
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 32},
        "evaluation": {"every": 0, "final_episodes": 1, "lanes": 1, "max_ticks": 10},
        "metrics": {"stall_s": STALL_S},
    }
    return parse_config(plain)


@contextmanager
def stopped(*titles: str) -> Iterator[None]:
    """Processes of the run that the kernel gives no time: to others they are as if they held their interpreter."""
    pids = [pid for title in titles for pid in processes_of(os.getpid(), title) if alive(pid)]
    assert pids, f"no process is called {titles}"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def busy_machine() -> Iterator[None]:
    """More work than there are processors."""
    workers = [os.posix_spawn("/bin/sh", ["sh", "-c", "while :; do :; done"], os.environ) for _ in range(BUSY)]
    try:
        yield
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def assert_never_told_no(tally: Tally) -> None:
    assert not tally.noes and tally.statuses[200] >= 10
    print(f"\n{tally.statuses[200]} probes, the longest answer took {tally.longest_s:.3f} s")


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Event:
    """While this is set, writing a checkpoint takes `DISK_S`."""
    slow, clock = Event(), MonotonicClock()
    slow.set()

    def slowly(*arguments: Any) -> CheckpointInfo:
        if slow.is_set():
            clock.sleep(DISK_S)
        return save_cut(*arguments)

    monkeypatch.setattr("deploy.session.save_cut", slowly)
    return slow


def test_a_busy_run_is_alive_and_a_stuck_one_is_not(cluster: None, slow_disk: Event, tmp_path: Path) -> None:
    """The learner gets no time for 10 s, a checkpoint takes 30 s, and more threads compute than there are processors:
    every probe says yes. Then nobody gets any time: the probe says no, and yes again once they do."""
    kubelet, clock = Kubelet(tmp_path), MonotonicClock()

    def script() -> None:
        kubelet.wait_for(Probe.READY, 200)
        wait_for_updates(tmp_path, 2)
        with kubelet.polling(Probe.LIVE) as held, stopped(RANK):
            clock.sleep(HELD_S)
        assert_never_told_no(held)
        with kubelet.polling(Probe.LIVE) as writing:
            now = len(checkpoints(tmp_path, "r"))
            wait_for(lambda: len(checkpoints(tmp_path, "r")) > now)
        slow_disk.clear()
        assert_never_told_no(writing)
        with kubelet.polling(Probe.LIVE) as crowded, busy_machine():
            wait_for_updates(tmp_path, 2)
            clock.sleep(HELD_S)
        assert_never_told_no(crowded)
        with stopped(RANK, ACTOR):
            assert "waiting for " in kubelet.wait_for(Probe.LIVE, 503).why
            assert kubelet.ask(Probe.STARTUP).status == 200
        kubelet.wait_for(Probe.LIVE, 200)

    endless = config().to_plain() | {"checkpoint": {"every": 50, "keep_last": 100}}
    outcome = beside(lambda stop: train(parse_config(endless), out=tmp_path, run="r", stop=stop), script)
    assert outcome.exit_code == 75, outcome.verdict
