"""The screen: everything in words, on any width, whatever is not known."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from common.run_records import EventRecord
from deploy.top.figures import figures_of
from deploy.top.record import Recorded
from deploy.top.view import Screen
from tests.deploy.top.looks import Series, scrape, window

DRIVER: Series = {
    'truestep_driver_run_info{run="r",env="CartPole-v1",algo="impala"}': 1,
    "truestep_driver_env_steps_total": 1000,
    "truestep_driver_updates_total": 10,
    "truestep_driver_policy_lag_updates": 3,
    "truestep_driver_queued_fragments": 2,
    "truestep_driver_in_flight_fragments": 4,
    "truestep_driver_in_flight_capacity_fragments": 6,
    'truestep_driver_stall{verdict="learner_bound"}': 1,
    'truestep_driver_stage_state{stage="ticks"}': 2,
    'truestep_driver_stage_state{stage="drawn"}': 0,
    'truestep_driver_actors{state="running"}': 1,
    "truestep_driver_wanted_actors": 2,
    'truestep_driver_sync_mismatches_total{cause="digest"}': 2,
    'truestep_driver_checkpoints_total{result="failed"}': 1,
    "truestep_driver_last_checkpoint_age_seconds": 75,
}
LATER: Series = {**DRIVER, "truestep_driver_env_steps_total": 3000, "truestep_driver_updates_total": 30}


def event(kind: str, data: dict[str, object]) -> EventRecord:
    return EventRecord(
        run="r", sequence=1, monotonic_ns=0, clock_id="c", wall="2026-01-02T03:04:05Z", kind=kind, data=data
    )


def recorded(**changes: object) -> Recorded:
    facts: dict[str, object] = {
        "status": "running",
        "verdict": "",
        "total_steps": 5000,
        "events": (event("ACTOR_LOST", {"actor": 1, "cause": "killed", "detail": "Traceback"}),),
        "finding": ("learner_bound", "learner-bound: it was busy 97 % of the time; use fewer epochs"),
        "address": "",
    }
    return Recorded(**(facts | changes))  # type: ignore[arg-type]


def drawn(screen: Screen, width: int = 130) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(screen)
    return console.file.getvalue()  # type: ignore[attr-defined]


def screen(**changes: object) -> Screen:
    rank = {'truestep_learner_phase_seconds_sum{phase="learn"}': 0.0, "truestep_learner_updates_total": 0}
    worked = {'truestep_learner_phase_seconds_sum{phase="learn"}': 9.0, "truestep_learner_updates_total": 20}
    before = scrape(0, DRIVER, {"actor-0": {"truestep_actor_env_steps_total": 0}, "learner-0": rank})
    now = scrape(
        10,
        LATER,
        {"actor-0": {"truestep_actor_env_steps_total": 2000}, "learner-0": worked},
        silent={"actor-1": "refused"},
    )
    facts = {"run": "r", "address": "h:1", "figures": figures_of(window(before, now)), "recorded": recorded()}
    return Screen(**(facts | changes))  # type: ignore[arg-type]


def test_a_run_is_told_in_words() -> None:
    """Progress against the goal, verdict with its reasons, troubles, every process."""
    shown = drawn(screen())
    for words in (
        "r  CartPole-v1, impala  driver h:1",
        "3,000 of 5,000 steps, 200 steps/s, update 30, 2.0 updates/s, 10 s to go",
        "learner-bound: it was busy 97 % of the time; use fewer epochs",
        "ticks blocked ─► drawn",
        "lag 3, queue 2, in flight 4 of 6",
        "2 mismatches",
        "0 written in this driving, the last 1 min 15 s ago, 1 FAILED",
        "actors: 1 running, 2 wanted",
        "no answer: refused",
        "learner ranks",
        "03:04:05  ACTOR_LOST",
        "actor=1  cause=killed",
    ):
        assert words in shown, words
    assert "Traceback" not in shown
    rank = next(line for line in shown.splitlines() if line.startswith("learner-0"))
    assert "90%" in rank and "10%" in rank


def test_words_of_another_verdict_are_not_those_of_this_one() -> None:
    """The note of the change may be late: the verdict's own name stands alone until then."""
    shown = drawn(screen(recorded=recorded(finding=("sync_bound", "sync-bound: ranks wait"))))
    assert "learner-bound" in shown and "ranks wait" not in shown


@pytest.mark.parametrize("width", [20, 40, 63, 64, 99, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Columns go before letters do; the names of processes and what is wrong stay."""
    shown = drawn(screen(), width)
    assert max(len(line) for line in shown.splitlines()) <= width
    assert "actor-0" in shown and "learner-0" in shown


def test_without_a_record_and_without_figures_there_is_still_a_screen() -> None:
    """From another machine, and before the driver has answered."""
    assert "ACTOR_LOST" not in drawn(screen(recorded=None))
    assert "3,000 steps" in drawn(screen(recorded=None))
    assert drawn(Screen(run="r", address="h:1", figures=None)).strip() == "r  driver h:1"


def test_a_driver_that_is_silent_is_told_above_figures_of_before() -> None:
    """Nothing that is shown passes for news."""
    lines = drawn(screen(trouble="the driver has not answered for 4 s")).splitlines()
    assert lines[1].strip() == "the driver has not answered for 4 s"


def test_names_are_shown_as_they_are() -> None:
    """Brackets in them are no markup."""
    weird = recorded(events=(event("NOTE", {"env": "[red]x[/red]"}),))
    assert "env=[red]x[/red]" in drawn(screen(run="[bold]r", recorded=weird))
    assert "[bold]r" in drawn(screen(run="[bold]r"))


def test_many_actors_are_summed_up() -> None:
    """A screen is no list of hundreds."""
    many = scrape(0, {}, {f"actor-{number}": {} for number in range(100)})
    shown = drawn(Screen(run="r", address="h:1", figures=figures_of(window(many))))
    assert "actor-23" in shown and "actor-24" not in shown and "and 76 more" in shown


def test_a_wrong_gpu_cannot_be_overlooked() -> None:
    """A line of its own."""
    gpu = {"truestep_process_gpu_utilization_ratio": 0.5, "truestep_process_gpu_misplaced": 1.0}
    figures = figures_of(window(scrape(0, {}, {"learner-0": gpu})))
    assert "computes on another GPU" in drawn(Screen(run="r", address="h:1", figures=figures))
