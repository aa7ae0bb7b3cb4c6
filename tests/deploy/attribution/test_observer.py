"""What the driver sees of a run, added up: by hand, and over simulated runs in which everything fails."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.clock import NS_PER_S, ManualClock
from common.metrics import Stage
from common.stint import Stint
from deploy.attribution.observer import Observer
from deploy.attribution.snapshot import Snapshot
from deploy.conductor.messages import (
    ActorLost,
    ActorStarted,
    CheckpointWritten,
    Collect,
    Command,
    Evaluate,
    EvaluationMade,
    Event,
    FragmentMade,
    JoinGroup,
    LearnerStarted,
    Note,
    RankUpdated,
    Share,
    Update,
    WriteCheckpoint,
)
from deploy.conductor.plan import Flow, Plan
from deploy.conductor.policies.policy import FlowStatistics
from learner.reports import FragmentKey, SyncReport, UpdateReport
from tests.deploy.simulated_ranks import RankFaults
from tests.deploy.simulation import FACTS, Faults, Simulation, summary_of
from tests.deploy.standing import Standing, StandingPolicy, busy, committed, flow

STARTED = LearnerStarted(version=1, updates=0, weights=None, parameter_digest="")


class Seen:
    """An observer, its clock, and a conductor that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.observer = Observer(self.clock, in_turn=False)
        self.standing = Standing(seats=[busy(0), busy(1)])

    def at(self, seconds: float, *happenings: Event | Command) -> None:
        """So long after the last ones, these."""
        self.clock.advance(seconds)
        for each in happenings:
            if isinstance(each, Event):
                self.observer.happened(each)
            else:
                self.observer.told(each)

    def snapshot(self) -> Snapshot:
        return self.observer.snapshot(self.standing.conductor)


def started(actor: int) -> ActorStarted:
    return ActorStarted(actor=actor, incarnation=0, lease="lease", facts=FACTS)


def collect(actor: int) -> Collect:
    return Collect(actor=actor, update=0, term=0, version=1, weights=None)


def made(actor: int, **fields: Any) -> FragmentMade:
    return FragmentMade(summary=summary_of(actor=actor, version=1, ticks=32, **fields), frame=None)


def update(*ranks: int, fragments: int = 2) -> Update:
    keys = tuple(FragmentKey(actor=number, incarnation=0, sequence=0) for number in range(fragments))
    shares = tuple(Share(rank=rank, frames=()) for rank in ranks)
    return Update(update=0, attempt=1, term=0, version=2, keys=keys, shares=shares)


