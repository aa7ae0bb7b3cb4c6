"""What each command answers, in words and as one JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.runs import RunRegistry
from deploy import commands
from deploy.driver import StopFlag
from deploy.evaluation import evaluate_run
from deploy.session import train
from tests.e2e.command import QUIET, SMALL
from tests.e2e.in_process import Said, say, small

WORDS = ["train", "CartPole-v1", "--engine", "inline", "--steps", "600", *SMALL, *QUIET]
ACCOUNTS = ("produced", "trained", "dropped", "in_flight")
KEYS = ("run", "status", "env", "algo", "seed", "updates", "env_steps", "parameter_digest", *ACCOUNTS)
KEYS += ("evaluation", "wall_s", "out")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output directory with a finished run, `first`."""
    place = tmp_path_factory.mktemp("runs")
    outcome = train(small(), out=place, run="first")
    assert outcome.status == "finished" and outcome.exit_code == 0 and outcome.error is None
    return place


def told(said: Said) -> dict[str, Any]:
    """The one JSON object on stdout; anything else there fails."""
    assert said.code == 0, said.err
    assert said.out.count("\n") == 1
    parsed: dict[str, Any] = json.loads(said.out)
    return parsed


def test_train_answers_with_one_object_and_keeps_its_progress_off_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every key of the record, the accounts in balance; progress and events go to stderr."""
    said = say(capsys, *WORDS, "--seed", "9", "--out", str(tmp_path), "--run", "r", "--json")
    report = told(said)
    assert set(KEYS) <= set(report)
    assert (report["run"], report["status"], report["env"], report["algo"]) == ("r", "finished", "CartPole-v1", "ppo")
    assert report["seed"] == 9 and report["env_steps"] >= 600 and report["updates"] >= 4
    assert report["produced"] == report["trained"] + sum(report["dropped"].values()) + report["in_flight"]
    assert report["evaluation"]["episodes"] == 2 and report["evaluation"]["mean"] > 0
    assert len(report["parameter_digest"]) == 64 and report["wall_s"] > 0
    assert Path(report["out"]) == tmp_path / "r"
    assert "steps " in said.err and "recipe" in said.err
    assert told(say(capsys, "show", "r", "--out", str(tmp_path), "--json")) == report
    assert (
        told(say(capsys, "resume", "r", "--out", str(tmp_path), "--json"))["parameter_digest"]
        == report["parameter_digest"]
    )


@pytest.mark.parametrize("name", ["train", "resume", "evaluate_run"])
def test_what_others_print_stays_off_stdout(
    name: str, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that prints, or Ray that tells of a killed process: with --json the answer alone is there."""
    work = getattr(commands, name)

    def talkative(*arguments: Any, **keywords: Any) -> Any:
        print("a worker died")
        return work(*arguments, **keywords)

    monkeypatch.setattr(commands, name, talkative)
    words = {
        "train": [*WORDS, "--out", str(tmp_path)],
        "resume": ["resume", "first", "--out", str(out)],
        "evaluate_run": ["evaluate", "first", "--episodes", "1", "--out", str(out)],
    }
    said = say(capsys, *words[name], "--json")
    assert told(said) and "a worker died" in said.err


def test_train_in_words_says_how_it_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where everything lies, the last evaluation, the digest, the verdict; nothing on stderr."""
    said = say(capsys, *WORDS, "--out", str(tmp_path))
    assert said.code == 0 and said.err == ""
    for word in ("recipe       ppo-CartPole-v1", "mean return", "sha256", "finished", "/metrics", str(tmp_path)):
        assert word in said.out


def test_a_run_without_a_name_gets_one_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Made of environment, algorithm and seed; the second of the kind is told from the first."""
    names = [told(say(capsys, *WORDS, "--out", str(tmp_path), "--json"))["run"] for _ in range(2)]
    assert names[0] == "CartPole-v1-ppo-s0" and names[1].startswith(names[0]) and names[1] != names[0]
    listed = told(say(capsys, "runs", "--out", str(tmp_path), "--json"))["runs"]
    assert [row["run"] for row in listed] == names[::-1]
    (newest,) = told(say(capsys, "runs", "--limit", "1", "--out", str(tmp_path), "--json"))["runs"]
    assert newest["run"] == names[1]


def test_runs_and_show_in_words(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for the run; and all that is known of it, events included."""
    listed = say(capsys, "runs", "--out", str(out)).out
    assert "first" in listed and "finished" in listed
    shown = say(capsys, "show", "first", "--out", str(out)).out
    assert all(f"\n{key} " in f"\n{shown}" for key in KEYS) and "ENVIRONMENT" in shown


def test_evaluate_plays_the_same_episodes_for_the_same_seed(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Return by return; another seed plays others; the run itself is not touched."""
    before = told(say(capsys, "show", "first", "--out", str(out), "--json"))
    words = ["evaluate", "first", "--episodes", "5", "--out", str(out), "--json"]
    one, same = (told(say(capsys, *words, "--seed", "3")) for _ in range(2))
    assert one == same and one["episodes"] == len(one["returns"]) == 5
    assert one["mean"] == pytest.approx(sum(one["returns"]) / 5)
    assert one["parameter_digest"] == before["parameter_digest"]
    assert told(say(capsys, *words, "--seed", "4"))["returns"] != one["returns"]
    assert "mean return" in say(capsys, *words[:-1]).out
    assert told(say(capsys, "show", "first", "--out", str(out), "--json")) == before


def test_evaluate_takes_the_best_checkpoint_or_one_by_name(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`best` is the checkpoint whose evaluation had the highest mean."""
    report = told(say(capsys, "show", "first", "--out", str(out), "--json"))
    words = ["evaluate", "first", "--episodes", "2", "--out", str(out), "--json", "--checkpoint"]
    (best,) = [checkpoint for checkpoint in report["checkpoints"] if checkpoint["best"]]
    assert told(say(capsys, *words, "best"))["checkpoint"] == best["name"]
    name = report["checkpoints"][0]["name"]
    assert told(say(capsys, *words, name))["checkpoint"] == name


def test_init_from_begins_with_the_weights_of_the_source(out: Path) -> None:
    """Before any update its parameters are those of the source, to the digest; a run without is not."""
    source = evaluate_run("first", out=out, episodes=1)["parameter_digest"]
    begun = {}
    for name, init_from in (("heir", "first"), ("orphan", "")):
        outcome = train(small(seed=8), out=out, run=name, init_from=init_from, stop=StopFlag(reason="at once"))
        assert outcome.status == "interrupted"
        answer = evaluate_run(name, out=out, episodes=1)
        assert answer["update"] == 0
        begun[name] = answer["parameter_digest"]
    assert begun["heir"] == source and begun["orphan"] != source


def test_a_run_stops_at_the_return_it_was_asked_for(tmp_path: Path) -> None:
    """The first evaluation that reaches it ends the run, at that update, whatever steps were left."""
    outcome = train(small(stop_at_return=1.0, steps=10**6), out=tmp_path, run="r")
    assert outcome.status == "finished" and outcome.exit_code == 0 and "reached" in outcome.verdict
    with RunRegistry.open(tmp_path / "runs.sqlite", read_only=True) as registry:
        assert registry.run("r").updates == 2
