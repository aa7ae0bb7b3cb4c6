"""IMPALA and APPO on several ranks: together one learner, audited bit for bit, and a target network in every state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import CheckpointError, ConfigError
from common.nets import NetConfig
from learner.algorithms.appo import AppoConfig
from learner.algorithms.impala import ImpalaConfig
from learner.algorithms.making import AlgorithmConfig
from learner.audit import SPREAD
from learner.parallel.config import SyncConfig
from learner.parallel.faults import FaultKind, RankFault, flip_bit
from learner.rank import RankConfig
from learner.reports import AuditOrder, Fault, OrderStatus, UpdateReport
from learner.state import InitialWeights, LearnerState
from tests.learner.ranks import Interference, Ranks, rollout
from tests.learner.sequence_lab import with_core
from tests.support import layout, rank_config

SYNC = SyncConfig(bucket_mib=0.004, collective_s=20.0)
GRU = NetConfig(hidden=(16,), core="gru", core_size=8)
IMPALA = ImpalaConfig(minibatches=2, epochs=2, staleness_exponent=0.5)
NORMALISED = ImpalaConfig(minibatches=2, normalise_advantages=True)
APPO = AppoConfig(minibatches=2, epochs=2, target_update_every=2, staleness_exponent=0.5)
ALGORITHMS = {"impala": IMPALA, "normalised": NORMALISED, "appo": APPO}
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


def config(algorithm: AlgorithmConfig, *, net: NetConfig | None = None, **changes: Any) -> RankConfig:
    """Fragments of 8 rows and 8 lanes, a small network."""
    net = net or NetConfig(hidden=(32, 32))
    made = rank_config(with_core(layout(8, 8), net), sync=SYNC, **changes)
    return replace(made, net=net, algorithm=algorithm)


def fragments(config: RankConfig, update: int, valid: Sequence[int] = (64, 64)) -> list[NDArray[np.uint8]]:
    """One of each actor, of as many valid rows; the second actor's was made by the weights before."""
    made = []
    for actor, count in enumerate(valid):
        size = config.layout.state_size
        core = {"core_state": np.random.default_rng(actor).standard_normal((8, size))} if size else {}
        log_prob = np.log(np.random.default_rng([update, actor]).uniform(0.2, 0.9, (8, 8)))
        made.append(rollout(config.layout, update, actor=actor, num_valid=count, log_prob=log_prob, **core))
    return made


def gradient(config: RankConfig, num_ranks: int, valid: Sequence[int]) -> NDArray[np.float32]:
    """Of one step over all rows; the same bits on every rank."""
    ranks = Ranks(config, num_ranks)
    reports = ranks.make(0, fragments(config, 0, valid))
    assert [report.steps for report in reports] == [1] * num_ranks
    gradients = [rank._parameters.gradient.numpy().copy() for rank in ranks.ranks]
    assert len({each.tobytes() for each in gradients}) == 1
    return gradients[0]


# ── together they are one learner ────────────────────────────────────────────────────────────────────────────────


@each_algorithm
@pytest.mark.parametrize("net", [None, GRU], ids=["mlp", "gru"])
@pytest.mark.parametrize("valid", [(64, 64), (56, 8), (1, 0, 63), (0, 0, 5), (1, 1, 1)])
def test_the_gradient_of_several_ranks_is_that_of_one(
    algorithm: AlgorithmConfig, net: NetConfig | None, valid: Sequence[int]
) -> None:
    """To 1e-6 of its norm: rows count alike, whichever rank holds them, also where one holds none."""
    one_step = config(replace(algorithm, minibatches=1, epochs=1), net=net, max_gradient_norm=0.0)
    expected = gradient(one_step, 1, valid)
    difference = np.linalg.norm(gradient(one_step, len(valid), valid) - expected) / np.linalg.norm(expected)
    assert difference < 1e-6


