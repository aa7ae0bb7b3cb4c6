"""The conductor and the group of learner ranks: every order of delivery, every fault of a rank, at every moment."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.evaluate import EvaluationResult
from common.errors import ConfigError, RunFailedError
from deploy.conductor.conductor import Conductor
from deploy.conductor.messages import (
    ActorSnapshot,
    ActorStarted,
    AdoptState,
    Collect,
    Command,
    Evaluate,
    EvaluationMade,
    FragmentMade,
    GroupJoined,
    Held,
    HurryRank,
    JoinFailed,
    JoinGroup,
    LearnerSnapshot,
    LearnerStarted,
    Note,
    Publish,
    RankLost,
    RankStarted,
    RankUpdated,
    RecordUpdate,
    RollBack,
    SnapshotLearner,
    StartRank,
    StateAdopted,
    StopAsked,
    StopRank,
    Update,
    WriteCheckpoint,
)
from deploy.conductor.orders import audit_order, compose_order
from deploy.conductor.plan import Plan
from deploy.conductor.ranks import RankStatus
from deploy.conductor.safe import extend_chain
from learner.reports import (
    Attribution,
    AuditOrder,
    Dispute,
    Fault,
    FragmentVerdict,
    OrderStatus,
    Standing,
    SyncReport,
    UpdateReport,
)
from tests.deploy.simulated_ranks import RankFaults
from tests.deploy.simulation import FACTS, Faults, Simulation, summary_of
from tests.deploy.test_conductor import LAGS, SEEDS, plan, run

RANKS = st.integers(2, 4)
ROOMY = {"max_rank_restarts": 10_000}


def kinds(simulation: Simulation, kind: str) -> list[dict[str, Any]]:
    return [note.data for note in simulation.notes if note.kind == kind]


def with_ranks(num_ranks: int, **faults: Any) -> tuple[Simulation, Any]:
    seed = faults.pop("seed", 0)
    options = {name: faults.pop(name) for name in list(faults) if name not in RankFaults.__dataclass_fields__}
    return run(plan(num_ranks=num_ranks, **options), seed=seed, faults=Faults(ranks=RankFaults(**faults)))


# ---- many orders of delivery ---------------------------------------------------------------------------------------


@LAGS
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, ranks=st.integers(1, 5))
def test_the_number_of_ranks_changes_nothing_that_is_computed(lag: int, seed: int, ranks: int) -> None:
    """Any number of ranks (more than actors, too) makes the same updates of the same fragments: the same chain."""
    alone, _ = run(plan(policy_lag=lag))
    together, finish = run(plan(policy_lag=lag, num_ranks=ranks, audit_every=2), seed=seed)
    assert finish.status == "finished"
    assert together.chain == alone.chain
    assert together.conductor.chain == alone.conductor.chain != ""
    assert together.conductor.accounts == alone.conductor.accounts


@settings(max_examples=100, deadline=None)
@given(
    seed=SEEDS,
    lag=st.integers(0, 1),
    ranks=RANKS,
    loss=st.sampled_from([0.0, 0.01, 0.05]),
    hang=st.sampled_from([0.0, 0.05]),
    dispute=st.sampled_from([0.0, 0.1]),
    failure=st.sampled_from([0.0, 0.1]),
    partial=st.sampled_from([0.0, 0.2]),
    meeting=st.sampled_from([0.0, 0.2]),
)
def test_no_update_is_lost_while_a_rank_survives(seed: int, lag: int, ranks: int, **faults: float) -> None:
    """Ranks lost, hung, in dispute, cut off in the middle of closing: the chain of digests is the fault-free one."""
    unbroken, _ = run(plan(policy_lag=lag))
    options: dict[str, Any] = {"policy_lag": lag, **ROOMY}
    simulation, finish = with_ranks(ranks, seed=seed, recoverable=True, **faults, **options)
    assert finish.status == "finished"
    assert simulation.chain == unbroken.chain
    assert simulation.conductor.chain == unbroken.conductor.chain
    assert simulation.conductor.accounts == unbroken.conductor.accounts
    assert not simulation.rolled_back
    restarts = sum(seat.restarts for seat in simulation.conductor.ranks)
    assert restarts <= len(kinds(simulation, "RANK_LOST")) <= simulation.ranks.losses


@settings(max_examples=120, deadline=None)
@given(
    seed=SEEDS,
    lag=st.integers(0, 1),
    ranks=st.integers(1, 4),
    stop_at=st.one_of(st.none(), st.integers(0, 200)),
    faults=st.builds(
        RankFaults,
        loss=st.sampled_from([0.0, 0.01, 0.05]),
        hang=st.sampled_from([0.0, 0.05]),
        dispute=st.sampled_from([0.0, 0.1, 0.3]),
        local=st.sampled_from([0.0, 0.05]),
        failure=st.sampled_from([0.0, 0.1, 0.3]),
        partial=st.sampled_from([0.0, 0.2]),
        diverge=st.sampled_from([0.0, 0.05]),
        meeting=st.sampled_from([0.0, 0.2]),
        stop_at=st.sampled_from([None, None, 5]),
    ),
    actor_loss=st.sampled_from([0.0, 0.03]),
    target=st.sampled_from([None, 7.0]),
)
def test_every_fault_of_ranks_and_actors_still_ends_in_a_verdict(
    seed: int, lag: int, ranks: int, stop_at: int | None, faults: RankFaults, actor_loss: float, target: float | None
) -> None:
    """Finished, interrupted or failed, never stuck; accounts, cuts, weights and totals hold after every event."""
    every = Faults(loss=actor_loss, late=0.5, refusal=0.05, skip=0.1, evaluation=0.2, checkpoint=0.1, ranks=faults)
    wild = plan(policy_lag=lag, num_ranks=ranks, max_rank_restarts=20, audit_every=2, stop_at_return=target)
    simulation, finish = run(wild, seed=seed, faults=every, stop_at=stop_at)
    assert finish.status in ("finished", "interrupted", "failed")
    assert (finish.error is not None) == (finish.status == "failed")
    assert len(set(simulation.committed_in)) == len(simulation.committed_in), "an update was committed twice in a term"
    assert simulation.versions == sorted(set(simulation.versions))
    assert simulation.conductor.rollbacks == len(simulation.rolled_back) == simulation.conductor.term
    if finish.status != "failed":
        final = [cut for cut in simulation.cuts if cut.final]
        assert len(final) == 1
        made, at_the_end = final[0].accounts, simulation.conductor.accounts
        assert (made.trained, made.undone) == (at_the_end.trained, at_the_end.undone)
        assert (final[0].chain, final[0].update) == (simulation.conductor.chain, simulation.conductor.committed)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, lag=st.integers(0, 1), ranks=st.integers(1, 3))
def test_after_rollbacks_a_run_goes_on_from_its_last_cut(seed: int, lag: int, ranks: int) -> None:
    """Losses of all ranks at once: under new terms the run still ends, and resumed it is what it would have been."""
    roomy = plan(policy_lag=lag, num_ranks=ranks, max_rollbacks=100, **ROOMY)
    faults = Faults(ranks=RankFaults(loss=0.02, hang=0.02))
    stopped, _ = run(roomy, seed=seed, faults=faults, stop_at=150)
    final = [cut for cut in stopped.cuts if cut.final]
    assert len(final) == 1
    assert final[0].accounts == stopped.conductor.accounts, "a fragment of an old term came after its cut"
    one, finish = run(roomy, seed=seed, resumed=final[0])
    other, _ = run(plan(policy_lag=lag, num_ranks=1), seed=seed + 1, resumed=final[0])
    assert finish.status == "finished"
    assert one.chain == other.chain
    assert one.conductor.chain == other.conductor.chain
    assert one.conductor.accounts == other.conductor.accounts


# ---- one fault at a time -------------------------------------------------------------------------------------------


def until(simulation: Simulation, condition: Callable[[], bool]) -> None:
    """Deliver events until `condition` holds."""
    while not condition():
        assert simulation.conductor.finish is None, simulation.conductor.finish
        simulation.step()


def begun(**options: Any) -> Simulation:
    simulation = Simulation(plan(**options))
    simulation.begin()
    return simulation


def test_a_run_with_one_rank_that_is_lost_goes_back_to_its_newest_cut() -> None:
    """No other holds its state: a new term begins at the last cut that was handed over, and what was undone is told."""
    simulation = begun(num_ranks=1)
    until(simulation, lambda: simulation.conductor.committed == 5)
    newest = simulation.cuts[-1].update
    simulation.ranks.kill(0)
    until(simulation, lambda: bool(simulation.rolled_back))
    conductor = simulation.conductor
    rolled = simulation.rolled_back[0]
    assert (rolled.update, rolled.term, conductor.term, conductor.committed) == (newest, 1, 1, newest)
    noted = kinds(simulation, "TRAINING_ROLLBACK")[0]
    assert (noted["to_update"], noted["term"]) == (newest, 1)
    assert noted["from_update"] - newest == conductor.accounts.updates_undone >= 5 - newest
    assert conductor.accounts.undone > 0
    finish = simulation.run_on()
    assert finish.status == "finished"
    assert conductor.accounts.dropped["rolled_back"] >= conductor.accounts.undone


def test_before_anything_was_made_a_lost_rank_costs_nothing() -> None:
    """Lost before it has handed over its first state, the only rank starts again and the run is the fault-free one."""
    unbroken, _ = run(plan())
    simulation = begun(num_ranks=1)
    until(simulation, lambda: simulation.conductor.ranks[0].status is RankStatus.JOINED)
    simulation.ranks.kill(0)
    finish = simulation.run_on()
    assert finish.status == "finished"
    assert simulation.chain == unbroken.chain
    assert not simulation.rolled_back


def test_a_rank_lost_beyond_its_budget_ends_the_run_with_the_cause() -> None:
    """Three restarts are allowed within the window; the fourth loss is the verdict, and the fix says to resume."""
    simulation, finish = with_ranks(2, loss=0.2, recoverable=True)
    assert finish.status == "failed"
    assert isinstance(finish.error, RunFailedError)
    last = kinds(simulation, "RANK_LOST")[-1]
    assert f"learner rank {last['rank']} was lost 4 times within 1000 updates; last: {last['cause']}" in finish.verdict
    assert "resume the run" in finish.error.fix
    assert finish.error.detail == last["detail"]
    assert simulation.conductor.ranks[last["rank"]].restarts == 4


def test_losses_far_apart_are_within_budget() -> None:
    """Only losses within the last `rank_restart_window` commits count."""
    simulation = begun(num_ranks=2, max_rank_restarts=1, rank_restart_window=3)
    for committed in (1, 5, 9):
        until(simulation, lambda least=committed: simulation.conductor.committed >= least and whole(simulation))
        simulation.ranks.kill(1)
    assert simulation.run_on().status == "finished"
    assert simulation.conductor.ranks[1].restarts == 3


def whole(simulation: Simulation) -> bool:
    return all(seat.status is RankStatus.JOINED for seat in simulation.conductor.ranks)


def test_a_rank_that_hangs_is_hurried_once_the_others_have_given_up() -> None:
    """Its loss follows, and the update is made again with the replacement."""
    unbroken, _ = run(plan())
    simulation, finish = with_ranks(3, hang=0.1, recoverable=True, **ROOMY)
    assert finish.status == "finished"
    assert simulation.ranks.losses > 3
    assert simulation.chain == unbroken.chain


def test_a_second_dispute_of_an_update_in_a_row_rolls_back() -> None:
    """The first is redone at once, the second is not: the state itself may be at fault."""
    simulation, finish = with_ranks(2, dispute=1.0)
    assert finish.status == "failed"
    mismatches = kinds(simulation, "SYNC_MISMATCH")
    assert [data["update"] for data in mismatches] == [0] * 8
    assert [data["attempt"] for data in mismatches] == sorted({data["attempt"] for data in mismatches})
    assert mismatches[0]["disputes"] == [
        {
            "fault": "digest",
            "step": 1,
            "bucket": 0,
            "chunks": [3],
            "parameters": ["body.0.weight"],
            "digests": {"0": "digest of 0", "1": "digest of 1"},
        }
    ]
    assert [rolled.term for rolled in simulation.rolled_back] == [1, 2, 3]
    assert finish.verdict == (
        "rolled back 3 times without getting beyond update 0: update 0 was disputed 2 times in a row"
    )


def test_an_update_that_always_fails_ends_the_run_though_those_before_it_succeed() -> None:
    """Updates 3 and 4 are made again after each rollback; what counts is whether 5 is ever passed."""
    simulation = begun(num_ranks=2, evaluate_every=0)
    simulation.ranks.cursed = 5
    finish = simulation.run_on()
    assert finish.status == "failed"
    assert "rolled back 3 times without getting beyond update 5" in finish.verdict
    assert [rolled.update for rolled in simulation.rolled_back] == [3] * 3
    assert simulation.committed_in.count((3, 4)) == 1


def final_words(conductor: Conductor) -> str:
    """What the last cut waits for, once it is known to be that."""
    words = conductor.waiting_for()
    return words if conductor.env_steps >= conductor.plan.total_steps else "the learner's state"


def test_a_rank_lost_when_nothing_more_is_wanted_of_it_is_not_replaced() -> None:
    """The last cut holds its state; only the last evaluation is under way, and the run ends as it would have."""
    simulation = begun(num_ranks=1)
    until(simulation, lambda: "the learner's state" not in final_words(simulation.conductor))
    simulation.ranks.kill(0)
    finish = simulation.run_on()
    assert finish.status == "finished"
    assert not simulation.rolled_back
    assert [seat.restarts for seat in simulation.conductor.ranks] == [0]
    assert len(kinds(simulation, "RANK_LOST")) <= 1


def test_a_rank_that_was_wrong_twice_is_shut_out_and_the_others_go_on() -> None:
    """Blame comes with the redo; after the second the group is formed without the rank, and nothing is lost."""
    unbroken, _ = run(plan())
    simulation = begun(num_ranks=3)
    for commit in (2, 5):
        until(simulation, lambda least=commit: simulation.conductor.committed >= least)
        dispute_next(simulation)
    finish = simulation.run_on()
    assert finish.status == "finished"
    assert [data["ranks"] for data in kinds(simulation, "SYNC_ATTRIBUTED")] == [[0], [0]]
    assert kinds(simulation, "RANK_QUARANTINED") == [{"rank": 0, "blamed": 2}]
    assert simulation.conductor.ranks[0].status is RankStatus.QUARANTINED
    assert kinds(simulation, "GROUP_FORMED")[-1]["ranks"] == [1, 2]
    assert 0 not in simulation.ranks.processes
    assert simulation.chain == unbroken.chain


def dispute_next(simulation: Simulation) -> None:
    """Have the next order disputed, and no other."""
    simulation.ranks.next_fault = "dispute"
    until(simulation, lambda: not simulation.ranks.next_fault)


def test_when_the_last_rank_is_to_blame_the_run_fails() -> None:
    """There is nobody left to form a group of."""
    simulation, finish = with_ranks(1, local=1.0)
    assert finish.status == "failed"
    assert "learner rank 0 was wrong 2 times, and no other is left (update 0)" in finish.verdict
    assert not kinds(simulation, "RANK_QUARANTINED")


def test_a_stop_at_a_rank_ends_the_run_once_in_one_cut() -> None:
    """The signal goes with the rank's report; asked by several reports, it is one stop with one reason."""
    simulation, finish = with_ranks(2, stop_at=4)
    assert finish.status == "interrupted"
    assert finish.verdict.startswith("SIGTERM at learner rank 1: checkpointed at update ")
    assert len(kinds(simulation, "STOP_ASKED")) == 1
    assert [cut.final for cut in simulation.cuts].count(True) == 1


