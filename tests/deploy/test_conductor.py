"""The conductor under simulated engines: every order of delivery, every fault, at every moment."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigError, ContractError, EnvironmentFault, RunFailedError
from deploy.conductor.conductor import Conductor
from deploy.conductor.evaluations import Evaluations
from deploy.conductor.messages import (
    ActorLost,
    ActorStarted,
    Cut,
    Evaluate,
    Fatal,
    Finish,
    FragmentMade,
    LearnerStarted,
    Note,
    StartActor,
    StopAsked,
)
from deploy.conductor.plan import Plan
from deploy.conductor.seats import Seat, SeatStatus
from tests.deploy.simulated_ranks import Weights
from tests.deploy.simulation import FACTS, Faults, Simulation, summary_of

SEEDS = st.integers(0, 2**32 - 1)
LAGS = pytest.mark.parametrize("lag", [0, 1])


def plan(**options: Any) -> Plan:
    """About a dozen updates of three actors, with checkpoints and evaluations that do not coincide."""
    usual: dict[str, Any] = {
        "num_actors": 3,
        "policy_lag": 1,
        "total_steps": 300,
        "evaluate_every": 4,
        "episodes": 2,
        "final_episodes": 3,
        "checkpoint_every": 3,
    }
    return Plan(**(usual | options))


def run(plan: Plan, **options: Any) -> tuple[Simulation, Finish]:
    simulation = Simulation(plan, **options)
    return simulation, simulation.run()


def everything(simulation: Simulation) -> Any:
    """What may depend on no order of delivery."""
    facts = [(cut.update, cut.final, cut.env_steps, cut.parameter_digest, cut.score) for cut in simulation.cuts]
    accounts = [cut.accounts.to_plain() for cut in simulation.cuts]
    states = [[(s.actor, s.incarnation, s.snapshot) for s in cut.seats] for cut in simulation.cuts]
    frames = [[held.frame for held in cut.frames] for cut in simulation.cuts]
    by_update = sorted(zip(facts, accounts, states, frames, strict=True), key=lambda each: each[0])
    return simulation.chain, by_update, sorted(simulation.evaluations), simulation.conductor.accounts.to_plain()


# ---- no faults -----------------------------------------------------------------------------------------------------


@LAGS
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_no_order_of_delivery_changes_anything(lag: int, seed: int) -> None:
    """Updates, fragments, weights, cuts, their accounts and evaluations are the same whatever arrives first."""
    first, finish = run(plan(policy_lag=lag), seed=0)
    other, other_finish = run(plan(policy_lag=lag), seed=seed)
    assert everything(first) == everything(other)
    assert finish == other_finish
    assert finish.status == "finished"


@LAGS
def test_a_finished_run_has_reached_its_steps_and_was_judged(lag: int) -> None:
    """The run ends after the first update that reaches total_steps, with a final cut and a final evaluation."""
    simulation, finish = run(plan(policy_lag=lag))
    last = simulation.cuts[-1]
    assert (finish.status, finish.verdict) == ("finished", f"{last.env_steps:,} steps done")
    before = sum(fragment_steps(simulation, update) for update in range(last.update - 1))
    assert before < 300 <= last.env_steps == before + fragment_steps(simulation, last.update - 1)
    assert [cut.final for cut in simulation.cuts].count(True) == 1
    assert last.final
    assert last.final_evaluation is not None
    assert len(last.final_evaluation.returns) == 3
    assert (last.update, True) in simulation.evaluations


def fragment_steps(simulation: Simulation, update: int) -> int:
    return sum(6 + int(frame.digest, 16) % 5 for frame in simulation.collects_of_updates[update])


@LAGS
def test_cuts_and_evaluations_come_when_the_plan_says(lag: int) -> None:
    """Cuts after updates 3, 4, 6, 8, 9 ... (each third, each evaluated one) and the last; evaluations in theirs."""
    simulation, _ = run(plan(policy_lag=lag))
    last = simulation.cuts[-1].update
    due = sorted({k for k in range(1, last + 1) if k % 3 == 0 or k % 4 == 0} | {last})
    assert sorted(cut.update for cut in simulation.cuts) == due
    assert {cut.update for cut in simulation.cuts if cut.evaluation is not None} == set(range(4, last + 1, 4))


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, lag=st.integers(0, 1), actors=st.integers(1, 5))
def test_versions_strictly_grow(seed: int, lag: int, actors: int) -> None:
    """No publication has the number of an earlier one, over a resume too."""
    broken, _ = run(plan(policy_lag=lag, num_actors=actors), seed=seed, stop_at=30)
    resumed, _ = run(plan(policy_lag=lag, num_actors=actors), seed=seed, resumed=broken.cuts[-1])
    versions = broken.versions + resumed.versions
    assert versions == sorted(set(versions))


# ---- stopping and resuming -----------------------------------------------------------------------------------------


@LAGS
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, stop_at=st.integers(0, 170))
def test_a_stop_at_any_moment_ends_in_one_final_cut_that_continues_the_run(lag: int, seed: int, stop_at: int) -> None:
    """Interrupted with exactly one final cut, and the run resumed from it is the run that was never stopped."""
    unbroken, _ = run(plan(policy_lag=lag), seed=1)
    stopped, finish = run(plan(policy_lag=lag), seed=seed, stop_at=stop_at)
    final = [cut for cut in stopped.cuts if cut.final]
    assert len(final) == 1
    assert finish.status == ("finished" if final[0].update == len(unbroken.chain) else "interrupted")
    if finish.status == "interrupted":
        assert finish.verdict == f"SIGTERM: checkpointed at update {final[0].update}, resumable"
    assert_continues(final[0], unbroken, seed)


@LAGS
@settings(max_examples=6, deadline=None)
@given(seed=SEEDS)
def test_every_periodic_cut_continues_the_run(lag: int, seed: int) -> None:
    """A resume from any checkpoint makes the same updates from the same fragments and ends in the same accounts."""
    unbroken, _ = run(plan(policy_lag=lag), seed=seed)
    for cut in unbroken.cuts:
        assert_continues(cut, unbroken, seed + 1)


def assert_continues(cut: Cut, unbroken: Simulation, seed: int) -> None:
    resumed, finish = run(unbroken.plan, seed=seed, resumed=cut)
    assert finish.status == "finished"
    assert resumed.chain == {k: made for k, made in unbroken.chain.items() if k >= cut.update}
    assert resumed.conductor.accounts == unbroken.conductor.accounts
    assert resumed.conductor.env_steps == unbroken.conductor.env_steps
    assert not [note for note in resumed.notes if note.kind == "ACTOR_NOT_RESTORED"]


@LAGS
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, stops=st.lists(st.integers(0, 60), min_size=2, max_size=4))
def test_stops_in_a_row_lose_nothing(lag: int, seed: int, stops: list[int]) -> None:
    """Stopped and resumed again and again, also before anything was done, a run makes what it would have made."""
    unbroken, _ = run(plan(policy_lag=lag), seed=1)
    chain: dict[int, Any] = {}
    cut: Cut | None = None
    for stop_at in stops:
        part, _ = run(unbroken.plan, seed=seed, stop_at=stop_at, resumed=cut)
        chain |= part.chain
        cut = part.cuts[-1]
    assert cut is not None
    rest, _ = run(unbroken.plan, seed=seed, resumed=cut)
    assert chain | rest.chain == unbroken.chain
    assert rest.conductor.accounts == unbroken.conductor.accounts


def test_a_stop_before_the_learner_started_checkpoints_the_beginning() -> None:
    """Update 0 is a cut like any other: the resumed run is the run from its beginning."""
    unbroken, _ = run(plan())
    stopped, finish = run(plan(), stop_at=0)
    assert finish.status == "interrupted"
    assert [cut.update for cut in stopped.cuts] == [0]
    assert_continues(stopped.cuts[0], unbroken, seed=3)


def test_a_second_stop_changes_nothing() -> None:
    """The first is being obeyed; the second is not even noted."""
    simulation = Simulation(plan(), stop_at=40)
    simulation.begin()
    while simulation.conductor.finish is None:
        simulation.step()
        if simulation.num_events > 41:
            simulation.deliver(StopAsked(reason="SIGINT"))
    assert simulation.conductor.finish.verdict.startswith("SIGTERM")
    assert [note.kind for note in simulation.notes].count("STOP_ASKED") == 1


def test_an_evaluation_of_the_resumed_weights_is_not_lost() -> None:
    """Resumed after update 4 and stopped at once, the new cut of update 4 still knows how its weights were judged."""
    unbroken, _ = run(plan())
    cut = next(cut for cut in unbroken.cuts if cut.update == 4)
    again, _ = run(plan(), resumed=cut, stop_at=0)
    assert [(each.update, each.score) for each in again.cuts] == [(4, cut.score)]
    assert again.evaluations == []


def test_actors_that_cannot_be_restored_begin_new_episodes_under_a_new_incarnation() -> None:
    """Where a snapshot is None the resume says so, and no stream is drawn from twice."""
    stopped, _ = run(plan(), stop_at=60, faults=Faults(restorable=False))
    cut = stopped.cuts[-1]
    assert all(seat.snapshot is None for seat in cut.seats)
    resumed, finish = run(plan(), resumed=cut)
    assert finish.status == "finished"
    assert [note.data for note in resumed.notes] == [{"actor": actor, "new": 1} for actor in range(3)]
    first = resumed.collects_of_updates[cut.update + 1]
    assert [(frame.incarnation, frame.sequence) for frame in first] == [(1, 0)] * 3


# ---- stop_at_return ------------------------------------------------------------------------------------------------


@LAGS
@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_the_target_ends_the_run_at_the_same_update_for_every_order(lag: int, seed: int) -> None:
    """Each evaluation is waited for, so the update at which the run ends does not depend on timing."""
    goal = plan(policy_lag=lag, evaluate_every=2, stop_at_return=7.0, total_steps=10_000)
    first, finish = run(goal, seed=0)
    other, _ = run(goal, seed=seed)
    assert everything(first) == everything(other)
    assert finish.status == "finished"
    assert finish.verdict.endswith("reached the target 7")
    last = other.cuts[-1]
    assert last.final
    assert last.evaluation is not None
    assert last.evaluation.mean >= 7.0
    assert last.final_evaluation is not None


@LAGS
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, stop_at=st.integers(0, 80))
def test_a_stop_while_an_evaluation_is_awaited_is_no_deadlock(lag: int, seed: int, stop_at: int) -> None:
    """Stopped anywhere, resumed, the target is reached at the update of the unbroken run; a run at its target ends."""
    goal = plan(policy_lag=lag, evaluate_every=2, stop_at_return=7.0, total_steps=10_000)
    unbroken, _ = run(goal, seed=0)
    stopped, _ = run(goal, seed=seed, stop_at=stop_at)
    resumed, finish = run(goal, seed=seed, resumed=stopped.cuts[-1])
    assert finish.verdict.endswith("reached the target 7")
    assert stopped.chain | resumed.chain == unbroken.chain


def test_a_failed_evaluation_lets_the_run_go_on() -> None:
    """A target that cannot be measured does not hold the run up: it ends at its steps, each failure noted."""
    simulation, finish = run(plan(evaluate_every=2, stop_at_return=1.0, total_steps=100), faults=Faults(evaluation=1.0))
    assert finish.status == "finished"
    failed = [note.data["update"] for note in simulation.notes if note.kind == "EVALUATION_FAILED"]
    assert failed == [2, 4, simulation.cuts[-1].update][: len(failed)]
    assert len(failed) >= 3
    assert all(cut.score is None for cut in simulation.cuts)


# ---- losses --------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    seed=SEEDS,
    lag=st.integers(0, 1),
    actors=st.integers(1, 4),
    loss=st.sampled_from([0.01, 0.03, 0.1]),
    late=st.sampled_from([0.0, 0.7]),
)
def test_losses_at_any_moment_cost_fragments_and_nothing_else(
    seed: int, lag: int, actors: int, loss: float, late: float
) -> None:
    """With restarts left, the run goes on under new incarnations to its end; each loss is noted with what it cost."""
    roomy = plan(policy_lag=lag, num_actors=actors, total_steps=200, max_restarts=10_000)
    simulation, finish = run(roomy, seed=seed, faults=Faults(loss=loss, late=late))
    assert finish.status == "finished"
    lost = [note.data for note in simulation.notes if note.kind == "ACTOR_LOST"]
    assert simulation.conductor.accounts.fragments_lost == sum(data["fragments_lost"] for data in lost)
    for actor in range(actors):
        assert [data["new_incarnation"] for data in lost if data["actor"] == actor] == list(
            range(1, 1 + sum(data["actor"] == actor for data in lost))
        )
    assert len(simulation.chain) == simulation.conductor.committed
    for frames in simulation.collects_of_updates.values():
        assert [frame.actor for frame in frames] == list(range(actors))


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, lag=st.integers(0, 1), actors=st.integers(1, 4), stop_at=st.integers(0, 120))
def test_losses_and_a_stop_together_end_in_one_final_cut(seed: int, lag: int, actors: int, stop_at: int) -> None:
    """Whatever dies while the run is being stopped, it ends, once, in a cut from which it goes on to its end."""
    roomy = plan(policy_lag=lag, num_actors=actors, total_steps=200, max_restarts=10_000)
    stopped, _ = run(roomy, seed=seed, stop_at=stop_at, faults=Faults(loss=0.1, late=0.3))
    final = [cut for cut in stopped.cuts if cut.final]
    assert len(final) == 1
    assert final[0] is stopped.cuts[-1]
    resumed, finish = run(roomy, seed=seed, resumed=final[0], faults=Faults(loss=0.02))
    assert finish.status == "finished"
    for frames in resumed.collects_of_updates.values():
        assert [frame.actor for frame in frames] == list(range(actors))


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, lag=st.integers(0, 1), stop_at=st.one_of(st.none(), st.integers(0, 120)))
def test_every_fault_at_once_still_ends_in_a_verdict(seed: int, lag: int, stop_at: int | None) -> None:
    """Losses, refusals, skips, failed evaluations and checkpoints: finished, interrupted or failed, never stuck."""
    faults = Faults(loss=0.04, late=0.5, refusal=0.1, skip=0.2, evaluation=0.3, checkpoint=0.2)
    simulation, finish = run(plan(policy_lag=lag), seed=seed, faults=faults, stop_at=stop_at)
    assert finish.status in ("finished", "interrupted", "failed")
    assert (finish.error is not None) == (finish.status == "failed")
    assert finish.verdict
    if finish.status != "failed":
        assert [cut.final for cut in simulation.cuts].count(True) == 1


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, lag=st.integers(0, 1))
def test_a_cut_counts_the_fragments_lost_before_it(seed: int, lag: int) -> None:
    """What a cut says was lost is what was lost on the way to it: as many as its actors' restarts explain."""
    roomy = plan(policy_lag=lag, max_restarts=10_000)
    simulation, _ = run(roomy, seed=seed, faults=Faults(loss=0.08))
    final = simulation.cuts[-1]
    assert final.accounts.fragments_lost == simulation.conductor.accounts.fragments_lost
    in_order = sorted(simulation.cuts, key=lambda cut: cut.update)
    assert [cut.accounts.fragments_lost for cut in in_order] == sorted(c.accounts.fragments_lost for c in in_order)