@each_algorithm
@pytest.mark.parametrize("valid", [(56, 8, 64), (1, 0, 63), (64,)])
def test_several_ranks_learn_what_one_learns(algorithm: AlgorithmConfig, valid: Sequence[int]) -> None:
    """Four updates of several minibatches, clipped: parameters, losses and counts of 1, 2 and 3 ranks."""

    def learned(num_ranks: int) -> tuple[NDArray[np.float32], list[UpdateReport]]:
        made = config(algorithm, learning_rate=1e-3)
        ranks = Ranks(made, num_ranks)
        reports = [ranks.make(update, fragments(made, update, valid))[0] for update in range(4)]
        return ranks.parameters(), reports

    expected, alone = learned(1)
    for num_ranks in (2, 3):
        parameters, reports = learned(num_ranks)
        np.testing.assert_allclose(parameters, expected, rtol=0, atol=2e-5)
        for one, several in zip(alone, reports, strict=True):
            assert (several.steps, several.skipped_steps) == (one.steps, one.skipped_steps)
            assert several.statistics == pytest.approx(one.statistics, rel=1e-3, abs=1e-4)


@each_algorithm
def test_an_update_without_any_row_is_made_by_all(algorithm: AlgorithmConfig) -> None:
    """No step, no loss, and the next one works."""
    made = config(algorithm)
    ranks = Ranks(made, 2)
    reports = ranks.make(0, fragments(made, 0, (0, 0)))
    assert {(report.steps, report.trained, len(report.statistics)) for report in reports} == {(0, False, 0)}
    assert all(report.trained for report in ranks.make(1, fragments(made, 1)))


@each_algorithm
def test_a_refused_fragment_is_simply_not_there(algorithm: AlgorithmConfig) -> None:
    """Damaged on its way to rank 1: the update is that of the other fragment alone."""
    made = config(algorithm)
    whole = fragments(made, 0)
    reports = Ranks(made, 2).make(0, [whole[0], whole[1][:-1]])
    alone = Ranks(made, 2).make(0, [whole[0]])
    assert [verdict.refusal for report in reports for verdict in report.verdicts] == ["", "corrupt"]
    assert reports[0].parameter_digest == alone[0].parameter_digest


@each_algorithm
def test_the_lag_of_a_fragment_is_that_of_its_weights(algorithm: AlgorithmConfig) -> None:
    """Made by version 0, trained on in update 1: with x = ½ the first update's gradient is not the second's."""
    weights = replace(algorithm, minibatches=1, epochs=1, staleness_exponent=1.0)
    plain = replace(weights, staleness_exponent=0.0)

    def second(algorithm: AlgorithmConfig) -> NDArray[np.float32]:
        made = config(algorithm, max_lag=2, max_gradient_norm=0.0, learning_rate=1e-12)
        ranks = Ranks(made, 1)
        ranks.make(0, [])
        item = fragments(made, 0, (64,))
        assert ranks.make(1, item)[0].lag == 1
        return ranks.ranks[0]._parameters.gradient.numpy().copy()

    np.testing.assert_allclose(second(weights), second(plain) / 2, rtol=1e-4, atol=1e-8)


# ── audits ───────────────────────────────────────────────────────────────────────────────────────────────────────


@each_algorithm
@pytest.mark.parametrize("net", [None, GRU], ids=["mlp", "gru"])
@pytest.mark.parametrize(("num_ranks", "audited", "auditors"), [(1, 0, ()), (2, 1, (0,)), (3, 1, (2, 0))])
def test_a_sound_rank_passes_and_an_audit_changes_not_a_bit(
    algorithm: AlgorithmConfig, net: NetConfig | None, num_ranks: int, audited: int, auditors: tuple[int, ...]
) -> None:
    """Recomputed bit for bit by itself and by others, in every step in turn."""
    made, order = config(algorithm, net=net), AuditOrder(audited=audited, auditors=auditors)
    ranks, twin = Ranks(made, num_ranks), Ranks(made, num_ranks)
    for update in range(4):
        reports = ranks.make(update, fragments(made, update, (64, 60, 64)[:num_ranks]), audit=order)
        assert {report.sync.audited for report in reports} == {True}
        twin.make(update, fragments(made, update, (64, 60, 64)[:num_ranks]))
    assert ranks.ranks[0].standing().state_digest == twin.ranks[0].standing().state_digest