def test_ranks_that_never_meet_end_the_run() -> None:
    """After max_sync_failures meetings in a row that failed, each with a longer wait before it, the cause is told."""
    simulation = Simulation(plan(num_ranks=2, max_sync_failures=7), faults=Faults(ranks=RankFaults(meeting=1.0)))
    delays: list[float] = []
    obey = simulation.ranks.carry_out

    def listen(command: Any) -> None:
        if isinstance(command, JoinGroup):
            delays.append(command.delay_s)
        obey(command)

    simulation.ranks.carry_out = listen  # type: ignore[method-assign]
    finish = simulation.run()
    assert finish.status == "failed"
    assert "failed 7 times in a row to sync, last to meet; rank 0: nobody came" in finish.verdict
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0]


# ---- by hand -------------------------------------------------------------------------------------------------------


def standing(rank: int, updates: int, state: str = "") -> Standing:
    return Standing(rank=rank, updates=updates, state_digest=state or f"s{updates}", parameter_digest=f"p{updates}")


def of_rank(commands: list[Command]) -> list[Command]:
    """Without what concerns actors and the record."""
    kept = (StartRank, AdoptState, JoinGroup, Publish, Update, SnapshotLearner, HurryRank, StopRank)
    return [command for command in commands if isinstance(command, kept)]


