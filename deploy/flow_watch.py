"""What is seen of the flow from actors to the learner: how long fragments wait, and what holds the run up."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from common.clock import NS_PER_S, Clock
from common.ledger import FragmentName
from common.metrics import ActorState
from deploy.conductor.policies.policy import FlowStatistics

WINDOW_S = 10.0
PLAIN_SHARE = 0.5  # of the window: below it, it is not plain what holds the run up
STARVED = "learner starved"
BLOCKED = "actors blocked"


class Arrivals:
    """Fragments that have arrived in this driving and have no fate yet, oldest first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns: dict[FragmentName, int] = {}

    def arrive(self, name: FragmentName) -> None:
        """The driver has heard of it."""
        self._since_ns[name] = self._clock.now_ns()

    def decide(self, name: FragmentName) -> float | None:
        """Its fate is known; returns the seconds that took, None if it did not arrive in this driving."""
        since_ns = self._since_ns.pop(name, None)
        return None if since_ns is None else (self._clock.now_ns() - since_ns) / NS_PER_S

    def forget(self) -> None:
        """A rollback: whatever was in hand was dropped."""
        self._since_ns.clear()

    @property
    def oldest_s(self) -> float:
        """Age of the oldest; 0 if there is none."""
        since_ns = next(iter(self._since_ns.values()), None)
        return 0.0 if since_ns is None else (self._clock.now_ns() - since_ns) / NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One moment: updates committed and starved so far, the share of actors that are there and have nothing to do."""

    at_ns: int
    updates: int
    starved: int
    blocked: float


class HoldUp:
    """Judges, over the last seconds, which side waits for which."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looks: deque[_Look] = deque()

    def look(self, flow: FlowStatistics, lives: Mapping[ActorState, int], *, updates: int) -> str:
        """Take one moment in; returns what holds the run up, "" if nothing plainly does.

        Args:
            flow: how it stands.
            lives: actors by state.
            updates: ever committed.

        While the learner starves the time since the last commit counts as an update, so that one that has waited for
        longer than the window is seen.
        """
        running, blocked = lives.get(ActorState.RUNNING, 0), lives.get(ActorState.BLOCKED, 0)
        share = blocked / (running + blocked) if running + blocked else 0.0
        now_ns = self._clock.now_ns()
        self._looks.append(_Look(at_ns=now_ns, updates=updates, starved=flow.starved, blocked=share))
        while (now_ns - self._looks[0].at_ns) / NS_PER_S > WINDOW_S:
            self._looks.popleft()
        first = self._looks[0]
        starved = flow.starved - first.starved + flow.starving
        of = updates - first.updates + flow.starving
        if updates > 0 and 0 < starved >= PLAIN_SHARE * of:
            return STARVED
        if sum(look.blocked for look in self._looks) >= PLAIN_SHARE * len(self._looks):
            return BLOCKED
        return ""