@each_algorithm
def test_an_auditor_weighs_stale_fragments_as_their_own_rank_does(algorithm: AlgorithmConfig) -> None:
    """A lag of 1 on both sides: agreed."""
    made = config(replace(algorithm, staleness_exponent=1.0))
    ranks = Ranks(made, 2)
    ranks.make(0, [])
    reports = ranks.make(1, fragments(made, 0), audit=AuditOrder(audited=1, auditors=(0,)))
    assert {(report.lag, report.sync.audited) for report in reports} == {(1, True)}


@each_algorithm
def test_an_auditor_that_cannot_read_the_fragments_takes_no_part(algorithm: AlgorithmConfig) -> None:
    """It holds no rows, as many as its own share has: the audited rank's word stands, and nobody is accused."""
    made = config(algorithm)
    ranks = Ranks(made, 2)
    auditor = ranks.ranks[0]
    update = auditor.update
    auditor.update = lambda order, own, audited: update(order, own, [b"noise"] * len(audited))  # type: ignore[method-assign]
    reports = ranks.make(0, fragments(made, 0, (0, 64)), audit=AuditOrder(audited=1, auditors=(0,)))
    assert {report.sync.audited for report in reports} == {True}


@each_algorithm
@pytest.mark.parametrize("update", [0, 1])
def test_a_wrong_gradient_is_found_by_an_audit(algorithm: AlgorithmConfig, update: int) -> None:
    """A bit of the gradient that rank 1 uses, in the audited step: it contradicts itself."""
    made = config(algorithm)
    step = update * SPREAD % (algorithm.minibatches * algorithm.epochs)
    fault = RankFault(kind=FaultKind.FLIP_LOCAL, rank=1, update=update, step=step, element=500, bit=22)
    ranks = Ranks(made, 2, [fault])
    for earlier in range(update):
        ranks.make(earlier, fragments(made, earlier))
    reports = ranks.update(update, fragments(made, update), audit=AuditOrder(audited=1, auditors=(0,)))
    assert {report.status for report in reports} == {OrderStatus.DISPUTED}
    attribution = reports[0].sync.attribution
    assert attribution is not None and attribution.ranks == (1,)
    assert attribution.dispute.fault is Fault.LOCAL_GRADIENT and attribution.dispute.step == step


# ── the target network ───────────────────────────────────────────────────────────────────────────────────────────


def target_of(ranks: Ranks, rank: int = 0) -> NDArray[np.float32]:
    """In its state."""
    found = ranks.ranks[rank].state().target
    assert found is not None
    return found