class ByHand:
    """Two ranks and one actor driven by hand: the group is formed, the first collect is told.

    Leases are r0, r1 and a; a fragment holds 5 transitions; weights after k updates are "w<k>", states "state <k>".
    """

    def __init__(self, **options: Any) -> None:
        usual: dict[str, Any] = {"num_actors": 1, "policy_lag": 0, "num_ranks": 2, "total_steps": 10_000}
        self.conductor = Conductor(Plan(**(usual | options)), versions=iter(range(1, 1000)))
        self.orders: list[Update] = []
        self.collects: list[Collect] = []
        self.conductor.begin()
        for seat in self.conductor.ranks:
            self.send(RankStarted(rank=seat.rank, lease=f"r{seat.rank}", standing=standing(seat.rank, 0)))
        self.join(0)
        self.send(LearnerStarted(version=1, updates=0, weights="w0", parameter_digest="p0"))
        self.send(LearnerSnapshot(update=0, state="state 0", rank=0, lease="r0"))
        self.send(ActorStarted(actor=0, incarnation=0, lease="a", facts=FACTS))

    def send(self, event: Any) -> list[Command]:
        commands = self.conductor.handle(event)
        self.orders += [command for command in commands if isinstance(command, Update)]
        self.collects += [command for command in commands if isinstance(command, Collect)]
        return commands

    def join(self, updates: int, leases: tuple[str, ...] = ("r0", "r1")) -> list[Command]:
        formation = self.conductor.formation
        commands: list[Command] = []
        for seat, lease in zip(self.conductor.ranks, leases, strict=False):
            where = standing(seat.rank, updates)
            commands += self.send(GroupJoined(formation=formation, rank=seat.rank, lease=lease, standing=where))
        return commands

    def fragment(self, update: int, *, term: int = 0) -> list[Command]:
        summary = summary_of(actor=0, lease="a", update=update, sequence=update, term=term, num_valid=5)
        return self.send(FragmentMade(summary=summary, frame=f"frame {update}"))

    def answer(
        self, rank: int, status: OrderStatus, lease: str = "", order: Update | None = None, **fields: Any
    ) -> list[Command]:
        """Of `order` or else the newest one, from `rank`; place 0 brings the weights if it made it."""
        order = order or self.orders[-1]
        updates = order.update + (status is OrderStatus.MADE)
        usual: dict[str, Any] = {
            "updates": updates,
            "state_digest": f"s{updates}",
            "parameter_digest": f"p{updates}",
        }
        report = report_of(
            rank=rank,
            status=status,
            attempt=order.attempt,
            update=order.update,
            term=order.term,
            version=order.version,
            verdicts=(accepted(),) * len(order.shares[rank].frames) if status is OrderStatus.MADE else (),
            **(usual | fields),
        )
        weights = f"w{updates}" if status is OrderStatus.MADE and rank == order.shares[0].rank else None
        return self.send(RankUpdated(lease=lease or f"r{rank}", report=report, weights=weights))


