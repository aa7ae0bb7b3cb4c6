"""The seam between deciding and doing: what the conductor's commands are carried out by.

An engine holds no decision. Commands to one process are carried out in the order given; between processes there is no
order, and the conductor needs none.
"""

from __future__ import annotations

from typing import Protocol

from common.errors import ContractError, NonFiniteError
from common.metrics import Target
from deploy.conductor.messages import ActorCommand, Event, Handle, RankCommand
from learner.state import InitialWeights, LearnerState

EngineCommand = RankCommand | ActorCommand


def breach_of(error: BaseException | None) -> ContractError | None:
    """The broken contract behind the loss of an actor, for the conductor to weigh.

    A number that the run is told to stop at is none: it ends the run whoever has met it.
    """
    return error if isinstance(error, ContractError) and not isinstance(error, NonFiniteError) else None


class Engine(Protocol):
    """Carries out commands and delivers events."""

    def carry_out(self, command: EngineCommand) -> None:
        """Begin a command; its events follow. Never blocks on another process.

        A command to a process that is lost is dropped: its `ActorLost` or `RankLost` is on the way.
        """
        ...

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event, or None when `timeout_s` pass without one. Enforces the deadline of every command."""
        ...

    def put_frame(self, frame: bytes) -> Handle:
        """A frame that this process holds, as a handle."""
        ...

    def get_frame(self, handle: Handle) -> bytes:
        """A frame's bytes, for a checkpoint. Callable from another thread."""
        ...

    def put_state(self, state: LearnerState | InitialWeights) -> Handle:
        """What ranks are to adopt, as a handle."""
        ...

    def get_state(self, handle: Handle) -> LearnerState:
        """The learner's state behind a handle of `LearnerSnapshot`. Callable from another thread."""
        ...

    def targets(self) -> list[Target]:
        """Live processes that serve `/metrics`, besides the driver."""
        ...

    def close(self) -> list[str]:
        """End every process of the run; returns when they are gone or the deadline has passed, with what did not close
        as it should, in words."""
        ...
