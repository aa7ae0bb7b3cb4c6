"""`truestep replay`: any episode of an evaluation on record, played again, seen, and compared with the record."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.runs import RunRegistry
from deploy.cli import main
from deploy.outputs import checkpoint_store
from deploy.saved import read_saved
from tests.e2e.in_process import Said, say
from tests.envs.drawn import CONSTRUCTED, WINDOWS

Capture = pytest.CaptureFixture[str]
DRAWN = "tests.envs:truestep-tests/Drawn-v0"
SMALL = ["--engine", "inline", "--lanes", "4", "--rows", "16", "--steps", "600", "--set", "net.hidden=[16]"]
SMALL += ["--set", "flow.fragments=1", "--set", "optimiser.learning_rate=1e-3", "--set", "flow.most_in_flight=16"]
SMALL += ["--set", "flow.first_in_flight=16", "--set", "optimiser.epsilon=1e-5", "--set", "impala.minibatches=1"]
JUDGED = ["--set", "evaluation.every=4", "--set", "evaluation.episodes=3", "--set", "evaluation.final_episodes=5"]
KEPT = ["--set", "evaluation.lanes=2", "--set", "checkpoint.keep_last=2", "--json"]
RUNS = {  # environments that vectorise themselves and those that do not; memory and statistics
    "own": ["CartPole-v1", "--algo", "impala"],
    "sync": ["CartPole-v1", "--algo", "appo", "--set", "env.vectorise=sync", "--set", "net.core=lstm"],
    "drawn": [DRAWN, "--algo", "impala", "--set", "processing.normalise_observations=true"],
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output directory with a finished run of each kind."""
    place = tmp_path_factory.mktemp("runs")
    for name, words in RUNS.items():
        with pytest.raises(SystemExit) as ended:
            main(["train", *words, *SMALL, *JUDGED, *KEPT, "--out", str(place), "--run", name])
        assert ended.value.code == 0
    return place


def replayed(capsys: Capture, out: Path, run: str, *words: str) -> dict[str, Any]:
    """The one JSON object of a replay that was identical."""
    said = say(capsys, "replay", run, "--out", str(out), "--json", *words)
    assert said.code == 0, said.err
    answer: dict[str, Any] = json.loads(said.out)
    return answer


def refused(capsys: Capture, out: Path, run: str, *words: str) -> str:
    """What a replay that is refused says; nothing on stdout, no traceback."""
    said = say(capsys, "replay", run, "--out", str(out), *words)
    assert (said.code, said.out) == (2, "") and "Traceback" not in said.err
    return said.err


def recorded(out: Path, run: str) -> dict[int, tuple[float, ...]]:
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        return {evaluation.update: evaluation.returns for evaluation in registry.evaluations(run)}


@pytest.mark.parametrize("run", list(RUNS))
def test_every_episode_is_the_one_on_record(run: str, capsys: Capture, out: Path) -> None:
    """Return and length, of the final evaluation and of an earlier one; lane b plays episodes b, b + 2 ..."""
    evaluations = recorded(out, run)
    last = max(evaluations)
    for episode in (0, 3, 4):
        answer = replayed(capsys, out, run, "--episode", str(episode))
        assert answer["identical"] and (answer["update"], answer["final"]) == (last, True)
        assert answer["return"] == answer["recorded"]["return"] == evaluations[last][episode]
        assert answer["length"] == answer["recorded"]["length"] == len(answer["rows"])
        assert answer["lane"] == episode % 2 and answer["end"] in ("TERMINATED", "TRUNCATED")
        assert sum(row["reward"] for row in answer["rows"]) == answer["return"]
    store = checkpoint_store(out, run)
    earlier = max(info.update for info in store.infos() if info.score is not None and info.update < last)
    answer = replayed(capsys, out, run, "--episode", "2", "--update", str(earlier))
    assert (answer["update"], answer["final"], answer["return"]) == (earlier, False, evaluations[earlier][2])


def test_a_replay_in_words_ends_with_the_verdict(capsys: Capture, out: Path) -> None:
    """Which episode, its first and last ticks, its end; nothing else is said."""
    said = say(capsys, "replay", "drawn", "--episode", "1", "--out", str(out))
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0].startswith("episode      1 of the final evaluation after update ")
    assert lines[2].startswith("tick 0 ") and "action" in lines[2] and "observation" in lines[2]
    assert lines[-2].startswith("end          TRUNCATED after ")
    assert lines[-1] == "identical    to the record in return and length"


def test_a_long_episode_is_shown_at_both_ends(capsys: Capture, out: Path) -> None:
    """Eight ticks each; how many are between is said."""
    episode = str(int(np.argmax(recorded(out, "own")[max(recorded(out, "own"))])))
    length = replayed(capsys, out, "own", "--episode", episode)["length"]
    lines = say(capsys, "replay", "own", "--episode", episode, "--out", str(out)).out.splitlines()
    ticks = [int(line.split()[1]) for line in lines if line.startswith("tick ")]
    assert length > 16 and ticks == [*range(8), *range(length - 8, length)]
    assert f"... {length - 16} ticks" in "\n".join(lines)


