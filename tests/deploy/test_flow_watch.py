"""How long fragments wait."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from common.clock import ManualClock
from common.ledger import FragmentName
from common.metrics import DriverMetrics, new_registry
from deploy.conductor.messages import Command, Event, FragmentDropped, FragmentMade, Note, RecordUpdate
from deploy.conductor.plan import Flow, Plan
from deploy.display import Silent
from deploy.flow_watch import Arrivals
from deploy.watch import Watch
from tests.deploy.simulated_ranks import RankFaults
from tests.deploy.simulation import Faults, Simulation


def test_fragments_are_known_by_their_age_from_arrival_to_fate() -> None:
    """The oldest first, whatever the order of fates; one that arrived before this driving has no age."""
    clock = ManualClock()
    arrivals = Arrivals(clock)
    assert arrivals.oldest_s == 0.0
    for sequence in range(3):
        arrivals.arrive((0, 0, sequence))
        clock.advance(1.0)
    assert arrivals.decide((0, 0, 1)) == 2.0
    assert arrivals.oldest_s == 3.0
    assert arrivals.decide((0, 0, 0)) == 3.0
    assert arrivals.oldest_s == 1.0
    assert arrivals.decide((9, 9, 9)) is None
    arrivals.forget()
    assert (arrivals.oldest_s, arrivals.decide((0, 0, 2))) == (0.0, None)


class Watched(Simulation):
    """A simulated run that is watched as a driver would have it watched."""

    def __init__(self, plan: Plan, **arguments: Any) -> None:
        self.watch = Watch(DriverMetrics(new_registry()), Silent(), ManualClock())
        self.valid: dict[FragmentName, int] = {}
        super().__init__(plan, **arguments)

    def _count(self, event: Event, commands: list[Command]) -> None:
        super()._count(event, commands)
        if isinstance(event, FragmentMade):
            self.valid[event.summary.actor, event.summary.incarnation, event.summary.sequence] = event.summary.num_valid
        self.watch.observe(event)
        for command in commands:
            match command:
                case RecordUpdate():
                    self.watch.commit(command)
                case Note():
                    self.watch.note(command)
                case FragmentDropped():
                    self.watch.drop(command)
                case _:
                    pass

    def deliver(self, event: Event) -> None:
        super().deliver(event)
        waiting = sum(self.valid[name] for name in self.watch._arrivals._since_ns)
        assert waiting == self.conductor.accounts.in_flight
        statistics = self.conductor.policy.statistics(self.conductor.seats)
        if statistics is not None:
            assert 0 <= statistics.queued <= statistics.in_flight
            assert statistics.capacity <= 12
            assert 1 <= statistics.target <= 4


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), mode=st.sampled_from(["sync", "async"]))
def test_what_has_arrived_and_waits_is_what_the_accounts_have_in_flight(seed: int, mode: str) -> None:
    """After every event of a run in which actors and ranks die and disagree, fragments are refused and rolled back."""
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
    assert Watched(plan, seed=seed, faults=faults).run().status in ("finished", "failed")
