"""A run that is judged while it goes on: what is exported, recorded, shown and told, and when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from common.clock import ManualClock
from common.metrics import DriverMetrics, Registry, Stage, Stall
from deploy.attribution.attribution import VERDICT, Attribution
from deploy.attribution.observer import Observer
from deploy.attribution.snapshot import Snapshot
from deploy.attribution.timed import TimedRecorder
from deploy.attribution.verdict import Finding
from deploy.conductor.messages import Note
from deploy.display import Progress
from deploy.record import ACCOUNTS
from deploy.watch import Watch
from tests.deploy.attribution.test_observer import STARTED, collect, made, started, update, updated
from tests.deploy.standing import Standing, busy, committed


@dataclass
class Noted:
    """A display that keeps what it is given."""

    shown: list[Progress] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def show(self, progress: Progress) -> None:
        self.shown.append(progress)

    def tell(self, text: str) -> None:
        self.told.append(text)

    def close(self) -> None:
        self.told.append("closed")


class Scene:
    """Two actors, a rank, and whoever looks on; seconds pass in which one side waits for the other."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = Registry()
        self.display = Noted()
        self.standing = Standing(seats=[busy(0), busy(1)])
        self.seen: list[tuple[Sequence[Snapshot], Finding]] = []
        self.notes: list[Note] = []
        self.number = 0
        metrics = DriverMetrics(self.registry, self.clock)
        self.observer = Observer(self.clock, in_turn=False)
        attribution = Attribution(
            self.observer, metrics, self.clock, onlooker=lambda window, found: self.seen.append((window, found))
        )
        self.watch = Watch(metrics, self.display, self.clock, attribution=attribution)
        for event in (started(0), started(1), STARTED):
            self.watch.observe(event)

    def second(self, *, learning: float) -> None:
        """In turn: actors collect, then the learner learns for this share of a second, and commits."""
        self.watch.told(collect(0))
        self.watch.told(collect(1))
        self.clock.advance(1.0 - learning)
        for actor in (0, 1):
            self.watch.observe(made(actor, sequence=self.number, end_ns=round((1.0 - learning) * 1e9)))
        self.watch.told(update(0))
        self.clock.advance(learning)
        self.watch.observe(updated(0, wall_s=learning, weights=b""))
        command = committed(self.number)
        self.watch.told(command)
        self.watch.commit(command)
        self.number += 1
        self.standing.committed = self.number
        for note in self.watch.tick(self.standing.conductor):
            self.notes.append(note)
            self.watch.note(note)

    def seconds(self, count: int, *, learning: float) -> None:
        for _ in range(count):
            self.second(learning=learning)

    def metric(self, name: str, **labels: str) -> list[float]:
        """Its value, or nothing if it is not exported."""
        inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
        series = re.escape(f"truestep_driver_{name}" + (f"{{{inside}}}" if inside else ""))
        text = self.registry.render()[0].decode()
        return [float(value) for value in re.findall(rf"^{series} (\S+)$", text, re.MULTILINE)]


def test_a_change_of_the_verdict_is_recorded_with_its_figures() -> None:
    """In turn for 15 s, then mostly learning: once, with what was in force before and for how long."""
    scene = Scene()
    scene.seconds(15, learning=0.5)
    assert scene.notes == []
    scene.seconds(15, learning=0.9)
    (note,) = scene.notes
    assert note.kind == VERDICT
    assert (note.data["verdict"], note.data["before"]) == ("learner_bound", "healthy")
    assert 15.0 < note.data["seconds"] < 30.0
    assert note.data["words"].startswith("learner-bound: the learner had work ")
    assert note.data["figures"]["flow"]["blocked"] >= 0.5


def test_the_verdict_in_force_is_exported_with_the_seconds_under_it() -> None:
    """One series is 1, all others are 0; nothing before the first judgement."""
    scene = Scene()
    scene.seconds(4, learning=0.5)
    assert scene.metric("stall", verdict="healthy") == []
    scene.seconds(11, learning=0.5)
    scene.seconds(15, learning=0.9)
    values = {stall: scene.metric("stall", verdict=stall.value) for stall in Stall}
    assert values == {stall: [float(stall is Stall.LEARNER_BOUND)] for stall in Stall}
    seconds = {stall: scene.metric("stall_seconds_total", verdict=stall.value)[0] for stall in Stall}
    assert seconds[Stall.HEALTHY] > 10 and seconds[Stall.LEARNER_BOUND] > 3
    assert sum(seconds.values()) == pytest.approx(25.0, abs=1.0)