def test_the_window_is_that_of_the_episode_s_lane(capsys: Capture, out: Path) -> None:
    """One environment of the evaluation's two is told to show itself, and shows every tick."""
    CONSTRUCTED.clear()
    WINDOWS.clear()
    answer = replayed(capsys, out, "drawn", "--episode", "1", "--render", "human")
    assert CONSTRUCTED.count("human") == 1
    assert list(range(answer["length"] + 1)) == WINDOWS


def test_pictures_are_files_in_order(capsys: Capture, out: Path, tmp_path: Path) -> None:
    """One of each observation, the final one too; they hold what the environment painted. A second replay into the same
    directory is refused."""
    image = pytest.importorskip("PIL.Image")
    frames = tmp_path / "new" / "frames"
    answer = replayed(capsys, out, "drawn", "--episode", "3", "--frames", str(frames))
    files = sorted(frames.iterdir())
    assert [file.name for file in files] == [f"{number:05}.png" for number in range(answer["length"] + 1)]
    assert answer["num_frames"] == len(files) and answer["frames"] == str(frames)
    painted = [np.asarray(image.open(file)) for file in files]
    assert [int(array[0, 0, 0]) for array in painted] == list(range(len(files)))
    assert painted[0].shape == (2, 3, 3)
    assert "00000.png" in refused(capsys, out, "drawn", "--episode", "3", "--frames", str(frames))


