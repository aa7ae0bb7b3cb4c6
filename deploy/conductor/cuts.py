"""Checkpoints in the making. A cut is complete when every part of it has arrived, in whatever order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from actors.evaluate import EvaluationResult
from deploy.conductor.accounts import Accounts
from deploy.conductor.messages import Cut, Handle, Held, SeatState
from deploy.conductor.seats import Seat


@dataclass(slots=True, kw_only=True)
class CutInProgress:
    """What has arrived for the cut after `update` updates.

    Attributes:
        update: updates committed at the cut.
        frames: fragments for the `lag` updates after it, by update and actor.
        evaluations_due: which evaluations the cut waits for (final or not).
    """

    update: int
    frames: dict[int, dict[int, Held]]
    final: bool = False
    learner: Handle | None = None
    accounts: Accounts | None = None
    term: int = 0
    version: int = 0
    env_steps: int = 0
    parameter_digest: str = ""
    snapshots: dict[int, tuple[int, bytes | None]] = field(default_factory=dict)
    evaluations_due: set[bool] = field(default_factory=set)
    evaluations: dict[bool, EvaluationResult | None] = field(default_factory=dict)
    written: bool = False

    def missing(self, seats: Iterable[Seat]) -> list[str]:
        """What has not arrived yet, in words; empty when the cut is complete."""
        absent = []
        if self.accounts is None:
            absent.append(f"update {self.update} to be committed")
        if self.learner is None:
            absent.append("the learner's state")
        for seat in seats:
            if not seat.live:
                continue
            if seat.actor not in self.snapshots:
                absent.append(f"the state of actor {seat.actor}")
            absent += [
                f"actor {seat.actor}'s fragment for update {u}" for u, f in self.frames.items() if seat.actor not in f
            ]
        absent += [f"evaluation of update {self.update}" for _ in self.evaluations_due - set(self.evaluations)]
        return absent

    def receive(self, held: Held) -> None:
        """A fragment has arrived; it is part of the cut if it is for one of the cut's updates."""
        frames = self.frames.get(held.summary.update)
        if frames is None:
            return
        frames[held.summary.actor] = held
        if self.accounts is not None:  # else it is in the accounts that the commit will copy
            self.accounts.produce(held.summary)

    def lose(self, actor: int, fragments: int) -> None:
        """An actor was lost: before this cut, unless its state for the cut had arrived already."""
        if self.accounts is not None and actor not in self.snapshots:
            self.accounts.fragments_lost += fragments

    def assemble(self, seats: Iterable[Seat]) -> Cut:
        """The complete cut. In flight are exactly the transitions of its frames."""
        assert self.accounts is not None
        held = {update: tuple(frames[a] for a in sorted(frames)) for update, frames in self.frames.items()}
        return Cut(
            update=self.update,
            term=self.term,
            version=self.version,
            env_steps=self.env_steps,
            parameter_digest=self.parameter_digest,
            accounts=self.accounts.copy(),
            learner=self.learner,
            seats=tuple(self._seat_state(seat) for seat in seats),
            frames=held,
            evaluation=self.evaluations.get(False),
            final_evaluation=self.evaluations.get(True),
            final=self.final,
        )

    def _seat_state(self, seat: Seat) -> SeatState:
        incarnation, snapshot = self.snapshots.get(seat.actor, (seat.incarnation, None))
        return SeatState(
            actor=seat.actor,
            incarnation=incarnation,
            restarts=seat.restarts,
            quarantined=not seat.live,
            snapshot=snapshot,
        )
