"""One learner rank from documents to documents: it learns, it accounts, it resumes bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.clock import ManualClock
from common.errors import CheckpointError, ConfigError
from common.fragment import End, FragmentLayout
from common.weights import decode_weights
from common.wire import pack_plain
from learner.rank import LearnerConfig, LearnerRank, RankConfig
from learner.reports import Formation, OrderStatus, UpdateOrder, UpdateReport
from learner.schedules import Schedule
from learner.state import InitialWeights, LearnerState
from tests.support import ActingCopy, box, document, layout, rank_config

SHAPE = layout(6, 2)


def rollout(sequence: int, *, actor: int = 0, shape: FragmentLayout = SHAPE, **arrays: Any) -> NDArray[np.uint8]:
    """Fragment `sequence` of an actor that acted with the version of the same number: random, or as given."""
    rng = np.random.default_rng([sequence, actor])
    rows = (shape.num_rows, shape.num_lanes)
    random = {
        "obs": rng.standard_normal((rows[0] + 1, rows[1], *shape.observation["obs"].shape)),
        "action": rng.integers(0, 2, rows),
        "reward": rng.standard_normal(rows),
        "log_prob": np.full(rows, np.log(0.5)),
        "value": rng.standard_normal((rows[0] + 1, rows[1])),
    }
    header = {"actor": actor, "sequence": sequence, "version": sequence, "update": sequence}
    return document(shape, header=header, **(random | arrays))


def order(update: int) -> UpdateOrder:
    """Update number `update`, published as the next version."""
    return UpdateOrder(update=update, term=0, publish_as=update + 1)


def alone(config: RankConfig) -> LearnerRank:
    """A rank that is a group of one."""
    rank = LearnerRank(config, ManualClock())
    rank.join(Formation(number=1, ranks=(0,)))
    return rank


def started(config: RankConfig | None = None) -> LearnerRank:
    """A rank that has published version 0."""
    rank = alone(config or rank_config(SHAPE))
    rank.publish(version=0, term=0)
    return rank


def run(rank: LearnerRank, updates: range) -> list[tuple[UpdateReport, bytes]]:
    """Some updates from one fragment each of two actors."""
    done = []
    for update in updates:
        report, weights = rank.update(order(update), [rollout(update, actor=0), rollout(update, actor=1)])
        done.append((report, weights.tobytes()))
    return done


# ── learning ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_better_arm_of_a_bandit_is_found() -> None:
    """Episodes of one step, reward 1 for action 1 and 0 for action 0: in six updates its probability passes 0.9."""
    shape = layout(32, 4, obs=box(1))
    config = rank_config(shape, learning_rate=3e-2, minibatch=64, epochs=6)
    rank, acting, rng = alone(config), ActingCopy(config), np.random.default_rng(0)
    acting.follow(rank.publish(version=0, term=0))
    obs = np.ones((33, 4, 1), np.float32)
    valid = np.tile([[1], [0]], (16, 4)).astype(np.uint8)  # every other row is a final observation
    assert acting.probabilities(obs[0])[0, 1] < 0.6
    for update in range(6):
        acted = {name: part.reshape(33, 4) for name, part in acting.act(obs.reshape(-1, 1), rng).items()}
        item = document(
            shape,
            header={"sequence": update, "version": update, "update": update},
            obs=obs,
            action=acted["action"][:-1],
            log_prob=acted["log_prob"][:-1],
            value=acted["value"],
            reward=acted["action"][:-1] * valid,
            valid=valid,
            end=np.where(valid, End.TERMINATED, End.CONTINUES),
        )
        report, weights = rank.update(order(update), [item])
        acting.follow(weights)
        assert report.trained and report.verdicts[0].num_valid == 64
    assert acting.probabilities(obs[0])[0, 1] > 0.9


def test_at_the_first_pass_the_learner_agrees_with_the_actor() -> None:
    """C03: a stored action's log-probability has the actor's bits when learning: KL 0, nothing clipped."""
    config = rank_config(SHAPE, epochs=1, minibatch=1000)
    rank, acting = alone(config), ActingCopy(config)
    acting.follow(rank.publish(version=0, term=0))
    obs = np.random.default_rng(0).standard_normal((7, 2, 2)).astype(np.float32)
    acted = acting.act(obs.reshape(14, 2), np.random.default_rng(1))
    rows = {name: part.reshape(7, 2) for name, part in acted.items()}
    item = document(SHAPE, obs=obs, action=rows["action"][:-1], log_prob=rows["log_prob"][:-1], value=rows["value"])
    report, _ = rank.update(order(0), [item])
    assert report.statistics["approximate_kl"] == 0.0
    assert report.statistics["clip_fraction"] == 0.0


# ── accounting ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_report_says_what_became_of_each_document() -> None:
    """One verdict per document in the order given; lag and gaps of the whole order."""
    rank = started()
    run(rank, range(2))
    late = rollout(1, actor=2)
    documents = [rollout(2), rollout(2), b"noise", late, rollout(3, actor=1)]
    report, _ = rank.update(order(2), documents)
    assert [verdict.refusal for verdict in report.verdicts] == ["", "duplicate", "corrupt", "", "unknown_version"]
    assert [verdict.num_valid for verdict in report.verdicts] == [12, 0, 0, 12, 0]
    assert (report.update, report.version, report.term, report.lag) == (2, 3, 0, 1)
    assert report.gaps == 1 + 1  # actor 2 begins at 1; actor 1 left out 2
    assert report.trained


def test_an_order_of_refused_documents_trains_nothing_and_still_publishes() -> None:
    """The version is due: the same parameters go out under it."""
    rank = started()
    before = rank.state()
    report, weights = rank.update(order(0), [b"noise"])
    assert not report.trained and report.statistics == {}
    after = decode_weights(weights, rank_manifest(rank))
    assert (after.header.version, after.header.update) == (1, 1)
    assert after.flat.tobytes() == before.parameters.tobytes()
    assert report.parameter_digest == before.parameter_digest
    assert run(rank, range(1, 2))[0][0].trained


def rank_manifest(rank: LearnerRank) -> Any:
    """The names, shapes and order of a rank's parameters."""
    return rank._parameters.manifest  # the document is read as an actor reads it, which has the same network


