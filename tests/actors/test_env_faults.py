"""Environments that raise, exit, crash and hang: who, where, the original traceback, within the deadline, none left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.env.config import EnvConfig
from actors.env.make import read_specs
from common.clock import MonotonicClock, wait_until
from common.errors import ConfigError, ContractError, DeadlineError, EnvironmentFault, TruestepError
from tests.actors.env_driving import lanes_of, test_id, transitions
from tests.envs.faulty import FaultyEnv


def fault(vectorise: str, num_lanes: int = 2, **options: Any) -> TruestepError:
    """Construct, drive and close `FaultyEnv`; what it ended in, wherever that was."""
    deadlines = {"step_deadline_s": 1.0, "construct_deadline_s": 1.0} if options.get("kind") == "hang" else {}
    with pytest.raises(TruestepError) as caught:
        lanes = lanes_of("Faulty", num_lanes, vectorise=vectorise, kwargs=options, **deadlines)
        try:
            transitions(lanes, 4, lambda lane, n: 0)
        finally:
            lanes.close()
            assert children() == []
    return caught.value


def children(parent: int = 0) -> list[int]:
    """Process ids of the living children of `parent`, ours by default."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return sorted(pid for pid in pids if state(pid) not in ("", "Z") and parent_of(pid) == (parent or os.getpid()))


def state(pid: int) -> str:
    """One letter from the kernel; Z for one that is dead, empty for one that is gone."""
    return (stat_fields(pid) or [""])[0]


def parent_of(pid: int) -> int:
    return int((stat_fields(pid) or ["", "0"])[1])


def stat_fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@pytest.mark.parametrize("vectorise", ["sync", "async"])
@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
@pytest.mark.parametrize("kind", ["raise", "sys_exit"])
def test_the_original_traceback_arrives(vectorise: str, where: str, kind: str) -> None:
    """Whatever a method raises is an EnvironmentFault that names actor, lane, tick and method; the same in both
    processes."""
    error = fault(vectorise, kind=kind, where=where)
    assert isinstance(error, EnvironmentFault)
    method = {"init": "construct"}.get(where, where)
    raised = {"raise": "RuntimeError", "sys_exit": "SystemExit"}[kind]
    tick = {"init": "", "reset": ", tick 0", "step": ", tick 2", "close": ""}[where]
    if where != "close":
        assert error.what == f"environment {test_id('Faulty')!r}, actor 0, lane 0{tick}: {method} raised {raised}"
    assert "tests/envs/faulty.py" in error.detail
    assert error.detail.rstrip().endswith({"raise": "lost its licence", "sys_exit": "SystemExit: 3"}[kind])


@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
@pytest.mark.parametrize(
    ("kind", "status"), [("exit", "exited with status 7"), ("segv", "was killed by signal 11 (SIGSEGV)")]
)
def test_a_child_that_dies_is_noticed_at_once(where: str, kind: str, status: str) -> None:
    """A lost process is an EnvironmentFault with its lane and exit status, long before the deadline."""
    error = fault("async", 1, kind=kind, where=where, lane_pid=os.getpid())
    assert isinstance(error, EnvironmentFault)
    assert "actor 0, lane 0: its process ended during" in error.what
    assert error.got == f"lane 0 {status}"


@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
def test_a_hanging_child_is_named_at_the_deadline(where: str) -> None:
    """A wait ends at its deadline with the lanes that did not answer, and the children are gone all the same."""
    error = fault("async", kind="hang", where=where, lane_pid=os.getpid())
    assert isinstance(error, DeadlineError)
    method = {"init": "open"}.get(where, where)
    assert f"actor 0 waited for {method} of lanes [0, 1]" in error.what
    assert error.got == "no answer in 1 s"


def test_one_killed_lane_of_three_is_named() -> None:
    """The other lanes are not blamed."""
    lanes = lanes_of("Counting", 3, vectorise="async")
    lanes.start()
    victim = children()[1]
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="lane 1: its process ended during step") as caught:
        lanes.step(lanes.current["obs"][:, 0].astype(int))
    assert caught.value.got == "lane 1 was killed by signal 9 (SIGKILL)"
    lanes.close()
    lanes.close()
    assert children() == []


def test_children_die_with_their_parent() -> None:
    """A killed actor leaves no environment process behind, not even one that hangs and reads no pipe."""
    parent = os.fork()
    if parent == 0:
        lanes_of("Faulty", 2, vectorise="async", kwargs={"kind": "hang", "where": "init", "lane_pid": os.getpid()})
        os._exit(1)
    clock = MonotonicClock()
    assert wait_until(lambda: len(children(parent)) == 2, clock=clock, seconds=30)
    orphans = children(parent)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert wait_until(lambda: all(state(pid) in ("", "Z") for pid in orphans), clock=clock, seconds=30)


