"""`truestep drill` over Ray: faults on purpose are detected, located and recovered from, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.drills import DRILLS
from tests.e2e.command import answer, truestep
from tests.e2e.in_process import embedded_ray, say

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    yield from embedded_ray(6)


@pytest.mark.slow
def test_a_flipped_bit_and_a_killed_rank(tmp_path: Path, cluster: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Both pass, with the bits of the run in which nothing happened, and the table says so."""
    said = say(capsys, "drill", "flip-bit", "kill-rank", "--out", str(tmp_path))
    assert said.code == 0, said.out + said.err
    lines = [line.split() for line in said.out.splitlines()]
    for name in ("flip-bit", "kill-rank"):
        (row,) = [words for words in lines if words and words[0] == name]
        assert row[1] == "passed" and row[-1] == "yes" and "rank" in row


def test_an_unknown_drill_is_refused_with_those_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is started."""
    said = say(capsys, "drill", "flip-bits", "--out", str(tmp_path))
    assert said.code == 2 and "flip-bits" in said.err and "flip-bit," in said.err
    assert say(capsys, "drill", "--out", str(tmp_path)).code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_drills_pass(tmp_path: Path) -> None:
    """Through the real command: every fault detected, located right, recovered from; no update lost."""
    completed = truestep("drill", "--all", "--out", str(tmp_path), "--json", limit_s=800.0)
    results = answer(completed)["drills"]
    assert [result["name"] for result in results] == [plan.name for plan in DRILLS]
    assert {result["name"]: result["why"] for result in results if not result["passed"]} == {}
    assert all(result["updates_lost"] == 0 for result in results)
    assert completed.returncode == 0