def test_a_poisoned_fragment_is_skipped_and_the_next_one_trained_on() -> None:
    """C16: parameters and optimiser to the last bit, and the parameter named; update 1 then works."""
    rank = started()
    before = rank.state()
    report, _ = rank.update(order(0), [rollout(0, log_prob=np.full((6, 2), np.nan))])
    after = rank.state()
    assert (report.trained, report.skipped_at.split(".")[0]) == (False, "body")
    assert report.skipped_steps == 2 * 3
    assert after.parameters.tobytes() == before.parameters.tobytes()
    assert all(after.optimiser[name].tobytes() == before.optimiser[name].tobytes() for name in before.optimiser)
    assert run(rank, range(1, 2))[0][0].trained


def test_filler_rows_change_no_weight() -> None:
    """C02: NaN in the reward and log-probability of invalid rows, any action: the same weights, bit for bit."""
    valid, end = np.ones((6, 2), np.uint8), np.zeros((6, 2), np.uint8)
    valid[3], end[2] = 0, End.TRUNCATED

    def trained(garbage: float, action: int) -> bytes:
        arrays: dict[str, NDArray[Any]] = {"reward": np.ones((6, 2)), "log_prob": np.full((6, 2), np.log(0.5))}
        arrays["action"] = np.tile([[0], [1]], (3, 2))
        arrays["reward"][3], arrays["log_prob"][3], arrays["action"][3] = garbage, garbage, action
        report, weights = started().update(order(0), [rollout(0, valid=valid, end=end, **arrays)])
        assert report.trained
        return weights.tobytes()

    assert trained(np.nan, 1_000_000) == trained(0.0, 0)


def test_the_time_of_each_phase_is_taken_from_the_clock_given() -> None:
    """A clock that stands still measures nothing; no other clock is asked."""
    report = run(started(), range(1))[0][0]
    assert report.seconds == {"intake": 0.0, "learn": 0.0, "close": 0.0, "publish": 0.0}


def test_the_schedule_is_indexed_by_the_update_ordered() -> None:
    """Not by how many were made: a resumed or repeated update has the step size of its number."""
    config = rank_config(SHAPE, learning_rate=0.01)
    config = replace(config, optimiser=replace(config.optimiser, schedule=Schedule(kind="linear")))
    rates = [report.learning_rate for report, _ in run(started(config), range(3))]
    assert rates == pytest.approx([0.01, 0.009, 0.008])
    late = started(config)
    late.adopt(replace(late.state(), updates=5))
    late.publish(version=5, term=0)
    assert run(late, range(5, 6))[0][0].learning_rate == pytest.approx(0.005)