@LAGS
@settings(max_examples=12, deadline=None)
@given(seed=SEEDS)
def test_an_actor_beyond_its_budget_is_given_up_and_the_others_go_on(lag: int, seed: int) -> None:
    """After max_restarts restarts the seat is quarantined, once, and updates are made of the others' fragments."""
    simulation, finish = run(plan(policy_lag=lag), seed=seed, faults=Faults(hopeless=frozenset({1})))
    assert finish.status == "finished"
    given_up = [note.data for note in simulation.notes if note.kind == "ACTOR_QUARANTINED"]
    assert given_up == [{"actor": 1, "restarts": 4}]
    assert simulation.conductor.accounts.fragments_lost == 4
    for frames in simulation.collects_of_updates.values():
        assert [frame.actor for frame in frames] == [0, 2]
    assert [seat.quarantined for seat in simulation.cuts[-1].seats] == [False, True, False]
    assert simulation.cuts[0].seats[1].restarts == 4
    resumed, _ = run(plan(policy_lag=lag), seed=seed, resumed=simulation.cuts[0])
    assert resumed.conductor.seats[1].restarts == 4
    assert all([frame.actor for frame in frames] == [0, 2] for frames in resumed.collects_of_updates.values())


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, lag=st.integers(0, 1), stop_at=st.integers(0, 90))
def test_a_stop_amid_quarantines_forgets_no_fragment(seed: int, lag: int, stop_at: int) -> None:
    """A fragment made by an actor that is then given up is trained on, dropped, or held by the cut: never forgotten."""
    fragile = plan(policy_lag=lag, num_actors=4, max_restarts=0)
    simulation, finish = run(fragile, seed=seed, stop_at=stop_at, faults=Faults(loss=0.03))
    if finish.status != "failed":
        assert simulation.cuts[-1].accounts == simulation.conductor.accounts


