"""The updates of a run as columns, and what follows from them: returns pooled, rates, shares of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.runs import UpdateRecord
from deploy.reporting.sampling import chunks
from deploy.reporting.svg import Array

DRIVING = "seconds_driving"
LEARNER_PHASES = ("learn", "intake", "close", "publish")
ACTOR_PHASES = ("env", "policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Columns, a value for each update that stands, in order.

    Attributes:
        update, term, env_steps, lag, produced, trained, in_flight: as in `common.runs.UpdateRecord`.
        dropped: by reason; totals, 0 before the first.
        statistics: by name; NaN where an update has none.
    """

    update: Array
    term: Array
    env_steps: Array
    lag: Array
    produced: Array
    trained: Array
    in_flight: Array
    dropped: dict[str, Array]
    statistics: dict[str, Array]

    def __len__(self) -> int:
        return len(self.update)

    def statistic(self, name: str) -> Array:
        """A column; all NaN if no update has it."""
        found = self.statistics.get(name)
        return np.full(len(self), np.nan) if found is None else found

    @property
    def seconds(self) -> Array:
        """Of driving, when each update was committed; NaN where an older truestep did not record it."""
        return self.statistic(DRIVING)

    def total(self, name: str) -> float:
        """Sum of a column; what is not finite counts as nothing."""
        column = self.statistic(name)
        return float(column[np.isfinite(column)].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """Returns of the episodes of several updates together.

    Attributes:
        env_steps, seconds: of the last update in each pool.
        mean, std, low, high: over all episodes of the pool.
    """

    env_steps: Array
    seconds: Array
    mean: Array
    std: Array
    low: Array
    high: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What happened per second, in stretches of driving.

    Attributes:
        seconds: end of each stretch.
        steps_per_s: environment steps.
        starting: share of the stretch in which processes were being started: from the beginning of a driving to that
            of its first update.
        learner: share of the stretch that the learner spent, by phase; what is left of 1 it waited.
        actors: actors at work on average, by what they did.
    """

    seconds: Array
    steps_per_s: Array
    starting: Array
    learner: dict[str, Array]
    actors: dict[str, Array]


def history_of(updates: Sequence[UpdateRecord]) -> History:
    """Rows to columns."""

    def column(name: str) -> Array:
        return np.asarray([getattr(update, name) for update in updates], np.float64)

    names = dict.fromkeys(name for update in updates for name in update.statistics)
    reasons = dict.fromkeys(reason for update in updates for reason in update.dropped)
    return History(
        update=column("update"),
        term=column("term"),
        env_steps=column("env_steps"),
        lag=column("lag"),
        produced=column("produced"),
        trained=column("trained"),
        in_flight=column("in_flight"),
        dropped={name: np.asarray([u.dropped.get(name, 0) for u in updates], np.float64) for name in reasons},
        statistics={name: np.asarray([u.statistics.get(name, np.nan) for u in updates], np.float64) for name in names},
    )


def pooled_returns(history: History, pools: int) -> Pooled:
    """The returns of training episodes in at most `pools` pools of updates in which any ended.

    Means are weighted by episodes, and the deviation is that of all episodes together. An update of an older truestep
    tells its mean only: it counts as one episode.
    """
    mean = history.statistic("episode_return")
    ended = np.flatnonzero(np.isfinite(mean))
    mean = mean[ended]
    weight = _or(history.statistic("episodes")[ended], 1.0)
    std = _or(history.statistic("episode_return_std")[ended], 0.0)
    low = _or(history.statistic("episode_return_min")[ended], mean)
    high = _or(history.statistic("episode_return_max")[ended], mean)
    rows = []
    for pool in chunks(len(ended), pools):
        total = weight[pool].sum()
        centre = (weight[pool] * mean[pool]).sum() / total
        variance = (weight[pool] * (std[pool] ** 2 + (mean[pool] - centre) ** 2)).sum() / total
        last = ended[pool[-1]]
        steps, seconds = history.env_steps[last], history.seconds[last]
        rows.append((steps, seconds, centre, variance**0.5, low[pool].min(), high[pool].max()))
    columns = np.asarray(rows, np.float64).reshape(-1, 6).T
    return Pooled(
        env_steps=columns[0], seconds=columns[1], mean=columns[2], std=columns[3], low=columns[4], high=columns[5]
    )


def flow_of(history: History, begun: Sequence[float], stretches: int) -> Flow:
    """Rates and shares in at most `stretches` stretches of driving, as many as there are timed updates.

    Args:
        begun: seconds at which drivings began.
    """
    timed = np.flatnonzero(np.isfinite(history.seconds))
    clock = np.concatenate([[0.0], history.seconds[timed]])
    count = min(stretches, len(timed))
    edges = np.linspace(0.0, clock[-1], count + 1) if count and clock[-1] > 0 else np.zeros(1)
    lengths = np.diff(edges)

    def per_second(column: Array) -> Array:
        """Growth per second of a total in each stretch."""
        rates: Array = np.diff(np.interp(edges, clock, np.concatenate([[0.0], column[timed]]))) / lengths
        return rates

    def spent(name: str) -> Array:
        return per_second(np.cumsum(_or(history.statistic(f"seconds_{name}"), 0.0)))

    collecting = spent("collect")
    inside = {name: spent(name) for name in ACTOR_PHASES}
    return Flow(
        seconds=edges[1:],
        steps_per_s=np.maximum(per_second(history.env_steps), 0.0),
        starting=_covered(edges, starts(history, begun)),
        learner={name: spent(name) for name in LEARNER_PHASES},
        actors={**inside, "rollout": np.maximum(collecting - sum(inside.values()), 0.0)},
    )


def starts(history: History, begun: Sequence[float]) -> list[tuple[float, float]]:
    """From when to when processes were being started: from the beginning of each driving in which an update was made
    to that of its first update."""
    timed = np.flatnonzero(np.isfinite(history.seconds))
    seconds = history.seconds[timed]
    worked = np.sum([_or(history.statistic(f"seconds_{name}"), 0.0)[timed] for name in LEARNER_PHASES], axis=0)
    found = []
    for begin, end in zip(begun, [*begun[1:], np.inf], strict=True):
        after = np.flatnonzero((seconds > begin) & (seconds <= end))
        if len(after):
            found.append((begin, max(begin, float(seconds[after[0]] - worked[after[0]]))))
    return found


def _covered(edges: Array, intervals: Sequence[tuple[float, float]]) -> Array:
    """Share of each stretch between edges that lies within one of the intervals, which do not overlap."""
    covered = np.zeros(len(edges) - 1)
    for begin, end in intervals:
        covered += np.maximum(0.0, np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin))
    shares: Array = covered / np.diff(edges)
    return shares


def _or(values: Array, instead: Array | float) -> Array:
    """`values`, with `instead` where they are not finite."""
    chosen: Array = np.where(np.isfinite(values), values, instead)
    return chosen