def test_an_order_for_another_update_is_out_of_step_and_does_nothing() -> None:
    """Neither one that was made already nor one that is not due: the report says where the rank stands."""
    rank = started()
    run(rank, range(1))
    before = rank.standing()
    for update in (0, 2):
        report, weights = rank.update(order(update), [rollout(update)])
        assert (report.status, report.updates, weights) == (OrderStatus.OUT_OF_STEP, 1, None)
        assert (report.state_digest, report.verdicts, report.trained) == (before.state_digest, (), False)
    assert rank.standing() == before
    assert run(rank, range(1, 2))[0][0].gaps == 0  # what was out of step has not been received


def test_a_rank_in_no_group_makes_no_update() -> None:
    """Before it has joined and after it has left: FAILED, in words, and nothing has changed."""
    rank = LearnerRank(rank_config(SHAPE), ManualClock())
    before = rank.standing()
    for _ in range(2):
        report, weights = rank.update(order(0), [rollout(0)])
        assert (report.status, report.sync.failure) == (OrderStatus.FAILED, "this rank is in no group")
        assert weights is None and rank.standing() == before
        rank.join(Formation(number=1, ranks=(0,)))
        rank.leave()


def test_a_report_says_where_the_rank_stands_now() -> None:
    """The state digest of the report is that of the standing; it binds parameters, moments and counters."""
    rank = started()
    seen = {rank.standing().state_digest}
    for update in range(3):
        report, _ = rank.update(order(update), [b"noise"] if update == 1 else [rollout(update)])
        standing = rank.standing()
        assert (report.updates, report.state_digest) == (standing.updates, standing.state_digest)
        assert report.parameter_digest == standing.parameter_digest
        seen.add(report.state_digest)
    assert len(seen) == 4  # also after the update that trained nothing: its number is in it


def test_the_same_term_and_version_are_known_on_a_rank_that_publishes_nothing() -> None:
    """Fragments of the version told are taken, those of another term are not."""
    rank = started()
    rank.publish(version=9, term=2)
    told = UpdateOrder(update=0, term=2, publish_as=10)
    fragments = [rollout(0), document(SHAPE, header={"actor": 1, "version": 9, "term": 2})]
    report, _ = rank.update(told, fragments)
    assert [verdict.refusal for verdict in report.verdicts] == ["old_term", ""]


# ── determinism and resuming ─────────────────────────────────────────────────────────────────────────────────────


def test_the_same_documents_give_the_same_bits() -> None:
    """Reports and weights documents, update by update."""
    assert run(started(), range(3)) == run(started(), range(3))


def test_each_update_shuffles_anew() -> None:
    """The same rank, the same fragment, once as update 0 and once as update 1: other minibatches, other weights."""

    def trained(update: int) -> bytes:
        rank = started()
        rank.adopt(replace(rank.state(), updates=update))
        rank.publish(version=0, term=0)
        report, _ = rank.update(order(update), [rollout(0)])
        assert report.trained
        return rank.state().parameters.tobytes()

    assert trained(0) == trained(0)
    assert trained(0) != trained(1)


def test_another_seed_gives_other_weights() -> None:
    """Both in the first weights and in the minibatches."""
    first, other = started(rank_config(SHAPE, seed=1)), started(rank_config(SHAPE, seed=2))
    assert first.state().parameter_digest != other.state().parameter_digest
    weights = InitialWeights(flat=first.state().parameters, fingerprint=first.state().manifest_fingerprint)
    standing = other.adopt(weights)
    assert standing.parameter_digest == first.standing().parameter_digest
    assert first.state().parameter_digest == other.state().parameter_digest
    assert run(first, range(1))[0][1] != run(other, range(1))[0][1]


@pytest.mark.parametrize("made", [0, 1, 3])
def test_a_resumed_learner_goes_on_as_if_nothing_had_happened(made: int) -> None:
    """C45: state, its tensors and document, a new rank: reports and weights of the next updates are bit-identical."""
    unbroken = started()
    run(unbroken, range(made))
    state = unbroken.state()
    tensors, text = {name: array.copy() for name, array in state.tensors().items()}, state.document()
    resumed = alone(rank_config(SHAPE))
    assert resumed.adopt(LearnerState.read(tensors, text)) == unbroken.standing()
    assert resumed.state().document() == text
    assert run(resumed, range(made, made + 2)) == run(unbroken, range(made, made + 2))
    assert resumed.state().document() == unbroken.state().document()