def test_a_fragment_of_an_actor_given_up_is_not_left_beyond_the_last_cut() -> None:
    """Golden, lag 1: actor 0 made fragments 0 and 1 and was given up, actor 1 made none. The end is update 1."""
    conductor = Conductor(plan(num_actors=2, max_restarts=0), versions=iter(range(1, 100)))
    conductor.begin()
    weights = Weights(0, 0, "initial")
    conductor.handle(LearnerStarted(version=0, updates=0, weights=weights, parameter_digest="initial"))
    conductor.handle(ActorStarted(actor=0, incarnation=0, lease="a", facts=FACTS))
    for update in range(2):
        summary = summary_of(actor=0, lease="a", update=update, num_valid=5)
        assert conductor.handle(FragmentMade(summary=summary, frame=f"frame {update}")) == []
    conductor.handle(ActorLost(actor=0, lease="a", cause="gone"))
    stopped = conductor.handle(StopAsked(reason="SIGTERM"))
    assert stopped == [Note(kind="STOP_ASKED", data={"reason": "SIGTERM", "ends_at_update": 1})]


@LAGS
def test_a_stop_while_a_checkpoint_is_written_and_its_actor_is_lost(lag: int) -> None:
    """What is being written stays what it is; the last cut is another, if of the same update, and knows of the loss."""
    ends = set()
    for seed in range(20):
        simulation = Simulation(plan(policy_lag=lag, num_actors=1, evaluate_every=0), seed=seed)
        simulation.begin()
        while not simulation.cuts:
            simulation.step()
        simulation.lose(0)
        simulation.deliver(StopAsked(reason="SIGTERM"))
        while simulation.conductor.finish is None:
            simulation.step()
        last = simulation.cuts[-1]
        assert [(cut.final, cut.seats[0].restarts) for cut in simulation.cuts] == [(False, 0), (True, 1)]
        assert simulation.conductor.finish.status == "interrupted"
        assert not simulation.conductor.seats[0].snapshot_told
        ends.add(last.update)
    assert (3 in ends) == (lag == 0), "with a lag the next update is told before the checkpoint is complete"


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, lag=st.integers(0, 1), actors=st.integers(1, 3))
def test_when_no_actor_is_left_the_run_fails_with_the_last_fault(seed: int, lag: int, actors: int) -> None:
    """The verdict holds the last cause, and the error its traceback."""
    every = frozenset(range(actors))
    simulation, finish = run(plan(policy_lag=lag, num_actors=actors), seed=seed, faults=Faults(hopeless=every))
    assert finish.status == "failed"
    assert isinstance(finish.error, EnvironmentFault)
    last = [note.data for note in simulation.notes if note.kind == "ACTOR_LOST"][-1]
    assert "no actor is left: each was lost 4 times" in finish.verdict
    assert last["cause"] in finish.verdict
    assert finish.error.detail == last["detail"]


