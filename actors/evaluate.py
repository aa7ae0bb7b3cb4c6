"""Greedy evaluation: a fixed number of fresh episodes, each counted once, whatever their lengths.

Every lane plays a quota fixed beforehand. Taking "the first N episodes to end" instead would favour short ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.env.config import EnvConfig
from actors.env.lanes import Lanes, Tick
from actors.env.make import make_lanes
from actors.env.rendering import Rendering
from actors.policy import Policy
from actors.rollout import Beat
from common.compensated import NeumaierSum
from common.errors import ConfigError
from common.fragment import End
from common.rng import GlobalGenerators, Purpose, Role, Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """How often, and over how much, the greedy policy is judged.

    Attributes:
        every: updates between evaluations; 0 evaluates only at the end.
        episodes: fresh episodes of each evaluation during training.
        final_episodes: fresh episodes of the evaluation that ends a run.
        lanes: environments stepped side by side.
        max_ticks: an evaluation is cut after this many ticks; episodes not over by then count as they stand.
    """

    every: int = 10
    episodes: int = 20
    final_episodes: int = 100
    lanes: int = 20
    max_ticks: int = 30_000

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ConfigError("evaluation.every", got=self.every, allowed="0 (only at the end) or more updates")
        for name in ("episodes", "final_episodes", "lanes", "max_ticks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"evaluation.{name}", got=getattr(self, name), allowed="1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Episodes of the greedy policy.

    Attributes:
        version: weights evaluated.
        returns: undiscounted return of each episode, in order of episode number.
        lengths: transitions of each.
        unfinished: episodes that did not end within `max_ticks`. Those under way are in `returns` as they stood;
            those that had not begun are missing from it.
    """

    version: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    unfinished: int

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))


@contextmanager
def evaluation_lanes(
    env: EnvConfig,
    num_lanes: int,
    *,
    seed: int,
    update: int,
    final: bool,
    who: str,
    rendering: Rendering | None = None,
) -> Iterator[Lanes]:
    """Fresh lanes of a run's evaluation, closed with the block; inside it the process-wide generators are those of the
    evaluation. Whoever makes them, wherever: with equal weights and as many lanes the episodes are the same.

    Args:
        seed: root seed of the run.
        update, final: which evaluation: after how many updates, and whether it ended the run.
        who: the owner in error messages.
        rendering: which lane is to be seen.
    """
    streams, index = Streams(seed), int(final)
    sequence = streams.sequence(Role.EVALUATOR, index, incarnation=update, purpose=Purpose.GLOBALS)
    with GlobalGenerators(sequence).installed():
        lanes = make_lanes(
            env,
            num_lanes,
            streams=streams,
            role=Role.EVALUATOR,
            index=index,
            incarnation=update,
            who=who,
            rendering=rendering,
        )
        try:
            yield lanes
        finally:
            lanes.close()


class GreedyPlay:
    """Lanes and policy tick by tick, from the first reset on: what an evaluation does, and what shows it again.

    A recurrent policy begins each episode with a state of zeros.
    """

    def __init__(self, lanes: Lanes, policy: Policy) -> None:
        self._lanes = lanes
        self._policy = policy

    def start(self) -> None:
        """Reset every lane."""
        self._lanes.start()
        self._policy.begin(self._lanes.num_lanes)

    def step(self) -> tuple[NDArray[Any], Tick]:
        """One tick of all lanes: the actions taken [B, *shape], and what they brought."""
        policy = self._policy
        action = policy.head.to_environment(policy.greedy(self._lanes.current))
        tick = self._lanes.step(action)
        if policy.state_size:
            policy.reset(_begins(tick))
        return action, tick


def evaluate(lanes: Lanes, policy: Policy, *, episodes: int, max_ticks: int, beat: Beat) -> EvaluationResult:
    """Play `episodes` greedy episodes on freshly made `lanes`; lane b plays episodes b, b + B, b + 2B ...

    Broken episodes (non-finite values) are played again by the same lane and do not count.
    """
    tally = _Tally(lanes.num_lanes, episodes)
    play = GreedyPlay(lanes, policy)
    play.start()
    for number in range(max_ticks):
        beat(number)
        _, tick = play.step()
        tally.add(tick)
        if tally.complete():
            break
    return tally.result(policy.version)


def _begins(tick: Tick) -> NDArray[np.bool_]:
    """Lanes [B] whose next row follows an invalid one, or that have already begun their next episode."""
    begins = ~tick.valid
    if tick.restart is not None:
        begins[tick.restart.lanes] = True
    return begins


class _Tally:
    """Who has played what."""

    def __init__(self, num_lanes: int, episodes: int) -> None:
        self._running = NeumaierSum(num_lanes)
        self._lengths = np.zeros(num_lanes, dtype=np.int64)
        self._played = np.zeros(num_lanes, dtype=np.int64)
        self._quota = np.array([len(range(lane, episodes, num_lanes)) for lane in range(num_lanes)])
        self._done: dict[int, tuple[float, int]] = {}

    def complete(self) -> bool:
        return bool((self._played >= self._quota).all())

    def add(self, tick: Tick) -> None:
        self._running.add(tick.reward)
        self._lengths += tick.valid
        over = tick.end != End.CONTINUES
        if not over.any():
            return
        counts = over & (tick.end != End.BROKEN) & (self._played < self._quota)
        for lane in np.flatnonzero(counts):
            self._record(int(lane))
            self._played[lane] += 1
        self._clear(over)

    def _record(self, lane: int) -> None:
        episode = lane + int(self._played[lane]) * len(self._quota)
        self._done[episode] = (float(self._running.value()[lane]), int(self._lengths[lane]))

    def _clear(self, over: NDArray[np.bool_]) -> None:
        self._running.clear(over)
        self._lengths[over] = 0

    def result(self, version: int) -> EvaluationResult:
        for lane in np.flatnonzero(self._played < self._quota):
            self._record(int(lane))
        ordered = [self._done[episode] for episode in sorted(self._done)]
        return EvaluationResult(
            version=version,
            returns=tuple(value for value, _ in ordered),
            lengths=tuple(length for _, length in ordered),
            unfinished=int((self._quota - self._played).sum()),
        )
