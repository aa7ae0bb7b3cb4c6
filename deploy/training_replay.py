"""`truestep replay --training`: an episode of training, out of the fragments that a run makes again.

    ledger ──► script ──► the run made again, each fragment compared ──► episodes, counted in the ledger's order

The run is made again until the episode is complete, and no further. Every fragment up to there is compared with the
ledger, so what is shown is what was trained on, to the last bit, or the answer is where it differs.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.episodes import EpisodeReader, TrainingEpisode
from common.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError, RunFailedError
from common.fragment import FragmentLayout, decode_fragment
from common.ledger import FragmentName
from deploy.compare import UpdateDifference
from deploy.compose import compose
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import Event, FragmentMade, Note, RecordUpdate, RollBack, WriteCheckpoint
from deploy.display import Display, Silent
from deploy.divergence import Check, Diverged, FragmentDifference
from deploy.replayed import rows_in_words
from deploy.reproduce import Original, make_again, read_original
from deploy.resources import claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReplay:
    """What came of looking for an episode of training.

    Attributes:
        run: its name.
        number: of the episode, in the order of the ledger.
        fragments: how many were made again, and were those of the ledger.
        found: the episode; None if the run differs before it is complete.
        difference: the first; None if there is none up to the episode.
    """

    run: str
    number: int
    fragments: int
    found: TrainingEpisode | None
    difference: FragmentDifference | UpdateDifference | None

    @property
    def exit_code(self) -> int:
        """0 found, and all before it is identical; else 1."""
        return EXIT_FAILED if self.found is None else EXIT_FINISHED

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        found = self.found
        plain: dict[str, Any] = {
            "run": self.run,
            "training": True,
            "episode": self.number,
            "fragments": self.fragments,
            "identical": self.difference is None,
            "difference": None if self.difference is None else self.difference.to_plain(),
        }
        if found is None:
            return plain
        return plain | {
            "actor": found.actor,
            "incarnation": found.incarnation,
            "lane": found.lane,
            "sequences": list(found.sequences),
            "length": len(found.rows),
            "return": found.value,
            "end": found.end.name,
            "rows": [dataclasses.asdict(row) for row in found.rows],
        }


def replay_training(
    run: str, *, episode: int, out: Path | str = "runs", display: Display | None = None
) -> TrainingReplay:
    """Make a run again up to an episode of its training, in this process.

    Args:
        run: its name.
        episode: its number, from 0: fragments in the order of the ledger, episodes of one in the order in which they
            ended.
        out: the output directory it lies in.
        display: where progress is shown; nowhere by default.

    Raises:
        UserError: no such run or episode, or nothing of the run can be made again.
        TruestepError: as `deploy.reproduce.reproduce`.
    """
    if episode < 0:
        raise ConfigError("--episode", got=episode, allowed="0 or more")
    original = read_original(run, out=Path(out), engine="inline")
    composition = compose(run, original.config)
    check = Check(original.ledger, original.updates, num_ranks=original.config.learner.ranks)
    finder = Finder(check, names_in_order(original), composition.layout, episode)
    found, difference = None, None
    with claimed(original.config, display or Silent(), None, who=f"replay of {run}") as session:
        try:
            stopped = make_again(session, composition, original, finder)
        except Found as this:
            found = this.episode
        except Diverged as diverged:
            difference = diverged.difference
        else:
            raise _not_there(episode, finder.counted, stopped)
    return TrainingReplay(run=run, number=episode, fragments=check.fragments, found=found, difference=difference)


def names_in_order(original: Original) -> list[FragmentName]:
    """The fragments that are made again, in the order of the ledger, each once."""
    scripted = {
        (each.actor, each.incarnation, each.sequence)
        for lives in original.script.lives.values()
        for life in lives
        for each in life
    }
    return [name for name in dict.fromkeys(each.name for each in original.ledger.fragments) if name in scripted]


def _not_there(episode: int, counted: int, stopped: str) -> ConfigError | RunFailedError:
    if stopped:
        return RunFailedError(f"episode {episode} was not reached: {stopped}")
    allowed = f"0 to {counted - 1}: as many ended in the fragments that can be made again" if counted else "none ended"
    return ConfigError("--episode", got=episode, allowed=allowed)


class Found(Exception):
    """The episode is complete: no failure, but the answer, which ends the run that was to give it."""

    def __init__(self, episode: TrainingEpisode) -> None:
        self.episode = episode
        super().__init__(repr(episode))


class Finder:
    """Stands where the record of a run stands: compares, and counts episodes until the one that is looked for.

    Fragments are made in another order than that of the ledger; their episodes wait until all before them are there.

    Attributes:
        counted: episodes so far, in the order of the ledger.
    """

    def __init__(self, check: Check, names: list[FragmentName], layout: FragmentLayout, wanted: int) -> None:
        self.counted = 0
        self._check = check
        self._names = deque(names)
        self._layout = layout
        self._wanted = wanted
        self._reader = EpisodeReader()
        self._made: dict[FragmentName, list[TrainingEpisode]] = {}

    def observe(self, event: Event, conductor: Conductor) -> None:
        """Raises Diverged, or Found."""
        self._check.observe(event, conductor)
        if isinstance(event, FragmentMade):
            made = event.summary
            fragment = decode_fragment(event.frame, self._layout)
            self._made[made.actor, made.incarnation, made.sequence] = self._reader.take(fragment, made)
            self._count()

    def _count(self) -> None:
        while self._names and self._names[0] in self._made:
            for episode in self._made.pop(self._names.popleft()):
                if self.counted == self._wanted:
                    raise Found(episode)
                self.counted += 1

    def commit(self, command: RecordUpdate, conductor: Conductor) -> None:
        """Raises Diverged."""
        self._check.commit(command, conductor)

    def save(self, command: WriteCheckpoint) -> None:
        """Nothing is saved."""

    def roll_back(self, command: RollBack) -> None:
        """Raises RunFailedError."""
        self._check.roll_back(command)

    def note(self, note: Note) -> None:
        """Nothing is recorded."""

    def close(self, conductor: Conductor) -> None:
        """Nothing is left."""


def training_lines(result: TrainingReplay) -> list[str]:
    """For people: the verdict last."""
    found = result.found
    if found is None:
        return [
            f"difference   {result.difference}",
            f"DIFFERENT    before episode {result.number} was complete, after {result.fragments} identical fragments; "
            "see `truestep reproduce`",
        ]
    first, last = found.sequences
    where = f"fragment {first}" if first == last else f"fragments {first} to {last}"
    return [
        f"episode      {result.number} of training: actor {found.actor}, incarnation {found.incarnation}, "
        f"lane {found.lane}, {where}",
        *rows_in_words(found.rows),
        f"end          {found.end.name} after {len(found.rows)} ticks, return {found.value:g}",
        f"identical    to the ledger, with all {result.fragments} fragments up to here",
    ]
