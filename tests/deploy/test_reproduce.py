"""Runs made again in this process: the same bits, or the first place where they part, and who is the suspect."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from common.checkpoints import CheckpointStore
from common.errors import CheckpointError, ConfigError, RunNotFoundError
from common.runs import RunRecord, RunRegistry
from deploy import reproduce as room
from deploy.config import merge, parse_config
from deploy.driver import StopFlag
from deploy.outputs import REGISTRY_FILE, checkpoint_store, open_registry
from deploy.reproduce import reproduce
from deploy.reproduction import Verdict
from deploy.saved import read_saved
from deploy.session import resume, train
from tests.e2e.in_process import say

STEPS = 900


def config(**changes: Any) -> Any:
    plain: dict[str, Any] = {
        "env": {"id": "CartPole-v1"},
        "engine": "inline",
        "seed": 4,
        "steps": STEPS,
        "actors": {"num": 2, "lanes": 4, "rows": 16},
        "net": {"hidden": [16]},
        "ppo": {"minibatch": 32},
        "evaluation": {"every": 2, "episodes": 2, "final_episodes": 2, "lanes": 2},
        "checkpoint": {"every": 2},
        "metrics": {"enabled": False},
    }
    return parse_config(merge(plain, changes))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As the command has it from the start: another number of threads is another fingerprint."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            patch.setenv(name, "1")
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output directory with a finished run, `r`."""
    place = tmp_path_factory.mktemp("runs")
    assert train(config(), out=place, run="r").status == "finished"
    return place


def record_of(out: Path, run: str = "r") -> RunRecord:
    with open_registry(out) as registry:
        return registry.run(run)


def everything(out: Path) -> dict[str, str]:
    """Digest of every file of an output directory, the registry's content for its file."""
    files = {
        path.relative_to(out).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file() and not path.name.startswith(REGISTRY_FILE)
    }
    with open_registry(out) as registry:
        content = (registry.runs(), registry.updates("r"), registry.ledger("r"), registry.events("r"))
    return files | {REGISTRY_FILE: repr(content)}