def updated(rank: int, *, wall_s: float = 1.0, weights: Any = None, **seconds: float) -> RankUpdated:
    report = UpdateReport(
        rank=rank,
        update=0,
        term=0,
        version=2,
        trained=True,
        verdicts=(),
        steps=1,
        skipped_steps=0,
        skipped_at="",
        lag=0,
        gaps=0,
        parameter_digest="",
        learning_rate=0.1,
        sync=SyncReport(seconds=seconds),
        stint=Stint(wall_ns=round(wall_s * NS_PER_S), cpu_ns=NS_PER_S // 2, delay_ns=NS_PER_S // 4),
    )
    return RankUpdated(lease="lease", report=report, weights=weights)


def test_an_actor_is_blocked_from_its_last_answer_to_its_next_order() -> None:
    """1 s before the first order, 2 s at work, 3 s blocked and still so; two orders at once leave no gap."""
    seen = Seen()
    seen.at(5.0, started(0))
    seen.at(1.0, collect(0), collect(0))
    seen.at(2.0, made(0, start_ns=0, end_ns=NS_PER_S, env_ns=NS_PER_S // 2, cpu_ns=3, delay_ns=4, major_faults=5))
    seen.at(2.0, made(0, start_ns=0, end_ns=NS_PER_S))
    seen.at(3.0)
    (actor,) = seen.snapshot().actors
    assert (actor.present_s, actor.blocked_s, actor.fragments, actor.work_s, actor.env_s) == (8.0, 4.0, 2, 2.0, 0.5)
    assert (actor.at_work_s, actor.major_faults) == (0.0, 5)


def test_a_lost_actor_waits_for_nothing() -> None:
    """Neither present nor blocked, until the next process is there; what it had been told is forgotten. A fragment that
    comes all the same counts, and changes nothing of that."""
    seen = Seen()
    seen.at(0.0, started(0), collect(0))
    seen.at(2.0, ActorLost(actor=0, lease="lease", cause="killed"))
    seen.at(5.0, made(0))
    seen.at(5.0, started(0))
    seen.at(1.0)
    (actor,) = seen.snapshot().actors
    assert (actor.present_s, actor.blocked_s, actor.at_work_s, actor.fragments) == (3.0, 1.0, 0.0, 1)


def test_an_evaluation_is_work_and_no_slow_fragment() -> None:
    """An actor that plays one is neither blocked nor at work on a fragment."""
    seen = Seen()
    evaluate = Evaluate(actor=0, update=3, episodes=1, final=False, weights=None)
    seen.at(0.0, started(0), evaluate, collect(0))
    seen.at(9.0)
    (actor,) = seen.snapshot().actors
    assert (actor.blocked_s, actor.at_work_s) == (0.0, 0.0)
    seen.at(0.0, EvaluationMade(update=3, final=False, result=None))
    seen.at(2.0)
    assert seen.snapshot().actors[0].at_work_s == 2.0
    assert not seen.observer.ending


def test_the_learner_starves_while_its_group_is_whole_and_no_rank_has_an_order() -> None:
    """2 s after the start, not while one of two ranks works, nor while the group is formed again."""
    seen = Seen()
    seen.at(5.0, STARTED)
    seen.at(2.0, update(0, 1))
    seen.at(1.0, updated(0, weights=b"", reduce=0.25, exchange=0.25, verify=0.125))
    seen.at(1.0, updated(1))
    seen.at(3.0, JoinGroup(formation=2, ranks=(0, 1)))
    seen.at(4.0, update(0, 1))
    seen.at(1.0)
    snapshot = seen.snapshot()
    assert (snapshot.ready_s, snapshot.starved_s) == (2.0 + 2.0 + 3.0 + 1.0, 2.0 + 3.0)
    first, second = snapshot.ranks
    assert (first.orders, first.work_s, first.wait_s, first.verify_s) == (1, 1.0, 0.5, 0.125)
    assert (second.cpu_s, second.delay_s, second.wait_s) == (0.5, 0.25, 0.0)


def test_a_checkpoint_that_waits_for_the_one_before_queues() -> None:
    """One is written from 0 to 4 s, another waits from 1 s on and is written until 6 s."""
    seen = Seen()

    class Written:
        final = False

    write = WriteCheckpoint(cut=Written())  # type: ignore[arg-type]
    done = CheckpointWritten(update=1, name="", digest="")
    seen.at(0.0, write)
    seen.at(1.0, write)
    seen.at(3.0, done)
    seen.at(2.0, done)
    seen.at(5.0)
    host = seen.snapshot().host
    assert (host.writing_s, host.queueing_s) == (6.0, 3.0)


def test_the_ring_is_marked_all_the_way_round() -> None:
    """Ticks, fragments, acceptances, drawn fragments, commits, publications, adoptions."""
    seen = Seen()
    seen.standing.policy = StandingPolicy(flow())
    seen.at(0.0, started(0), started(1), STARTED, collect(0), collect(1))
    seen.at(1.0, made(0), made(1), made(0, sequence=1))
    refused = {"actor": 0, "incarnation": 0, "sequence": 1, "reason": "old_lease"}
    seen.at(0.0, Note(kind="FRAGMENT_REFUSED", data=refused))
    seen.at(1.0, update(0, fragments=2))
    seen.at(1.0, updated(0, weights=b""), committed(0))
    marks = {stage: facts.mark for stage, facts in seen.snapshot().stages.items()}
    assert marks == {
        Stage.TICKS: 96,
        Stage.BUILT: 3,
        Stage.ACCEPTED: 2,
        Stage.DRAWN: 2,
        Stage.COMMITTED: 1,
        Stage.PUBLISHED: 2,
        Stage.ADOPTED: 1,
    }


def test_what_stands_still_with_work_and_room_is_timed() -> None:
    """From when it has both; the usual interval is an average over about ten."""
    seen = Seen()
    seen.standing.issued = 1
    seen.at(1.0, committed(0))
    seen.at(2.0, committed(1))
    seen.snapshot()
    seen.at(4.0)
    facts = seen.snapshot().stages[Stage.COMMITTED]
    assert (facts.work, facts.still_s, facts.usual_s) == (True, 4.0, 2.0)
    seen.at(0.0, committed(2))
    assert seen.snapshot().stages[Stage.COMMITTED].usual_s == pytest.approx(0.2 * 4.0 + 0.8 * 2.0)


def test_a_stage_that_had_no_work_meanwhile_has_not_stood_still() -> None:
    """Its time begins again when work comes."""
    seen = Seen()
    seen.standing.issued = 1
    seen.at(1.0, committed(0))
    seen.standing.committed = 1
    seen.at(30.0)
    assert seen.snapshot().stages[Stage.COMMITTED].still_s == 0.0
    seen.standing.issued = 2
    seen.at(30.0)
    assert seen.snapshot().stages[Stage.COMMITTED].still_s == 0.0
    seen.at(2.0)
    assert seen.snapshot().stages[Stage.COMMITTED].still_s == 2.0


def test_a_run_that_ends_waits_for_nothing() -> None:
    """Once somebody asks, or its last evaluation is told, or its steps are made."""
    asked, evaluated, through = Seen(), Seen(), Seen()
    asked.at(0.0, Note(kind="STOP_ASKED", data={}))
    evaluated.at(0.0, Evaluate(actor=0, update=9, episodes=1, final=True, weights=None))
    through.standing.env_steps = through.standing.plan.total_steps
    through.snapshot()
    assert asked.observer.ending and evaluated.observer.ending and through.observer.ending


class Observed(Simulation):
    """A simulated run that is observed as a driver would have it observed; an event takes 10 ms."""

    def __init__(self, plan: Plan, **arguments: Any) -> None:
        self.clock = ManualClock()
        self.observer = Observer(self.clock, in_turn=False)
        self.latest: Snapshot | None = None
        super().__init__(plan, **arguments)

    def _count(self, event: Event, commands: list[Command]) -> None:
        super()._count(event, commands)
        self.clock.advance(0.01)
        self.observer.happened(event)
        for command in commands:
            self.observer.told(command)

    def deliver(self, event: Event) -> None:
        super().deliver(event)
        now, before = self.observer.snapshot(self.conductor), self.latest
        self.latest = now
        assert 0.0 <= now.starved_s <= now.ready_s <= now.at_s
        for actor in now.actors:
            assert 0.0 <= actor.blocked_s <= actor.present_s + 1e-9
        marks = {stage: facts.mark for stage, facts in now.stages.items()}
        assert marks[Stage.ACCEPTED] <= marks[Stage.BUILT]
        done = self.conductor.committed + self.conductor.accounts.updates_undone
        assert marks[Stage.COMMITTED] == done
        if before is not None:
            assert all(marks[stage] >= before.stages[stage].mark for stage in Stage)
        statistics = self.conductor.policy.statistics(self.conductor.seats)
        if isinstance(statistics, FlowStatistics) and not self.conductor.accounts.updates_undone:
            assert (now.in_flight, now.capacity) == (statistics.in_flight, statistics.capacity)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), mode=st.sampled_from(["sync", "async"]))
def test_sums_hold_whatever_fails(seed: int, mode: str) -> None:
    """After every event of a run in which actors and ranks die and disagree: nobody waits longer than it is there, no
    mark goes back, and every commit has one."""
    flow_ = Flow(fragments=2, max_lag=2, first_capacity=4, most_capacity=12, least_actors=1, most_actors=4)
    plan = Plan(
        num_actors=3,
        policy_lag=1,
        total_steps=300,
        evaluate_every=4,
        checkpoint_every=3,
        num_ranks=2,
        flow=flow_ if mode == "async" else None,
        max_restarts=50,
        max_rank_restarts=50,
    )
    faults = Faults(loss=0.02, late=0.5, refusal=0.05, ranks=RankFaults(loss=0.01, dispute=0.05))
    assert Observed(plan, seed=seed, faults=faults).run().status in ("finished", "failed")
