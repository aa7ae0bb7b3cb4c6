"""One actor as the driver sees it: present, at work or without any, and what its fragments have cost."""

from __future__ import annotations

from collections import deque

from common.clock import NS_PER_S
from common.fragment import FragmentSummary
from deploy.attribution.snapshot import ActorFacts
from deploy.attribution.tracks import Duty


class ActorTrack:
    """Goes on over the deaths of its processes."""

    def __init__(self, actor: int) -> None:
        self._actor = actor
        self._there = False
        self._orders: deque[bool] = deque()  # oldest first; whether it is a fragment
        self._present, self._blocked, self._at_work = Duty(), Duty(), Duty()
        self._fragments = self._major_faults = 0
        self._work_ns = self._env_ns = self._policy_ns = self._cpu_ns = self._delay_ns = 0

    def arrive(self, now_ns: int) -> None:
        """A process is there; it has been told nothing."""
        self._there = True
        self._orders.clear()
        self._settle(now_ns)

    def leave(self, now_ns: int) -> None:
        """It is gone, and with it what it was told."""
        self._there = False
        self._orders.clear()
        self._settle(now_ns)

    def tell(self, now_ns: int, *, fragment: bool) -> None:
        """It has one thing more to do: a fragment, or an evaluation."""
        self._orders.append(fragment)
        self._settle(now_ns)

    def answer(self, now_ns: int, summary: FragmentSummary | None = None) -> None:
        """It has done the oldest of these; `summary` if that was a fragment. One may come after its process is gone."""
        self._at_work.set(False, now_ns)
        if self._orders:
            self._orders.popleft()
        self._settle(now_ns)
        if summary is None:
            return
        self._fragments += 1
        self._work_ns += summary.end_ns - summary.start_ns
        self._env_ns += summary.env_ns
        self._policy_ns += summary.policy_ns
        self._cpu_ns += summary.cpu_ns
        self._delay_ns += summary.delay_ns
        self._major_faults += summary.major_faults

    def _settle(self, now_ns: int) -> None:
        self._present.set(self._there, now_ns)
        self._blocked.set(self._there and not self._orders, now_ns)
        self._at_work.set(bool(self._orders) and self._orders[0], now_ns)

    def facts(self, now_ns: int) -> ActorFacts:
        """How it stands."""
        return ActorFacts(
            actor=self._actor,
            present_s=self._present.seconds(now_ns),
            blocked_s=self._blocked.seconds(now_ns),
            fragments=self._fragments,
            work_s=self._work_ns / NS_PER_S,
            env_s=self._env_ns / NS_PER_S,
            policy_s=self._policy_ns / NS_PER_S,
            cpu_s=self._cpu_ns / NS_PER_S,
            delay_s=self._delay_ns / NS_PER_S,
            major_faults=self._major_faults,
            at_work_s=self._at_work.lasting_s(now_ns),
        )