def test_a_fragment_of_an_old_lease_is_dropped_and_counted() -> None:
    """It was produced, it is not trained on, and the reason stands in the accounts and in a note."""
    simulation, _ = run(plan(max_restarts=10_000), seed=2, faults=Faults(loss=0.1, late=1.0))
    refused = [note.data for note in simulation.notes if note.kind == "FRAGMENT_REFUSED"]
    assert refused
    assert {data["reason"] for data in refused} == {"old_lease"}
    assert set(simulation.conductor.accounts.dropped) == {"old_lease"}


def test_the_loss_of_an_old_lease_is_no_loss() -> None:
    """Told twice of the same process, the conductor does not blame the next one."""
    conductor = Conductor(plan(num_actors=1), versions=iter(range(100)))
    conductor.begin()
    conductor.handle(ActorStarted(actor=0, incarnation=0, lease="a", facts=FACTS))
    conductor.handle(ActorLost(actor=0, lease="a", cause="gone"))
    conductor.handle(ActorStarted(actor=0, incarnation=1, lease="b", facts=FACTS))
    assert conductor.handle(ActorLost(actor=0, lease="a", cause="gone")) == []
    assert (conductor.seats[0].restarts, conductor.seats[0].lease) == (1, "b")


def breach(actor: int, lease: str) -> ActorLost:
    error = ContractError(f"actor {actor}, lane 0, tick 3: step", got="None", allowed="five values")
    return ActorLost(actor=actor, lease=lease, cause=str(error), breach=error)


