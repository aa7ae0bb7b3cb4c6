"""`truestep check`: what is found becomes verdicts, a recommendation, an exit code and one answer on stdout."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from actors.env import check as gathering
from actors.env.check_facts import CheckReport, ConstructFacts, PlainFacts, PlayFacts, SpeedFacts, SpeedFailure
from actors.env.lanes import Verdict
from common.errors import ContractError, DeadlineError, EnvironmentFault
from common.specs import ArraySpec, SpaceSpec
from deploy.check import Judgement, Line, judge, recommend
from deploy.cli import CheckEnv, run_command

DISCRETE = ArraySpec(kind="discrete", shape=(), dtype="int64", nvec=(2,), start=(0,))
BOX = ArraySpec(kind="box", shape=(4,), dtype="float32", low=(-1.0,), high=(1.0,))
CONSTRUCT = ConstructFacts(
    observation=SpaceSpec(parts=(("obs", BOX),)),
    action=DISCRETE,
    plain=True,
    own=False,
    construct_s=0.01,
    children_left=0,
)
PLAIN = PlainFacts(
    fresh_alike=True,
    again_alike=True,
    seeds_matter=True,
    unseeded_follows=True,
    action_samples_repeat=True,
    outside_space="",
    reuses_buffers=False,
)
PLAY = PlayFacts(
    ticks=10,
    lanes=2,
    episodes=3,
    broken=0,
    first_broken="",
    difference="",
    clock_reads=0,
    drawn=(),
    depends_on_drawn=False,
    digests=({"obs": b"0"}, {"obs": b"1"}),
)
SOUND = CheckReport(
    environment="E-v0",
    construct=CONSTRUCT,
    plain=PLAIN,
    play=PLAY,
    shifted=PLAY,
    restores=Verdict(restores="state", reason=""),
    speeds=(SpeedFacts(vectorised="sync", lanes=8, steps_per_s=100.0),),
)
FAULT = EnvironmentFault("environment 'E-v0', the check, lane 0, tick 2: step raised", got="no", detail="Trace")


def judged(report: CheckReport, *, voids_nonfinite: bool = False) -> Judgement:
    return judge(report, voids_nonfinite=voids_nonfinite)


def line(judgement: Judgement, name: str) -> Line:
    (found,) = [line for line in judgement.lines if line.name == name]
    return found


def test_a_sound_environment_passes_in_every_line() -> None:
    """No note, nothing to do."""
    judgement = judged(SOUND)
    assert judgement.passed
    assert {found.verdict for found in judgement.lines} == {"pass"}
    assert {found.fix for found in judgement.lines} == {""}


@pytest.mark.parametrize(
    ("part", "changes", "name", "verdict", "words"),
    [
        ("construct", {"children_left": 2}, "close", "FAIL", "2 processes were left running"),
        ("plain", {"fresh_alike": False}, "seed", "FAIL", "ignores its seed: two fresh environments"),
        ("plain", {"again_alike": False}, "seed", "FAIL", "ignores its seed from the second reset on"),
        ("plain", {"seeds_matter": False}, "seed", "note", "every seed begins the same episode"),
        ("plain", {"unseeded_follows": False}, "seed", "note", "a reset without a seed"),
        ("plain", {"action_samples_repeat": False}, "action samples", "FAIL", "samples differently"),
        ("plain", {"outside_space": "step returned 9"}, "declared bounds", "note", "step returned 9"),
        ("plain", {"reuses_buffers": True}, "buffers", "note", "changes with the next step"),
        (
            "play",
            {"broken": 2, "first_broken": "obs is nan"},
            "finite values",
            "FAIL",
            "2; the first: obs is nan",
        ),
        ("play", {"difference": "obs at tick 7"}, "determinism", "FAIL", "two equal plays differ: obs at tick 7"),
        ("play", {"drawn": ("numpy",)}, "process-wide randomness", "note", "numpy; no tick depended on it"),
        (
            "play",
            {"drawn": ("python", "numpy"), "depends_on_drawn": True},
            "process-wide randomness",
            "note",
            "python and numpy; episodes depend on it",
        ),
        ("play", {"clock_reads": 7}, "wall clock", "note", "read 7 times; no tick depended on it"),
        ("shifted", {"digests": ({"obs": b"0"}, {"obs": b"2"})}, "wall clock", "FAIL", "differs obs at tick 1"),
        ("restores", {"restores": "replay", "reason": "obs differs"}, "restores", "pass", "replay: a resume does"),
        ("restores", {"restores": "no", "reason": "obs differs"}, "restores", "note", "no: obs differs"),
    ],
)
def test_each_finding_has_its_verdict(part: str, changes: dict[str, Any], name: str, verdict: str, words: str) -> None:
    """One finding at a time: the line, its word, its figures; a failure fails the check, a note does not."""
    judgement = judged(replace(SOUND, **{part: replace(getattr(SOUND, part), **changes)}))
    found = line(judgement, name)
    assert found.verdict == verdict
    assert words in found.found
    assert judgement.passed is (verdict != "FAIL")
    assert found.fix or verdict == "pass" or "no tick depended" in found.found
    others = {other.verdict for other in judgement.lines if other.name != name}
    assert others <= {"pass", "–"}


def test_nonfinite_values_are_a_note_where_the_configuration_voids_them() -> None:
    """The user has said what is to become of such episodes."""
    report = replace(SOUND, play=replace(PLAY, broken=1, first_broken="obs is inf"))
    assert line(judged(report, voids_nonfinite=True), "finite values").verdict == "note"


def test_a_broken_contract_is_told_once_with_what_was_not_reached() -> None:
    """The same error of the seed probe is not a second failure; the traceback is kept for the end."""
    report = replace(SOUND, plain=FAULT, play=FAULT, shifted=None, restores=None, speeds=())
    judgement = judged(report)
    failed = [found for found in judgement.lines if found.verdict == "FAIL"]
    assert [found.name for found in failed] == ["contract"]
    assert failed[0].found == "lane 0, tick 2: step raised; got no"
    assert failed[0].detail == "Trace"
    assert {found.name for found in judgement.lines if found.verdict == "–"} == {"seed", "wall clock", "restores"}
    assert judgement.recommended is None


def test_whatever_ended_a_probe_is_its_line() -> None:
    """Construction, another time of day, a way of holding lanes."""
    late = DeadlineError("environment 'E-v0': construct did not return", got="no answer in 1 s", allowed="1 s")
    only = judged(CheckReport(environment="E-v0", construct=late))
    assert line(only, "construct").found == "construct did not return; got no answer in 1 s; allowed: 1 s"
    assert not only.passed
    failure = SpeedFailure(vectorised="async", lanes=8, error=ContractError("lanes differ"))
    report = replace(SOUND, shifted=FAULT, speeds=(*SOUND.speeds, failure))
    assert line(judged(report), "wall clock").verdict == line(judged(report), "async, 8 lanes").verdict == "FAIL"


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([("sync", 1, 50), ("sync", 8, 95), ("sync", 32, 100)], ("sync", 8)),
        ([("sync", 1, 50), ("sync", 8, 80), ("sync", 32, 100)], ("sync", 32)),
        ([("sync", 32, 100), ("async", 8, 119)], ("sync", 32)),
        ([("sync", 32, 100), ("async", 8, 121)], ("async", 8)),
        ([("sync", 32, 100), ("own", 32, 900), ("own", 8, 300)], ("own", 32)),
        ([("async", 8, 10)], ("async", 8)),
        ([], None),
    ],
)
def test_how_to_hold_lanes(measured: list[tuple[Any, int, float]], expected: tuple[str, int] | None) -> None:
    """The fewest lanes within a tenth of the best; children from a fifth more on."""
    best = recommend(tuple(SpeedFacts(vectorised=mode, lanes=n, steps_per_s=rate) for mode, n, rate in measured))
    assert (None if best is None else (best.vectorised, best.lanes)) == expected


def test_the_command_prints_one_answer_and_fails_where_a_contract_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--json: one object on stdout; exit codes 0, 1, 2."""
    monkeypatch.setattr(gathering, "SPEED_S", 0.01)
    assert run_command(CheckEnv(env="CartPole-v1", ticks=20, json=True)) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["environment"], answer["passed"]) == ("CartPole-v1", True)
    assert [found["name"] for found in answer["lines"]][:3] == ["construct", "spaces", "close"]
    assert len(answer["speeds"]) == 7 and answer["recommended"]["vectorise"] in ("own", "sync", "async")
    faulty = CheckEnv(env="tests.envs:truestep-tests/Faulty-v0", set_=("env.kwargs.at=3",), ticks=5)
    assert run_command(faulty) == 1
    shown = capsys.readouterr()
    assert "tick 3: step raised RuntimeError" in shown.out and "the simulator lost its licence" in shown.out
    assert "FAILED: 1 broken contract" in shown.out
    assert shown.err.startswith("checking     constructing\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (CheckEnv(env="CartPole-v11"), "close ones: CartPole-v1"),
        (CheckEnv(env="CartPole-v1", set_=("ppo.clip=0.1",)), "only the environment is checked"),
        (CheckEnv(env="CartPole-v1", set_=("env.nonsense=1",)), "env.nonsense"),
        (CheckEnv(env="CartPole-v1", lanes=0), "at least 1 each"),
    ],
)
def test_bad_input_is_said_in_one_line(command: CheckEnv, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, no table."""
    assert run_command(command) == 2
    shown = capsys.readouterr()
    assert words in shown.err and shown.out == ""