def test_the_target_follows_at_every_second_update() -> None:
    """It is the parameters as they were after the last even number of updates; no other algorithm has one."""
    made = config(APPO)
    ranks = Ranks(made, 2)
    history = [ranks.parameters().copy()]
    for update in range(4):
        ranks.make(update, fragments(made, update))
        history.append(ranks.parameters().copy())
        expected = history[(update + 1) // 2 * 2]
        assert target_of(ranks, 0).tobytes() == target_of(ranks, 1).tobytes() == expected.tobytes()
    assert len({each.tobytes() for each in history}) == 5
    assert Ranks(config(IMPALA), 1).ranks[0].state().target is None


def test_a_resume_goes_on_bit_for_bit() -> None:
    """From arrays and document after an odd number of updates, where target and parameters differ."""
    made = config(APPO)
    through, first = Ranks(made, 1), Ranks(made, 1)
    for update in range(5):
        through.make(update, fragments(made, update))
    for update in range(3):
        first.make(update, fragments(made, update))
    state = first.ranks[0].state()
    assert state.target is not None and state.target.tobytes() != state.parameters.tobytes()
    resumed = Ranks(made, 1)
    standing = resumed.ranks[0].adopt(LearnerState.read(state.tensors(), state.document()))
    assert standing.state_digest == first.ranks[0].standing().state_digest
    for update in range(3, 5):
        resumed.make(update, fragments(made, update))
    assert resumed.ranks[0].standing().state_digest == through.ranks[0].standing().state_digest


def test_a_replacement_takes_the_survivors_target_and_the_redo_is_the_twins() -> None:
    """Rank 1 is lost in update 3, when target and parameters differ."""

    def breaks(*_: Any) -> None:
        raise RuntimeError("here")

    made = config(APPO)
    ranks = Ranks(made, 2, tampers={1: Interference("sent", breaks, step=2, updates=(3,))})
    twin = Ranks(made, 2)
    for update in range(3):
        ranks.make(update, fragments(made, update))
    ranks.settled(3, fragments(made, 3))
    replacement = Ranks(made, 1).ranks[0]
    replacement._rank = 1
    assert replacement.adopt(ranks.ranks[0].state()).state_digest == ranks.ranks[0].standing().state_digest
    ranks.ranks[1] = replacement
    ranks.form()
    ranks.make(3, fragments(made, 3))
    for update in range(4):
        twin.make(update, fragments(made, update))
    assert ranks.ranks[0].standing().state_digest == twin.ranks[0].standing().state_digest


def test_a_disputed_update_restores_the_target() -> None:
    """It would have followed in this update: the start has the old one, and the redo is the twin's."""
    made = config(APPO)
    fault = RankFault(kind=FaultKind.FLIP_REDUCED, rank=0, update=1, step=1, element=11, bit=20)
    ranks, twin = Ranks(made, 2, [fault]), Ranks(made, 2)
    ranks.make(0, fragments(made, 0))
    before = target_of(ranks)
    assert {report.status for report in ranks.update(1, fragments(made, 1))} == {OrderStatus.DISPUTED}
    assert target_of(ranks).tobytes() == before.tobytes()
    ranks.make(1, fragments(made, 1))
    for update in range(2):
        twin.make(update, fragments(made, update))
    assert ranks.ranks[0].standing().state_digest == twin.ranks[0].standing().state_digest


def test_a_target_that_strayed_is_found_with_the_parameters_it_belongs_to() -> None:
    """One bit of one rank's target: a dispute about the state, the rank named by the redo."""
    made = config(APPO)
    ranks = Ranks(made, 2)
    target = ranks.ranks[1]._target
    assert target is not None
    ranks.ranks[1]._tamper = Interference("stepped", lambda _: flip_bit(target.vector, 5, 0), step=3)
    ranks.form()
    (dispute,) = ranks.update(0, fragments(made, 0))[0].sync.disputes
    assert dispute.fault is Fault.PARAMETERS and dispute.parameters
    report = ranks.make(0, fragments(made, 0))[0]
    assert report.sync.attribution is not None and report.sync.attribution.ranks == (1,)


def test_a_state_without_a_target_begins_with_the_parameters() -> None:
    """Checkpoints of other algorithms, and weights to begin from, hold none."""
    made = config(APPO)
    other = Ranks(config(IMPALA), 1)
    other.make(0, fragments(made, 0))
    state = other.ranks[0].state()
    assert "target" not in state.tensors()
    ranks = Ranks(made, 1)
    ranks.ranks[0].adopt(state)
    assert target_of(ranks).tobytes() == state.parameters.tobytes()
    begun = Ranks(made, 1)
    begun.ranks[0].adopt(InitialWeights(flat=state.parameters, fingerprint=state.manifest_fingerprint))
    assert target_of(begun).tobytes() == begun.parameters().tobytes() == state.parameters.tobytes()


def test_a_target_of_another_size_is_refused() -> None:
    """Before anything is adopted."""
    ranks = Ranks(config(APPO), 1)
    state = ranks.ranks[0].state()
    tensors = state.tensors() | {"target": np.zeros(3, np.float32)}
    with pytest.raises(CheckpointError, match=r"target network; got float32\(3,\)"):
        LearnerState.read(tensors, state.document())


# ── what does not fit together ───────────────────────────────────────────────────────────────────────────────────


def test_ppo_refuses_a_recurrent_network() -> None:
    """It shuffles rows; the error names the algorithms that do not."""
    with pytest.raises(ConfigError, match="use algo = 'appo' or 'impala'"):
        replace(rank_config(layout(8, 8)), net=GRU)


@pytest.mark.parametrize("kind", [ImpalaConfig, AppoConfig])
def test_more_minibatches_than_lanes_are_as_many_as_there_are_lanes(kind: type[ImpalaConfig | AppoConfig]) -> None:
    """A part without a lane is no step: 8 lanes cut into 20 parts make 8 steps, on one rank and on two."""
    made = config(kind(minibatches=20, epochs=1))
    assert [Ranks(made, number).make(0, fragments(made, 0, (64, 64)))[0].steps for number in (1, 2)] == [8, 8]