def accepted() -> FragmentVerdict:
    return FragmentVerdict(refusal="", detail="", num_valid=5)


def report_of(**fields: Any) -> UpdateReport:
    usual: dict[str, Any] = {
        "update": 0,
        "term": 0,
        "version": 0,
        "trained": True,
        "verdicts": (),
        "steps": 1,
        "skipped_steps": 0,
        "skipped_at": "",
        "lag": 0,
        "gaps": 0,
        "parameter_digest": "",
        "learning_rate": 0.1,
    }
    return UpdateReport(**(usual | fields))


def test_nothing_is_committed_before_every_rank_has_agreed() -> None:
    """One MADE of two changes nothing; with the second come the record, the chain and the next collect."""
    hand = ByHand()
    hand.fragment(0)
    assert hand.answer(0, OrderStatus.MADE) == []
    assert (hand.conductor.committed, [each.update for each in hand.collects]) == (0, [0])
    record, collect = hand.answer(1, OrderStatus.MADE)
    assert isinstance(record, RecordUpdate)
    assert record.chain == hand.conductor.chain == extend_chain("", update=0, parameter_digest="p1", state_digest="s1")
    assert isinstance(collect, Collect)
    assert (collect.update, collect.weights, collect.version) == (1, "w1", 2)


def test_the_chain_is_sha_256_over_what_came_before_and_the_digests() -> None:
    """Golden: sha256("|0|p1|s1"), then of that and the next."""
    first = extend_chain("", update=0, parameter_digest="p1", state_digest="s1")
    assert first == hashlib.sha256(b"|0|p1|s1").hexdigest()
    second = extend_chain(first, update=1, parameter_digest="p2", state_digest="s2")
    assert second == hashlib.sha256(f"{first}|1|p2|s2".encode()).hexdigest()