def crowd(num_actors: int) -> Conductor:
    conductor = Conductor(plan(num_actors=num_actors), versions=iter(range(100)))
    conductor.begin()
    for actor in range(num_actors):
        conductor.handle(ActorStarted(actor=actor, incarnation=0, lease=f"{actor}.0", facts=FACTS))
    return conductor


def test_one_environment_that_breaks_its_contract_costs_its_actor_a_life() -> None:
    """However often it does so, within its budget, as any other fault: the run goes on."""
    conductor = crowd(3)
    for life in range(2):
        commands = conductor.handle(breach(1, f"1.{life}"))
        assert StartActor(actor=1, incarnation=life + 1, snapshot=None) in commands
        conductor.handle(ActorStarted(actor=1, incarnation=life + 1, lease=f"1.{life + 1}", facts=FACTS))
    assert conductor.finish is None


def test_a_contract_that_a_second_actor_sees_broken_ends_the_run() -> None:
    """Then the environment is like that: the error is the verdict, and bad input."""
    conductor = crowd(3)
    conductor.handle(breach(1, "1.0"))
    conductor.handle(breach(2, "2.0"))
    assert conductor.finish is not None
    assert isinstance(conductor.finish.error, ContractError)
    assert conductor.finish.verdict.startswith("actor 2, lane 0, tick 3: step")


