"""The seam between deciding and doing: what the conductor's commands are carried out by.

An engine holds no decision. Commands to one actor are carried out in the order given; so are those to the learner;
between processes there is no order, and the conductor needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from common.metrics import Target
from deploy.conductor.messages import (
    Collect,
    Evaluate,
    Event,
    Handle,
    SnapshotActor,
    SnapshotLearner,
    StartActor,
    Update,
)
from learner.state import LearnerState

EngineCommand = StartActor | Collect | Update | SnapshotActor | SnapshotLearner | Evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerStart:
    """How the learner begins: fresh, from a state, or from another run's weights.

    Attributes:
        version: published first.
        term: of that publication.
        state: go on from here.
        weights: begin from these parameters (flat bytes, float32), with a fresh optimiser.
        fingerprint: of the network that `weights` belong to.
    """

    version: int
    term: int
    state: LearnerState | None = None
    weights: bytes = b""
    fingerprint: str = ""


class Engine(Protocol):
    """Carries out commands and delivers events."""

    def start_learner(self, start: LearnerStart) -> None:
        """Start the learner; `LearnerStarted` follows."""
        ...

    def carry_out(self, command: EngineCommand) -> None:
        """Begin a command; its event follows. Never blocks on another process."""
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

    def get_state(self, handle: Handle) -> LearnerState:
        """The learner's state behind a handle of `LearnerSnapshot`. Callable from another thread."""
        ...

    def targets(self) -> list[Target]:
        """Live processes that serve `/metrics`, besides the driver."""
        ...

    def close(self) -> None:
        """End every process of the run; returns when they are gone or the deadline has passed."""
        ...
