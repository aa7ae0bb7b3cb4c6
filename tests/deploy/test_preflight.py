"""Preflight: what there is held against what a run needs, told as one table, and never a wait without end."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.clock import ClockSource, clock_source
from common.errors import EXIT_BAD_INPUT, EXIT_FINISHED, RegistryError
from common.runs_trial import try_directory
from deploy.compose import Composition, compose
from deploy.config import merge, parse_config, recipe
from deploy.preflight.check import Check, Outcome, PreflightError, enforce, table
from deploy.preflight.cluster import Needs, Node, check_cluster
from deploy.preflight.command import tell_checks
from deploy.preflight.local import check_clock, check_directory, check_shared_memory, file_system
from deploy.preflight.node import look_around, shm
from deploy.preflight.preflight import checks_here, needs_of

MIB, GIB = 2**20, 2**30
CLOCK = ClockSource(name="CLOCK_MONOTONIC_RAW", monotonic=True, resolution_s=1e-9, kernel="tsc")
DRIVER = replace(
    look_around(),
    host="head",
    python="3.11.2",
    ray="2.60.0",
    torch="2.13.0",
    sources={"actors": "a", "common": "c", "deploy": "d", "learner": "l"},
    shm_bytes=4 * GIB,
    shm_free_bytes=4 * GIB,
    gpus=0,
    clock=CLOCK,
)
HEAD = Node(address="10.0.0.1", cpus=4, gpus=0, store_bytes=GIB, holds_driver=True, facts=DRIVER)
WORKER = replace(HEAD, address="10.0.0.2", cpus=2, holds_driver=False, facts=replace(DRIVER, host="worker"))
NEEDS = Needs(cpus=6, gpus=0, store_bytes=GIB)


def short(checks: list[Check]) -> list[tuple[str, str]]:
    return [(check.where, check.what) for check in checks if check.outcome is Outcome.SHORT]


def warned(checks: list[Check]) -> list[tuple[str, str]]:
    return [(check.where, check.what) for check in checks if check.outcome is Outcome.WARNING]


def told(worker: Node, **facts: Any) -> Node:
    """The node, which says something else of itself."""
    assert worker.facts is not None
    return replace(worker, facts=replace(worker.facts, **facts))


def composition(**settings: Any) -> Composition:
    _, values = recipe("ppo", "CartPole-v1")
    return compose("r", parse_config(merge(merge(values, {"env": {"id": "CartPole-v1"}}), settings)))


# ---- a cluster -------------------------------------------------------------------------------------------------------


def test_a_cluster_that_has_what_is_needed_is_met_in_every_check() -> None:
    """Two nodes alike: 6 CPUs for 6 processes, a store of 1 GiB for 1 GiB."""
    checks = check_cluster([HEAD, WORKER], NEEDS, DRIVER)
    assert {check.outcome for check in checks} == {Outcome.OK}
    assert all(not check.fix for check in checks)
    assert {check.where for check in checks} == {"cluster", "10.0.0.1", "10.0.0.2"}


@pytest.mark.parametrize(
    ("worker", "where", "what"),
    [
        (replace(WORKER, cpus=1), "cluster", "CPUs"),
        (replace(WORKER, facts=None, silence="no answer within 60 s"), "10.0.0.2", "process"),
        (told(WORKER, python="3.12.2"), "10.0.0.2", "Python"),
        (told(WORKER, ray="2.59.0"), "10.0.0.2", "Ray"),
        (told(WORKER, torch="not installed"), "10.0.0.2", "torch"),
        (told(WORKER, sources={**DRIVER.sources, "learner": "other"}), "10.0.0.2", "truestep"),
        (told(WORKER, clock=replace(CLOCK, monotonic=False)), "10.0.0.2", "clock"),
        (told(WORKER, clock=replace(CLOCK, resolution_s=0.01)), "10.0.0.2", "clock"),
        (replace(WORKER, gpus=2), "10.0.0.2", "GPU driver"),
    ],
)
def test_each_shortfall_of_a_node_is_told_with_its_place(worker: Node, where: str, what: str) -> None:
    """One thing wrong, one row that is short; a silent node is such a row too."""
    checks = check_cluster([HEAD, worker], NEEDS, DRIVER)
    assert short(checks) == [(where, what)]
    assert all(check.fix for check in checks if check.outcome is Outcome.SHORT)


def test_the_last_part_of_a_version_of_python_may_differ() -> None:
    """Neither bytecode nor Ray's protocol does."""
    assert short(check_cluster([HEAD, told(WORKER, python="3.11.9")], NEEDS, DRIVER)) == []