def test_a_failed_order_hurries_the_others_and_is_told_again_to_a_new_formation() -> None:
    """The same fragments under the next attempt and version, once both stand alike in formation 2."""
    hand = ByHand()
    hand.fragment(0)
    first = hand.orders[-1]
    assert hand.answer(1, OrderStatus.FAILED, sync=SyncReport(failure="timeout")) == [HurryRank(rank=0, within_s=10.0)]
    note, join = hand.answer(0, OrderStatus.FAILED, sync=SyncReport(failure="reset"))
    data = {"update": 0, "attempt": first.attempt, "failures": {"0": "reset", "1": "timeout"}, "lost": []}
    assert note == Note(kind="SYNC_FAILED", data=data)
    assert join == JoinGroup(formation=2, ranks=(0, 1), delay_s=0.5)
    assert hand.conductor.waiting_for() == "rank 0 to join formation 2; rank 1 to join formation 2"
    formed, again = hand.join(0)
    assert formed == Note(kind="GROUP_FORMED", data={"formation": 2, "ranks": [0, 1], "lost_updates": 0})
    assert again == replace(first, attempt=first.attempt + 1, version=first.version + 1)


def test_who_waits_for_a_lost_rank_has_time_to_notice() -> None:
    """Its collective may run to its own deadline first: 30 s and 10 s, or it would be taken for lost as well."""
    hand = ByHand()
    hand.fragment(0)
    lost = hand.send(RankLost(rank=0, lease="r0", cause="its node is gone"))
    assert [command for command in lost if isinstance(command, HurryRank)] == [HurryRank(rank=1, within_s=40.0)]


def test_an_order_behind_a_disputed_one_comes_to_nothing() -> None:
    """Update 0 is told again at once; that update 1 is out of step is no failure: it is told again behind it."""
    hand = ByHand(policy_lag=1)
    hand.fragment(0)
    hand.fragment(1)
    first, behind = hand.orders
    dispute = Dispute(fault=Fault.DIGEST, step=0, bucket=0, chunks=(1,), parameters=("w",), digests={0: "a", 1: "b"})
    for rank in (0, 1):
        hand.answer(rank, OrderStatus.DISPUTED, order=first, sync=SyncReport(disputes=(dispute,)))
    again = hand.orders[-1]
    assert (again.update, again.keys, again.attempt) == (0, first.keys, behind.attempt + 1)
    assert hand.answer(0, OrderStatus.OUT_OF_STEP, order=behind, state_digest="s0", updates=0) == []
    (queued,) = hand.answer(1, OrderStatus.OUT_OF_STEP, order=behind, state_digest="s0", updates=0)
    assert isinstance(queued, Update)
    assert (queued.update, queued.shares) == (1, behind.shares)
    for rank in (0, 1):
        hand.answer(rank, OrderStatus.MADE, order=again)
    assert hand.conductor.committed == 1


def test_a_donor_is_asked_only_once_every_survivor_has_answered() -> None:
    """Rank 0 is lost while both meet: where rank 1 stands is known only when it has given up on the meeting."""
    hand = ByHand()
    hand.fragment(0)
    hand.answer(0, OrderStatus.FAILED)
    hand.answer(1, OrderStatus.FAILED)
    assert of_rank(hand.send(RankLost(rank=0, lease="r0", cause="killed"))) == [StartRank(rank=0)]
    assert hand.send(RankStarted(rank=0, lease="new", standing=standing(0, 0))) == []
    asked = hand.send(JoinFailed(formation=2, rank=1, lease="r1", cause="nobody came"))
    assert asked == [SnapshotLearner(update=0, rank=1)]


def test_place_0_lost_while_closing_costs_neither_the_update_nor_its_weights() -> None:
    """Rank 1 made it, so all had agreed: committed, rank 0 adopts rank 1's state, and publishes before any collect."""
    hand = ByHand()
    hand.fragment(0)
    assert hand.answer(1, OrderStatus.MADE) == []
    note, start, record, ask = hand.send(RankLost(rank=0, lease="r0", cause="killed"))
    assert note == Note(kind="RANK_LOST", data={"rank": 0, "cause": "killed", "detail": "", "restarts": 1})
    assert start == StartRank(rank=0)
    assert isinstance(record, RecordUpdate)
    assert ask == SnapshotLearner(update=1, rank=1)
    assert hand.conductor.committed == 1
    assert hand.send(RankStarted(rank=0, lease="new", standing=standing(0, 0))) == []
    adopt = hand.send(LearnerSnapshot(update=1, state="state 1", rank=1, lease="r1"))
    assert adopt == [AdoptState(rank=0, state="state 1")]
    joining = hand.send(StateAdopted(rank=0, lease="new", standing=standing(0, 1)))
    assert joining == [JoinGroup(formation=2, ranks=(0, 1), delay_s=0.0)]
    assert hand.join(1, ("new", "r1")) == [Publish(rank=0, version=3, term=0)]
    assert [each.update for each in hand.collects] == [0], "the weights after update 1 are not there yet"
    hand.send(LearnerStarted(version=3, updates=1, weights="w1 again", parameter_digest="p1"))
    assert [(each.update, each.weights) for each in hand.collects[1:]] == [(1, "w1 again")]


def test_an_update_that_only_some_could_close_waits_for_the_state_that_holds_it() -> None:
    """Rank 0 made it, rank 1 failed in closing: committed once rank 0's state has arrived, which rank 1 adopts."""
    hand = ByHand()
    hand.fragment(0)
    hand.answer(0, OrderStatus.MADE)
    note, ask = hand.answer(1, OrderStatus.FAILED, sync=SyncReport(failure="reset"))
    assert isinstance(note, Note)
    assert ask == SnapshotLearner(update=1, rank=0)
    assert hand.conductor.committed == 0
    record, adopt = hand.send(LearnerSnapshot(update=1, state="state 1", rank=0, lease="r0"))[:2]
    assert isinstance(record, RecordUpdate)
    assert record.report.verdicts == (accepted(),)
    assert hand.conductor.committed == 1
    assert adopt == AdoptState(rank=1, state="state 1")


