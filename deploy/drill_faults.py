"""Faults on purpose in a run's processes, for drills: what goes along to each of them, and where it strikes."""

from __future__ import annotations

import dataclasses
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.env.config import EnvConfig
from common.clock import Clock
from common.manifest import CheckpointInfo
from deploy.conductor.messages import Cut
from deploy.writer import Save
from learner.parallel.faults import RankFault, kill_this_process, mark

WELL_AFTER = 10  # fragments of an actor, or updates, without another fault
LEARNER = "learner"


class ActorFaultKind(StrEnum):
    """What an actor suffers."""

    KILL = "kill"  # SIGKILL to itself, before it collects
    CUT_NODE = "cut_node"  # SIGKILL to all actors of the fault at once, before one of them collects
    CORRUPT_FRAME = "corrupt_frame"  # a bit of a sealed frame
    RAISE_ENV = "raise_env"  # its environments raise
    HANG_ENV = "hang_env"  # its environments never come back from a step
    SLOW_ENV = "slow_env"  # its environments take `seconds` for a step


class BorderFaultKind(StrEnum):
    """What happens to frames on the last bit of their way, between the object store and the learner's intake."""

    DUPLICATE = "duplicate"  # the frame before comes again, in the place of the next one of its actor
    REORDER = "reorder"  # two frames of one actor change places


OF_ENVIRONMENTS = {
    ActorFaultKind.RAISE_ENV: "raise",
    ActorFaultKind.HANG_ENV: "hang",
    ActorFaultKind.SLOW_ENV: "sleep",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorFault:
    """One fault of an actor.

    Attributes:
        kind: what.
        actor: who suffers it.
        update: when: with the collect of this number (in synchronous collection the update that it is for) or the
            first after it that can be.
        mark: as of a `RankFault`.
        step: when, for faults of environments: steps since they were made.
        seconds: that a slow step takes.
        node: actors that go down with it, itself included, where a node is cut.
    """

    kind: ActorFaultKind
    actor: int
    update: int
    mark: str
    step: int = 0
    seconds: float = 0.0
    node: tuple[int, ...] = ()

    @property
    def victims(self) -> tuple[int, ...]:
        """Who suffers it."""
        return self.node or (self.actor,)


@dataclass(frozen=True, slots=True, kw_only=True)
class BorderFault:
    """One fault at the border of the learner.

    Attributes:
        kind: what.
        actor: whose frames; None = of whichever has two in an update first.
        update: the first in which it may strike.
        mark: as of a `RankFault`.
    """

    kind: BorderFaultKind
    actor: int | None
    update: int
    mark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """What goes wrong on purpose in a run; it travels to every process, which takes what is its own.

    Attributes:
        of_ranks, of_actors, at_border: faults there.
        disk_s: that writing a checkpoint takes longer, in the driver.
    """

    of_ranks: tuple[RankFault, ...] = ()
    of_actors: tuple[ActorFault, ...] = ()
    at_border: tuple[BorderFault, ...] = ()
    disk_s: float = 0.0

    def of_rank(self, rank: int) -> tuple[RankFault, ...]:
        """What this rank suffers."""
        return tuple(fault for fault in self.of_ranks if fault.rank == rank)

    def slowed(self, save: Save, clock: Clock) -> Save:
        """`save` as by a disk that takes `disk_s` longer."""
        if self.disk_s == 0:
            return save

        def slow(cut: Cut) -> CheckpointInfo:
            clock.sleep(self.disk_s)
            return save(cut)

        return slow

    def environment(self, actor: int, env: EnvConfig) -> EnvConfig:
        """What this actor's environments are made from: those of a drill take their fault as an argument."""
        for fault in self.of_actors:
            if fault.actor == actor and fault.kind in OF_ENVIRONMENTS:
                told = {"fault": OF_ENVIRONMENTS[fault.kind], "at": fault.step, "seconds": fault.seconds}
                env = dataclasses.replace(env, kwargs={**env.kwargs, **told, "mark": fault.mark})
        return env

    def before_collect(self, actor: int, update: int, clock: Clock) -> None:
        """An actor is about to collect."""
        for fault in self._due(ActorFaultKind.KILL, actor, update):
            mark(fault.mark, clock)
            kill_this_process()
        for fault in self.of_actors:
            if fault.kind is ActorFaultKind.CUT_NODE and actor in fault.node:
                _pid_file(fault, actor).write_text(str(os.getpid()), encoding="ascii")
        for fault in self._due(ActorFaultKind.CUT_NODE, actor, update):
            _cut(fault, clock)

    def after_collect(self, actor: int, update: int, frame: NDArray[np.uint8], clock: Clock) -> None:
        """An actor has sealed a frame."""
        for fault in self._due(ActorFaultKind.CORRUPT_FRAME, actor, update):
            mark(fault.mark, clock)
            frame[len(frame) // 2] ^= 1

    def made(self, actor: int, incarnation: int, sequence: int, clock: Clock) -> None:
        """An actor has made a fragment: if it was struck, it is back with its first, and well with some more."""
        for fault in self.of_actors:
            if actor in fault.victims and Path(fault.mark).exists():
                slow = fault.kind is ActorFaultKind.SLOW_ENV
                if slow or incarnation > 0:
                    mark_once(back_file(fault.mark, actor), clock)
                if sequence >= WELL_AFTER + (fault.update if slow else 0):
                    mark_once(well_file(fault.mark, actor), clock)

    def _due(self, kind: ActorFaultKind, actor: int, update: int) -> list[ActorFault]:
        return [
            fault
            for fault in self.of_actors
            if (fault.kind, fault.actor) == (kind, actor) and update >= fault.update and not Path(fault.mark).exists()
        ]


def back_file(mark: str, actor: int) -> str:
    """The mark that an actor which was struck makes fragments again."""
    return f"{mark}.back-{actor}"


def well_file(mark: str, who: int | str) -> str:
    """The mark that an actor (or the learner) which was struck has gone on for a while."""
    return f"{mark}.well-{who}"


def mark_once(path: str, clock: Clock) -> None:
    """As `mark`, the first time only."""
    if not Path(path).exists():
        mark(path, clock)


def _pid_file(fault: ActorFault, actor: int) -> Path:
    return Path(f"{fault.mark}.pid-{actor}")


def _cut(fault: ActorFault, clock: Clock) -> None:
    """End all actors of the node within a moment, oneself last; not before all of them are there."""
    files = [_pid_file(fault, actor) for actor in fault.node]
    if not all(file.exists() for file in files):
        return
    pids = [int(file.read_text(encoding="ascii")) for file in files]
    mark(fault.mark, clock)
    for pid in pids:
        if pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    kill_this_process()
