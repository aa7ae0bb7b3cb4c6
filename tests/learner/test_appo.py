"""APPO: its objective by hand, V-trace of the target network, and that on-policy it is PPO."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from common.errors import ConfigError
from common.fragment import End, Fragment, FragmentLayout
from common.nets import NetConfig
from common.parameters import FlatParameters
from learner.algorithms.appo import AppoConfig, appo_loss, appo_targets
from learner.algorithms.ppo import PPO, PPOConfig
from learner.batches import BatchBuilder
from learner.gradient_step import GradientStep
from learner.optimiser import Optimiser, OptimiserConfig
from learner.parallel.group import OneRank
from learner.returns import vtrace
from learner.sequences import sequences_of, unrolled
from tests.learner.sequence_lab import CPU, Lab, accepted, random_fragment, with_core
from tests.learner.test_impala import HALF, table
from tests.support import fragment, layout

NET = NetConfig(hidden=(8,))
ONE_STEP = AppoConfig(minibatches=1, epochs=1, normalise_advantages=False)


# ── the objective ────────────────────────────────────────────────────────────────────────────────────────────────


def rows_of_one_step(log_prob: list[float], advantage: list[float]) -> Fragment:
    """Four actions 0, each the end of its episode; the table's value is 2."""
    reward = [2.0 + each for each in advantage]
    return fragment(layout(4), action=[0] * 4, reward=reward, log_prob=log_prob, end=[End.TERMINATED] * 4)


def test_the_objective_by_hand() -> None:
    """π_target ½; π of action 0 is 0.75, so r = 1.5 where μ / π_target is below c = 2, else 2 · 0.75 / μ.

    μ = ½: r 1.5, A 1 and -1, clipped at 1.2: 1.2, -1.5.   μ = ¼: r 1.5, A 1 (ratio 2 bounded): 1.2.
    μ = 1: r 1.5, A ½ (ratio ½): 0.6. Policy -(1.2 - 1.5 + 1.2 + 0.6) / 4; the value is 2 against 3, 1, 3, 2.5.
    """
    model, target = table(), table()
    with torch.no_grad():
        model.body.logits.copy_(torch.tensor([math.log(3.0), 0.0]))
    item = rows_of_one_step([HALF, HALF, math.log(0.25), 0.0], [1.0, -1.0, 1.0, 1.0])
    targets, _ = appo_targets(target, sequences_of(accepted(item), CPU), ONE_STEP)
    assert targets.advantage[:, 0].tolist() == pytest.approx([1.0, -1.0, 1.0, 0.5])
    assert targets.vs[:, 0].tolist() == pytest.approx([3.0, 1.0, 3.0, 2.5])
    losses = appo_loss(model, targets, ONE_STEP, 4)
    assert losses.policy == pytest.approx(-1.5 / 4, abs=1e-6)
    assert losses.value == pytest.approx(0.5 * (1.0 + 1.0 + 1.0 + 0.25) / 4)
    assert losses.clip_fraction == 1.0
    assert losses.total is not None and losses.total.item() == pytest.approx(losses.policy + 0.5 * losses.value)


@pytest.mark.parametrize(("bound", "ratio"), [(2.0, 1.0), (1.5, 5 / 6), (1.0, 5 / 9)])
def test_a_ratio_against_the_target_is_bounded_where_the_target_left_the_policy_that_acted(
    bound: float, ratio: float
) -> None:
    """μ = 0.9, π_target = ½, π = ½: μ / π_target = 1.8 is kept, and r = 1; or bounded by c, and r = c ½ / 0.9."""
    config = AppoConfig(behaviour_clip=bound)
    item = rows_of_one_step([math.log(0.9)] * 4, [1.0] * 4)
    targets, _ = appo_targets(table(), sequences_of(accepted(item), CPU), config)
    assert (targets.offset + HALF).exp().tolist() == [[pytest.approx(ratio)]] * 4


def test_targets_are_those_of_the_target_network() -> None:
    """V-trace with its values and its ratios, whatever the model is; advantages are 0 on invalid rows."""
    shape = layout(6, 3)
    item = random_fragment(shape, num_ends=4)
    target = Lab.fresh(shape, NET)
    sequences = sequences_of(accepted(item), CPU)
    targets, spread = appo_targets(target, sequences, ONE_STEP)
    with torch.no_grad():
        said = unrolled(target, sequences)
    ratio = np.exp(said.log_prob.double().numpy() - item.log_prob)
    trace = vtrace(ratio, item.reward, said.value.numpy(), item.end, item.valid, discount=0.99, lambda_=0.95)
    np.testing.assert_allclose(targets.vs.numpy(), trace.target, atol=1e-6)
    np.testing.assert_allclose(targets.advantage.numpy(), trace.advantage, atol=1e-6)
    assert not targets.advantage.requires_grad and not targets.advantage.numpy()[item.valid == 0].any()
    assert spread.advantage.count == item.header.num_valid


