"""What came of a replay, for people and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from actors.replay import PlayedEpisode, Row
from common.errors import EXIT_FAILED, EXIT_FINISHED

SHOWN_ROWS = 8  # at either end of an episode, in words; --json has all


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """An episode of an evaluation beside its record.

    Attributes:
        run: its name.
        update: after which the evaluation was.
        final: it ended the run.
        checkpoint: whose weights played.
        episode: its number in the evaluation.
        played: the episode.
        recorded_return, recorded_length: what the record has.
        same_fingerprint: code, versions and processor are those of the record.
        frames: directory of the pictures; "" if there are none.
        num_frames: how many.
    """

    run: str
    update: int
    final: bool
    checkpoint: str
    episode: int
    played: PlayedEpisode
    recorded_return: float
    recorded_length: int
    same_fingerprint: bool
    frames: str
    num_frames: int

    @property
    def identical(self) -> bool:
        """Return and length are those of the record, to the last bit."""
        return (self.played.value, len(self.played.rows)) == (self.recorded_return, self.recorded_length)

    @property
    def exit_code(self) -> int:
        """0 identical, else 1."""
        return EXIT_FINISHED if self.identical else EXIT_FAILED

    @property
    def why(self) -> str:
        """What a difference points at; "" if there is none."""
        if self.identical:
            return ""
        if self.same_fingerprint:
            return "the environment is the suspect: equal weights and seeds, equal code, versions and processor"
        return "the environment is the suspect, or what differs in code, versions or processor"

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "run": self.run,
            "update": self.update,
            "final": self.final,
            "checkpoint": self.checkpoint,
            "episode": self.episode,
            "lane": self.played.lane,
            "length": len(self.played.rows),
            "return": self.played.value,
            "end": self.played.end.name,
            "recorded": {"return": self.recorded_return, "length": self.recorded_length},
            "identical": self.identical,
            "why": self.why,
            "frames": self.frames,
            "num_frames": self.num_frames,
            "rows": [dataclasses.asdict(row) for row in self.played.rows],
        }


def replayed_lines(result: Replayed) -> list[str]:
    """A replay for people: the verdict last."""
    played = result.played
    kind = "final evaluation" if result.final else "evaluation"
    lines = [
        f"episode      {result.episode} of the {kind} after update {result.update}, lane {played.lane}",
        f"weights      {result.checkpoint}",
        *rows_in_words(played.rows),
        f"end          {played.end.name} after {len(played.rows)} ticks, return {played.value:g}",
    ]
    if result.frames:
        lines.append(f"pictures     {result.num_frames} in {result.frames}")
    if result.identical:
        return [*lines, "identical    to the record in return and length"]
    return [
        *lines,
        f"recorded     return {result.recorded_return!r}, {result.recorded_length} ticks",
        f"here         return {played.value!r}, {len(played.rows)} ticks",
        f"DIFFERENT    {result.why}",
    ]


def rows_in_words(rows: Sequence[Row]) -> Iterator[str]:
    """The first and the last ticks of an episode, a line each."""
    last = max(SHOWN_ROWS, len(rows) - SHOWN_ROWS)
    for tick, row in enumerate(rows):
        if tick < SHOWN_ROWS or tick >= last:
            yield f"tick {tick:<7} action {row.action}, reward {row.reward:g}, observation {row.observation}"
        elif tick == SHOWN_ROWS:
            yield f"             ... {last - SHOWN_ROWS} ticks, see --json"
