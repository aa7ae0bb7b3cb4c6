"""Episodes of training are put together from fragments: across them, lane by lane, broken ones left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.episodes import EpisodeReader, TrainingEpisode
from common.fragment import End, Fragment, FragmentHeader, FragmentSummary

C, T, U, B = End.CONTINUES, End.TERMINATED, End.TRUNCATED, End.BROKEN
Rows = list[tuple[int, End]]  # valid and end of one lane, row by row


def fragment(lanes: list[Rows], *, sequence: int = 0, actor: int = 0, incarnation: int = 0, first: int = 0) -> Fragment:
    """One in which row t of lane b observes, does and earns 100 b + first + t."""
    valid, end = (np.array([[row[i] for row in lane] for lane in lanes], np.uint8).T for i in (0, 1))
    num_rows, num_lanes = valid.shape
    numbers = first + np.arange(num_rows + 1)[:, None] + 100 * np.arange(num_lanes)[None]
    header = FragmentHeader(
        run="r",
        actor=actor,
        lease="l",
        incarnation=incarnation,
        sequence=sequence,
        term=0,
        version=1,
        update=0,
        num_rows=num_rows,
        num_lanes=num_lanes,
        num_valid=int(valid.sum()),
        start_ns=0,
        end_ns=1,
        clock_id="c",
    )
    nothing = np.zeros(0, np.float32)
    return Fragment(
        header=header,
        observation={"obs": numbers.astype(np.float32)[..., None]},
        action=numbers[:-1],
        reward=numbers[:-1].astype(np.float32),
        end=end,
        valid=valid,
        log_prob=nothing,
        value=nothing,
        core_state=nothing,
        return_before=nothing.astype(np.float64),
        digest=0,
    )


def taken(reader: EpisodeReader, *fragments: Fragment) -> list[TrainingEpisode]:
    """All episodes; their returns are 0.5, 1.5 ... in each fragment."""
    found = []
    for each in fragments:
        ended = int(np.isin(each.end, (T, U)).sum())
        summary: Any = FragmentSummary.__new__(FragmentSummary)
        object.__setattr__(summary, "episode_returns", tuple(0.5 + number for number in range(ended)))
        found += reader.take(each, summary)
    return found


def actions(episode: TrainingEpisode) -> list[int]:
    return [row.action for row in episode.rows]


def test_episodes_come_in_the_order_in_which_they_ended() -> None:
    """By row, then by lane; each has the return that the actor gave it. The reset tick belongs to none."""
    lanes = [[(1, C), (1, T), (0, C), (1, U)], [(1, U), (0, C), (1, C), (1, T)]]
    found = taken(EpisodeReader(), fragment(lanes))
    assert [(each.lane, actions(each), each.end, each.value) for each in found] == [
        (1, [100], U, 0.5),
        (0, [0, 1], T, 1.5),
        (0, [3], U, 2.5),
        (1, [102, 103], T, 3.5),
    ]
    assert [row.reward for row in found[3].rows] == [102.0, 103.0]


def test_an_episode_goes_on_in_the_next_fragment() -> None:
    """Of the same life; its fragments are named. Another actor's, and another life's, stay apart."""
    reader = EpisodeReader()
    begun = fragment([[(1, C), (1, C)]])
    others = [
        fragment([[(1, C), (1, T)]], actor=1, first=50),
        fragment([[(1, C), (1, T)]], incarnation=1, first=60),
    ]
    middle = fragment([[(1, C), (1, C)]], sequence=1, first=2)
    last = fragment([[(1, T), (0, C)]], sequence=2, first=4)
    one, two, whole = taken(reader, begun, *others, middle, last)
    assert (actions(one), one.actor, one.sequences) == ([50, 51], 1, (0, 0))
    assert (actions(two), two.incarnation) == ([60, 61], 1)
    assert (actions(whole), whole.sequences) == ([0, 1, 2, 3, 4], (0, 2))


def test_a_broken_episode_is_none() -> None:
    """What it left in earlier rows is forgotten, other lanes go on."""
    found = taken(EpisodeReader(), fragment([[(1, C), (0, B), (0, C), (1, T)], [(1, C), (1, C), (1, C), (1, T)]]))
    assert [actions(each) for each in found] == [[3], [100, 101, 102, 103]]


def test_the_digest_is_of_the_lane_s_own_observation() -> None:
    """Equal observations have equal digests, wherever they are."""
    (one,) = taken(EpisodeReader(), fragment([[(1, T)]], first=100))
    other, two = taken(EpisodeReader(), fragment([[(1, T)], [(1, T)]]))
    assert one.rows[0].observation == two.rows[0].observation != other.rows[0].observation