def test_a_step_follows_the_target_network_and_not_the_model() -> None:
    """Of another target the gradient is another: that of the loss with its targets."""
    shape = layout(6, 3)
    item = random_fragment(shape, num_ends=4)
    lab = Lab(shape, ONE_STEP)
    with torch.no_grad():
        for parameter in lab.target.parameters():
            parameter.mul_(0.5)
    targets, _ = appo_targets(lab.target, sequences_of(accepted(item), CPU), ONE_STEP)
    twin = Lab.fresh(shape, NET)
    parameters = FlatParameters(twin, trainable=True)
    total = appo_loss(twin, targets, ONE_STEP, item.header.num_valid).total
    assert total is not None
    total.backward()
    lab.update(item)
    assert lab.gradient().tobytes() == parameters.gradient.numpy().tobytes()


def acted_by_the_model(shape: FragmentLayout, seed: int) -> Fragment:
    """On-policy: log-probabilities and values are those of `Lab.fresh`."""
    item = random_fragment(shape, seed, num_ends=4)
    with torch.no_grad():
        said = unrolled(Lab.fresh(shape, NET), sequences_of(accepted(item), CPU))
    columns = {"obs": item.observation["obs"], "valid": item.valid, "end": item.end, "reward": item.reward}
    return random_fragment(
        shape, seed, action=item.action, log_prob=said.log_prob.numpy(), value=said.value.numpy(), **columns
    )


def test_on_policy_it_is_ppo() -> None:
    """One minibatch, three epochs: after each update the parameters are PPO's to 1e-6."""
    shape = layout(6, 3)
    items = [acted_by_the_model(shape, seed) for seed in (0, 1)]
    lab = Lab(shape, AppoConfig(minibatches=1, epochs=3, vtrace_lambda=0.95, entropy_coefficient=0.01))
    outcome = lab.update(*items)
    model = Lab.fresh(shape, NET)
    parameters = FlatParameters(model, trainable=True)
    group = OneRank(0, parameters)
    step = GradientStep(
        parameters, Optimiser(OptimiserConfig(learning_rate=1e-2), parameters), group, max_gradient_norm=0.0
    )
    config = PPOConfig(epochs=3, minibatch=1_000, gae_lambda=0.95, entropy_coefficient=0.01)
    ppo = PPO(config, model, step, group, BatchBuilder(shape, CPU), BatchBuilder(shape, CPU))
    expected = ppo.update([accepted(item) for item in items], np.random.default_rng(0))
    np.testing.assert_allclose(lab.parameters.numpy(), parameters.numpy(), rtol=0, atol=1e-5)
    assert outcome.parts == pytest.approx(expected.parts, abs=1e-5)
    assert outcome.statistics["explained_variance"] == pytest.approx(expected.statistics["explained_variance"])


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_the_gradient_of_a_recurrent_network_is_that_of_single_ticks(core: Any) -> None:
    """The same loss with each row's log-probability and value from `step`, the state lost after invalid rows."""
    net = NetConfig(hidden=(8,), core=core, core_size=4)
    shape = with_core(layout(6, 2), net)
    item = random_fragment(shape, 2, num_ends=4)
    lab = Lab(shape, ONE_STEP, net=net)
    targets, _ = appo_targets(lab.target, sequences_of(accepted(item), CPU), ONE_STEP)
    lab.update(item)
    twin = Lab.fresh(shape, net)
    parameters = FlatParameters(twin, trainable=True)
    state, total = torch.tensor(item.core_state), torch.zeros(())
    for t in range(6):
        used = torch.tensor(item.valid[t].astype(np.float32))
        out, value, state = twin.step({"obs": torch.tensor(item.observation["obs"][t])}, state)
        log_prob, _ = twin.head.log_prob_and_entropy(out, torch.tensor(item.action[t]))
        ratio, advantage = (log_prob + targets.offset[t]).exp(), targets.advantage[t]
        total = total - (torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) * used).sum()
        total = total + 0.25 * ((value - targets.vs[t]).square() * used).sum()
        state = state * used.unsqueeze(-1)
    (total / item.header.num_valid).backward()
    expected = parameters.gradient.numpy()
    assert np.linalg.norm(lab.gradient() - expected) < 1e-5 * np.linalg.norm(expected)


