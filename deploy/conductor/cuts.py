"""Checkpoints in the making. A cut is complete when every part of it has arrived, in whatever order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    chain: str = ""
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

    def drop(self, held: Held, reason: str) -> None:
        """A fragment has arrived that is of no use: before this cut, unless its actor's state for it had arrived."""
        if self.accounts is not None and held.summary.actor not in self.snapshots:
            self.accounts.produce(held.summary)
            self.accounts.drop(reason, held.summary.num_valid)

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
            chain=self.chain,
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


class Cuts:
    """Every cut that is open: in the making, or being written."""

    def __init__(self) -> None:
        self._cuts: dict[int, CutInProgress] = {}

    def __contains__(self, update: int) -> bool:
        return update in self._cuts

    def get(self, update: int) -> CutInProgress | None:
        """The cut after `update` updates."""
        return self._cuts.get(update)

    @property
    def unwritten(self) -> list[CutInProgress]:
        """Those in the making, in the order of updates."""
        return [cut for _, cut in sorted(self._cuts.items()) if not cut.written]

    def open(self, update: int, frames: dict[int, dict[int, Held]]) -> CutInProgress:
        """Begin a cut after `update` updates, with what is in hand of the fragments it holds."""
        assert update not in self._cuts
        cut = self._cuts[update] = CutInProgress(update=update, frames=frames)
        return cut

    def complete(self, seats: list[Seat]) -> Iterator[Cut]:
        """Those that may be written now. In the order of updates, so the run's last cut is also the last to be written,
        and no evaluation is passed by."""
        for cut in self.unwritten:
            if cut.missing(seats):
                return
            cut.written = True
            yield cut.assemble(seats)

    def done(self, update: int) -> CutInProgress:
        """A cut is on disk, or could not be written."""
        return self._cuts.pop(update)

    def drop(self, update: int) -> None:
        """Give a cut up."""
        del self._cuts[update]

    def words(self, seats: list[Seat]) -> list[str]:
        """What is awaited."""
        missing = {cut.update: ", ".join(cut.missing(seats)) for cut in self._cuts.values()}
        return [f"checkpoint {update}: {what or 'the disk'}" for update, what in missing.items()]
