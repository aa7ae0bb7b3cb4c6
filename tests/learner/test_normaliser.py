"""Statistics of what is trained on: each fragment once, the same bits on any number of ranks, gone with what is undone.

The judge is a single-process filter over the same rows, in exact arithmetic (`math.fsum`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.clock import ManualClock
from common.errors import CheckpointError
from common.fragment import End, FragmentLayout, decode_fragment
from common.normalize import InputScale, ProcessingConfig
from common.weights import decode_weights
from learner.algorithms.appo import AppoConfig
from learner.algorithms.impala import ImpalaConfig
from learner.intake import Accepted
from learner.normaliser import Normaliser
from learner.parallel.config import SyncConfig
from learner.parallel.faults import FaultKind, RankFault
from learner.rank import LearnerRank, RankConfig
from learner.reports import AuditOrder, Formation, FragmentKey, OrderStatus, UpdateOrder, UpdateReport
from learner.state import InitialWeights, LearnerState
from tests.learner.ranks import Ranks, rollout
from tests.support import ActingCopy, document, layout, rank_config

ON = ProcessingConfig(normalise_observations=True, normalise_rewards=True, reward_scale=0.5, reward_clip=0.8)
OFF = ProcessingConfig()
SYNC = SyncConfig(collective_s=20.0)
DISCOUNT = 0.99


def shape_of(processing: ProcessingConfig, rows: int = 6, lanes: int = 4) -> FragmentLayout:
    """Fragments of two floats."""
    return replace(layout(rows, lanes), returns=processing.normalise_rewards)


def config(processing: ProcessingConfig = ON, **changes: Any) -> RankConfig:
    """A small learner that normalises."""
    return replace(rank_config(shape_of(processing), sync=SYNC, **changes), processing=processing)


def fragments(update: int, actors: int = 2, *, shape: FragmentLayout | None = None) -> list[NDArray[np.uint8]]:
    """One of each actor, of 24, 23, 22 ... valid rows, observations around 50 + actor, with an end in the middle."""
    shape = shape or shape_of(ON)
    rows, lanes = shape.num_rows, shape.num_lanes
    made = []
    for actor in range(actors):
        rng = np.random.default_rng([update, actor, 7])
        end = np.zeros((rows, lanes), np.uint8)
        end[rows // 2, 0] = End.TRUNCATED
        arrays = {"obs": 50.0 + actor + rng.standard_normal((rows + 1, lanes, 2)), "end": end}
        if shape.returns:
            arrays["return_before"] = rng.standard_normal(lanes)
        made.append(rollout(shape, update, actor=actor, num_valid=rows * lanes - actor, **arrays))
    return made


def filtered(documents: Sequence[NDArray[np.uint8]], processing: ProcessingConfig = ON) -> tuple[list[float], ...]:
    """What one process comes to that sees every row of every fragment once: count, means, variances."""
    columns: list[list[float]] = [[], [], []]
    shape = shape_of(processing)
    for item in documents:
        fragment = decode_fragment(item, shape)
        for lane in range(shape.num_lanes):
            running = float(fragment.return_before[lane])
            for t in range(shape.num_rows):
                if not fragment.valid[t, lane]:
                    continue
                reward = max(-0.8, min(0.8, 0.5 * float(fragment.reward[t, lane])))
                running = DISCOUNT * running + reward
                for column, value in zip(columns, (*fragment.observation["obs"][t, lane], running), strict=True):
                    column.append(float(value))
                if fragment.end[t, lane]:
                    running = 0.0
    means = [math.fsum(column) / len(column) for column in columns]
    squares = [math.fsum((x - mean) ** 2 for x in column) for column, mean in zip(columns, means, strict=True)]
    return [float(len(columns[0]))], means, [each / len(columns[0]) for each in squares]


def check_moments(normaliser: Normaliser, documents: Sequence[NDArray[np.uint8]]) -> None:
    """To 1e-12, relative."""
    (count,), means, variances = filtered(documents)
    assert normaliser.moments.count == count
    np.testing.assert_allclose(normaliser.moments.mean(), means, rtol=1e-12)
    np.testing.assert_allclose(normaliser.moments.variance(), variances, rtol=1e-12)


def moments_of(rank: LearnerRank) -> bytes:
    """Every bit of a rank's statistics."""
    return rank._normaliser.moments.numbers.tobytes()


