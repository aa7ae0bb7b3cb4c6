"""Faults on purpose in a run's processes, for drills: what goes along to each of them, and where it strikes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.clock import Clock
from learner.parallel.faults import RankFault, kill_this_process, mark


class ActorFaultKind(StrEnum):
    """What an actor suffers."""

    KILL = "kill"  # SIGKILL to itself, before it collects
    CORRUPT_FRAME = "corrupt_frame"  # a bit of a sealed frame


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorFault:
    """One fault of an actor.

    Attributes:
        kind: what.
        actor: who suffers it.
        update: when: with the fragment for this update.
        mark: as of a `RankFault`.
    """

    kind: ActorFaultKind
    actor: int
    update: int
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """What goes wrong on purpose in a run; it travels to every process, which takes what is its own."""

    of_ranks: tuple[RankFault, ...] = ()
    of_actors: tuple[ActorFault, ...] = ()

    def of_rank(self, rank: int) -> tuple[RankFault, ...]:
        """What this rank suffers."""
        return tuple(fault for fault in self.of_ranks if fault.rank == rank)

    def before_collect(self, actor: int, update: int, clock: Clock) -> None:
        """An actor is about to collect."""
        for fault in self._due(ActorFaultKind.KILL, actor, update):
            mark(fault.mark, clock)
            kill_this_process()

    def after_collect(self, actor: int, update: int, frame: NDArray[np.uint8], clock: Clock) -> None:
        """An actor has sealed a frame."""
        for fault in self._due(ActorFaultKind.CORRUPT_FRAME, actor, update):
            mark(fault.mark, clock)
            frame[len(frame) // 2] ^= 1

    def _due(self, kind: ActorFaultKind, actor: int, update: int) -> list[ActorFault]:
        return [
            fault
            for fault in self.of_actors
            if (fault.kind, fault.actor, fault.update) == (kind, actor, update) and not Path(fault.mark).exists()
        ]
