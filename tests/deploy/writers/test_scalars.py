"""The record's numbers by name: which is where, worked out by hand, and that none is lost or shadowed."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from common.runs import EvaluationRecord, UpdateRecord
from deploy.writers.scalars import evaluation_scalars, rows, scalar_name, update_scalars

SCALARS_OF_FIELDS = 9  # update, version, term, ranks, produced, trained, in_flight, fragments_lost, lag


def update(**changes: Any) -> UpdateRecord:
    usual: dict[str, Any] = {
        "run": "r",
        "update": 3,
        "term": 1,
        "version": 5,
        "env_steps": 300,
        "parameter_digest": "p",
        "state_digest": "s",
        "chain": "c",
        "produced": 400,
        "trained": 300,
        "in_flight": 90,
        "dropped": {},
        "fragments_lost": 2,
        "lag": 0.5,
        "statistics": {},
        "num_ranks": 2,
    }
    return UpdateRecord(**usual | changes)


def evaluation(update: int, mean: float = 20.0) -> EvaluationRecord:
    spread = {"std": 10.0, "minimum": 10.0, "maximum": 30.0}
    return EvaluationRecord(run="r", update=update, version=5, mean=mean, episodes=2, returns=(10.0, 30.0), **spread)


def test_every_kind_of_number_has_its_group() -> None:
    """One of each, by hand."""
    statistics = {
        "episodes": 4.0,
        "episode_return": 21.5,
        "episode_return_std": 1.0,
        "episode_return_min": 20.0,
        "episode_return_max": 23.0,
        "policy": -0.1,
        "value": 2.0,
        "entropy": 0.7,
        "gradient_norm": 3.0,
        "gradient_norm_policy": 1.5,
        "approximate_kl": 0.01,
        "learning_rate": 1e-3,
        "seconds_learn": 0.2,
        "seconds_driving": 9.0,
        "seconds_sync_reduce": 0.05,
        "verified_steps": 16.0,
        "reduced_bytes": 64.0,
        "starved": 1.0,
        "normaliser_rows": 128.0,
        "return_deviation": 6.0,
    }
    assert update_scalars(update(statistics=statistics, dropped={"stale": 7})) == {
        "run/update": 3.0,
        "run/version": 5.0,
        "run/term": 1.0,
        "run/ranks": 2.0,
        "flow/produced": 400.0,
        "flow/trained": 300.0,
        "flow/in_flight": 90.0,
        "flow/dropped/stale": 7.0,
        "flow/fragments_lost": 2.0,
        "flow/lag": 0.5,
        "flow/starved": 1.0,
        "return/episodes": 4.0,
        "return/mean": 21.5,
        "return/std": 1.0,
        "return/min": 20.0,
        "return/max": 23.0,
        "loss/policy": -0.1,
        "loss/value": 2.0,
        "loss/entropy": 0.7,
        "gradient/norm": 3.0,
        "gradient/norm_policy": 1.5,
        "learner/approximate_kl": 0.01,
        "learner/learning_rate": 1e-3,
        "learner/return_deviation": 6.0,
        "time/learn": 0.2,
        "time/driving": 9.0,
        "normaliser/rows": 128.0,
        "sync/seconds_reduce": 0.05,
        "sync/verified_steps": 16.0,
        "sync/reduced_bytes": 64.0,
    }


def test_an_evaluation_has_a_group_of_its_own() -> None:
    """Mean, spread, bounds, how many, and of which weights."""
    assert evaluation_scalars(evaluation(3)) == {
        "evaluation/mean": 20.0,
        "evaluation/std": 10.0,
        "evaluation/min": 10.0,
        "evaluation/max": 30.0,
        "evaluation/episodes": 2.0,
        "evaluation/version": 5.0,
    }


WORDS = st.sampled_from(
    ["episode", "episodes", "return", "seconds", "sync", "gradient", "norm", "normaliser", "policy", "starved", "mean"]
)
STATISTICS = st.one_of(st.text(min_size=1, max_size=12), st.lists(WORDS, min_size=1, max_size=4).map("_".join))


@given(st.dictionaries(STATISTICS, st.floats(), max_size=12), st.dictionaries(WORDS, st.integers(0, 9), max_size=4))
@settings(deadline=None, max_examples=200)
def test_every_statistic_appears_under_exactly_one_name(statistics: dict[str, float], dropped: dict[str, int]) -> None:
    """Whatever an algorithm calls its numbers, no two meet at one place, and each arrives as it is."""
    scalars = update_scalars(update(statistics=statistics, dropped=dropped))
    assert len(scalars) == SCALARS_OF_FIELDS + len(statistics) + len(dropped)
    for name, value in statistics.items():
        arrived = scalars[scalar_name(name)]
        assert arrived == value or (math.isnan(arrived) and math.isnan(value))


def test_rows_of_a_run_stand_at_environment_steps() -> None:
    """An evaluation at those of its update, one before any update at 0."""
    lines = rows([update(update=1, env_steps=100), update(update=2, env_steps=200)], [evaluation(0), evaluation(2)])
    assert [(step, "run/update" in values) for step, values in lines] == [
        *((0, False), (100, True)),
        *((200, True), (200, False)),
    ]
