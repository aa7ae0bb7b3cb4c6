"""Incidents that `python -m benchmarks.attribution --record` has recorded: the last ten seconds of real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stalls import CASES
from common.metrics import Stall
from deploy.attribution.snapshot import from_plain, to_plain
from deploy.attribution.verdict import judge

RECORDINGS = sorted((Path(__file__).parent / "incidents").glob("*.json"))


def read(path: Path) -> dict[str, Any]:
    incident: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return incident


def test_there_is_a_recording_of_every_planted_slow_down() -> None:
    """And of the healthy run; each says which verdict it should get, as the benchmark does."""
    assert {read(path)["case"]: read(path)["verdict"] for path in RECORDINGS} == {
        case.name: case.verdict.value for case in CASES
    }


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_incident_is_judged_right(path: Path) -> None:
    """Whichever verdict was in force before; the shorter windows with which judging begins find nothing else either, or
    nothing yet."""
    incident = read(path)
    snapshots = [from_plain(plain) for plain in incident["snapshots"]]
    assert [to_plain(snapshot) for snapshot in snapshots] == incident["snapshots"]
    due = Stall(incident["verdict"])
    for before in (due, Stall.HEALTHY):
        assert judge(snapshots, before=before).verdict is due
    assert judge(snapshots[5:]).verdict in (due, Stall.HEALTHY)