def test_if_who_closed_it_is_lost_before_that_the_update_is_made_again() -> None:
    """Rank 1 still stands at its start, and hands that over."""
    hand = ByHand()
    hand.fragment(0)
    hand.answer(0, OrderStatus.MADE)
    hand.answer(1, OrderStatus.FAILED)
    lost = of_rank(hand.send(RankLost(rank=0, lease="r0", cause="killed")))
    assert lost == [StartRank(rank=0), SnapshotLearner(update=0, rank=1)]
    hand.send(RankStarted(rank=0, lease="new", standing=standing(0, 0)))
    hand.send(LearnerSnapshot(update=0, state="state 0", rank=1, lease="r1"))
    hand.send(StateAdopted(rank=0, lease="new", standing=standing(0, 0)))
    hand.join(0, ("new", "r1"))
    assert [(order.update, order.shares) for order in hand.orders] == [(0, hand.orders[0].shares)] * 2
    assert hand.conductor.committed == 0


def test_ranks_that_close_an_update_differently_are_rolled_back() -> None:
    """Nobody noticed but the conductor: noted as a dispute about parameters, and neither state is kept."""
    hand = ByHand()
    hand.fragment(0)
    hand.answer(0, OrderStatus.MADE)
    commands = hand.answer(1, OrderStatus.MADE, state_digest="other")
    mismatch, note, back, *adopts = commands
    assert isinstance(mismatch, Note)
    assert mismatch.data["disputes"][0]["fault"] == "parameters"
    assert mismatch.data["disputes"][0]["digests"] == {"0": "s1", "1": "other"}
    reason = "ranks closed update 0 in different ways"
    data = {"from_update": 0, "to_update": 0, "term": 1, "reason": reason}
    assert note == Note(kind="TRAINING_ROLLBACK", data=data)
    assert back == RollBack(update=0, term=1, reason=reason)
    assert adopts == [AdoptState(rank=0, state="state 0"), AdoptState(rank=1, state="state 0")]


def local(ranks: tuple[int, ...]) -> SyncReport:
    dispute = Dispute(fault=Fault.LOCAL_GRADIENT, step=4, bucket=-1, chunks=(), parameters=(), digests={0: "a", 1: "b"})
    return SyncReport(disputes=(dispute,), attribution=Attribution(dispute=dispute, ranks=ranks))


def test_a_local_gradient_that_nobody_can_be_blamed_for_ends_the_run() -> None:
    """Which of the two is wrong cannot be said, so neither is trusted: the verdict names both, update and step."""
    hand = ByHand()
    hand.fragment(0)
    for rank in (0, 1):
        hand.answer(rank, OrderStatus.DISPUTED, sync=local(()))
    finish = hand.conductor.finish
    assert finish is not None
    assert finish.verdict == (
        "unattributed: learner ranks 0 and 1 contradict each other about a local gradient (update 0, step 4); "
        "check the memory of their machines, then resume the run"
    )


def test_a_local_gradient_with_a_culprit_is_made_again_at_once() -> None:
    """Blame comes with the dispute; the order is told again, with no new formation."""
    hand = ByHand()
    hand.fragment(0)
    hand.answer(0, OrderStatus.DISPUTED, sync=local((1,)))
    mismatch, attributed, again = hand.answer(1, OrderStatus.DISPUTED, sync=local((1,)))
    assert [each.kind for each in (mismatch, attributed) if isinstance(each, Note)] == [
        "SYNC_MISMATCH",
        "SYNC_ATTRIBUTED",
    ]
    assert isinstance(again, Update)
    assert [seat.blamed for seat in hand.conductor.ranks] == [0, 1]


def test_ranks_that_do_not_stand_alike_when_they_meet_end_the_run() -> None:
    """The verdict shows who stands where."""
    conductor = Conductor(plan(num_ranks=2), versions=iter(range(1, 100)))
    conductor.begin()
    for rank in (0, 1):
        conductor.handle(RankStarted(rank=rank, lease=f"r{rank}", standing=standing(rank, 0)))
    conductor.handle(GroupJoined(formation=1, rank=0, lease="r0", standing=standing(0, 0)))
    conductor.handle(GroupJoined(formation=1, rank=1, lease="r1", standing=standing(1, 0, "another")))
    finish = conductor.finish
    assert finish is not None
    assert "do not stand alike" in finish.verdict
    assert "rank 0 at update 0 with state s0, rank 1 at update 0 with state another" in finish.verdict


def test_what_a_lost_process_or_an_earlier_formation_says_changes_nothing() -> None:
    """Old leases, old attempts and old formations are ignored, and so is the loss of a process that is long gone."""
    hand = ByHand()
    hand.fragment(0)
    order = hand.orders[-1]
    assert hand.answer(0, OrderStatus.MADE, lease="old") == []
    assert hand.send(RankLost(rank=0, lease="old", cause="gone")) == []
    hand.answer(0, OrderStatus.FAILED)
    hand.answer(1, OrderStatus.FAILED)
    assert hand.send(GroupJoined(formation=1, rank=0, lease="r0", standing=standing(0, 0))) == []
    assert hand.send(JoinFailed(formation=1, rank=1, lease="r1", cause="late")) == []
    late = report_of(rank=0, attempt=order.attempt, version=order.version)
    assert hand.send(RankUpdated(lease="r0", report=late)) == []
    assert (hand.conductor.committed, hand.conductor.finish) == (0, None)