def changed_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the code had changed since the run was made."""
    changed = lambda plain: parse_config(merge(plain, {"optimiser": {"learning_rate": 0.0123}}))
    monkeypatch.setattr(room, "parse_config", changed)


# The same


def test_a_finished_run_is_made_again_bit_for_bit_and_nothing_is_written(out: Path) -> None:
    """Every update and every fragment; neither files nor the registry change."""
    before = everything(out)
    found = reproduce("r", out=out)
    updates = record_of(out).updates
    assert (found.verdict, found.identical_through, found.updates) == (Verdict.IDENTICAL, updates, updates)
    assert (found.fragments, found.difference, found.why, found.exit_code) == (2 * updates, None, "", 0)
    assert everything(out) == before


def test_as_many_updates_as_are_wanted(out: Path) -> None:
    """Two, and the fragments that they take; more than there are is refused."""
    found = reproduce("r", out=out, updates=2)
    assert (found.verdict, found.identical_through, found.fragments) == (Verdict.IDENTICAL, 2, 4)
    for updates in (0, 10**6):
        with pytest.raises(ConfigError, match=f"--updates; got {updates}; allowed: 1 to "):
            reproduce("r", out=out, updates=updates)


@pytest.mark.parametrize("changes", [{"policy_lag": 0}, {"policy_lag": 1}, {"algo": "impala"}])
def test_a_run_that_was_stopped_and_resumed_is_one_history(tmp_path: Path, changes: dict[str, Any]) -> None:
    """What was decided behind the cut is gone from the ledger, and was decided again."""
    stop = StopFlag(reason="asked for before the first update")
    assert train(config(**changes), out=tmp_path, run="r", stop=stop).status == "interrupted"
    assert resume("r", out=tmp_path).status == "finished"
    found = reproduce("r", out=tmp_path)
    assert (found.verdict, found.identical_through) == (Verdict.IDENTICAL, record_of(tmp_path).updates)


@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_a_run_whose_actor_was_lost_is_made_again_with_both_its_lives(tmp_path: Path, algo: str) -> None:
    """In sync and async: the first life ends with its last fragment that was made, the second begins new streams."""
    kwargs = {"kind": "raise", "where": "step", "at": 30, "once": str(tmp_path / "fault"), "skip": 4}
    env = {"id": "tests.envs:truestep-tests/FaultyCartPole-v0", "kwargs": kwargs}
    runs = tmp_path / "runs"
    assert train(config(env=env, algo=algo), out=runs, run="r").status == "finished"
    with open_registry(runs) as registry:
        kinds = [event.kind for event in registry.events("r")]
        lives = {(each.actor, each.incarnation) for each in registry.ledger("r").fragments}
    assert "ACTOR_LOST" in kinds and any(incarnation == 1 for _, incarnation in lives)
    found = reproduce("r", out=runs)
    assert (found.verdict, found.why) == (Verdict.IDENTICAL, "")


def test_a_run_that_began_with_weights_of_another_is_made_again_from_them(out: Path) -> None:
    """Its record names the checkpoint."""
    assert train(config(seed=7, steps=200), out=out, run="heir", init_from="r").status == "finished"
    assert record_of(out, "heir").facts["init_from"]["run"] == "r"
    assert reproduce("heir", out=out).verdict is Verdict.IDENTICAL


# Another


def test_an_environment_that_is_no_function_of_its_seed_is_the_suspect(tmp_path: Path) -> None:
    """It shows in the first fragment, which is named; never is it said to be the same (C11)."""
    env = {"id": "tests.envs:truestep-tests/SeedIgnoring-v0"}
    assert train(config(env=env, steps=300), out=tmp_path, run="r").status == "finished"
    found = reproduce("r", out=tmp_path)
    assert (found.verdict, found.identical_through, found.exit_code) == (Verdict.DIFFERENT, 0, 1)
    plain = found.to_plain()
    assert plain["kind"] == "fragment"
    assert (plain["difference"]["incarnation"], plain["difference"]["sequence"]) == (0, 0)
    assert plain["difference"]["a"]["digest"] != plain["difference"]["b"]["digest"]
    assert found.why.startswith("the environment is the suspect: equal weights and seeds gave another fragment")


def test_a_learner_that_computes_otherwise_is_the_suspect(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fragments of the first update are the same, what it left is not."""
    changed_learner(monkeypatch)
    found = reproduce("r", out=out)
    assert (found.verdict, found.identical_through, found.to_plain()["kind"]) == (Verdict.DIFFERENT, 0, "update")
    assert found.why.startswith("the learner is the suspect")
    with open_registry(out) as registry:
        recorded = registry.updates("r")[0]
    assert found.to_plain()["difference"]["a"]["parameter_digest"] == recorded.parameter_digest
    assert found.to_plain()["difference"]["b"]["parameter_digest"] != recorded.parameter_digest