def alone(settings: RankConfig | None = None) -> LearnerRank:
    """A rank that is a group of one and has published version 0."""
    rank = LearnerRank(settings or config(), ManualClock())
    rank.join(Formation(number=1, ranks=(0,)))
    rank.publish(version=0, term=0)
    return rank


def order(update: int, *names: tuple[int, int, int]) -> UpdateOrder:
    """For fragments named (actor, incarnation, sequence); by default those of two actors for this update."""
    named = names or ((0, 0, update), (1, 0, update))
    keys = tuple(FragmentKey(actor=a, incarnation=i, sequence=s) for a, i, s in named)
    return UpdateOrder(update=update, term=0, publish_as=update + 1, keys=keys)


def made(rank: LearnerRank, update: int, documents: Sequence[Any]) -> tuple[UpdateReport, NDArray[np.uint8]]:
    """An update of the fragments of two actors."""
    report, weights = rank.update(order(update), documents)
    assert report.status == OrderStatus.MADE and weights is not None
    return report, weights


# Exactly once, on any number of ranks


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
def test_statistics_are_those_of_a_single_process_that_saw_every_row_once(num_ranks: int) -> None:
    """Over three updates of three actors, also where ranks have nothing to decode; the same bits on every rank."""
    ranks, seen = Ranks(config(), num_ranks), []
    for update in range(3):
        documents = fragments(update, 3)
        seen += documents
        ranks.make(update, documents)
        check_moments(ranks.ranks[0]._normaliser, seen)
    assert len({moments_of(rank) for rank in ranks.ranks}) == 1


def test_their_bits_do_not_depend_on_the_number_of_ranks() -> None:
    """One, two and four ranks that make the same two updates."""
    bits = set()
    for num_ranks in (1, 2, 4):
        ranks = Ranks(config(), num_ranks)
        for update in range(2):
            ranks.make(update, fragments(update, 4))
        bits.add(moments_of(ranks.ranks[0]))
    assert len(bits) == 1


def test_counts_grow_by_the_rows_of_an_update_and_by_no_more() -> None:
    """C29: 2 actors, 12 updates. Wrong is a count that doubles and more at every one."""
    rank = alone()
    rows = [made(rank, update, fragments(update))[0].statistics["normaliser_rows"] for update in range(12)]
    assert rows == [47.0 * (update + 1) for update in range(12)]


def test_a_duplicate_a_late_and_a_reordered_fragment_add_nothing() -> None:
    """C29: of a dead incarnation, of one seen before, and of one that its successor has overtaken."""
    rank, twin = alone(config(max_lag=5)), alone(config(max_lag=5))
    shape = shape_of(ON)

    def fragment(incarnation: int, sequence: int, update: int) -> NDArray[np.uint8]:
        header = {"incarnation": incarnation, "sequence": sequence, "version": update, "update": update}
        rng = np.random.default_rng([incarnation, sequence])
        return document(shape, header=header, obs=rng.standard_normal((7, 4, 2)), reward=rng.standard_normal((6, 4)))

    good = [(1, 0, 0), (1, 2, 1)]
    for update, (incarnation, sequence, _) in enumerate(good):
        rank.update(order(update, (0, incarnation, sequence)), [fragment(incarnation, sequence, update)])
        twin.update(order(update, (0, incarnation, sequence)), [fragment(incarnation, sequence, update)])
    bad = [(1, 2), (1, 1), (0, 7)]
    report, _ = rank.update(
        order(2, *((0, incarnation, sequence) for incarnation, sequence in bad)),
        [fragment(incarnation, sequence, 2) for incarnation, sequence in bad],
    )
    twin.update(replace(order(2), keys=()), [])
    assert [verdict.refusal for verdict in report.verdicts] == ["duplicate", "duplicate", "old_incarnation"]
    assert moments_of(rank) == moments_of(twin)
    check_moments(rank._normaliser, [fragment(1, 0, 0), fragment(1, 2, 1)])