def test_a_slow_rank_is_noted_once_in_100_updates() -> None:
    """The one that waited least kept the others waiting."""
    hand = ByHand()
    told = []
    for update in range(102):
        hand.fragment(update)
        commands = hand.answer(0, OrderStatus.MADE, sync=SyncReport(seconds={"reduce": 2.26}))
        commands += hand.answer(1, OrderStatus.MADE, sync=SyncReport(seconds={"reduce": 0.06}))
        told += [(update, each.data) for each in commands if isinstance(each, Note)]
    assert told == [
        (0, {"rank": 1, "waited_s": 2.2, "update": 0}),
        (100, {"rank": 1, "waited_s": 2.2, "update": 100}),
    ]


def test_fragments_ordered_before_a_rollback_are_dropped_when_they_arrive_after_it() -> None:
    """The actor lives on: what it was making comes in under the old term, is counted, and is not trained on."""
    hand = ByHand(policy_lag=1, num_ranks=1)
    hand.fragment(0)
    hand.answer(0, OrderStatus.MADE)
    assert [(each.term, each.update, each.weights) for each in hand.collects] == [
        (0, 0, "w0"),
        (0, 1, "w0"),
        (0, 2, "w1"),
    ]
    hand.fragment(1)
    hand.send(RankLost(rank=0, lease="r0", cause="killed"))
    assert (hand.conductor.term, hand.conductor.committed) == (1, 0)
    assert hand.conductor.accounts.dropped == {"rolled_back": 10}
    assert (hand.conductor.accounts.undone, hand.conductor.accounts.trained) == (5, 0)
    data = {"actor": 0, "incarnation": 0, "sequence": 2, "reason": "old_term"}
    assert hand.fragment(2) == [Note(kind="FRAGMENT_REFUSED", data=data)]
    assert hand.conductor.accounts.dropped == {"rolled_back": 10, "old_term": 5}
    hand.send(RankStarted(rank=0, lease="new", standing=standing(0, 0)))
    hand.send(StateAdopted(rank=0, lease="new", standing=standing(0, 0)))
    hand.join(0, ("new",))
    hand.send(LearnerStarted(version=9, updates=0, weights="w0 again", parameter_digest="p0"))
    assert [(each.term, each.update, each.weights) for each in hand.collects[3:]] == [
        (1, 0, "w0 again"),
        (1, 1, "w0 again"),
    ]
    assert hand.fragment(0, term=1) != []
    assert hand.conductor.accounts.in_flight == 5


def test_a_cut_right_after_a_rollback_counts_what_still_arrives_from_before_it() -> None:
    """Stopped and rolled back at once: the last cut opens before the old fragment has come, and knows of it."""
    hand = ByHand(policy_lag=1, num_ranks=1)
    hand.fragment(0)
    hand.answer(0, OrderStatus.MADE)
    hand.send(RankLost(rank=0, lease="r0", cause="killed"))
    hand.send(StopAsked(reason="SIGTERM"))
    hand.send(RankStarted(rank=0, lease="new", standing=standing(0, 0)))
    hand.send(StateAdopted(rank=0, lease="new", standing=standing(0, 0)))
    hand.join(0, ("new",))
    hand.send(LearnerStarted(version=9, updates=0, weights="w0 again", parameter_digest="p0"))
    for update in (1, 2):
        hand.fragment(update)
    hand.fragment(0, term=1)
    hand.send(LearnerSnapshot(update=0, state="state 0", rank=0, lease="new"))
    (write,) = hand.send(ActorSnapshot(actor=0, lease="a", update=0, snapshot=b"state"))
    assert isinstance(write, WriteCheckpoint)
    assert write.cut.final
    assert write.cut.accounts == hand.conductor.accounts
    assert write.cut.accounts.dropped == {"rolled_back": 5, "old_term": 10}


def test_states_and_evaluations_of_before_a_rollback_are_not_taken_for_those_after_it() -> None:
    """Update 1 is cut and judged in both terms; what was asked for in the first arrives in the second."""
    hand = ByHand(num_ranks=1, evaluate_every=1)
    hand.fragment(0)
    commands = hand.answer(0, OrderStatus.MADE)
    assert {type(each).__name__ for each in commands} >= {"SnapshotActor", "Evaluate"}
    hand.send(RankLost(rank=0, lease="r0", cause="killed"))
    hand.send(RankStarted(rank=0, lease="new", standing=standing(0, 0)))
    hand.send(StateAdopted(rank=0, lease="new", standing=standing(0, 0)))
    hand.join(0, ("new",))
    hand.send(LearnerStarted(version=9, updates=0, weights="w0 again", parameter_digest="p0"))
    hand.fragment(1)  # the collect that was told before
    hand.fragment(0, term=1)
    hand.answer(0, OrderStatus.MADE, lease="new")
    hand.send(LearnerSnapshot(update=1, state="state 1", rank=0, lease="new"))
    hand.send(ActorSnapshot(actor=0, lease="a", update=1, snapshot=b"of the first term"))
    assert hand.send(EvaluationMade(update=1, final=False, result=judged(version=2))) == []
    assert "checkpoint 1: the state of actor 0, evaluation of update 1" in hand.conductor.waiting_for()
    hand.send(ActorSnapshot(actor=0, lease="a", update=1, snapshot=b"of the second term"))
    version = hand.orders[-1].version
    written = hand.send(EvaluationMade(update=1, final=False, result=judged(version)))
    (cut,) = [each.cut for each in written if isinstance(each, WriteCheckpoint)]
    assert (cut.term, cut.seats[0].snapshot, cut.evaluation) == (1, b"of the second term", judged(version))