def test_every_field_of_a_state_survives() -> None:
    """Numbers that differ from each other and from zero, so that none can stand in for another."""
    rank = started()
    run(rank, range(2))
    rank.publish(version=5, term=3)
    state = rank.state()
    read = LearnerState.read(state.tensors(), state.document())
    assert (read.updates, read.version, read.term) == (2, 5, 3)
    assert (read.manifest_fingerprint, read.intake) == (state.manifest_fingerprint, state.intake)
    assert read.parameter_digest == state.parameter_digest
    assert sorted(read.optimiser) == sorted(state.optimiser)


def test_a_snapshot_aliases_nothing() -> None:
    """Further updates do not change it, and changing it does not change the learner."""
    rank = started()
    run(rank, range(1))
    state = rank.state()
    before = ({name: array.tobytes() for name, array in state.tensors().items()}, state.document())
    run(rank, range(1, 2))
    assert ({name: array.tobytes() for name, array in state.tensors().items()}, state.document()) == before
    rank.adopt(state)
    state.parameters[:] = 7.0
    for array in state.optimiser.values():
        array[:] = 7.0
    again = rank.state()
    assert {name: array.tobytes() for name, array in again.tensors().items()} == before[0]


def test_published_weights_outlive_the_next_update() -> None:
    """The document of version 1 is the driver's: training on does not change it."""
    rank = started()
    _, weights = rank.update(order(0), [rollout(0)])
    before = weights.tobytes()
    rank.update(order(1), [rollout(1)])
    assert weights.tobytes() == before


def test_weights_of_another_network_are_refused() -> None:
    """Before anything is overwritten."""
    state = started(rank_config(SHAPE, hidden=(9,))).state()
    rank = started()
    before = rank.state().parameter_digest
    with pytest.raises(CheckpointError, match=r"another network.*same environment and net configuration"):
        rank.adopt(state)
    with pytest.raises(CheckpointError, match="another network"):
        rank.adopt(InitialWeights(flat=state.parameters, fingerprint=state.manifest_fingerprint))
    assert rank.state().parameter_digest == before


def test_an_optimiser_state_that_does_not_fit_changes_nothing() -> None:
    """Of the same network, but damaged: neither parameters nor moments are taken over."""
    rank = started()
    run(rank, range(1))
    before = rank.state()
    bad = replace(before, parameters=before.parameters + 1, optimiser={"adam_first": before.parameters})
    with pytest.raises(CheckpointError, match="optimiser state adam_second; got nothing"):
        rank.adopt(bad)
    assert rank.state().parameter_digest == before.parameter_digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "learner state of another schema; got 2; allowed: 1"),
        ({"surprise": 1}, "other parts than its schema"),
        ({"term": None}, "other parts than its schema"),
    ],
)
def test_a_document_of_another_schema_is_refused(change: dict[str, Any], words: str) -> None:
    """As are one with a part missing or too many."""
    plain = {"schema": 1, "updates": 0, "version": 0, "term": 0, "manifest_fingerprint": "", "intake": {}} | change
    text = pack_plain({name: value for name, value in plain.items() if value is not None})
    with pytest.raises(CheckpointError, match=words):
        LearnerState.read({"parameters": np.zeros(1, np.float32)}, text)


def test_a_state_without_parameters_is_refused() -> None:
    """The message lists the tensors that there are."""
    state = started().state()
    tensors = {name: array for name, array in state.tensors().items() if name != "parameters"}
    with pytest.raises(CheckpointError, match=r"tensors \['optimiser.adam_first'"):
        LearnerState.read(tensors, state.document())


def test_a_rank_needs_a_thread_and_a_device_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """auto takes what there is; cuda without a GPU is refused, not replaced."""
    with pytest.raises(ConfigError, match=r"learner.threads; got 0"):
        LearnerConfig(threads=0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert LearnerConfig(device="auto").torch_device().type == "cpu"
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        LearnerConfig(device="cuda").torch_device()
