"""Asynchronous collection: any order of arrival is allowed, nothing is lost, and the ledger makes the run again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ConfigError
from common.ledger import Ledger, LedgerUpdate
from common.script import script_of
from deploy.conductor.messages import Cut, Finish
from deploy.conductor.plan import Flow, Plan
from tests.deploy.simulated_ranks import RankFaults
from tests.deploy.simulation import Faults, Simulation

SEEDS = st.integers(0, 10_000)


def flow(**fields: Any) -> Flow:
    usual: dict[str, Any] = {
        "fragments": 2,
        "max_lag": 6,
        "first_capacity": 4,
        "most_capacity": 12,
        "least_actors": 3,
        "most_actors": 3,
    }
    return Flow(**(usual | fields))


def plan(**fields: Any) -> Plan:
    usual: dict[str, Any] = {
        "num_actors": 3,
        "policy_lag": 1,
        "total_steps": 300,
        "evaluate_every": 4,
        "episodes": 2,
        "final_episodes": 3,
        "checkpoint_every": 3,
        "flow": flow(),
    }
    return Plan(**(usual | fields))


def run(plan_: Plan, **arguments: Any) -> tuple[Simulation, Finish]:
    simulation = Simulation(plan_, **arguments)
    return simulation, simulation.run()


def ledger_of(simulation: Simulation, *earlier: Simulation, cut: Cut | None = None) -> Ledger:
    """What the registry would hold after a run, or after one that goes on from `cut` of `earlier`."""
    before = [each for old in earlier for each in old.ledger if cut is not None and each.update <= cut.update]
    fragments = tuple({each.name: each for each in (*before, *simulation.ledger)}.values())
    made = sorted({each.update for each in fragments if each.place >= 0})
    return Ledger(
        fragments=fragments, updates=tuple(LedgerUpdate(update=update, term=0, num_ranks=1) for update in made)
    )


def assert_made_again(original: dict[int, Any], ledger: Ledger, plan_: Plan, seed: int) -> None:
    script = script_of(ledger)
    assert len(script.updates) == len(original)
    again, finish = run(plan_, seed=seed, script=script)
    assert finish.status == "finished"
    assert again.chain == original
    assert not again.cuts
    assert not again.evaluations


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, actors=st.integers(1, 5), fragments=st.integers(1, 4), max_lag=st.integers(1, 6))
def test_a_run_ends_with_its_steps_done_and_its_accounts_in_order(
    seed: int, actors: int, fragments: int, max_lag: int
) -> None:
    """Whatever arrives first: every event leaves the accounts balanced, fragments are never older than allowed, and the
    run ends with one final cut, evaluated (the simulation checks after each event)."""
    flow_ = flow(
        fragments=fragments,
        max_lag=max_lag,
        most_capacity=max_lag * fragments,
        least_actors=actors,
        most_actors=actors,
    )
    simulation, finish = run(plan(num_actors=actors, flow=flow_), seed=seed)
    assert (finish.status, simulation.cuts[-1].final) == ("finished", True)
    assert simulation.cuts[-1].env_steps >= 300
    assert (simulation.cuts[-1].update, True) in simulation.evaluations


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, again=SEEDS, loss=st.sampled_from([0.0, 0.03]), max_lag=st.integers(1, 4))
def test_the_ledger_makes_the_run_again(seed: int, again: int, loss: float, max_lag: int) -> None:
    """Actors die on the way, fragments are dropped for their age: a run that follows the ledger makes the same updates
    of the same fragments, whatever the order of arrival is now."""
    plan_ = plan(flow=flow(max_lag=max_lag, most_capacity=2 * max_lag), max_restarts=50)
    simulation, _ = run(plan_, seed=seed, faults=Faults(loss=loss, late=0.5))
    assert_made_again(simulation.chain, ledger_of(simulation), plan_, again)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, again=SEEDS)
def test_synchronous_runs_are_made_again_too(seed: int, again: int) -> None:
    """One policy replays both kinds."""
    plan_ = plan(flow=None, max_restarts=50)
    simulation, _ = run(plan_, seed=seed, faults=Faults(loss=0.03))
    assert_made_again(simulation.chain, ledger_of(simulation), plan_, again)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, stop_at=st.integers(5, 150), restorable=st.booleans(), again=SEEDS)
def test_a_stopped_run_goes_on_from_its_cut_and_both_parts_are_made_again(
    seed: int, stop_at: int, restorable: bool, again: int
) -> None:
    """A cut holds what was in flight; after the resume nothing is counted twice, and the ledger of both is one run."""
    first, finish = run(plan(), seed=seed, stop_at=stop_at, faults=Faults(restorable=restorable))
    cut = first.cuts[-1]
    assert cut.final
    if finish.status == "finished":
        return
    second, second_finish = run(plan(), seed=seed + 1, resumed=cut, faults=Faults(restorable=restorable))
    assert second_finish.status == "finished"
    chain = {**{update: made for update, made in first.chain.items() if update < cut.update}, **second.chain}
    assert_made_again(chain, ledger_of(second, first, cut=cut), plan(), again)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, again=SEEDS, data=st.data())
def test_a_crashed_run_goes_on_from_any_cut(seed: int, again: int, data: st.DataObject) -> None:
    """A driver that dies later than a cut: what it recorded behind it never happened."""
    first, _ = run(plan(), seed=seed, faults=Faults(loss=0.02))
    cut = data.draw(st.sampled_from([cut for cut in first.cuts if not cut.final]))
    second, _ = run(plan(), seed=seed + 1, resumed=cut)
    chain = {**{update: made for update, made in first.chain.items() if update < cut.update}, **second.chain}
    assert_made_again(chain, ledger_of(second, first, cut=cut), plan(), again)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, num_ranks=st.integers(1, 3))
def test_ranks_may_die_and_disagree_meanwhile(seed: int, num_ranks: int) -> None:
    """Lost ranks, disputes and rollbacks: orders are made again of the same fragments, the accounts hold."""
    faults = Faults(loss=0.01, ranks=RankFaults(loss=0.01, dispute=0.05))
    simulation, finish = run(
        plan(num_ranks=num_ranks, max_restarts=50, max_rank_restarts=50, total_steps=150), seed=seed, faults=faults
    )
    assert finish.status in ("finished", "failed")
    assert simulation.conductor.accounts.produced > 0


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_an_actor_that_always_dies_is_given_up_and_the_others_go_on(seed: int) -> None:
    """Quarantined after its restarts; updates never wait for it; nothing of it is in the accounts but losses."""
    simulation, finish = run(plan(), seed=seed, faults=Faults(hopeless=frozenset({1})))
    assert finish.status == "finished"
    assert {each.actor for each in simulation.ledger} <= {0, 2}
    assert "ACTOR_QUARANTINED" in [note.kind for note in simulation.notes]


def test_an_update_never_needs_more_than_may_be_in_flight() -> None:
    """It would wait for ever."""
    with pytest.raises(ConfigError, match="more fragments than may be in flight"):
        flow(fragments=5, most_capacity=4)


@settings(max_examples=8, deadline=None)
@given(seed=SEEDS, again=SEEDS)
def test_actors_come_and_go_and_the_run_is_made_again(seed: int, again: int) -> None:
    """A pool between 1 and 4: who comes begins a life of its own, who goes has made all it was told."""
    flow_ = flow(fragments=1, least_actors=1, most_actors=4)
    plan_ = plan(num_actors=2, flow=flow_, total_steps=1500, max_restarts=50)
    simulation, finish = run(plan_, seed=seed, faults=Faults(loss=0.005))
    assert finish.status == "finished"
    assert_made_again(simulation.chain, ledger_of(simulation), plan_, again)


def test_a_pool_grows_to_its_bound_while_the_learner_starves() -> None:
    """Two actors for four fragments an update: one after the other joins, as far as it goes."""
    flow_ = flow(fragments=4, least_actors=1, most_actors=4, max_lag=40, most_capacity=40)
    simulation, _ = run(plan(num_actors=2, flow=flow_, total_steps=6000), seed=1)
    assert [seat.actor for seat in simulation.conductor.seats if seat.live] == [0, 1, 2, 3]
    assert simulation.conductor.policy.starved > 0  # type: ignore[attr-defined]


def test_a_checkpoint_that_takes_its_time_keeps_no_weights_from_actors() -> None:
    """Once its state for the cut has arrived, an actor is offered what is newer, whether the disk is done or not."""
    simulation = Simulation(plan(total_steps=100_000, evaluate_every=0), seed=1)
    simulation.begin()
    simulation.hang_while_writing()
    version = simulation.conductor.version
    for _ in range(300):
        simulation.step()
    assert min(seat.holds for seat in simulation.conductor.seats) > version + 5
