"""Writers of real runs: what TensorBoard shows of them, and that nothing a writer does changes or ends a run."""

from __future__ import annotations

import random
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from common.errors import EXIT_BAD_INPUT
from common.runs import RunRegistry
from deploy.cli import main
from deploy.session import ROWS_LEFT_OUT, resume, train
from deploy.writers import feed as feeds
from deploy.writers import outbox as outboxes
from deploy.writers.export import export_run
from deploy.writers.tensorboard_writer import TensorBoardWriter
from deploy.writers.writer import NOTHING_STANDS
from tests.deploy.writers.reading import Curves, board, digest, recorded, same, texts
from tests.deploy.writers.told import Blocked, Heard, Keeping, Raising
from tests.e2e.in_process import small

WRITERS = {"tensorboard": True}
DOCUMENT = Path(__file__).parents[3] / "docs" / "writers.md"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output directory with two finished runs that are the same but for their writer."""
    place = tmp_path_factory.mktemp("runs")
    assert train(small(writers=WRITERS), out=place, run="written").status == "finished"
    assert train(small(), out=place, run="bare").status == "finished"
    return place


def test_tensorboard_shows_what_the_registry_has(out: Path) -> None:
    """Number by number; the configuration as text; and the run has the bits of the one that had no writer."""
    shown = board(out / "written" / "tensorboard")
    assert same(shown, recorded(out, "written"))
    assert [value for _, value in shown["run/update"]] == [1, 2, 3, 4, 5]
    assert len(shown["evaluation/mean"]) == 3
    ((step, text),) = texts(out / "written" / "tensorboard")
    assert step == 0 and text.startswith("run written, made ") and '"id": "CartPole-v1"' in text
    assert digest(out, "written") == digest(out, "bare")


def test_a_resume_goes_on_behind_its_checkpoint(out: Path, tmp_path: Path) -> None:
    """Rows of updates that are made again are there once, and the directory is what the registry has."""
    shutil.copytree(out, tmp_path / "runs")
    place = tmp_path / "runs"
    for update in (4, 5):
        shutil.rmtree(place / "written" / "checkpoints" / f"update-{update:09d}")
    heard = Heard()
    assert resume("written", out=place, display=heard).status == "finished"
    assert "writers      TensorBoard" in heard.lines and heard.warnings == []
    shown = board(place / "written" / "tensorboard")
    assert [value for _, value in shown["run/update"]] == [1, 2, 3, 4, 5]
    assert same(shown, recorded(place, "written"))
    assert [step for step, _ in texts(place / "written" / "tensorboard")] == [0, 244]


def test_an_export_is_what_a_live_writer_wrote(out: Path, tmp_path: Path) -> None:
    """Number by number, of a run with a writer and one without; made again, it takes the place of the one before."""
    for _ in range(2):
        done = export_run("written", "tensorboard", out=out, directory=tmp_path)
    assert (done.updates, done.evaluations) == (5, 3)
    assert done.next == f"tensorboard --logdir {tmp_path / 'tensorboard'}"
    assert same(board(Path(done.where)), board(out / "written" / "tensorboard"))
    bare = export_run("bare", "tensorboard", out=out)
    assert Path(bare.where) == out / "bare" / "export" / "tensorboard" / "bare"
    assert same(board(Path(bare.where)), recorded(out, "bare"))


def test_writers_from_python_are_called_beside_those_of_the_configuration(out: Path, tmp_path: Path) -> None:
    """They get the same rows; on a resume they hear first what of theirs is undone."""
    keeping, again = Keeping(), Keeping()
    train(small(), out=tmp_path, run="r", writers=[keeping])
    curves: Curves = {}
    for step, values in keeping.rows:
        for name, value in values.items():
            curves.setdefault(name, []).append((step, float(np.float32(value))))
    assert same(curves, recorded(tmp_path, "r"))
    assert keeping.calls[-1] == ("close", 0) and [name for name, _ in keeping.calls].count("close") == 1
    shutil.rmtree(tmp_path / "r" / "checkpoints" / "update-000000005")
    resume("r", out=tmp_path, writers=[again])
    assert again.calls[0] == ("undo_after", 489)
    shutil.rmtree(tmp_path / "r" / "checkpoints")
    resume("r", out=tmp_path, writers=[again := Keeping()])
    assert again.calls[0] == ("undo_after", NOTHING_STANDS)


def test_a_writer_that_raises_hangs_or_is_slow_costs_rows_and_not_the_run(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same parameters; each is told, and what is missing stands in the record, with the command that writes it."""
    monkeypatch.setattr(feeds, "CLOSE_S", 0.05)
    monkeypatch.setattr(outboxes, "CAPACITY_ROWS", 2)
    blocked, heard = Blocked(), Heard()
    outcome = train(small(), out=tmp_path, run="r", display=heard, writers=[Raising(), blocked])
    assert outcome.status == "finished" and digest(tmp_path, "r") == digest(out, "bare")
    remedy = f"the registry has them all: truestep export r --to tensorboard --out {tmp_path}"
    assert [line for line in heard.warnings if "left out" in line and remedy in line] == [
        f"WARNING: writer Raising (1) left out 8 of the rows (OSError: [Errno 28] No space left on device); {remedy}",
        f"WARNING: writer Blocked (2) left out 8 of the rows (it was not done at the end of the run); {remedy}",
    ]
    with RunRegistry.open(tmp_path / "runs.sqlite", read_only=True) as registry:
        (event,) = [each for each in registry.events("r") if each.kind == ROWS_LEFT_OUT]
    assert event.data == {"Raising (1)": 8, "Blocked (2)": 8}
    blocked.free.set()