def test_invalid_rows_count_nowhere_whatever_is_in_them() -> None:
    """C16: NaN and infinities in rows that are no transition; the statistics are those of the others."""
    shape, valid = shape_of(ON), np.ones((6, 4), np.uint8)
    valid[2:4, 1] = 0
    rng = np.random.default_rng(0)
    obs, reward = rng.standard_normal((7, 4, 2)), rng.standard_normal((6, 4))
    end = np.zeros((6, 4), np.uint8)
    end[2, 1] = End.BROKEN
    bits = []
    for filler in (0.0, np.nan, np.inf):
        shown = obs.copy()
        shown[2:4, 1] = filler
        rank = alone()
        item = document(shape, obs=shown, reward=np.where(valid, reward, 0.0), valid=valid, end=end)
        report, _ = rank.update(order(0, (0, 0, 0)), [item])
        assert report.skipped_steps == 0 and report.statistics["normaliser_refused"] == 0.0
        bits.append(moments_of(rank))
    assert len(set(bits)) == 1


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_fragment_that_is_not_finite_where_it_counts_is_left_out_and_counted(num_ranks: int) -> None:
    """What got past the border check spoils its own gradient step, and no statistics."""
    ranks = Ranks(config(), num_ranks)
    good, bad = fragments(0)[0], fragments(0)[1]
    obs = decode_fragment(bad, shape_of(ON)).observation["obs"].copy()
    obs[0, 0, 1] = np.inf
    reports = ranks.make(0, [good, rollout(shape_of(ON), 0, actor=1, obs=obs)])
    assert {report.statistics["normaliser_refused"] for report in reports} == {1.0}
    check_moments(ranks.ranks[0]._normaliser, [good])
    assert ranks.make(1, fragments(1))[0].statistics["normaliser_refused"] == 0.0


# What is made of them


def scale_in(weights: NDArray[np.uint8], rank: LearnerRank) -> InputScale:
    """What travels with weights."""
    bundle = decode_weights(weights, rank._parameters.manifest)
    scale = InputScale.from_plain(bundle.header.extra, shape_of(ON).observation)
    assert scale is not None
    return scale


def test_weights_bear_the_statistics_of_all_updates_they_contain() -> None:
    """Before any row observations are only clipped; behind an update, by all that it was made of."""
    rank = LearnerRank(config(), ManualClock())
    rank.join(Formation(number=1, ranks=(0,)))
    first = scale_in(rank.publish(version=0, term=0), rank)
    assert (first.mean.tolist(), first.factor.tolist(), first.clip) == ([0.0, 0.0], [1.0, 1.0], 10.0)
    documents = fragments(0)
    second = scale_in(made(rank, 0, documents)[1], rank)
    _, means, variances = filtered(documents)
    np.testing.assert_allclose(second.mean, means[:2], rtol=1e-12)
    np.testing.assert_allclose(second.factor, [1.0 / math.sqrt(v + 1e-8) for v in variances[:2]], rtol=1e-12)


def test_observations_are_seen_by_the_statistics_that_acted() -> None:
    """A fragment without lag is on-policy: KL 0 in the first step, though the update changes the statistics."""
    rank = alone(config(epochs=1, minibatch=1000))
    _, weights = made(rank, 0, fragments(0))
    acting, shape, obs = ActingCopy(config()), shape_of(ON), 50.0 + np.random.default_rng(3).standard_normal((7, 4, 2))
    acting.follow(weights)
    scale = scale_in(weights, rank)
    seen = np.clip((obs.astype(np.float32) - scale.mean) * scale.factor, -10, 10).astype(np.float32)
    rows = {n: each.reshape(7, 4) for n, each in acting.act(seen.reshape(28, 2), np.random.default_rng(1)).items()}
    arrays = {"action": rows["action"][:-1], "log_prob": rows["log_prob"][:-1], "value": rows["value"]}
    item = document(shape, header={"sequence": 1, "version": 1, "update": 1}, obs=obs, **arrays)
    before = moments_of(rank)
    report, _ = rank.update(order(1, (0, 0, 1)), [item])
    assert report.statistics["approximate_kl"] == 0.0
    assert moments_of(rank) != before


