"""Coming into a group: all alike or not at all, before any collective; who does not come is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.clock import ManualClock, MonotonicClock
from common.errors import RunFailedError, SyncError
from common.specs import SpaceSpec
from learner.parallel.config import SyncConfig
from learner.parallel.faults import Untouched
from learner.parallel.group import OneRank
from learner.parallel.joining import Membership, join_group, machine_facts
from learner.parallel.verified import VerifiedGroup
from learner.rank import LearnerRank, RankConfig
from learner.reports import Formation
from tests.learner.ranks import settled
from tests.learner.steps import StepRank
from tests.support import box, layout, rank_config

SHAPE = layout(4)
BASE = rank_config(SHAPE, sync=SyncConfig(collective_s=20.0))


def joined(*configs: RankConfig, number: int = 1) -> list[Any]:
    """Standings, or what was raised, of ranks made from these configurations."""
    ranks = [LearnerRank(config, MonotonicClock(), rank=rank) for rank, config in enumerate(configs)]
    formation = Formation(number=number, ranks=tuple(range(len(ranks))), address=ranks[0].open_meeting())
    return settled([lambda rank=rank: rank.join(formation) for rank in ranks])


def observed(*names: str) -> RankConfig:
    """Of an observation with these parts, which differ in nothing but their order."""
    parts = SpaceSpec(parts=tuple((name, box(2)) for name in names))
    return replace(BASE, layout=replace(SHAPE, observation=parts))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(BASE, seed=8), "config.seed differs; got 8; allowed: 7"),
        (
            replace(BASE, algorithm=replace(BASE.algorithm, clip=0.3)),
            "config.algorithm.clip differs; got 0.3; allowed: 0.2",
        ),
        (
            rank_config(SHAPE, hidden=(8, 8), sync=BASE.learner.sync),
            "config.net.hidden[1] differs; got 8; allowed: None",
        ),
        (rank_config(SHAPE, hidden=(9,), sync=BASE.learner.sync), "config.net.hidden[0] differs; got 9; allowed: 8"),
    ],
)
def test_ranks_of_other_configurations_refuse_alike(config: RankConfig, words: str) -> None:
    """Another seed, hyperparameter, number or size of parameters: every rank names the rank, the place, both values."""
    refusals = joined(BASE, config, BASE)
    assert len({str(refusal) for refusal in refusals}) == 1
    assert isinstance(refusals[0], RunFailedError)
    assert str(refusals[0]).startswith(f"learner rank 1 is not like rank 0: {words}; start every rank from the same")


def test_another_order_of_parameters_is_refused() -> None:
    """Though there are as many, of the same shapes."""
    refusals = joined(observed("a", "b"), observed("b", "a"))
    assert {type(refusal) for refusal in refusals} == {RunFailedError}
    assert "learner rank 1 is not like rank 0: config.layout.observation.parts[0][0] differs" in str(refusals[0])


def test_other_values_of_the_same_network_are_refused_by_the_name_of_the_first_parameter() -> None:
    """The same configuration, an initialiser that drew something else: no digest of the whole would say where."""
    ranks = [LearnerRank(BASE, MonotonicClock(), rank=rank) for rank in range(2)]
    name = list(ranks[1]._parameters.manifest.entries)[2].name
    ranks[1]._parameters.parts[2].data[...] += 1.0
    formation = Formation(number=1, ranks=(0, 1), address=ranks[0].open_meeting())
    refusals = settled([lambda rank=rank: rank.join(formation) for rank in ranks])
    assert len({str(refusal) for refusal in refusals}) == 1
    assert f"learner rank 1 is not like rank 0: values.{name} differs" in str(refusals[0])


def test_other_moments_of_the_same_parameters_are_refused() -> None:
    """A rank that lost its optimiser's state."""
    ranks = [LearnerRank(BASE, MonotonicClock(), rank=rank) for rank in range(2)]
    ranks[1]._optimiser.tensors()[1][0] = 1.0
    formation = Formation(number=1, ranks=(0, 1), address=ranks[0].open_meeting())
    refusals = settled([lambda rank=rank: rank.join(formation) for rank in ranks])
    assert "learner rank 1 is not like rank 0: state differs" in str(refusals[0])