def judged(version: int) -> EvaluationResult:
    return EvaluationResult(version=version, returns=(1.0,), lengths=(1,), unfinished=0)


def test_weights_that_died_with_their_rank_are_replaced_by_the_next_ones() -> None:
    """Lag 1, two updates closed and neither answer of rank 0 seen: collect 2 acts by the weights after update 2."""
    hand = ByHand(policy_lag=1, evaluate_every=1)
    hand.fragment(0)
    hand.fragment(1)
    first, second = hand.orders
    for updates, order in ((1, first), (2, second)):
        report = report_of(
            rank=1,
            attempt=order.attempt,
            update=order.update,
            version=order.version,
            updates=updates,
            state_digest=f"s{updates}",
            parameter_digest=f"p{updates}",
            verdicts=(accepted(),),
        )
        hand.send(RankUpdated(lease="r1", report=report))
    commands = hand.send(RankLost(rank=0, lease="r0", cause="killed"))
    assert [each.report.update for each in commands if isinstance(each, RecordUpdate)] == [0, 1]
    hand.send(RankStarted(rank=0, lease="new", standing=standing(0, 0)))
    hand.send(LearnerSnapshot(update=2, state="state 2", rank=1, lease="r1"))
    hand.send(StateAdopted(rank=0, lease="new", standing=standing(0, 2)))
    hand.join(2, ("new", "r1"))
    commands = hand.send(LearnerStarted(version=9, updates=2, weights="w2", parameter_digest="p2"))
    assert [(each.update, each.weights) for each in hand.collects[2:]] == [(2, "w2"), (3, "w2")]
    notes = [(each.kind, each.data) for each in commands if isinstance(each, Note)]
    assert ("EVALUATION_FAILED", {"update": 1}) in notes
    assert ("CHECKPOINT_MISSED", {"update": 1}) in notes
    assert [each.update for each in commands if isinstance(each, Evaluate)] == [2]


# ---- orders --------------------------------------------------------------------------------------------------------


def held(actors: int) -> tuple[Held, ...]:
    summaries = [summary_of(actor=actor, sequence=7, num_valid=actor + 1) for actor in range(actors)]
    return tuple(Held(summary=summary, frame=f"frame {summary.actor}") for summary in summaries)


def test_an_order_gives_each_rank_its_share_and_the_auditors_the_audited_share() -> None:
    """Golden: 5 fragments, ranks 1, 4 and 6; in update 4 with an audit every 2 the third is audited by the others."""
    told = compose_order(held(5), (1, 4, 6), update=4, attempt=3, term=2, version=9, audits=2).told
    assert [share.frames for share in told.shares] == [("frame 0",), ("frame 1", "frame 2"), ("frame 3", "frame 4")]
    assert [share.audited_frames for share in told.shares] == [("frame 3", "frame 4"), ("frame 3", "frame 4"), ()]
    assert told.audit == AuditOrder(audited=6, auditors=(1, 4))
    assert [(key.actor, key.incarnation, key.sequence) for key in told.keys] == [(a, 0, 7) for a in range(5)]
    assert (told.update, told.attempt, told.term, told.version) == (4, 3, 2, 9)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((5,), [(5, ()), (5, ()), (5, ())]),
        ((0, 1), [(0, (1,)), (1, (0,)), (0, (1,))]),
        ((0, 2, 3, 7), [(0, (2, 3)), (2, (3, 7)), (3, (7, 0))]),
    ],
)
def test_each_rank_is_audited_in_turn(ranks: tuple[int, ...], expected: list[tuple[int, tuple[int, ...]]]) -> None:
    """Every third update here; in the others nobody is, nor ever with 0."""
    audits = [audit_order(update, ranks, every=3) for update in (0, 3, 6)]
    assert [(audit.audited, audit.auditors) for audit in audits if audit] == expected
    assert audit_order(4, ranks, every=3) is None
    assert audit_order(3, ranks, every=0) is None


def test_the_report_of_the_group_is_merged_in_the_order_of_actors() -> None:
    """Verdicts concatenated, gaps summed, the largest lag; of a rank that was lost, what it got counts as accepted."""
    order = compose_order(held(5), (0, 1, 2), update=0, attempt=0, term=0, version=1, audits=0)
    refused = FragmentVerdict(refusal="stale", detail="", num_valid=0)
    first, last = replace(accepted(), num_valid=1), accepted()
    order.reports[0] = report_of(rank=0, verdicts=(first,), gaps=1, lag=1, steps=4)
    order.reports[2] = report_of(rank=2, verdicts=(refused, last), gaps=2, lag=0, steps=4)
    order.lost.add(1)
    merged = order.merged()
    assert [(verdict.refusal, verdict.num_valid) for verdict in merged.verdicts] == [
        ("", 1),
        ("", 2),
        ("", 3),
        ("stale", 0),
        ("", 5),
    ]
    assert (merged.rank, merged.gaps, merged.lag, merged.steps) == (0, 3, 1, 4)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_ranks", 0),
        ("max_rank_restarts", -1),
        ("rank_restart_window", 0),
        ("max_sync_failures", 0),
        ("max_rollbacks", -1),
        ("audit_every", -1),
        ("straggler_s", 0.0),
        ("collective_s", 0.0),
        ("slow_rank_s", float("inf")),
    ],
)
def test_a_plan_refuses_what_cannot_be_done_with_ranks(option: str, value: float) -> None:
    """The field is named with what was got and what is allowed."""
    with pytest.raises(ConfigError, match=option) as caught:
        plan(**{option: value})
    assert caught.value.got == str(value)
    assert caught.value.allowed
