"""What people and Prometheus see of a run: ranks that fail, disagree and roll back; fragments that wait; actors."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from common.clock import ManualClock
from common.ledger import TRAINED, LedgerFragment
from common.metrics import ActorState, DriverMetrics, Registry
from common.runs import ROLLBACK_EVENT
from deploy.conductor.messages import ActorStarted, FragmentDropped, FragmentMade, LearnerStarted, Note
from deploy.conductor.ranks import RankStatus
from deploy.conductor.seats import Seat, SeatStatus
from deploy.display import Progress, brief
from deploy.sync_tally import SyncTally
from deploy.watch import TICK_EVERY_S, Watch
from tests.deploy.simulation import FACTS, summary_of
from tests.deploy.standing import Standing, StandingPolicy, busy, committed, flow, ranks

DIGEST = "0123456789abcdef" * 4


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


@dataclass
class Scene:
    """A watch, its clock, and what it exports and shows."""

    clock: ManualClock = field(default_factory=ManualClock)
    registry: Registry = field(default_factory=Registry)
    display: Noted = field(default_factory=Noted)
    standing: Standing = field(default_factory=Standing)
    tally: SyncTally | None = None
    starved: int = 0

    def __post_init__(self) -> None:
        metrics = DriverMetrics(self.registry)
        self.watch = Watch(metrics, self.display, self.clock, self.tally, starved=self.starved)
        self.clock.advance(1.0)

    def tick(self, seconds: float = TICK_EVERY_S) -> None:
        self.clock.advance(seconds)
        self.watch.tick(self.standing.conductor)

    def metric(self, name: str) -> float:
        (found,) = self.series(name)
        return found

    def series(self, name: str) -> list[float]:
        """Its value, or nothing if it is not exported."""
        text = self.registry.render()[0].decode()
        return [float(v) for v in re.findall(rf"^{re.escape('truestep_driver_' + name)} (\S+)$", text, re.MULTILINE)]

    def actors(self) -> tuple[float, ...]:
        """Created, running, blocked, dead."""
        return tuple(self.metric(f'actors{{state="{state}"}}') for state in ActorState)

    def arrive(self, actor: int, sequence: int = 0) -> None:
        summary = summary_of(actor=actor, sequence=sequence)
        self.watch.observe(FragmentMade(summary=summary, frame=None))

    @property
    def balance(self) -> float:
        """0 if every transition has a fate."""
        dropped = re.findall(r"^truestep_driver_dropped\S+ (\S+)$", self.registry.render()[0].decode(), re.MULTILINE)
        made = self.metric("produced_transitions_total") + self.metric("undone_transitions_total")
        fates = self.metric("trained_transitions_total") + self.metric("in_flight_transitions")
        return made - fates - sum(map(float, dropped))


def rolled_back() -> Scene:
    """A run that had made 5 updates of 100 transitions, and has just gone back to update 2."""
    scene = Scene()
    standing, accounts = scene.standing, scene.standing.accounts
    standing.committed, standing.env_steps, accounts.produced, accounts.trained = 5, 500, 600, 500
    scene.tick()
    standing.committed, standing.env_steps, standing.term = 2, 200, 1
    accounts.trained, accounts.dropped = 200, {"rolled_back": 400}
    accounts.undone, accounts.updates_undone, accounts.steps_undone = 300, 3, 300
    scene.tick()
    return scene


def test_a_rollback_takes_no_total_back_and_the_books_balance() -> None:
    """Trained, updates and steps stay where they were; undone says how much of them stands no more."""
    scene = rolled_back()
    assert scene.metric("trained_transitions_total") == 500
    assert scene.metric("undone_transitions_total") == 300
    assert scene.metric("updates_total") == 5
    assert scene.metric("env_steps_total") == 500
    assert scene.metric("term") == 1
    assert scene.balance == 0


def test_people_are_shown_where_the_run_stands_after_a_rollback() -> None:
    """Updates and steps are those that stand; the rate is of work done, so it is never negative."""
    shown = rolled_back().display.shown[-1]
    assert (shown.updates, shown.steps) == (2, 200)
    assert shown.steps_per_s == 0.0


def test_what_sync_came_to_is_exported_as_it_is_told() -> None:
    """Mismatch, redo, failure, lost rank: each in its total, and how long each kept the group from a commit."""
    scene = Scene()
    watch = scene.watch
    watch.commit(committed(0))
    watch.note(Note(kind="SYNC_MISMATCH", data={"update": 1, "attempt": 1, "disputes": [{"fault": "digest"}]}))
    scene.clock.advance(0.75)
    watch.commit(committed(1))
    watch.note(Note(kind="RANK_LOST", data={"rank": 1, "cause": "killed"}))
    watch.note(Note(kind="SYNC_FAILED", data={"update": 2, "attempt": 3, "failures": {"0": "closed"}}))
    scene.clock.advance(4.0)
    watch.note(Note(kind="GROUP_FORMED", data={"formation": 2, "ranks": [0, 1]}))
    watch.commit(committed(2))
    scene.standing.ranks = ranks(RankStatus.JOINED, RankStatus.STARTING)
    scene.tick()
    assert scene.metric("verified_updates_total") == 3
    assert scene.metric('sync_mismatches_total{cause="digest"}') == 1
    assert scene.metric("sync_failures_total") == 1
    assert scene.metric("sync_retries_total") == 2
    assert scene.metric("rank_restarts_total") == 1
    assert scene.metric('ranks{state="joined"}') == scene.metric('ranks{state="starting"}') == 1
    assert scene.metric('recovery_seconds_sum{cause="mismatch"}') == 0.75
    assert scene.metric('recovery_seconds_sum{cause="rank_lost"}') == 4.0
    assert scene.metric('recovery_seconds_count{cause="sync_failed"}') == 0
    assert scene.metric("policy_lag_updates") == 1


def test_a_rank_that_is_lost_before_the_first_update_is_made_good_by_it() -> None:
    """The learner that starts after all ends what kept it from starting."""
    scene = Scene()
    scene.watch.note(Note(kind="RANK_LOST", data={"rank": 0, "cause": "killed"}))
    scene.clock.advance(2.0)
    scene.watch.observe(LearnerStarted(version=1, updates=0, weights=b"", parameter_digest="p"))
    scene.watch.commit(committed(0))
    assert scene.metric('recovery_seconds_sum{cause="rank_lost"}') == 2.0


def test_totals_of_a_resumed_run_go_on_from_its_record() -> None:
    """They stand at the first tick, before anything has happened."""
    scene = Scene(tally=SyncTally(verified=40, failures=2, rollbacks=1, ranks_lost=3))
    scene.tick()
    assert scene.metric("verified_updates_total") == 40
    assert scene.metric("rollbacks_total") == 1
    assert scene.metric("rank_restarts_total") == 3
    scene.watch.note(Note(kind="SYNC_FAILED", data={"update": 41, "attempt": 9}))
    scene.tick()
    assert scene.metric("sync_failures_total") == 3


def test_ranks_are_shown_where_there_is_more_than_one() -> None:
    """Those in the group, of how many."""
    scene = Scene()
    scene.standing.ranks = ranks(RankStatus.JOINED, RankStatus.STARTING)
    scene.tick()
    assert "ranks 1/2" in scene.display.shown[-1].words()
    scene.standing.ranks = ranks(RankStatus.JOINED)
    scene.tick()
    assert "ranks" not in scene.display.shown[-1].words()


def taken(actor: int, *, update: int, weights: int, fate: str = TRAINED, sequence: int = 0) -> LedgerFragment:
    """What the ledger says of a fragment of update number `update`."""
    return LedgerFragment(
        actor=actor,
        incarnation=0,
        sequence=sequence,
        term=0,
        weights=weights,
        num_valid=100,
        digest=0,
        decided_in=0,
        update=update + 1,
        place=0,
        fate=fate,
    )


def test_every_fragment_that_was_trained_on_tells_its_lag_and_how_long_it_waited() -> None:
    """Lag by the weights that acted, the wait from arrival to commit; refused ones and those of before tell nothing."""
    scene = Scene()
    scene.arrive(0)
    scene.clock.advance(2.0)
    scene.arrive(1)
    scene.arrive(2)
    scene.clock.advance(0.5)
    ledger = (
        taken(0, update=7, weights=7),
        taken(1, update=7, weights=2),
        taken(2, update=7, weights=1, fate="stale"),
        taken(3, update=7, weights=-1),  # of a checkpoint: it did not arrive here, and its weights are not known
    )
    scene.watch.commit(committed(7, ledger=ledger))
    lags = ("0.0", "4.0", "6.0", "64.0")
    assert [scene.metric(f'fragment_lag_updates_bucket{{le="{le}"}}') for le in lags] == [1, 1, 2, 2]
    assert (scene.metric("fragment_lag_updates_sum"), scene.metric("fragment_lag_updates_count")) == (5, 2)
    assert (scene.metric("fragment_wait_seconds_sum"), scene.metric("fragment_wait_seconds_count")) == (3.0, 2)


def test_the_oldest_fragment_without_a_fate_is_known_by_its_age() -> None:
    """Trained, refused, dropped or rolled back, each way out lets the next one be the oldest (C27)."""
    scene = Scene()
    for actor in range(6):
        scene.arrive(actor)
        scene.clock.advance(1.0)
    ages = []
    ways_out: tuple[Callable[[], object], ...] = (
        lambda: scene.watch.commit(committed(0, ledger=(taken(0, update=0, weights=0),))),
        lambda: scene.watch.commit(committed(1, ledger=(taken(1, update=1, weights=0, fate="duplicate"),))),
        lambda: scene.watch.drop(FragmentDropped(actor=2, incarnation=0, sequence=0, reason="stale")),
        lambda: scene.watch.note(Note(kind="FRAGMENT_REFUSED", data={"actor": 3, "incarnation": 0, "sequence": 0})),
        lambda: scene.watch.note(Note(kind="FRAGMENT_REFUSED", data={"actor": 4, "reason": "corrupt", "detail": ""})),
        lambda: scene.watch.note(Note(kind=ROLLBACK_EVENT, data={"from_update": 2})),
    )
    for way_out in ways_out:
        way_out()
        scene.standing.finish = "now"  # ticks at once
        scene.tick(0.0)
        ages.append(scene.metric("oldest_fragment_age_seconds"))
    assert ages == [5.0, 4.0, 3.0, 2.0, 2.0, 0.0]  # the fifth is told again at its commit, with its whole name


def test_the_flow_is_exported_as_the_policy_has_it_and_starvation_goes_on_from_the_record() -> None:
    """In flight, of how many; queued; starved in all. In synchronous collection nothing of it is claimed."""
    scene = Scene(starved=40)
    scene.tick()
    assert scene.series("in_flight_capacity_fragments") == scene.series("queued_fragments") == []
    scene.standing.policy.flow = flow(in_flight=9, capacity=16, queued=3, starved=2, target=5)
    scene.tick()
    assert scene.metric("in_flight_fragments") == 9
    assert scene.metric("in_flight_capacity_fragments") == 16
    assert scene.metric("queued_fragments") == 3
    assert scene.metric("starved_updates_total") == 42
    assert scene.metric("wanted_actors") == 5


def test_every_actor_is_somewhere_in_its_life() -> None:
    """Created, running, blocked, dead, and none of these where the pool does without it."""
    scene = Scene()
    scene.standing.seats = [busy(0), Seat(actor=1), Seat(actor=2, status=SeatStatus.ABSENT)]
    scene.tick()
    assert scene.actors() == (1, 1, 0, 0)
    assert scene.metric("wanted_actors") == 2
    scene.watch.note(Note(kind="ACTOR_LOST", data={"actor": 1, "cause": "killed"}))
    scene.tick()
    assert scene.actors() == (0, 1, 0, 1)
    scene.watch.observe(ActorStarted(actor=1, incarnation=1, lease="l", facts=FACTS))
    scene.standing.seats[1] = Seat(actor=1, status=SeatStatus.RUNNING)
    scene.tick()
    assert scene.actors() == (0, 1, 1, 0)
    scene.standing.seats[1] = Seat(actor=1)  # it had left its seat on purpose, and is wanted again
    scene.tick()
    assert scene.actors() == (1, 1, 0, 0)


def test_the_line_tells_actors_of_the_pool() -> None:
    """There, of how many that should be; who goes does not count."""
    scene = Scene()
    scene.standing.committed, scene.standing.ranks = 4, ranks(RankStatus.JOINED)
    scene.standing.policy = StandingPolicy(flow(target=3))
    scene.standing.seats = [busy(0), busy(1), busy(2), Seat(actor=3)]
    scene.standing.seats[2].leaving = True
    scene.tick()
    assert "lag 0  actors 2/3  ETA" in scene.display.shown[-1].words()
    scene.standing.policy.flow = None
    scene.tick()
    assert "actors 2/4  ETA" in scene.display.shown[-1].words()


def test_a_note_is_one_line_with_short_digests_and_its_detail_once() -> None:
    """However long digests and lists are; what is recorded is another matter."""
    scene = Scene()
    dispute = {"fault": "digest", "chunks": list(range(1000)), "digests": {"0": DIGEST, "1": DIGEST[::-1]}}
    for _ in range(2):
        note = Note(kind="SYNC_MISMATCH", data={"update": 7, "cause": "", "disputes": [dispute], "detail": "stack"})
        scene.watch.note(note)
    line = (
        "SYNC_MISMATCH  update=7  disputes=[{fault: digest, chunks: [0, 1, 2, 3, 4, 5, 6, 7, and 992 more], "
        "digests: {0: 0123456789ab, 1: fedcba987654}}]"
    )
    assert scene.display.told == [line, "stack", line]


def test_only_digests_are_shortened() -> None:
    """Words, numbers and short hexadecimal texts are as they are."""
    values = ["a word that is long enough", "abcdef01234567", 1234567890123456789, 0.25, None, DIGEST[:16]]
    assert [brief(value) for value in values] == [*map(str, values[:-1]), DIGEST[:12]]
