"""A ledger, once more: every actor lives the lives it had, every update takes the fragments it took, in their order.

When anything happens is left to chance again; what happens is not. Fragments that were dropped are made too, since
making them moved environments and streams; they are dropped again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from common.errors import RunFailedError
from common.ledger import FragmentName, Script, ScriptedFragment
from deploy.conductor.accounts import Accounts
from deploy.conductor.cuts import CutInProgress
from deploy.conductor.messages import ActorCommand, Collect, Cut, Held, StartActor, StopActor
from deploy.conductor.policies.policy import Composition, FlowStatistics, Moment
from deploy.conductor.seats import Seat, SeatStatus

IN_HAND_OF_AN_ACTOR = 2
NOTHING = b""  # a frame that every intake refuses
NOT_TAKEN = "not_taken"  # the run that is made again dropped this fragment


class Scripted:
    """Follows a script to its end.

    Args:
        script: what is to be done.
    """

    waits_for_target = False
    saves = False

    def __init__(self, script: Script) -> None:
        self.length: int | None = len(script.updates)
        self._updates = script.updates
        self._refused = script.refused
        self._taken = {key for update in script.updates for key in update}
        self._lives = {actor: [life for life in lives if life] for actor, lives in script.lives.items()}
        self._wanted = Counter(f.weights for lives in script.lives.values() for life in lives for f in life)
        self._in_hand: dict[tuple[int, int, int], Held] = {}
        self._unwanted: list[tuple[Held, str]] = []

    def begin(self, seats: Sequence[Seat]) -> None:
        for seat in seats:
            lives = self._lives.get(seat.actor)
            if lives:
                self._take_seat(seat, lives)
            else:
                seat.status = SeatStatus.ABSENT

    @staticmethod
    def _take_seat(seat: Seat, lives: list[tuple[ScriptedFragment, ...]]) -> None:
        seat.status = SeatStatus.STARTING
        seat.incarnation = lives[0][0].incarnation
        seat.next_collect = 0

    def resume(self, cut: Cut, seats: Sequence[Seat]) -> None:
        raise AssertionError("a script is followed from its beginning")

    def tell(self, seat: Seat, seats: Sequence[Seat], moment: Moment) -> ActorCommand | None:
        lives = self._lives[seat.actor]
        life = lives[0]
        if seat.next_collect < len(life):
            return self._collect(seat, life[seat.next_collect], moment)
        if seat.outstanding:
            return None
        lives.pop(0)
        seat.stop()
        return StopActor(actor=seat.actor)

    def _collect(self, seat: Seat, fragment: ScriptedFragment, moment: Moment) -> Collect | None:
        published = moment.weights.get(fragment.weights)
        if published is None or len(seat.outstanding) >= IN_HAND_OF_AN_ACTOR:
            return None
        self._wanted[fragment.weights] -= 1
        version, weights = published
        number = seat.tell(moment.term, version)
        return Collect(actor=seat.actor, update=number, term=moment.term, version=version, weights=weights)

    def staff(self, seats: Sequence[Seat], moment: Moment) -> Iterator[StartActor]:
        """The next life of whoever has ended one begins at once."""
        for seat in seats:
            lives = self._lives.get(seat.actor)
            if lives and seat.status is SeatStatus.ABSENT:
                self._take_seat(seat, lives)
                yield StartActor(actor=seat.actor, incarnation=seat.incarnation, snapshot=None)

    def commit(self, seats: Sequence[Seat], committed: int) -> None:
        """Nothing follows from it."""

    def snapshot_due(self, seat: Seat, update: int) -> bool:
        return False

    def cut(self, update: int, seats: Sequence[Seat], accounts: Accounts) -> CutInProgress:
        raise AssertionError("a run that follows a script is not saved")

    def add(self, held: Held) -> None:
        if held.key in self._taken:
            self._in_hand[held.key] = held
        else:
            self._unwanted.append((held, NOT_TAKEN))

    def compose(self, update: int, seats: Sequence[Seat], *, idle: bool) -> Composition:
        dropped, self._unwanted = tuple(self._unwanted), []
        keys = self._updates[update]
        if any(key not in self._in_hand for key in keys):
            return Composition(dropped=dropped)
        return Composition(held=tuple(self._take(key) for key in keys), dropped=dropped)

    def _take(self, name: FragmentName) -> Held:
        """What was refused on its way to the learner is sound now: its place is kept, so that ranks share the others
        out as they did, and there is nothing in it."""
        held = self._in_hand.pop(name)
        return replace(held, frame=NOTHING) if name in self._refused else held

    def take_back(self, update: int, held: tuple[Held, ...]) -> None:
        self._in_hand.update({each.key: each for each in held})

    def give_up(self, update: int, seats: Sequence[Seat]) -> list[Held]:
        raise RunFailedError(
            "a run that follows a ledger cannot be rolled back",
            fix="see the record's SYNC_ and RANK_ events for what went wrong, then reproduce again",
        )

    def stop_at(self, issued: int, seats: Sequence[Seat]) -> int:
        return issued

    def statistics(self, seats: Sequence[Seat]) -> FlowStatistics | None:
        return None

    def keeps(self, updates: int, committed: int) -> bool:
        return updates >= committed or self._wanted[updates] > 0

    def stands_in(self, committed: int, floor: int) -> range:
        return range(0)
