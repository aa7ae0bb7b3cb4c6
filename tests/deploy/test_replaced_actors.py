"""Actors that are replaced: who they are, what they may begin with, and what of their former life still counts."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from common.ledger import TRAINED
from deploy.conductor.messages import ActorStarted, Collect, Command, Event, FragmentMade, StartActor, WeightsHeld
from deploy.conductor.plan import Flow, Plan
from tests.deploy.simulation import Faults, Simulation

SEEDS = st.integers(0, 10_000)
MODES = st.sampled_from(["async", "lag 0", "lag 1"])


def plan(mode: str) -> Plan:
    flow = Flow(fragments=2, max_lag=6, first_capacity=4, most_capacity=12, least_actors=3, most_actors=3)
    return Plan(
        num_actors=3,
        policy_lag=0 if mode == "lag 0" else 1,
        total_steps=300,
        evaluate_every=4,
        episodes=2,
        final_episodes=3,
        checkpoint_every=3,
        flow=flow if mode == "async" else None,
        max_restarts=50,
    )


class Lives(Simulation):
    """A run whose actors die, that keeps what matters of each life as it goes."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.begun: dict[int, list[int]] = {}  # by actor, the incarnations that were started, in order
        self.current: dict[str, int] = {}  # by lease, updates in the newest weights when it started
        self.acknowledged: set[int] = set()  # actors that hold weights in this life
        self.first: dict[tuple[int, int], int] = {}  # by life, updates in the weights of its first fragment
        self.late: dict[tuple[int, int, int], int] = {}  # transitions of fragments of processes that were lost already

    def deliver(self, event: Event) -> None:
        match event:
            case ActorStarted():
                self.current[event.lease] = self.conductor.committed
            case WeightsHeld() if event.lease == self.conductor.seats[event.actor].lease:
                self.acknowledged.add(event.actor)
            case FragmentMade():
                self._look_at(event)
            case _:
                pass
        super().deliver(event)

    def _look_at(self, event: FragmentMade) -> None:
        made = event.summary
        if made.lease != self.conductor.seats[made.actor].lease:
            self.late[made.actor, made.incarnation, made.sequence] = made.num_valid
        elif (made.actor, made.incarnation) not in self.first:
            self.first[made.actor, made.incarnation] = event.frame.basis
            if made.incarnation and self.plan.flow is not None:
                assert event.frame.basis >= self.current[made.lease], "older than what was current when it came"

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, StartActor):
                self.begun.setdefault(command.actor, []).append(command.incarnation)
                self.acknowledged.discard(command.actor)
            if isinstance(command, Collect) and command.version is None:
                assert command.actor in self.acknowledged, "it is to collect by weights that it does not hold"
        super()._carry_out(commands)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, mode=MODES)
def test_a_replaced_actor_is_the_same_actor_in_its_next_life(seed: int, mode: str) -> None:
    """Index kept, incarnation one higher each time; its first fragment is made by weights no older than those that were
    current when it came (in synchronous collection: by exactly those that its collect names, which the simulation
    checks), and it collects nothing before it holds some."""
    run = Lives(plan(mode), seed=seed, faults=Faults(loss=0.03, late=0.5))
    assert run.run().status == "finished"
    for begun in run.begun.values():
        assert begun == list(range(len(begun)))
    lost = sum(note.kind == "ACTOR_LOST" for note in run.notes)
    assert lost == sum(len(begun) - 1 for begun in run.begun.values())


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, mode=MODES)
def test_what_a_former_life_sends_after_its_loss_is_never_trained_on(seed: int, mode: str) -> None:
    """Its transitions are produced and dropped as `old_lease`, to the last one."""
    run = Lives(plan(mode), seed=seed, faults=Faults(loss=0.05, late=1.0))
    assert run.run().status == "finished"
    trained = {each.name for each in run.ledger if each.fate == TRAINED}
    assert not trained & run.late.keys()
    assert run.conductor.accounts.dropped.get("old_lease", 0) == sum(run.late.values())


def test_the_properties_above_are_about_something() -> None:
    """Among a few seeds there are replaced actors that made fragments, and late ones."""
    runs = [Lives(plan("async"), seed=seed, faults=Faults(loss=0.05, late=1.0)) for seed in range(5)]
    for run in runs:
        run.run()
    assert any(run.late for run in runs)
    assert any(incarnation for run in runs for _, incarnation in run.first)