def test_a_contract_broken_by_the_only_actor_ends_the_run() -> None:
    """Nobody else can say otherwise."""
    conductor = crowd(1)
    conductor.handle(breach(0, "0.0"))
    assert conductor.finish is not None
    assert isinstance(conductor.finish.error, ContractError)


def test_an_evaluation_that_was_only_queued_was_not_tried() -> None:
    """Of two evaluations told to an actor, only the older was being played when it died."""
    evaluations = Evaluations()
    for update in (1, 2):
        evaluations.ask(update, final=False, published=(update, "weights"), episodes=3)
    seat = Seat(actor=0, status=SeatStatus.RUNNING)
    given_up = []
    for _ in range(6):
        assert [told.actor for told in evaluations.tell([seat])]
        given_up.append(evaluations.lose(0))
    assert given_up == [[], [], [(1, False)], [], [], [(2, False)]]
    assert evaluations.lose(0) == []
    assert evaluations.words() == []


def test_an_evaluation_that_kills_every_actor_is_given_up() -> None:
    """Three tries, on whichever actor runs; then the run goes on without it."""
    simulation = Simulation(plan(num_actors=1, evaluate_every=1, max_restarts=9))
    simulation.begin()
    tries = 0
    while simulation.conductor.finish is None:
        match simulation.head(0):
            case Evaluate(update=1):
                tries += 1
                simulation.kill(0)
        simulation.step()
    assert tries == 3
    assert [n.data for n in simulation.notes if n.kind == "EVALUATION_FAILED"] == [{"update": 1}]
    assert next(cut for cut in simulation.cuts if cut.update == 1).evaluation is None
    assert simulation.conductor.finish.status == "finished"


# ---- the learner and the disk --------------------------------------------------------------------------------------


@LAGS
def test_refused_fragments_are_dropped_by_reason(lag: int) -> None:
    """Their transitions count as steps made and as dropped; each refusal is noted."""
    simulation, finish = run(plan(policy_lag=lag), seed=4, faults=Faults(refusal=0.3))
    assert finish.status == "finished"
    accounts = simulation.conductor.accounts
    assert accounts.dropped["stale"] > 0
    assert simulation.conductor.env_steps == accounts.trained + accounts.dropped["stale"]
    assert [n.data["reason"] for n in simulation.notes if n.kind == "FRAGMENT_REFUSED"].count("stale") > 3


def test_three_updates_without_a_step_end_the_run() -> None:
    """The verdict names the parameter whose gradient was not finite; what was skipped is counted as dropped."""
    simulation, finish = run(plan(), faults=Faults(skip=1.0))
    assert finish.status == "failed"
    assert isinstance(finish.error, RunFailedError)
    assert finish.verdict == (
        "3 updates in a row committed no gradient step: non-finite gradients (first in body.0.weight)"
    )
    assert len([n for n in simulation.notes if n.kind == "STEPS_SKIPPED"]) == 3
    assert simulation.conductor.accounts.trained == 0
    assert simulation.conductor.accounts.dropped["skipped"] == simulation.conductor.env_steps