@pytest.mark.parametrize(("gpus", "expected"), [(1, [("cluster", "GPUs")]), (2, [])])
def test_gpus_are_counted_only_where_they_are_asked_for(gpus: int, expected: list[tuple[str, str]]) -> None:
    """Two ranks on learner.device = cuda need two; without it a cluster without any is as good."""
    worker = told(replace(WORKER, gpus=gpus), gpus=gpus)
    assert short(check_cluster([HEAD, worker], replace(NEEDS, gpus=2), DRIVER)) == expected
    assert short(check_cluster([HEAD, worker], NEEDS, DRIVER)) == []


def test_only_the_drivers_store_has_to_take_all_fragments() -> None:
    """They all pass through it; another node's holds its own."""
    assert short(check_cluster([HEAD, replace(WORKER, store_bytes=MIB)], NEEDS, DRIVER)) == []
    assert short(check_cluster([replace(HEAD, store_bytes=GIB - 1), WORKER], NEEDS, DRIVER)) == [
        ("10.0.0.1", "object store")
    ]


def test_a_store_on_a_disk_is_a_warning() -> None:
    """Ray puts it there where /dev/shm is smaller: slower, and no reason to refuse the run."""
    checks = check_cluster([HEAD, told(WORKER, shm_bytes=64 * MIB)], NEEDS, DRIVER)
    assert (short(checks), warned(checks)) == ([], [("10.0.0.2", "object store")])


def test_a_head_without_weight_is_a_node_as_any() -> None:
    """The driver may live where no process of the run does: 0 CPUs there, 6 elsewhere."""
    assert short(check_cluster([replace(HEAD, cpus=0), replace(WORKER, cpus=6)], NEEDS, DRIVER)) == []


# ---- this machine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "needed", "slow", "outcome"),
    [
        (256 * MIB, 200 * MIB, "", Outcome.OK),
        (64 * MIB, 64 * MIB, "", Outcome.WARNING),  # as in a container by default: fragments fit, the store does not
        (64 * MIB, 65 * MIB, "", Outcome.SHORT),
        (64 * MIB, 65 * MIB, "1", Outcome.WARNING),  # the user has said that a slow store will do
        (0, 1, "", Outcome.SHORT),  # there is no /dev/shm
    ],
)
def test_shared_memory_is_held_against_fragments(free: int, needed: int, slow: str, outcome: Outcome) -> None:
    """Short only where not even the fragments that exist at once fit."""
    facts = replace(DRIVER, shm_free_bytes=free)
    environment = {"RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": slow}
    check = check_shared_memory(facts, needed_bytes=needed, store_bytes=256 * MIB, environment=environment)
    assert check.outcome is outcome
    assert ("shm-size" in check.fix) == (outcome is not Outcome.OK)


MOUNTS = (
    "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
    "23 22 0:5 / /dev rw shared:2 - devtmpfs devtmpfs rw\n"
    "24 22 0:50 / {data} rw - {kind} server:/export rw\n"
    "25 22 0:51 / {data}/with\\040space rw - tmpfs tmpfs rw\n"
)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("ext4", "ok"), ("xfs", "ok"), ("overlay", "ok"), ("nfs4", "short"), ("fuse.gcsfuse", "short"), ("ceph", "short")],
)
def test_no_run_is_recorded_on_a_network_file_system(tmp_path: Path, kind: str, outcome: str) -> None:
    """SQLite's log in shared memory is another one on each machine: refused before a file is made there."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(data=tmp_path / "data", kind=kind))
    (tmp_path / "data").mkdir()
    out = tmp_path / "data" / "new" / "runs"
    check = check_directory(out, mounts=mounts)
    assert check.outcome.value == outcome
    assert kind in check.found
    assert list((tmp_path / "data").iterdir()) == []


def test_the_innermost_mount_counts(tmp_path: Path) -> None:
    """/a/b is on what is mounted at /a/b, not at /a; a space in a path is written as the kernel writes it."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(data="/data", kind="nfs"))
    assert file_system(Path("/data/x"), mounts=mounts) == "nfs"
    assert file_system(Path("/data/with space/x"), mounts=mounts) == "tmpfs"
    assert file_system(Path("/database"), mounts=mounts) == "ext4"
    assert file_system(Path("/data"), mounts=tmp_path / "missing") == ""


