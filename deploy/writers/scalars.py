"""Rows of the run's record as named scalars. Pure; each number appears under exactly one name.

| group | what |
| --- | --- |
| `run/` | update, version, term, ranks |
| `return/` | of the episodes that ended since the last update: mean, spread, how many |
| `loss/`, `gradient/`, `learner/` | what the algorithm says of the update |
| `flow/` | totals of transitions by fate, policy lag, whether the learner starved |
| `sync/` | what verification took |
| `time/` | seconds by phase, and of driving so far |
| `normaliser/` | what the running normalisation rests on |
| `evaluation/` | of greedy episodes |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from common.runs import STARVED, EvaluationRecord, UpdateRecord

NAMES = {  # statistics with a name of their own
    "episodes": "return/episodes",
    "episode_return": "return/mean",
    "episode_return_std": "return/std",
    "episode_return_min": "return/min",
    "episode_return_max": "return/max",
    "policy": "loss/policy",
    "value": "loss/value",
    "entropy": "loss/entropy",
    "gradient_norm": "gradient/norm",
    "verified_steps": "sync/verified_steps",
    "reduced_bytes": "sync/reduced_bytes",
    STARVED: "flow/starved",
}
PREFIXES = {  # the first that fits; the rest of the name is kept
    "gradient_norm_": "gradient/norm_",
    "seconds_sync_": "sync/seconds_",
    "seconds_": "time/",
    "normaliser_": "normaliser/",
}
OTHERS = "learner/"

Row = tuple[int, dict[str, float]]  # environment steps, values by name


def update_scalars(record: UpdateRecord) -> dict[str, float]:
    """An update's numbers by grouped name, to be put at its `env_steps`."""
    return {
        "run/update": float(record.update),
        "run/version": float(record.version),
        "run/term": float(record.term),
        "run/ranks": float(record.num_ranks),
        "flow/produced": float(record.produced),
        "flow/trained": float(record.trained),
        "flow/in_flight": float(record.in_flight),
        "flow/fragments_lost": float(record.fragments_lost),
        "flow/lag": float(record.lag),
        **{f"flow/dropped/{reason}": float(count) for reason, count in record.dropped.items()},
        **{scalar_name(name): float(value) for name, value in record.statistics.items()},
    }


def evaluation_scalars(record: EvaluationRecord) -> dict[str, float]:
    """An evaluation's numbers by grouped name, to be put at the `env_steps` of its update."""
    return {
        "evaluation/mean": record.mean,
        "evaluation/std": record.std,
        "evaluation/min": record.minimum,
        "evaluation/max": record.maximum,
        "evaluation/episodes": float(record.episodes),
        "evaluation/version": float(record.version),
    }


def scalar_name(statistic: str) -> str:
    """Where a statistic of an update appears; no two statistics at one place.

    >>> scalar_name("seconds_sync_reduce"), scalar_name("approximate_kl")
    ('sync/seconds_reduce', 'learner/approximate_kl')
    """
    if statistic in NAMES:
        return NAMES[statistic]
    for prefix, group in PREFIXES.items():
        if statistic.startswith(prefix):
            return group + statistic.removeprefix(prefix)
    return OTHERS + statistic


def rows(updates: Sequence[UpdateRecord], evaluations: Sequence[EvaluationRecord]) -> Iterator[Row]:
    """All of a run, by update; an evaluation right behind the update that it is of."""
    of_update = {evaluation.update: evaluation for evaluation in evaluations}
    if first := of_update.get(0):
        yield 0, evaluation_scalars(first)
    for update in updates:
        yield update.env_steps, update_scalars(update)
        if evaluation := of_update.get(update.update):
            yield update.env_steps, evaluation_scalars(evaluation)