# ── an update ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_advantages_are_normalised_over_the_update_not_the_minibatch() -> None:
    """At the first pass the mean of the policy losses, weighted by rows, is minus the mean advantage: 0."""
    shape = layout(4, 2)
    item = acted_by_the_model(shape, 3)
    for normalise in (True, False):
        config = AppoConfig(minibatches=1, epochs=1, normalise_advantages=normalise)
        policy = Lab(shape, config).update(item).parts["policy"]
        assert (abs(policy) < 1e-6) == normalise
    counts = item.valid.sum(0)
    lab = Lab(shape, AppoConfig(minibatches=2, epochs=1), learning_rate=1e-12)
    sums: list[float] = []
    make = lab.algorithm._losses
    lab.algorithm._losses = lambda *args: sums.append((found := make(*args)).policy * args[2]) or found  # type: ignore[method-assign]
    lab.update(item)
    assert sum(sums) / counts.sum() == pytest.approx(0.0, abs=1e-6)
    assert max(abs(each) for each in sums) > 1e-3


def test_a_stale_fragment_weighs_less_in_the_gradient() -> None:
    """x = 1 at a lag of 1: half of the gradient."""
    gradients = []
    for lag in (0, 1):
        lab = Lab(layout(4, 2), AppoConfig(minibatches=1, epochs=1, staleness_exponent=1.0))
        lab.update(random_fragment(layout(4, 2)), lags=[lag])
        gradients.append(lab.gradient())
    np.testing.assert_allclose(gradients[1], gradients[0] / 2, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("num_fragments", [0, 1, 2])
def test_nothing_valid_is_no_update(num_fragments: int) -> None:
    """No fragment, or fragments without a valid row: no step, and no parameter moves."""
    shape = layout(3, 2)
    lab = Lab(shape, AppoConfig(minibatches=2))
    before = lab.parameters.numpy().tobytes()
    outcome = lab.update(*[random_fragment(shape, valid=np.zeros((3, 2)))] * num_fragments)
    assert (outcome.committed, outcome.skipped, outcome.statistics) == (0, 0, {})
    assert lab.parameters.numpy().tobytes() == before


@pytest.mark.parametrize("end", list(End)[:3])
def test_a_fragment_of_one_row_of_one_lane(end: End) -> None:
    """One transition is enough to learn from; of one row advantages are as they are."""
    lab = Lab(layout(1), AppoConfig(minibatches=1))
    outcome = lab.update(random_fragment(layout(1), end=[end]))
    assert (outcome.committed, outcome.skipped) == (2, 0)
    assert all(math.isfinite(number) for number in (outcome.statistics | outcome.parts).values())


@pytest.mark.parametrize("bad", [{"log_prob": math.nan}, {"reward": math.inf}, {"reward": 3e38}])
def test_numbers_that_cannot_be_trained_on_are_skipped_and_named(bad: dict[str, float]) -> None:
    """No parameter moves, the report names one, nobody warns."""
    shape = layout(4, 2)
    lab = Lab(shape, AppoConfig(discount=1.0, vtrace_lambda=1.0, minibatches=1))
    before = lab.parameters.numpy().tobytes()
    outcome = lab.update(random_fragment(shape, **{name: np.full((4, 2), value) for name, value in bad.items()}))
    assert (outcome.committed, outcome.skipped) == (0, 2)
    assert outcome.skipped_at.startswith("body.")
    assert lab.parameters.numpy().tobytes() == before


def test_nothing_differentiates_the_target() -> None:
    """An update leaves it alone."""
    lab = Lab(layout(4, 2), AppoConfig(minibatches=2))
    before = nn.utils.parameters_to_vector(lab.target.parameters()).detach().clone()
    lab.update(random_fragment(layout(4, 2)))
    assert all(parameter.grad is None for parameter in lab.target.parameters())
    assert torch.equal(nn.utils.parameters_to_vector(lab.target.parameters()).detach(), before)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("discount", math.nan),
        ("vtrace_lambda", 1.5),
        ("rho_clip", -1.0),
        ("behaviour_clip", 0.0),
        ("clip", 1.0),
        ("target_update_every", 0),
        ("entropy_coefficient", math.inf),
        ("minibatches", 0),
        ("epochs", -1),
    ],
)
def test_a_hyperparameter_out_of_range_is_refused(field: str, value: float) -> None:
    """Named by its key, with what is allowed."""
    with pytest.raises(ConfigError, match=rf"appo\.{field}; got"):
        AppoConfig(**{field: value})
