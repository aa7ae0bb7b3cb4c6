"""One run as one object: ranks, chain and what sync came to, in values and in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.runs import STARVED, RunRegistry
from common.runs_ledger import BYTES_PER_FRAGMENT
from deploy.report import report_lines, run_report
from tests.common.test_ledger import dropped, fragment
from tests.deploy.test_sync_tally import failed, mismatch, row

EVENTS = [
    mismatch(1, "digest"),
    ("SYNC_ATTRIBUTED", {"update": 1, "ranks": [1], "sha256": {"3": "ab" * 32}}),
    ("RANK_LOST", {"rank": 1, "cause": "killed", "detail": "a long trace"}),
    failed(2),
    ("RANK_QUARANTINED", {"rank": 1}),
]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunRegistry]:
    with RunRegistry.open(tmp_path / "runs.sqlite") as registry:
        yield registry


def run_of(registry: RunRegistry, learner: dict[str, Any], *, algo: str = "ppo", **sections: Any) -> str:
    config = {"policy_lag": 1, "learner": learner, **sections}
    registry.create_run(run="r", env="e", algo=algo, seed=0, engine="ray", config=config, facts={}, out="o")
    registry.acquire("r", lease="l")
    return "r"


def test_a_report_tells_ranks_chain_and_what_sync_came_to(registry: RunRegistry) -> None:
    """Counted from the events; verified updates are those that stand after the rollback."""
    run = run_of(registry, {"ranks": 3})
    registry.record_updates([row(number) for number in (1, 2, 3, 4)])
    for kind, data in EVENTS:
        registry.record_event(run, kind, data)
    registry.roll_back(run, 2, term=1, reason="why")
    report = run_report(registry, run)
    assert (report["learners"], report["chain"], report["term"], report["updates"]) == (3, "c", 1, 2)
    assert report["sync"] == {
        "verified_updates": 2,
        "mismatches": 1,
        "failures": 1,
        "retries": 2,
        "rollbacks": 1,
        "ranks_lost": 1,
        "ranks_quarantined": 1,
    }
    json.dumps(report, allow_nan=False)


def test_a_report_tells_what_became_of_every_fragment(registry: RunRegistry) -> None:
    """Counted over the whole ledger; bytes are those it takes, about."""
    run = run_of(registry, {"ranks": 1})
    registry.record_updates([row(1)], [fragment(0, 0, 1, decided_in=0), dropped(1, 0, 1), dropped(2, 0, 1)])
    report = run_report(registry, run)
    assert report["ledger"] == {"made": 3, "trained": 1, "dropped": {"stale": 2}, "bytes": 3 * BYTES_PER_FRAGMENT}
    (line,) = [line for line in report_lines(report) if line.startswith("ledger")]
    assert line.endswith("made 3, trained 1, dropped stale 2, bytes 114")


@pytest.mark.parametrize(
    ("algo", "mode", "collection"),
    [
        ("ppo", None, ("synchronous", 1, None)),  # recorded before there was a choice
        ("ppo", "auto", ("synchronous", 1, None)),
        ("impala", "auto", ("asynchronous", None, 9)),
        ("impala", "sync", ("synchronous", 1, None)),
        ("ppo", "async", ("asynchronous", None, 9)),
    ],
)
def test_a_report_tells_how_fragments_were_collected(
    registry: RunRegistry, algo: str, mode: str | None, collection: tuple[str, int | None, int | None]
) -> None:
    """The mode that `auto` comes to, with the bound that is in force; in words too."""
    sections = {} if mode is None else {"flow": {"mode": mode, "max_lag": 9}}
    report = run_report(registry, run_of(registry, {"ranks": 1}, algo=algo, **sections))
    assert (report["collection"], report["policy_lag"], report["max_lag"]) == collection
    assert f"{'collection':<17} {collection[0]}" in report_lines(report)


def test_a_report_tells_before_how_many_updates_the_learner_starved(registry: RunRegistry) -> None:
    """Of those that stand; rows of synchronous collection say nothing of it."""
    run = run_of(registry, {"ranks": 1})
    starved = [replace(row(number), statistics={STARVED: float(number % 2)}) for number in (1, 2, 3, 4, 5)]
    registry.record_updates([*starved, row(6)])
    assert run_report(registry, run)["starved_updates"] == 3
    registry.roll_back(run, 4, term=1, reason="why")
    assert run_report(registry, run)["starved_updates"] == 2


def test_a_run_of_a_truestep_without_ranks_had_one(registry: RunRegistry) -> None:
    """Nothing of sync happened to it."""
    report = run_report(registry, run_of(registry, {}))
    assert report["learners"] == 1
    assert set(report["sync"].values()) == {0}
    assert report["chain"] == ""


def test_a_report_in_words_has_a_line_for_each_fact_and_event(registry: RunRegistry) -> None:
    """Parts of a fact are named, nothing is a Python literal; digests of events are short, details are left out."""
    run = run_of(registry, {"ranks": 2})
    registry.record_updates([row(1)])
    for kind, data in EVENTS:
        registry.record_event(run, kind, data)
    lines = report_lines(run_report(registry, run))
    facts = {line.split()[0]: line[18:] for line in lines[: -len(EVENTS)]}
    assert facts["learners"] == "2"
    assert facts["sync"] == (
        "verified updates 1, mismatches 1, failures 1, retries 0, rollbacks 0, ranks lost 1, ranks quarantined 1"
    )
    assert facts["evaluation"] == facts["dropped"] == facts["checkpoints"] == "–"
    assert [line.split()[1] for line in lines[-len(EVENTS) :]] == [kind for kind, _ in EVENTS]
    assert lines[-4].endswith("update=1  ranks=[1]  sha256={3: abababababab}")
    assert lines[-3].endswith("rank=1  cause=killed")
