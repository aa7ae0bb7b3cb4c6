"""From the record to what is shown: columns, times, verdicts, commands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.runs import EventRecord
from deploy import cli, commands
from deploy.record import DRIVING
from deploy.reporting.driving import moments
from deploy.reporting.facts import read_facts
from deploy.reporting.happenings import timeline_rows, verdict_bands
from deploy.reporting.history import flow_of, history_of, pooled_returns, starts
from tests.deploy.reporting.runs import Made, evaluation, update
from tests.deploy.test_sync_tally import row

S = 1_000_000_000


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    made = Made.under(tmp_path)
    yield made
    made.registry.close()


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────


def returned(value: float, std: float) -> dict[str, float]:
    """Episodes of this mean and deviation."""
    same = {f"episode_return{name}": value for name in ("", "_min", "_max")}
    return same | {"episode_return_std": std}


def test_returns_are_pooled_by_episodes() -> None:
    """Three of mean 10 and one of 30: mean 15, and the deviation of all four; updates without one are passed."""
    rows = [
        update(1, episodes=3.0, **returned(10.0, std=2.0)),
        update(2, episodes=0.0, episode_return=math.nan),
        update(3, episodes=1.0, **returned(30.0, std=0.0)),
    ]
    pooled = pooled_returns(history_of(rows), 1)
    assert (pooled.mean[0], pooled.std[0]) == pytest.approx((15.0, math.sqrt((3 * (4 + 25) + 225) / 4)))
    assert (pooled.low[0], pooled.high[0], pooled.env_steps[0]) == (10.0, 30.0, 300.0)


def test_an_update_of_an_older_truestep_counts_as_one_episode() -> None:
    """It recorded the mean only: no spread is made up."""
    rows = [replace(row(number), statistics={"episode_return": 5.0}) for number in (1, 2)]
    pooled = pooled_returns(history_of(rows), 5)
    assert pooled.mean.tolist() == [5.0, 5.0] and pooled.std.tolist() == [0.0, 0.0]
    assert not len(pooled_returns(history_of([row(1)]), 5).mean)


def test_rates_and_shares_of_a_steady_run() -> None:
    """100 steps, half a second of learning and 0.8 s of collecting in every second."""
    flow = flow_of(history_of([update(number) for number in range(1, 11)]), [0.0], 5)
    assert flow.seconds.tolist() == [2, 4, 6, 8, 10]
    assert flow.steps_per_s == pytest.approx(np.full(5, 100.0))
    assert flow.learner["learn"] == pytest.approx(np.full(5, 0.5))
    assert flow.actors["env"] == pytest.approx(np.full(5, 0.4))
    assert flow.actors["rollout"] == pytest.approx(np.full(5, 0.2))


def test_starting_ends_where_the_first_update_begins() -> None:
    """Committed after 10 s with 0.6 s of work: 9.4 s of starting; a driving without an update has none of it."""
    history = history_of([update(1, seconds=10.0), update(2, seconds=11.0), update(3, seconds=25.0)])
    assert [pytest.approx(each) for each in starts(history, [0.0, 12.0, 20.0])] == [(0.0, 9.4), (20.0, 24.4)]
    flow = flow_of(history, [0.0], 3)
    assert flow.starting[0] == 1.0
    assert flow.starting.sum() * 25 / 3 == pytest.approx(9.4)


def test_times_that_are_not_on_record_make_no_rates() -> None:
    """Of an older truestep; of a run without updates too."""
    for rows in ([], [row(1), row(2)]):
        assert not len(flow_of(history_of(rows), [0.0], 5).seconds)


# ── times ────────────────────────────────────────────────────────────────────────────────────────────────────────


def event(sequence: int, kind: str, at_s: float, clock: str = "boot", **data: Any) -> EventRecord:
    return EventRecord(
        run="r", sequence=sequence, monotonic_ns=round(at_s * S), clock_id=clock, wall="", kind=kind, data=data
    )


def test_events_lie_on_the_seconds_of_driving() -> None:
    """Not on the hours for which nobody drove: what a resume prepares falls on where it goes on."""
    told = moments(
        [
            event(1, DRIVING, 100.0, driving_s=0.0),
            event(2, "ACTOR_LOST", 105.0),
            event(3, "RESUMED", 4000.0),
            event(4, DRIVING, 4001.0, driving_s=8.0),
            event(5, "ACTOR_LOST", 4003.0),
            event(6, "TAKEN_OVER", 9000.0, clock="other"),
            event(7, DRIVING, 9001.0, clock="other", driving_s=20.0),
            event(8, "STOP_ASKED", 9002.5, clock="other"),
        ]
    )
    assert [moment.seconds for moment in told] == [0.0, 5.0, 8.0, 8.0, 10.0, 10.0, 20.0, 21.5]


def test_without_a_beginning_time_counts_from_the_first_event() -> None:
    """As an older truestep recorded it; and no event is no error."""
    assert [m.seconds for m in moments([event(1, "A", 7.0), event(2, "B", 9.0)])] == [0.0, 2.0]
    assert moments([]) == []


# ── rows of the timeline ─────────────────────────────────────────────────────────────────────────────────────────


def test_every_kind_of_event_has_its_row(made: Made) -> None:
    """Known ones and ones that only their name tells; checkpoints and evaluations stand at their updates."""
    run = made.run(updates=[update(number) for number in range(1, 11)])
    for kind in ("ACTOR_LOST", "RANK_LOST", "GROUP_FORMED", "FRAGMENT_REFUSED", "ACTOR_PAINTED", "SOMETHING"):
        made.event(run, 1.0, kind)
    made.registry.record_evaluation(evaluation(5, 1.0))
    made.checkpoint(run, 7)
    rows = {row.name: row for row in timeline_rows(read_facts(made.registry, run, out=made.out))}
    assert {name: [(mark.seconds, mark.style) for mark in row.marks] for name, row in rows.items()} == {
        "run": [(6.0, "plain")],
        "actors": [(1.0, "bad"), (5.0, "plain")],
        "ranks": [(2.0, "bad"), (3.0, "good")],
        "fragments": [(4.0, "bad")],
        "checkpoints": [(7.0, "saved")],
        "evaluations": [(5.0, "plain")],
    }
    words = [stretch.words for stretch in rows["run"].stretches]
    assert words == ["starting", "driven, running"]


def test_a_verdict_is_in_force_until_the_next_or_the_end_of_that_driving(made: Made) -> None:
    """Healthy looks alike throughout; each cause keeps its own look."""
    run = made.run(updates=[update(number) for number in range(1, 31)])
    made.event(run, 2.0, "VERDICT", verdict="healthy", before="")
    made.event(run, 3.0, "VERDICT", verdict="slow_actor", before="healthy")
    made.drive(run, 8.0)
    made.event(run, 4.0, "VERDICT", verdict="learner_bound", before="healthy", seconds=2.5)
    made.event(run, 4.0, "VERDICT", verdict="slow_actor", before="learner_bound")
    bands = verdict_bands(read_facts(made.registry, run, out=made.out))
    assert [(band.begin, band.end, band.words, band.style) for band in bands] == [
        (2.0, 5.0, "healthy", "fine"),
        (5.0, 8.0, "slow actor", "stall0"),
        (9.5, 12.0, "healthy", "fine"),
        (12.0, 16.0, "learner bound", "stall1"),
        (16.0, 30.0, "slow actor", "stall0"),
    ]


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────

CHANGED = {
    "steps": 1234,
    "policy_lag": 0,
    "actors": {"lanes": 70},
    "optimiser": {"schedule": {"final": 0.5}},
    "net": {"hidden": [32, 16]},
    "env": {"kwargs": {"sutton_barto_reward": True}},
    "stop_at_return": 490.0,
}


def test_the_command_trains_with_the_same_configuration(made: Made) -> None:
    """Parsed again by the command itself, with its recipe, it gives every value of the record."""
    run = made.run(changed=CHANGED)
    facts = read_facts(made.registry, run, out=made.out)
    words = shlex.split(facts.remake.train)
    assert words[:3] == ["truestep", "train", "CartPole-v1"]
    settings = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    config, _ = commands.configuration(
        cli.Train(env="CartPole-v1", algo="ppo", engine="inline", seed=0, set_=(*settings,))
    )
    assert config.to_plain() == facts.record.config
    assert facts.remake.reproduce == f"truestep reproduce r --out {shlex.quote(str(made.out))}"


def test_a_configuration_of_another_truestep_is_no_error(made: Made) -> None:
    """The report says which key is not known, and how to make the run again all the same."""
    run = made.run(config={"env": {"id": "CartPole-v1"}, "learner": {}, "policy_lag": 0, "warp": 9})
    remake = read_facts(made.registry, run, out=made.out).remake
    assert remake.train == "" and "warp" in remake.why_not
    assert remake.reproduce


def test_weights_that_a_run_began_with_are_in_its_command(made: Made) -> None:
    """By the name of the run that they are from."""
    run = made.run(facts={"init_from": {"run": "first", "checkpoint": "c", "parameter_digest": "d"}})
    assert read_facts(made.registry, run, out=made.out).remake.train.endswith("--init-from first")
