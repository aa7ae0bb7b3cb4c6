"""Checkpoints in the making. A cut is complete when every part of it has arrived, in whatever order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from actors.evaluate import EvaluationResult
from deploy.conductor.accounts import Accounts, Settlement
from deploy.conductor.messages import Cut, Handle, Held, SeatState
from deploy.conductor.seats import Seat

FrameKey = tuple[int, int, int]  # actor, incarnation, sequence


@dataclass(slots=True, kw_only=True)
class CutInProgress:
    """What has arrived for the cut after `update` updates.

    It has accounts of its own from the moment it is opened, and takes in what lies before it, also if that comes later:
    fragments that belong to it, and what became of the updates that were under way.

    Attributes:
        update: updates committed at the cut.
        accounts: of everything before the cut.
        frames: fragments before the cut that no update before it takes, in the order in which they came.
        updates: where every actor makes a fragment for every update: the updates whose fragments belong to the cut.
        members: where actors make fragments at their own pace: those whose fragments belong to the cut until their
            state for it has arrived; None where `updates` says it.
        evaluations_due: which evaluations the cut waits for (final or not).
        committed: whether the run has reached it.
    """

    update: int
    accounts: Accounts
    frames: dict[FrameKey, Held]
    updates: range = range(0)
    members: set[int] | None = None
    final: bool = False
    committed: bool = False
    learner: Handle | None = None
    term: int = 0
    version: int = 0
    env_steps: int = 0
    parameter_digest: str = ""
    chain: str = ""
    snapshots: dict[int, tuple[int, bytes | None]] = field(default_factory=dict)
    evaluations_due: set[bool] = field(default_factory=set)
    evaluations: dict[bool, EvaluationResult | None] = field(default_factory=dict)
    written: bool = False

    def awaits(self, seat: Seat) -> bool:
        """Whether the cut needs something of this actor."""
        return seat.live if self.members is None else seat.actor in self.members

    def missing(self, seats: Iterable[Seat]) -> list[str]:
        """What has not arrived yet, in words; empty when the cut is complete."""
        absent = []
        if not self.committed:
            absent.append(f"update {self.update} to be committed")
        if self.learner is None:
            absent.append("the learner's state")
        made = {(held.summary.actor, held.summary.update) for held in self.frames.values()}
        for seat in seats:
            if not self.awaits(seat):
                continue
            if seat.actor not in self.snapshots:
                absent.append(f"the state of actor {seat.actor}")
            absent += [
                f"actor {seat.actor}'s fragment for update {u}" for u in self.updates if (seat.actor, u) not in made
            ]
        absent += [f"evaluation of update {self.update}" for _ in self.evaluations_due - set(self.evaluations)]
        return absent

    def receive(self, held: Held) -> None:
        """A fragment has arrived; it may be part of the cut."""
        summary = held.summary
        if self.members is None:
            belongs = summary.update in self.updates
        else:
            belongs = summary.actor in self.members and summary.actor not in self.snapshots
        if belongs:
            self.frames[held.key] = held
            self.accounts.produce(summary)

    def drop(self, held: Held, reason: str) -> None:
        """A fragment has arrived that is of no use: before this cut, unless its actor's state for it had arrived."""
        if held.summary.actor not in self.snapshots:
            self.accounts.produce(held.summary)
            self.accounts.drop(reason, held.summary.num_valid)

    def settle(self, update: int, settlement: Settlement) -> None:
        """Update number `update` is committed; it counts here if it lies before the cut."""
        if update < self.update:
            self.accounts.settle(settlement)

    def lose(self, actor: int, fragments: int) -> None:
        """An actor was lost: before this cut, unless its state for the cut had arrived already."""
        if actor in self.snapshots:
            return
        self.accounts.fragments_lost += fragments
        if self.members is not None:
            self.members.discard(actor)

    def assemble(self, seats: Iterable[Seat]) -> Cut:
        """The complete cut. In flight are exactly the transitions of its frames."""
        frames = list(self.frames.values())
        if self.members is None:
            frames.sort(key=lambda held: (held.summary.update, held.summary.actor))
        return Cut(
            update=self.update,
            term=self.term,
            version=self.version,
            env_steps=self.env_steps,
            parameter_digest=self.parameter_digest,
            accounts=self.accounts.copy(),
            learner=self.learner,
            seats=tuple(self._seat_state(seat) for seat in seats),
            frames=tuple(frames),
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
            quarantined=seat.given_up,
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

    def open(self, cut: CutInProgress) -> None:
        """Begin a cut."""
        assert cut.update not in self._cuts
        self._cuts[cut.update] = cut

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