def test_the_ring_is_exported() -> None:
    """Marks as totals, states as numbers."""
    scene = Scene()
    scene.seconds(12, learning=0.55)
    marks = {stage: scene.metric("stage_marks_total", stage=stage.value)[0] for stage in Stage}
    assert (marks[Stage.TICKS], marks[Stage.BUILT], marks[Stage.COMMITTED]) == (24.0 * 32, 24.0, 12.0)
    states = {stage: scene.metric("stage_state", stage=stage.value)[0] for stage in Stage}
    assert states == dict.fromkeys(Stage, 0.0) | {Stage.ADOPTED: 1.0}  # every fragment bears version 1


def test_the_line_shows_the_verdict_and_people_are_told_once() -> None:
    """The line as long as it is in force; the words with advice when it comes, and not again within a minute."""
    scene = Scene()
    scene.seconds(15, learning=0.5)
    assert "bound" not in scene.display.shown[-1].words()
    scene.seconds(15, learning=0.9)
    assert "learner-bound: the learner had work" in scene.display.shown[-1].words()
    scene.seconds(15, learning=0.5)
    assert "bound" not in scene.display.shown[-1].words()
    scene.seconds(15, learning=0.9)
    assert [note.data["verdict"] for note in scene.notes] == ["learner_bound", "healthy", "learner_bound"]
    assert 10.0 < scene.notes[1].data["seconds"] < 20.0
    assert len(scene.display.told) == 1 and scene.display.told[0].startswith("VERDICT  learner-bound: ")
    scene.seconds(60, learning=0.5)
    scene.seconds(15, learning=0.9)
    assert len(scene.display.told) == 2


def test_before_the_first_update_and_after_the_last_nothing_is_judged() -> None:
    """Processes start, the last evaluation is played: everybody waits, and nobody is to blame."""
    scene = Scene()
    for _ in range(60):
        scene.clock.advance(1.0)
        assert scene.watch.tick(scene.standing.conductor) == []
    assert scene.seen == [] and scene.metric("stall", verdict="healthy") == []
    scene.seconds(10, learning=0.5)
    judged = len(scene.seen)
    scene.watch.told(Note(kind="STOP_ASKED", data={"reason": "SIGTERM"}))
    for _ in range(60):
        scene.clock.advance(1.0)
        assert scene.watch.tick(scene.standing.conductor) == []
    assert len(scene.seen) == judged > 0


def test_windows_are_ten_seconds_of_snapshots_a_second_apart() -> None:
    """Five at least; whoever looks on sees what was judged."""
    scene = Scene()
    scene.seconds(30, learning=0.5)
    spans = [round(window[-1].at_s - window[0].at_s, 3) for window, _ in scene.seen]
    assert spans[:7] == [5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 10.0]
    assert {len(window) for window, _ in scene.seen[6:]} == {11}
    assert {found.verdict for _, found in scene.seen} == {Stall.HEALTHY}


def test_writing_the_record_is_timed() -> None:
    """Each call, also one that raises; the last is not: nobody waits any more."""
    clock, spent = ManualClock(), list[int]()

    class Slow:
        def __getattr__(self, name: str) -> object:
            def call(*_: object) -> None:
                clock.advance(2.0)
                if name == "roll_back":
                    raise OSError(name)

            return call

    recorder = TimedRecorder(Slow(), clock, spent.append)  # type: ignore[arg-type]
    conductor = Standing().conductor
    recorder.commit(committed(0), conductor)
    recorder.observe(STARTED, conductor)
    recorder.note(Note(kind=ACCOUNTS))
    recorder.save(None)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="roll_back"):
        recorder.roll_back(None)  # type: ignore[arg-type]
    recorder.close(conductor)
    assert [each / 1e9 for each in spent] == [2.0] * 5