def test_a_directory_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    """A write-ahead log, a durable write and a second reader, then nothing of it is left."""
    try_directory(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_sqlite_cannot_write_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What SQLite said is in the row."""

    def refuse(directory: Path) -> None:
        raise RegistryError("no", got="disk I/O error")

    monkeypatch.setattr("deploy.preflight.local.try_directory", refuse)
    check = check_directory(tmp_path)
    assert (check.outcome, "disk I/O error" in check.found) == (Outcome.SHORT, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_of_another_is_short(tmp_path: Path) -> None:
    """No right to write."""
    tmp_path.chmod(0o500)
    assert check_directory(tmp_path / "runs").outcome is Outcome.SHORT


def test_this_machine_passes() -> None:
    """Its clock is monotonic, and it can tell what it has."""
    facts = look_around()
    assert check_clock("here", clock_source()).outcome is Outcome.OK
    assert set(facts.sources) == {"actors", "common", "deploy", "learner"}
    assert facts.shm_bytes >= facts.shm_free_bytes >= 0
    assert shm(Path("/nowhere")) == (0, 0)


# ---- a run -----------------------------------------------------------------------------------------------------------


def test_needs_follow_from_the_configuration() -> None:
    """A pool of 3 to 5 actors and 2 ranks: 5 CPUs; 2 GPUs, only with cuda; fragments as compose counts them."""
    run = composition(
        algo="appo",
        flow={"mode": "async"},
        actors={"num": 4, "least": 3, "most": 5},
        learner={"ranks": 2, "device": "cuda"},
    )
    needs = needs_of(run)
    assert (needs.cpus, needs.gpus) == (5, 2)
    assert needs.store_bytes % run.layout.frame_layout().payload_bytes == 0
    assert needs_of(composition()).gpus == 0


def test_in_line_no_object_store_is_needed(tmp_path: Path) -> None:
    """Everything is in one process; the record is needed all the same."""
    assert [check.what for check in checks_here(composition(engine="inline"), tmp_path)] == [
        "output directory",
        "clock",
    ]


def test_an_embedded_ray_needs_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With RAY_ADDRESS the nodes' own stores are looked at instead."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "/dev/shm" in [check.what for check in checks_here(composition(), tmp_path)]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "/dev/shm" not in [check.what for check in checks_here(composition(), tmp_path)]


# ---- how it is told --------------------------------------------------------------------------------------------------

FINE = Check(where="n", what="clock", found="tsc", needed="", outcome=Outcome.OK)
SLOW = Check(where="n", what="store", found="on disk", needed="in memory", outcome=Outcome.WARNING, fix="enlarge it")
SMALL = Check(where="cluster", what="CPUs", found="2", needed="6", outcome=Outcome.SHORT, fix="add nodes")


def test_shortfalls_are_one_table_and_exit_code_2() -> None:
    """What is fine is not in it; warnings are told, a line each."""
    lines: list[str] = []
    with pytest.raises(PreflightError) as caught:
        enforce([FINE, SLOW, SMALL, SMALL], lines.append)
    assert caught.value.exit_code == EXIT_BAD_INPUT
    head, titles, *rows = str(caught.value).splitlines()
    assert head == "preflight found 2 shortfalls, and nothing was started"
    assert titles.split() == ["where", "check", "there", "is", "needed", "what", "to", "do"]
    assert [row.split() for row in rows] == [["cluster", "CPUs", "2", "6", "short", "add", "nodes"]] * 2
    assert lines == ["WARNING: store of n: on disk, better in memory; enlarge it"]


def test_a_warning_alone_lets_the_run_go_on() -> None:
    """It is told."""
    lines: list[str] = []
    enforce([FINE, SLOW], lines.append)
    assert len(lines) == 1


def test_the_command_prints_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    """As a table, or as JSON; exit code 2 only if one is short."""
    assert tell_checks([FINE, SLOW], json_wanted=False) == EXIT_FINISHED
    assert "all 2 are met" in capsys.readouterr().out
    assert tell_checks([FINE, SMALL], json_wanted=True) == EXIT_BAD_INPUT
    assert [check["outcome"] for check in json.loads(capsys.readouterr().out)["checks"]] == ["ok", "short"]


def test_a_table_of_what_is_fine_has_no_column_of_remedies() -> None:
    """And no trailing blanks."""
    text = table([FINE])
    assert "what to do" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
