"""Episodes of training, put together from the fragments of one actor after the other."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from actors.replay import Row, digest_of
from common.fragment import End, Fragment, FragmentSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEpisode:
    """An episode that actors collected.

    Attributes:
        actor, incarnation, lane: where.
        sequences: of the fragments that it lies in, first and last.
        rows: its transitions.
        end: TERMINATED or TRUNCATED.
        value: its return, undiscounted, as the actor summed it.
    """

    actor: int
    incarnation: int
    lane: int
    sequences: tuple[int, int]
    rows: tuple[Row, ...]
    end: End
    value: float


class EpisodeReader:
    """Takes the fragments of every life of every actor, each life's in order of sequence."""

    def __init__(self) -> None:
        self._open: defaultdict[tuple[int, int, int], list[tuple[int, Row]]] = defaultdict(list)

    def take(self, fragment: Fragment, summary: FragmentSummary) -> list[TrainingEpisode]:
        """The episodes that ended in `fragment`, in the order in which they did, lanes of one tick ascending. Broken
        ones are none."""
        header = fragment.header
        ended: list[TrainingEpisode] = []
        for row in range(header.num_rows):
            observation = {name: part[row] for name, part in fragment.observation.items()}
            for lane in range(header.num_lanes):
                rows = self._open[header.actor, header.incarnation, lane]
                if fragment.valid[row, lane]:
                    rows.append((header.sequence, _row(fragment, observation, row, lane)))
                end = End(int(fragment.end[row, lane]))
                if end in (End.TERMINATED, End.TRUNCATED):
                    value = summary.episode_returns[len(ended)]
                    ended.append(_episode(fragment, lane, rows, end, value))
                if end is not End.CONTINUES:
                    rows.clear()
        return ended


def _row(fragment: Fragment, observation: dict[str, Any], row: int, lane: int) -> Row:
    action: Any = np.asarray(fragment.action[row, lane]).tolist()
    reward = float(fragment.reward[row, lane])
    return Row(observation=digest_of(observation, lane), action=action, reward=reward)


def _episode(fragment: Fragment, lane: int, rows: list[tuple[int, Row]], end: End, value: float) -> TrainingEpisode:
    header = fragment.header
    return TrainingEpisode(
        actor=header.actor,
        incarnation=header.incarnation,
        lane=lane,
        sequences=(rows[0][0], header.sequence),
        rows=tuple(row for _, row in rows),
        end=end,
        value=value,
    )