def judged(items: Sequence[NDArray[np.uint8]], processing: ProcessingConfig = ON) -> list[Accepted]:
    """Fragments as the intake hands them on."""
    return [Accepted(fragment=decode_fragment(item, shape_of(processing)), lag=0, gap=0) for item in items]


class Alone:
    """The exchange of a group of one."""

    ranks, place = (0,), 0

    def exchange(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return numbers[None]


def test_rewards_are_scaled_clipped_and_divided_by_the_deviation_of_the_return() -> None:
    """Of all returns so far, those of the update itself among them: already the first is on their scale."""
    normaliser, documents = Normaliser(ON, shape_of(ON), DISCOUNT), fragments(0)
    group: Any = Alone()
    accepted = judged(documents)
    normaliser.merge(order(0).keys, accepted, group)
    deviation = math.sqrt(filtered(documents)[2][2] + 1e-8)
    raw = accepted[0].fragment.reward
    expected = np.clip(0.5 * raw.astype(np.float64), -0.8, 0.8) / deviation
    processed = normaliser.processed(accepted[0])
    np.testing.assert_allclose(processed.fragment.reward, expected, rtol=1e-6)
    assert processed.fragment.reward.dtype == np.float32
    assert accepted[0].fragment.reward is raw and (processed.lag, processed.gap) == (0, 0)
    assert normaliser.statistics()["return_deviation"] == pytest.approx(deviation, rel=1e-6)


def test_rewards_can_be_shaped_without_any_statistics() -> None:
    """Scale and clip alone: no exchange, no statistics, nothing with the weights."""
    processing = ProcessingConfig(reward_scale=2.0, reward_clip=1.0)
    normaliser = Normaliser(processing, shape_of(processing), DISCOUNT)
    group: Any = None
    normaliser.merge(order(0).keys, [], group)
    item = document(shape_of(processing), reward=np.full((6, 4), 0.25), obs=np.zeros((7, 4, 2)))
    (accepted,) = judged([item], processing)
    assert normaliser.processed(accepted).fragment.reward.tolist() == [[0.5] * 4] * 6
    assert (normaliser.width, normaliser.array(), normaliser.extra(), normaliser.statistics()) == (0, None, {}, {})


def test_off_costs_nothing_and_changes_nothing() -> None:
    """The same fragment goes on, no network has a stage, and states are those of a learner that knows none of this."""
    normaliser = Normaliser(OFF, shape_of(OFF), DISCOUNT)
    item = document(shape_of(OFF), obs=np.zeros((7, 4, 2)))
    (accepted,) = judged([item], OFF)
    assert normaliser.processed(accepted) is accepted
    rank = alone(config(OFF))
    report, weights = made(rank, 0, [rollout(shape_of(OFF), 0, actor=actor) for actor in range(2)])
    assert rank._model.input_stage is None and rank.state().statistics is None
    assert not any(name.startswith(("normaliser", "return")) for name in report.statistics)
    assert decode_weights(weights, rank._parameters.manifest).header.extra == {}


@pytest.mark.parametrize("algorithm", [ImpalaConfig(minibatches=2), AppoConfig(minibatches=2)])
@pytest.mark.parametrize("core", ["none", "gru"])
def test_sequence_algorithms_learn_from_normalised_observations_too(algorithm: Any, core: Any) -> None:
    """Two ranks: the target network of appo sees as the network does, and steps stay verified."""
    shape = replace(shape_of(ON), state_size=8 if core == "gru" else 0)
    base = config()
    settings = replace(
        base, layout=shape, algorithm=algorithm, net=replace(base.net, core=core, core_size=8, hidden=(8,))
    )
    ranks = Ranks(settings, 2)
    for update in range(2):
        ranks.make(update, fragments(update, shape=shape))
    for rank in ranks.ranks:
        assert rank._model.input_stage is not None
        assert rank._target is None or rank._target.model.input_stage is rank._model.input_stage


# What is undone, saved and handed over


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_disputed_update_leaves_no_trace_in_them(num_ranks: int) -> None:
    """The redo merges what the first attempt merged, once."""
    fault = RankFault(kind=FaultKind.FLIP_PARAMETER, rank=1, update=1, bit=20)
    ranks, twin = Ranks(config(), num_ranks, faults=[fault]), Ranks(config(), num_ranks)
    for each in (ranks, twin):
        each.make(0, fragments(0))
    before = moments_of(ranks.ranks[0])
    assert ranks.update(1, fragments(1))[0].status == OrderStatus.DISPUTED
    assert {moments_of(rank) for rank in ranks.ranks} == {before}
    ranks.make(1, fragments(1))
    twin.make(1, fragments(1))
    assert ranks.ranks[0].standing() == twin.ranks[0].standing()
    assert moments_of(ranks.ranks[0]) == moments_of(twin.ranks[0])


def test_a_bit_of_them_that_strays_on_one_rank_is_disputed() -> None:
    """They are part of the state that ranks compare; they belong to no parameter."""
    ranks = Ranks(config(), 2)
    ranks.make(0, fragments(0))
    ranks.ranks[1]._normaliser.moments.numbers.view(np.uint64)[3] ^= 1
    report = ranks.settled(1, fragments(1))[0]
    assert isinstance(report, UpdateReport)
    (dispute,) = report.sync.disputes
    assert (dispute.fault.value, dispute.parameters) == ("parameters", ()) and dispute.chunks


def test_an_auditor_sees_rewards_as_the_audited_rank_does() -> None:
    """The recomputed gradient of another rank's fragments has that rank's bits."""
    ranks = Ranks(config(), 2)
    ranks.make(0, fragments(0))
    reports = ranks.make(1, fragments(1), audit=AuditOrder(audited=0, auditors=(1,)))
    assert all(report.sync.audited for report in reports)


def through_disk(state: LearnerState) -> LearnerState:
    """As a checkpoint has it."""
    return LearnerState.read({n: a.copy() for n, a in state.tensors().items()}, state.document())


def test_a_learner_goes_on_from_its_saved_state_bit_for_bit() -> None:
    """Also where it goes on as two ranks of which neither made the statistics."""
    rank = alone()
    for update in range(2):
        made(rank, update, fragments(update))
    state = through_disk(rank.state())
    report, weights = made(rank, 2, fragments(2))
    again = LearnerRank(config(), ManualClock())
    again.adopt(state)
    again.join(Formation(number=1, ranks=(0,)))
    resumed, same = made(again, 2, fragments(2))
    assert resumed.state_digest == report.state_digest and same.tobytes() == weights.tobytes()
    pair = Ranks(config(), 2)
    for each in pair.ranks:
        each.adopt(state)
    pair.form()
    pair.make(2, fragments(2))
    assert {moments_of(each) for each in pair.ranks} == {moments_of(rank)}


def test_what_is_handed_out_is_a_copy() -> None:
    """A state that was taken does not change with the next update."""
    rank = alone()
    made(rank, 0, fragments(0))
    state = rank.state()
    assert state.statistics is not None
    before = state.statistics.tobytes()
    made(rank, 1, fragments(1))
    assert state.statistics.tobytes() == before != moments_of(rank)


def test_another_run_begins_with_them() -> None:
    """Weights mean something only by the statistics that they were trained with."""
    rank, other = alone(), alone(config(seed=8))
    made(rank, 0, fragments(0))
    other.adopt(rank.state().as_beginning())
    assert moments_of(other) == moments_of(rank)
    assert scale_in(other.publish(version=1, term=0), other).mean.tolist()[0] == pytest.approx(50.5, abs=0.5)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(ON, OFF), (OFF, ON), (ON, replace(ON, normalise_rewards=False))],
    ids=["had some", "had none", "had more"],
)
def test_statistics_of_another_kind_are_refused_and_nothing_changes(
    given: ProcessingConfig, wanted: ProcessingConfig
) -> None:
    """Whether they come as another run's weights or as a state."""
    source, rank = alone(config(given, seed=8)), alone(config(wanted))
    before = rank.standing()
    states: list[LearnerState | InitialWeights] = [source.state(), source.state().as_beginning()]
    for state in states:
        with pytest.raises(CheckpointError, match="statistics of weights that see observations or rewards in another"):
            rank.adopt(state)
        assert rank.standing() == before