def test_updates_without_anything_to_train_on_end_the_run() -> None:
    """If every fragment was refused, no gradient is blamed: the verdict says what there was, namely nothing."""
    simulation, finish = run(plan(), faults=Faults(refusal=1.0))
    assert finish.verdict == (
        "3 updates in a row committed no gradient step: no fragment of theirs held a transition to train on"
    )
    assert simulation.conductor.accounts.dropped == {"stale": simulation.conductor.env_steps}


def test_a_trained_update_starts_the_count_of_skips_again() -> None:
    """Two skips, one step, two skips is no failure; max_skipped_updates = 0 never gives up."""
    patient = Simulation(plan(max_skipped_updates=0), faults=Faults(skip=1.0))
    assert patient.run().status == "finished"
    ended = set()
    for seed in range(30):
        simulation, finish = run(plan(), seed=seed, faults=Faults(skip=0.5))
        made = "".join("T" if trained else "s" for trained in simulation.trained)
        assert made.find("sss") == (len(made) - 3 if finish.status == "failed" else -1)
        ended.add(finish.status)
    assert ended == {"finished", "failed"}


def test_a_failed_periodic_checkpoint_is_noted_and_the_last_one_is_fatal() -> None:
    """A run that cannot save its end must not say that it finished."""
    simulation, finish = run(plan(), faults=Faults(checkpoint=1.0))
    failed = [note.data["update"] for note in simulation.notes if note.kind == "CHECKPOINT_FAILED"]
    assert failed == [cut.update for cut in simulation.cuts]
    assert finish.status == "failed"
    assert finish.verdict == "the last checkpoint could not be written: the disk is full"


def test_a_fatal_error_ends_the_run_with_itself() -> None:
    """Bad input that only running could show is the verdict; nothing is told to anybody any more."""
    simulation = Simulation(plan())
    simulation.begin()
    error = ConfigError("net.hidden", got=(), allowed="one or more layers")
    simulation.deliver(Fatal(error=error))
    assert simulation.conductor.finish == Finish(status="failed", verdict=str(error), error=error)
    assert simulation.conductor.handle(StopAsked(reason="SIGTERM")) == []


# ---- the rest ------------------------------------------------------------------------------------------------------


def test_waiting_for_names_who_is_awaited_for_what() -> None:
    """Before anything has started, while a fragment is made, while an update runs."""
    conductor = Conductor(plan(num_actors=2), versions=iter(range(1, 100)))
    conductor.begin()
    assert conductor.waiting_for() == "actor 0 to start; actor 1 to start; rank 0 to start"
    weights = Weights(0, 0, "initial")
    conductor.handle(LearnerStarted(version=0, updates=0, weights=weights, parameter_digest="initial"))
    conductor.handle(ActorStarted(actor=0, incarnation=0, lease="a", facts=FACTS))
    assert conductor.waiting_for() == "actor 1 to start; actor 0 to collect for update 0; rank 0 to start"


def test_nothing_is_told_before_the_learner_has_started() -> None:
    """There are no weights to collect with."""
    conductor = Conductor(plan(num_actors=1), versions=iter(range(1, 100)))
    conductor.begin()
    assert conductor.handle(ActorStarted(actor=0, incarnation=0, lease="a", facts=FACTS)) == []


def test_a_resumed_run_that_was_complete_only_ends_again() -> None:
    """No update is made; the final evaluation and the final cut come once more."""
    unbroken, _ = run(plan())
    again, finish = run(plan(), resumed=unbroken.cuts[-1])
    assert again.chain == {}
    assert finish.status == "finished"
    assert [(cut.update, cut.final) for cut in again.cuts] == [(unbroken.cuts[-1].update, True)]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("policy_lag", 2),
        ("num_actors", 0),
        ("total_steps", 0),
        ("checkpoint_every", -1),
        ("max_restarts", -1),
        ("max_skipped_updates", -1),
    ],
)
def test_a_plan_refuses_what_cannot_be_done(option: str, value: int) -> None:
    """The field is named with what was got and what is allowed."""
    with pytest.raises(ConfigError, match=option) as caught:
        plan(**{option: value})
    assert caught.value.got == str(value)
    assert caught.value.allowed
