"""One episode of an evaluation, played again and looked at.

    lanes, policy ──► GreedyPlay ──► ticks of all lanes ──► rows of the episode's lane, a picture before each action

Lanes advance together and lane b plays episodes b, b + B, b + 2B ... one after the other, so what comes before the
episode is played too; what comes after it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from actors.env.lanes import Lanes, Tick
from actors.evaluate import GreedyPlay
from actors.policy import Policy
from common.compensated import NeumaierSum
from common.fragment import End


class Pictures(Protocol):
    """Where the pictures of the episode go, in order."""

    def begin(self) -> None:
        """Forget what has been added: the episode broke and is played again."""
        ...

    def add(self, picture: NDArray[np.uint8]) -> None:
        """One more, uint8 [height, width, 3]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One transition.

    Attributes:
        observation: `digest_of` the stored observation that the action answers.
        action: in stored form.
        reward: what it gave.
    """

    observation: str
    action: Any
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisode:
    """An episode.

    Attributes:
        lane: that played it.
        rows: its transitions.
        end: how it ended; CONTINUES if the ticks ran out before.
        value: its return, undiscounted, summed as in an evaluation.
    """

    lane: int
    rows: tuple[Row, ...]
    end: End
    value: float


def play_episode(
    lanes: Lanes, policy: Policy, *, episode: int, max_ticks: int, pictures: Pictures | None = None
) -> PlayedEpisode:
    """Play an evaluation on freshly made `lanes` up to the end of `episode`, the one that `evaluate` gives this number.

    Args:
        max_ticks: of the evaluation.
        pictures: of the episode; `lanes` must have been made with its lane to be seen. There is one of each observation
            that an action answers, and one of the final observation where lanes are aligned.

    Raises:
        ContractError, EnvironmentFault, DeadlineError: as `Lanes`.
    """
    lane, before = episode % lanes.num_lanes, episode // lanes.num_lanes
    play = GreedyPlay(lanes, policy)
    watch = _Watch(lane, before, pictures)
    play.start()
    for _ in range(max_ticks):
        observation = digest_of(lanes.current, lane)
        picture = lanes.render(lane) if pictures is not None and watch.on else None
        action, tick = play.step()
        watch.add(observation, picture, action, tick)
        if watch.over:
            break
    if pictures is not None and watch.over and lanes.aligned:
        pictures.add(lanes.render(lane))
    return watch.played()


class _Watch:
    """The rows of one lane while the episode is played there; `before` more are played there first."""

    def __init__(self, lane: int, before: int, pictures: Pictures | None) -> None:
        self._lane = lane
        self._before = before
        self._pictures = pictures
        self._rows: list[Row] = []
        self._end = End.CONTINUES

    @property
    def on(self) -> bool:
        """Whether the episode is being played, or comes next."""
        return self._before == 0

    @property
    def over(self) -> bool:
        return self._end is not End.CONTINUES

    def add(self, observation: str, picture: NDArray[np.uint8] | None, action: NDArray[Any], tick: Tick) -> None:
        end = End(int(tick.end[self._lane]))
        if self.on and tick.valid[self._lane]:
            reward = float(tick.reward[self._lane])
            self._rows.append(Row(observation=observation, action=action[self._lane].tolist(), reward=reward))
            if self._pictures is not None and picture is not None:
                self._pictures.add(picture)
        if end is End.BROKEN:
            self._play_again()
        elif end is not End.CONTINUES:
            self._end = end if self.on else End.CONTINUES
            self._before -= 1

    def _play_again(self) -> None:
        """A broken episode does not count."""
        self._rows.clear()
        if self._pictures is not None:
            self._pictures.begin()

    def played(self) -> PlayedEpisode:
        total = NeumaierSum(1)
        for row in self._rows:
            total.add(np.array([row.reward]))
        return PlayedEpisode(lane=self._lane, rows=tuple(self._rows), end=self._end, value=total.value().item())


def digest_of(observation: dict[str, NDArray[Any]], lane: int) -> str:
    """xxh3-64 of one lane's observation out of {part: [B, *shape]}, all parts in the order of their names."""
    digest = xxhash.xxh3_64()
    for name in sorted(observation):
        digest.update(observation[name][lane].tobytes())
    return digest.hexdigest()