def test_without_pillow_the_extra_is_named(
    capsys: Capture, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a directory is made."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    said = refused(capsys, out, "drawn", "--episode", "0", "--frames", str(tmp_path / "frames"))
    assert "truestep[render]" in said and not (tmp_path / "frames").exists()


def test_an_episode_that_was_not_played_is_refused(capsys: Capture, out: Path) -> None:
    """With how many there were."""
    for number in ("5", "-1"):
        said = refused(capsys, out, "own", "--episode", number)
        assert f"got {number}" in said and "0 to 4 of the evaluation after update" in said


def test_an_evaluation_whose_checkpoint_is_gone_is_refused(capsys: Capture, out: Path) -> None:
    """With those that can be played again; so is an update that was never evaluated."""
    evaluated = sorted(recorded(out, "own"))
    there = sorted({info.update for info in checkpoint_store(out, "own").infos()})
    assert evaluated[0] not in there
    said = refused(capsys, out, "own", "--episode", "0", "--update", str(evaluated[0]))
    assert "its checkpoint is gone" in said and ", ".join(map(str, there)) in said
    said = refused(capsys, out, "own", "--episode", "0", "--update", "1")
    assert "no evaluation is on record" in said


def test_a_run_without_an_evaluation_is_refused(capsys: Capture, tmp_path: Path) -> None:
    """Interrupted before its first, say: here every checkpoint is gone."""
    words = ["train", *RUNS["drawn"], *SMALL, *JUDGED, *KEPT, "--out", str(tmp_path), "--run", "r"]
    assert say(capsys, *words).code == 0
    for path in (tmp_path / "r" / "checkpoints").iterdir():
        path.rename(tmp_path / path.name)
    assert "run 'r' has no evaluation to play again" in refused(capsys, tmp_path, "r", "--episode", "0")
    assert "no run" in refused(capsys, tmp_path, "s", "--episode", "0").lower()


@pytest.mark.parametrize(
    ("run", "words", "message"),
    [
        ("own", ["--render", "human"], "the vector form of environment 'CartPole-v1' cannot render human"),
        ("drawn", ["--render", "human", "--frames", "f"], "an environment renders in one mode"),
    ],
)
def test_what_cannot_be_shown_is_refused(run: str, words: list[str], message: str, capsys: Capture, out: Path) -> None:
    """Before anything is played, and with what can be had."""
    assert message in refused(capsys, out, run, "--episode", "0", *words)


def test_a_cut_evaluation_has_the_first_episode_of_each_lane(capsys: Capture, tmp_path: Path) -> None:
    """Episodes under way when the ticks ran out are on record as they stood; which of the others began is not."""
    words = ["train", DRAWN, "--algo", "impala", *SMALL, *JUDGED, *KEPT, "--out", str(tmp_path), "--run", "r"]
    assert say(capsys, *words, "--set", "evaluation.max_ticks=8").code == 0
    (returns,) = [
        returns for update, returns in recorded(tmp_path, "r").items() if update == max(recorded(tmp_path, "r"))
    ]
    assert 2 < len(returns) < 5
    assert replayed(capsys, tmp_path, "r", "--episode", "1")["return"] == returns[1]
    said = refused(capsys, tmp_path, "r", "--episode", "2")
    assert "0 to 1 of the evaluation" in said and "cut by evaluation.max_ticks" in said


def test_a_difference_is_told(capsys: Capture, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment ends its episodes a step later than it did: both sides, exit code 1, and who is the suspect."""
    from tests.envs.drawn import DrawnEnv

    reset = DrawnEnv.reset

    def later(self: Any, **options: Any) -> Any:
        answer = reset(self, **options)
        self.horizon += 1
        return answer

    monkeypatch.setattr(DrawnEnv, "reset", later)
    said: Said = say(capsys, "replay", "drawn", "--episode", "0", "--out", str(out), "--json")
    answer = json.loads(said.out)
    assert (said.code, answer["identical"]) == (1, False)
    assert answer["length"] == answer["recorded"]["length"] + 1
    assert "the environment is the suspect" in answer["why"]
    words = say(capsys, "replay", "drawn", "--episode", "0", "--out", str(out))
    assert words.code == 1 and words.out.splitlines()[-1].startswith("DIFFERENT")


def test_the_run_is_not_touched(capsys: Capture, out: Path) -> None:
    """Neither its record nor its checkpoints."""
    files = lambda: {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted((out / "sync").rglob("*"))
        if path.is_file()
    }
    before = files()
    replayed(capsys, out, "sync", "--episode", "0")
    assert files() == before
    newest = checkpoint_store(out, "sync").newest_good(lambda name, error: None)
    assert newest is not None and read_saved(newest).cut.final


# ── episodes of training ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("run", ["own", "drawn"])
def test_an_episode_of_training_is_shown_from_its_fragments(run: str, capsys: Capture, out: Path) -> None:
    """The run is made again up to it, every fragment that of the ledger; asynchronous collection included."""
    early = replayed(capsys, out, run, "--training", "--episode", "3")
    assert early["identical"] and early["training"]
    assert early["length"] == len(early["rows"]) and early["end"] in ("TERMINATED", "TRUNCATED")
    assert sum(row["reward"] for row in early["rows"]) == early["return"] == early["length"]
    late = replayed(capsys, out, run, "--training", "--episode", "20")
    assert late["fragments"] > early["fragments"] > 0
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        names = [each.name for each in registry.ledger(run).fragments]
    places = [names.index((each["actor"], each["incarnation"], each["sequences"][1])) for each in (early, late)]
    assert places == sorted(places)


def test_an_episode_of_training_in_words(capsys: Capture, out: Path) -> None:
    """Who played it, in which fragments, its ticks, the verdict."""
    said = say(capsys, "replay", "drawn", "--training", "--episode", "0", "--out", str(out))
    lines = [line for line in said.out.splitlines() if not line.startswith("steps ")]
    assert said.code == 0
    assert any(line.startswith("episode      0 of training: actor ") for line in lines)
    assert lines[-1].startswith("identical    to the ledger, with all ")


def test_an_episode_of_training_that_did_not_end_is_refused(capsys: Capture, out: Path) -> None:
    """With how many did, and the last of them is there."""
    said = say(capsys, "replay", "drawn", "--training", "--episode", "100000", "--out", str(out))
    assert said.code == 2
    last = said.err.split("allowed: 0 to ")[1].split(":")[0]
    assert replayed(capsys, out, "drawn", "--training", "--episode", last)["identical"]
    assert "0 or more" in refused(capsys, out, "drawn", "--training", "--episode", "-1")


@pytest.mark.parametrize("words", [["--update", "4"], ["--render", "human"], ["--frames", "f"]])
def test_training_is_not_rendered(words: list[str], capsys: Capture, out: Path) -> None:
    """Nor has an episode of it an update of its own."""
    assert f"{words[0]} with evaluations only" in refused(capsys, out, "drawn", "--training", "--episode", "0", *words)


def test_training_that_differs_is_told(capsys: Capture, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the first fragment: which, and what it has."""
    from tests.envs.drawn import DrawnEnv

    step = DrawnEnv.step

    def dearer(self: Any, action: Any) -> Any:
        observation, reward, *rest = step(self, action)
        return observation, reward + 1.0, *rest

    monkeypatch.setattr(DrawnEnv, "step", dearer)
    said = say(capsys, "replay", "drawn", "--training", "--episode", "9", "--out", str(out), "--json")
    answer = json.loads(said.out)
    assert (said.code, answer["identical"], answer["fragments"]) == (1, False, 0)
    assert answer["difference"]["sequence"] == 0 and "rows" not in answer
    words = say(capsys, "replay", "drawn", "--training", "--episode", "9", "--out", str(out))
    assert words.code == 1 and words.out.splitlines()[-1].startswith("DIFFERENT    before episode 9")