def test_a_directory_that_cannot_be_written_is_told(out: Path, tmp_path: Path) -> None:
    """A file stands in its place: one line at once, one at the end; the run has its bits."""
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "tensorboard").write_text("in the way")
    heard = Heard()
    outcome = train(small(writers=WRITERS), out=tmp_path, run="r", display=heard)
    assert outcome.status == "finished" and digest(tmp_path, "r") == digest(out, "bare")
    first, last = heard.warnings
    assert first.startswith("WARNING: writer TensorBoard could not take a row: FileExistsError")
    assert last.startswith("WARNING: writer TensorBoard left out 8 of the rows (FileExistsError")


@pytest.fixture
def without_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)


@pytest.mark.usefixtures("without_tensorboard")
@pytest.mark.parametrize("command", ["train", "preflight", "export"])
def test_a_missing_package_is_said_before_anything_starts(
    command: str, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input, naming the extra; no run is made."""
    words = ["train", "CartPole-v1", "--engine", "inline", "--set", "writers.tensorboard=true", "--out", str(tmp_path)]
    words += ["--preflight"] if command == "preflight" else []
    if command == "export":
        words = ["export", "bare", "--to", "tensorboard", "--out", str(out), "--dir", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == EXIT_BAD_INPUT
    assert "pip install 'truestep[tensorboard]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_tensorboard")
def test_a_resume_where_the_package_is_missing_goes_on_without(out: Path, tmp_path: Path) -> None:
    """The run is worth more than its curves; a warning says so."""
    shutil.copytree(out, tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "written" / "checkpoints" / "update-000000005")
    heard = Heard()
    assert resume("written", out=tmp_path / "runs", display=heard).status == "finished"
    (warning,) = [line for line in heard.warnings if "without" in line]
    assert warning.startswith("WARNING: the run goes on without TensorBoard: ")
    assert digest(tmp_path / "runs", "written") == digest(out, "bare")


def test_values_that_are_not_finite_or_too_large_are_shown_as_such(tmp_path: Path) -> None:
    """NaN as NaN, infinities as infinities, and beyond float32 infinity."""
    writer = TensorBoardWriter(tmp_path, "")
    writer.scalars(1, {"a": float("nan"), "b": float("-inf"), "c": 1e300})
    writer.close()
    shown = board(tmp_path)
    assert np.isnan(shown["a"][0][1]) and shown["b"] == [(1, -np.inf)] and shown["c"] == [(1, np.inf)]


def test_no_generator_is_drawn_from(tmp_path: Path) -> None:
    """Python's, NumPy's and torch's stand where they stood: in engine inline, environments share them."""
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    writer = TensorBoardWriter(tmp_path, "text")
    writer.scalars(1, {"a": 1.0})
    writer.undo_after(0)
    writer.scalars(1, {"a": 2.0})
    writer.close()
    assert board(tmp_path) == {"a": [(1, 2.0)]}
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index]


class Mlflow:
    """What the example of the documentation uses of MLflow's client."""

    def __init__(self) -> None:
        self.metrics: list[tuple[str, str, int]] = []
        self.terminated: list[str] = []
        self.info = SimpleNamespace(run_id="m1")

    def create_run(self, experiment: str) -> Mlflow:
        return self

    def log_metric(self, run: str, name: str, value: float, step: int) -> None:
        assert np.isfinite(value)
        self.metrics.append((run, name, step))

    def set_tag(self, run: str, key: str, value: object) -> None:
        """Nothing."""

    def set_terminated(self, run: str) -> None:
        self.terminated.append(run)


def test_the_writer_of_the_documentation_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example, as it stands there, with a stand-in for MLflow's client."""
    (example,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    client = Mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda: client))
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    (run,) = (path.name for path in (tmp_path / "runs").iterdir() if path.is_dir())
    shown = {
        name for name, points in recorded(tmp_path / "runs", run).items() if np.isfinite([v for _, v in points]).any()
    }
    assert {name for _, name, _ in client.metrics} == shown
    assert client.terminated == ["m1"]
