"""Stall attribution at work: one snapshot a second, a judgement of the last ten, the verdict in force.

consumes   commands and events of the driver
produces   a finding, metrics, a note whenever the verdict changes
waits for  nothing: it is asked at the driver's pace
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from common.clock import NS_PER_S, Clock
from common.metrics import DriverMetrics, Stage, Stall
from deploy.attribution.observer import Observer
from deploy.attribution.snapshot import Snapshot
from deploy.attribution.stages import states_of
from deploy.attribution.steady import Steady
from deploy.attribution.verdict import Finding, judge
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import Note

VERDICT = "VERDICT"  # kind of the note: what holds the run up has changed
SNAPSHOT_EVERY_S = 1.0
WINDOW_S = 10.0
LEAST_WINDOW_S = 5.0  # below it, one slow update or one garbage collection is a large share
AGAIN_S = 60.0  # the same verdict is told to people so seldom; the line that is shown live always has it

Onlooker = Callable[[Sequence[Snapshot], Finding], None]


class Attribution:
    """Judges a run while it goes on, from its first update to its last.

    Args:
        observer: of the run.
        metrics: where marks, states and verdict are exported.
        clock: of the driver.
        onlooker: shown every window with what was found in it: recordings are made so.

    Attributes:
        finding: the newest that agrees with the verdict in force; None before the first.
    """

    def __init__(
        self, observer: Observer, metrics: DriverMetrics, clock: Clock, *, onlooker: Onlooker | None = None
    ) -> None:
        self.finding: Finding | None = None
        self.observer = observer
        self._metrics = metrics
        self._clock = clock
        self._onlooker = onlooker
        self._window: deque[Snapshot] = deque()
        self._steady = Steady()
        self._since_ns = self._looked_ns = clock.now_ns()
        self._told_ns: dict[Stall, int] = {}

    @property
    def brief(self) -> str:
        """What holds the run up, for a line that is shown live; "" if nothing does."""
        return "" if self.finding is None else self.finding.brief

    def look(self, conductor: Conductor) -> Note | None:
        """Take a snapshot if it is time for one; returns the change of the verdict, if it has changed."""
        now_ns = self._clock.now_ns()
        elapsed_s = (now_ns - self._looked_ns) / NS_PER_S
        if elapsed_s < SNAPSHOT_EVERY_S:
            return None
        self._looked_ns = now_ns
        self._keep(self.observer.snapshot(conductor))
        states = states_of(self._window)
        marks = {stage: facts.mark for stage, facts in self._window[-1].stages.items()}
        self._metrics.set_stages(marks=marks, states={stage: state.value for stage, state in states.items()})
        if self.observer.ending:
            return None
        note = self._judge(now_ns)
        if self.finding is not None:
            self._metrics.set_stall(self._steady.verdict, seconds=elapsed_s)
        return note

    def _keep(self, snapshot: Snapshot) -> None:
        """Windows begin with the first update: before it processes start, and everybody waits."""
        begun = snapshot.stages[Stage.COMMITTED].mark > 0
        if not begun:
            self._window.clear()
        self._window.append(snapshot)
        while self._window[-1].at_s - self._window[0].at_s > WINDOW_S:
            self._window.popleft()

    def _judge(self, now_ns: int) -> Note | None:
        if self._window[-1].at_s - self._window[0].at_s < LEAST_WINDOW_S:
            return None
        before = self._steady.verdict
        found = judge(self._window, before=before)
        changed = self._steady.take(found.verdict)
        if found.verdict is self._steady.verdict:
            self.finding = found
        if self._onlooker is not None:
            self._onlooker(tuple(self._window), found)
        return self._change(before, found, now_ns) if changed else None

    def _change(self, before: Stall, finding: Finding, now_ns: int) -> Note:
        seconds = (now_ns - self._since_ns) / NS_PER_S
        self._since_ns = now_ns
        data = {"verdict": finding.verdict.value, "before": before.value, "seconds": round(seconds, 1)}
        return Note(kind=VERDICT, data=data | {"words": finding.words, "figures": finding.to_plain()})

    def tells(self, note: Note) -> bool:
        """Whether people should be told of a change: not of every recovery, nor of the same thing again and again."""
        verdict, now_ns = Stall(note.data["verdict"]), self._clock.now_ns()
        told_ns = self._told_ns.get(verdict)
        if verdict is Stall.HEALTHY or (told_ns is not None and (now_ns - told_ns) / NS_PER_S < AGAIN_S):
            return False
        self._told_ns[verdict] = now_ns
        return True