def test_another_fingerprint_is_told_with_what_differs(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both sides in short, each fact that differs, changes that were not committed, and a verdict that names them."""
    gathered = room.gather_facts()
    gathered["torch"]["threads"] = 7
    gathered["distributions"]["numpy"]["version"] = "0.1"
    monkeypatch.setattr(room, "gather_facts", lambda: gathered)
    changed_learner(monkeypatch)
    original = room.read_original

    def dirty(*arguments: Any, **named: Any) -> room.Original:
        found = original(*arguments, **named)
        git = {"commit": "c" * 40, "dirty": True, "diff_sha256": "d", "diff": "+a line\n" * 70}
        record = dataclasses.replace(found.record, facts={**found.record.facts, "git": git})
        return dataclasses.replace(found, record=record)

    monkeypatch.setattr(room, "read_original", dirty)
    said = say(capsys, "reproduce", "r", "--out", str(out))
    assert said.code == 1
    lines = said.out.splitlines()
    assert any(line.startswith("difference   update 1") for line in lines)
    assert any(line.startswith("recorded     commit=cccccccccccc+changes") for line in lines)
    assert any(line.startswith("here ") and "numpy=0.1" in line and "threads=7" in line for line in lines)
    assert any("torch.threads: a 1, b 7" in line for line in lines)
    assert any(line.strip() == "... and 10 lines more, see --json" for line in lines)
    assert lines[-1].startswith("DIFFERENT    identical through update 0 of ")
    assert "what differs in code, versions or processor is the suspect" in lines[-1]


def damaged(out: Path, place: Path, condition: str) -> Path:
    """A copy of the registry without the fragments for which `condition` holds."""
    (place / REGISTRY_FILE).write_bytes((out / REGISTRY_FILE).read_bytes())
    with RunRegistry.open(place / REGISTRY_FILE) as registry, registry._database.transaction("damage") as session:
        session.change(f"DELETE FROM fragments WHERE {condition}")
    return place


def test_a_ledger_that_ends_early_is_never_called_identical(out: Path, tmp_path: Path) -> None:
    """What could be compared was the same, and the verdict says how far, and why no further."""
    damaged(out, tmp_path, "update_number = 3 AND actor = 0")
    found = reproduce("r", out=tmp_path)
    assert (found.verdict, found.identical_through, found.exit_code) == (Verdict.INCOMPLETE, 2, 1)
    assert found.why == "update 3 cannot be made again: its fragments are not whole: places [1]"
    assert reproduce("r", out=tmp_path, updates=2).verdict is Verdict.IDENTICAL


def test_a_run_without_a_ledger_is_refused(out: Path, tmp_path: Path) -> None:
    """As one that an older truestep made; and one that is not there is not found."""
    damaged(out, tmp_path, "true")
    with pytest.raises(ConfigError, match=r"'r' cannot be made again; got update 1 .* its fragments are not recorded"):
        reproduce("r", out=tmp_path)
    with pytest.raises(RunNotFoundError, match="'s'"):
        reproduce("s", out=tmp_path)


# The weights it began with


def began_with(out: Path, store: CheckpointStore, **changes: str) -> RunRecord:
    newest = store.newest_good(lambda name, error: None)
    assert newest is not None
    state = read_saved(newest).learner
    source = {"run": "r", "checkpoint": newest.info.name, "parameter_digest": state.parameter_digest}
    record = record_of(out)
    return dataclasses.replace(record, facts={**record.facts, "init_from": {**source, **changes}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"checkpoint": "update-000000777"}, "which is gone"),
        ({"run": "nowhere"}, "of run 'nowhere', which is gone"),
        ({"parameter_digest": "another"}, "is not the one that run 'r' began with"),
    ],
)
def test_weights_that_are_gone_or_others_are_an_error(out: Path, changes: dict[str, str], said: str) -> None:
    """From other weights nothing would be the same, and nobody would be to blame."""
    with pytest.raises(CheckpointError, match=said):
        room._initial_weights(out, began_with(out, checkpoint_store(out, "r"), **changes))


# The command


def test_the_command_answers_in_words_and_as_one_object(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress goes to stderr with --json; the facts of both sides are in the object."""
    words = ("reproduce", "r", "--out", str(out), "--updates", "2")
    said = say(capsys, *words)
    assert said.code == 0
    assert said.out.splitlines()[-1] == "identical through update 2, 4 fragments"
    said = say(capsys, *words, "--json")
    answer = json.loads(said.out)
    assert (answer["verdict"], answer["identical_through"], answer["facts"]) == ("identical", 2, [])
    assert answer["recorded"] == answer["here"] and "reproducing" in said.err


def test_two_runs_are_compared_by_the_command(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another seed: not one update is the same; of the same run in another directory all are."""
    train(config(seed=5, steps=200), out=tmp_path, run="s")
    said = say(capsys, "compare", "r", "s", "--out", str(out), "--out-b", str(tmp_path), "--json")
    answer = json.loads(said.out)
    assert said.code == 0
    assert {"key": "seed", "a": 4, "b": 5} in answer["config"]
    assert (answer["identical_through"], answer["first_difference"]["update"], answer["facts"]) == (0, 1, [])
    said = say(capsys, "compare", "r", "r", "--out", str(out))
    assert f"updates      identical through update {record_of(out).updates}" in said.out.splitlines()