def test_ranks_that_are_alike_stand_alike() -> None:
    """Each has joined, and says where it stands."""
    standings = joined(BASE, BASE, BASE)
    assert [standing.rank for standing in standings] == [0, 1, 2]
    assert len({(standing.updates, standing.state_digest, standing.parameter_digest) for standing in standings}) == 1


def test_who_does_not_come_is_named_by_all_who_have() -> None:
    """Within collective_s; they stand where they stood, and may be formed again."""
    config = rank_config(SHAPE, sync=SyncConfig(collective_s=2.0))
    ranks = [LearnerRank(config, MonotonicClock(), rank=rank) for rank in (3, 5)]
    formation = Formation(number=1, ranks=(3, 4, 5), address=ranks[0].open_meeting())
    results = settled([lambda rank=rank: rank.join(formation) for rank in ranks])
    for rank, result in zip((3, 5), results, strict=True):
        assert isinstance(result, SyncError)
        assert str(result).startswith(f"learner rank {rank} did not hear of learner rank 4 in formation 1")
    again = Formation(number=2, ranks=(3, 5), address=ranks[0].open_meeting())
    standings = settled([lambda rank=rank: rank.join(again) for rank in ranks])
    assert [standing.rank for standing in standings] == [3, 5]


# ── the group that comes out ─────────────────────────────────────────────────────────────────────────────────────


def test_a_group_of_one_meets_nobody() -> None:
    """No address, no connection, no wait."""
    rank = StepRank([4])
    member = Membership(rank=6, description={}, machine={})
    formation = Formation(number=1, ranks=(6,), delay_s=9.0)
    group = join_group(formation, member, None, rank.parameters, SyncConfig(), ManualClock(), Untouched())
    assert isinstance(group, OneRank)
    assert (group.ranks, group.place, group.compares) == ((6,), 0, True)


@pytest.mark.parametrize(
    ("machines", "compares"), [(({"cpu": 1}, {"cpu": 1}), True), (({"cpu": 1}, {"cpu": 2}), False)]
)
def test_ranks_compare_gradients_only_where_machines_are_alike(machines: tuple[Any, Any], compares: bool) -> None:
    """Unlike ones may work together, they only do not audit one another."""
    ranks = [StepRank([4]) for _ in range(2)]
    first = LearnerRank(BASE, MonotonicClock())
    formation = Formation(number=1, ranks=(0, 1), address=first.open_meeting())

    def join(place: int) -> Any:
        member = Membership(rank=place, description={}, machine=machines[place])
        own = first._meeting if place == 0 else None
        return join_group(formation, member, own, ranks[place].parameters, SyncConfig(), MonotonicClock(), Untouched())

    groups = settled([lambda place=place: join(place) for place in range(2)])
    assert all(isinstance(group, VerifiedGroup) for group in groups)
    assert [(group.ranks, group.place, group.compares) for group in groups] == [((0, 1), i, compares) for i in range(2)]


def test_a_formation_waits_before_it_meets() -> None:
    """What the conductor asks for after a failure, on the clock given."""
    clock = ManualClock()
    rank = StepRank([4])
    member = Membership(rank=1, description={}, machine={})
    formation = Formation(number=1, ranks=(0, 1), address="127.0.0.1:1", delay_s=2.5)
    with pytest.raises(SyncError, match="did not reach the meeting place"):
        join_group(formation, member, None, rank.parameters, SyncConfig(collective_s=1.0), clock, Untouched())
    assert clock.now_ns() == 2_500_000_000


def test_facts_of_a_machine_are_plain_and_say_what_decides_the_last_bits() -> None:
    """Version, instruction set, threads, device."""
    rank = LearnerRank(BASE, ManualClock())
    facts = machine_facts(rank._device)
    assert set(facts) == {"torch", "capability", "threads", "device", "gpu"}
    assert (facts["device"], facts["threads"], facts["gpu"]) == ("cpu", 1, "")