def test_the_first_error_is_not_hidden_by_a_failing_close() -> None:
    """Who steps, fails and closes sees what step raised."""
    lanes = lanes_of("Faulty", vectorise="async", kwargs={"where": "step close", "at": 1, "lane_pid": os.getpid()})
    lanes.start()
    with pytest.raises(EnvironmentFault, match="step raised"):
        try:
            lanes.step(np.zeros(1, np.int64))
        finally:
            lanes.close()


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        (EnvConfig(id="CartPole-v11"), ConfigError, "close ones: CartPole-v1"),
        (EnvConfig(id="CartPole"), ConfigError, "close ones: CartPole-v1"),
        (EnvConfig(id="Nonsense-v0"), ConfigError, "write 'module:Id'"),
        (EnvConfig(id="no_such_module:X-v0"), ConfigError, "No module named 'no_such_module'"),
        (EnvConfig(id="CartPole-v1", kwargs={"gravitation": 9}), ConfigError, "'gravitation'"),
        (EnvConfig(id="CartPole-v1", vectorise="sync", kwargs={"gravitation": 9}), ConfigError, "'gravitation'"),
        (EnvConfig(id=test_id("Needs")), ConfigError, "'licence'"),
        (EnvConfig(id="Acrobot-v1", vectorise="own"), ConfigError, "no vector entry point"),
        (EnvConfig(id="Acrobot-v1", vectorise="threads"), ConfigError, "auto, own, sync, async"),  # type: ignore[arg-type]
        (EnvConfig(id="Acrobot-v1", on_nonfinite="skip"), ConfigError, "stop_run"),  # type: ignore[arg-type]
        (EnvConfig(id="Acrobot-v1", step_deadline_s=0), ConfigError, "env.step_deadline_s"),
        (EnvConfig(id=""), ConfigError, "no environment"),
        (EnvConfig(id=test_id("NoEnv")), ContractError, "gymnasium.Env"),
        (EnvConfig(id=test_id("NotInstalled")), ConfigError, "is not installed"),
    ],
)
def test_what_cannot_be_made_is_one_clear_error(config: EnvConfig, error: type[TruestepError], words: str) -> None:
    """Unknown ids suggest close ones; wrong arguments, missing modules and missing packages say which."""
    with pytest.raises(error) as caught:
        read_specs(config)
    assert words in str(caught.value)


def test_zero_lanes_are_refused() -> None:
    """There is no such thing as an actor without lanes."""
    with pytest.raises(ConfigError, match="at least 1"):
        lanes_of("Counting", 0)


@pytest.mark.parametrize("where", ["init", "close"])
@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("raise", EnvironmentFault, "raised RuntimeError; got the simulator lost its licence"),
        ("sys_exit", EnvironmentFault, "raised SystemExit; got 3"),
        ("exit", EnvironmentFault, "got it exited with status 7"),
        ("segv", EnvironmentFault, "got it was killed by signal 11 (SIGSEGV)"),
        ("hang", DeadlineError, "did not return; got no answer in 1 s"),
        ("hold_gil", DeadlineError, "did not return; got no answer in 1 s"),
    ],
)
def test_the_driver_survives_whatever_the_environment_does(
    where: str, kind: str, error: type[TruestepError], words: str
) -> None:
    """Its specs are read in a child under a deadline: a crash has its signal, an exception its traceback."""
    faulty = EnvConfig(
        id=test_id("Faulty"), kwargs={"kind": kind, "where": where}, construct_deadline_s=1, step_deadline_s=1
    )
    with pytest.raises(error) as caught:
        read_specs(faulty)
    assert words in str(caught.value)
    assert "the driver's check" in caught.value.what
    assert ("construct" if where == "init" else "close") in caught.value.what
    assert kind not in ("raise", "sys_exit") or "tests/envs/faulty.py" in caught.value.detail
    assert children() == []


def test_specs_are_read_without_lanes_left_behind() -> None:
    """The driver learns the specs from a child that is gone afterwards."""
    observation, action = read_specs(EnvConfig(id="CartPole-v1", vectorise="async"))
    assert observation["obs"].shape == (4,)
    assert action.nvec == (2,)
    assert children() == []


def test_a_fault_strikes_the_arrivals_asked_for_and_no_other(tmp_path: Path) -> None:
    """Counted over all who come, whichever environment they are: so a fault can be that of the first lives only."""

    def reset_raises() -> bool:
        try:
            FaultyEnv(where="reset", once=str(tmp_path / "came"), skip=1, times=2).reset()
        except RuntimeError:
            return True
        return False

    assert [reset_raises() for _ in range(5)] == [False, True, True, False, False]


@pytest.mark.parametrize("kind", ["none", "partial_reset"])
def test_what_a_reset_lacks_is_named(kind: str) -> None:
    """Nothing at all, or the observation without its info: a breach of contract, not a crash."""
    error = fault("sync", kind=kind, where="reset")
    assert isinstance(error, ContractError)
    assert "actor 0, lane 0, tick 0: reset" in error.what


def test_the_faulty_cart_pole_is_cart_pole_until_it_fails() -> None:
    """Its twin and itself make the same transitions before the fault."""
    expected = transitions(lanes_of("CartPole-v1", vectorise="sync"), 20, lambda lane, n: n % 2)
    assert transitions(lanes_of("FaultyCartPole", kwargs={"at": 21}), 20, lambda lane, n: n % 2) == expected
