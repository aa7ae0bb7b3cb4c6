"""W&B, offline: the rows of its file are the registry's, and a run is not begun where W&B would ask for a key."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common.runs import RunRegistry
from deploy.session import train
from deploy.writers import wandb_writer
from deploy.writers.export import export_run
from deploy.writers.opening import unique_id
from deploy.writers.scalars import rows
from deploy.writers.wandb_writer import WandbWriter
from tests.deploy.writers.reading import digest, history, wandb_records
from tests.e2e.in_process import small

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    """W&B as somebody without a network sets it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output directory with a finished run that wrote to W&B."""
    place = tmp_path_factory.mktemp("runs")
    before = random.getstate()
    assert train(small(writers={"wandb": True, "wandb_project": "p"}), out=place, run="r").status == "finished"
    assert random.getstate() == before
    return place


def expected(out: Path) -> list[dict[str, float]]:
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        lines = list(rows(registry.updates("r"), registry.evaluations("r")))
    return [{"env_steps": step, **dict(map(told, line, line.values()))} for step, line in lines]


def told(name: str, value: float) -> tuple[str, float]:
    return (name, value) if np.isfinite(value) else (f"not_finite/{name}", 1.0)


def by_place(lines: list[dict[str, float]]) -> list[tuple[float, bool, dict[str, float]]]:
    return sorted(((line["env_steps"], "run/update" in line, line) for line in lines), key=lambda each: each[:2])


def test_rows_of_a_run_are_the_registrys(out: Path, tmp_path: Path) -> None:
    """Number by number, in float64; the run has the bits of one without a writer."""
    assert by_place(history(out / "r")) == by_place(expected(out))
    train(small(), out=tmp_path, run="bare")
    assert digest(out, "r") == digest(tmp_path, "bare")


def test_the_run_is_told_who_it_is(out: Path) -> None:
    """Project, name, an id that no other run of that name has, the configuration, and steps as every chart's axis."""
    found = wandb_records(out / "r")
    (run,) = [each.run for each in found if each.WhichOneof("record_type") == "run"]
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        record = registry.run("r")
    assert (run.project, run.display_name, run.run_id, run.resume) == ("p", "r", unique_id(record), True)
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert {name: config[name] for name in record.config} == record.config
    metrics = [each.metric for each in found if each.WhichOneof("record_type") == "metric"]
    assert [(each.name or each.glob_name, each.step_metric) for each in metrics] == [
        ("env_steps", ""),
        ("*", "env_steps"),
    ]


def test_runs_of_one_name_are_not_one_run_of_wandb(out: Path) -> None:
    """Made elsewhere, or at another time: another id. The same over resumes, which change neither."""
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        record = registry.run("r")
    others = [dataclasses.replace(record, out="elsewhere"), dataclasses.replace(record, created_wall="later")]
    assert len({unique_id(each) for each in (record, *others)}) == 3
    assert unique_id(dataclasses.replace(record, updates=99, status="running")) == unique_id(record)


def test_an_export_is_a_run_of_its_own_with_the_same_rows(out: Path, tmp_path: Path) -> None:
    """Another id each time: what W&B has of the live run stays as it is."""
    first = export_run("r", "wandb", out=out, directory=tmp_path / "one")
    second = export_run("r", "wandb", out=out, directory=tmp_path / "two")
    assert (first.updates, first.evaluations) == (5, 3)
    assert first.next == f"wandb sync {first.where}" and Path(first.where).is_dir()
    assert history(tmp_path / "one") == expected(out) == history(tmp_path / "two")
    assert Path(first.where).name.rpartition("-")[2] != Path(second.where).name.rpartition("-")[2]


def test_what_is_undone_is_marked_and_what_is_not_finite_is_named(tmp_path: Path) -> None:
    """W&B's history only grows; a NaN stands as a 1 under its own name."""
    writer = WandbWriter.begin(project="p", unique="u-1", name="u", directory=tmp_path, config={})
    writer.scalars(100, {"loss/policy": 1.5, "return/mean": float("nan"), "loss/value": float("inf")})
    writer.undo_after(50)
    writer.undo_after(-1)
    writer.close()
    assert history(tmp_path) == [
        {"env_steps": 100, "loss/policy": 1.5, "not_finite/return/mean": 1.0, "not_finite/loss/value": 1.0},
        {"env_steps": 50, "undone/after_env_steps": 50},
        {"env_steps": 0, "undone/after_env_steps": -1},
    ]


def test_where_nobody_is_logged_in_a_run_is_refused_and_not_asked(tmp_path: Path) -> None:
    """In a home without a key; bad input, what to do, and no run."""
    words = [
        "train",
        "CartPole-v1",
        "--engine",
        "inline",
        "--set",
        "writers.wandb=true",
        "--out",
        str(tmp_path / "out"),
    ]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    done = subprocess.run(
        [sys.executable, "-m", "deploy", *words],
        env=clean | {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_ERROR_REPORTING": "false"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 2, done.stderr
    assert "nobody is logged in" in done.stderr and "WANDB_MODE=offline" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for TensorBoard."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(wandb_writer.ConfigError, match=r"pip install 'truestep\[wandb\]'"):
        wandb_writer.require()
