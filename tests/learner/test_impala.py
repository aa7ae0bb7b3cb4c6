"""IMPALA: its gradient by hand and against a naive reference tick by tick, and fragments of awkward shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from common.distributions import make_head
from common.errors import ConfigError
from common.fragment import End, Fragment, FragmentLayout
from common.nets import ActorCritic, NetConfig
from common.parameters import FlatParameters
from learner.algorithms.impala import ImpalaConfig
from tests.learner.sequence_lab import Lab, random_fragment, with_core
from tests.support import box, discrete, fragment, layout

HALF = math.log(0.5)
PLAIN = ImpalaConfig(entropy_coefficient=0.0)


class Table(nn.Module):
    """The same logits and value for every observation."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2))
        self.level = nn.Parameter(torch.tensor(2.0))

    def forward(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.logits.expand(len(rows["obs"]), -1), self.level.expand(len(rows["obs"]))


def table() -> ActorCritic:
    """Probabilities 1/2 and 1/2, value 2."""
    return ActorCritic(Table(), make_head(discrete(2)))


# ── the gradient ─────────────────────────────────────────────────────────────────────────────────────────────────


def two_rows(log_prob: float = HALF) -> Fragment:
    """Actions 0 and 1, rewards 1 and 3, then the end."""
    end = [End.CONTINUES, End.TERMINATED]
    return fragment(layout(2), action=[0, 1], reward=[1.0, 3.0], log_prob=[log_prob] * 2, end=end)


def test_on_policy_it_is_the_gradient_of_a2c() -> None:
    """γ ½, V 2: returns 2.5 and 3, advantages 0.5 and 1; d log p(a) / d logits = ±(½, -½).

    Policy: -(0.5 (½, -½) + 1 (-½, ½)) / 2. Value: ½ ((2 - 2.5) + (2 - 3)) / 2. The entropy is at its maximum.
    """
    lab = Lab(layout(2), ImpalaConfig(discount=0.5, entropy_coefficient=0.1), model=table())
    outcome = lab.update(two_rows())
    assert dict(zip(("logit 0", "logit 1", "level"), lab.gradient().tolist(), strict=True)) == pytest.approx(
        {"logit 0": 0.125, "logit 1": -0.125, "level": -0.375}
    )
    assert outcome.parts == pytest.approx(
        {
            "policy": -HALF * 0.75,
            "value": 0.5 * (0.25 + 1.0) / 2,
            "entropy": -HALF,
            "approximate_kl": 0.0,
            "clip_fraction": 0.0,
        },
        abs=1e-7,
    )


def test_the_importance_weight_is_bounded() -> None:
    """μ = ¼: ratio 2, bounded by 1: on-policy's gradient. With bounds of 4: vs_1 = 4, vs_0 = 2 + 2 · 0 + ½ · 2 · 2.

    Advantages 2 (1 + ½ · 4 - 2) and 2 · 1; policy -(2 (½, -½) + 2 (-½, ½)) / 2 = 0, value ½ (-2 - 2) / 2.
    """
    lab = Lab(layout(2), ImpalaConfig(discount=0.5, entropy_coefficient=0.0), model=table())
    outcome = lab.update(two_rows(math.log(0.25)))
    assert lab.gradient().tolist() == pytest.approx([0.125, -0.125, -0.375])
    assert outcome.parts["clip_fraction"] == 1.0
    assert outcome.parts["approximate_kl"] == pytest.approx(2.0 - 1.0 - math.log(2.0))
    loose = ImpalaConfig(discount=0.5, entropy_coefficient=0.0, rho_clip=4.0, c_clip=4.0, pg_rho_clip=4.0)
    lab = Lab(layout(2), loose, model=table())
    assert lab.update(two_rows(math.log(0.25))).parts["clip_fraction"] == 0.0
    assert lab.gradient().tolist() == pytest.approx([0.0, 0.0, -1.0])


@pytest.mark.parametrize("lag", [0, 3])
def test_a_stale_fragment_weighs_less_in_the_gradient(lag: int) -> None:
    """x = ½: half of its gradient at a lag of 3; rows are counted in full."""
    lab = Lab(layout(2), ImpalaConfig(discount=0.5, entropy_coefficient=0.0, staleness_exponent=0.5), model=table())
    lab.update(two_rows(), lags=[lag])
    factor = {0: 1.0, 3: 0.5}[lag]
    assert lab.gradient().tolist() == pytest.approx([0.125 * factor, -0.125 * factor, -0.375 * factor])


def reference(model: ActorCritic, item: Fragment, config: ImpalaConfig) -> Tensor:
    """The loss of a fragment, lane by lane and tick by tick, V-trace as a recursion over Python numbers."""
    total = torch.zeros(())
    for lane in range(item.valid.shape[1]):
        state = torch.tensor(item.core_state[lane : lane + 1])
        log_probs, values, entropies = [], [], []
        for t in range(len(item.valid) + 1):
            parameters, value, state = model.step({"obs": torch.tensor(item.observation["obs"][t, lane][None])}, state)
            values.append(value[0])
            if t < len(item.valid):
                action = torch.tensor(item.action[t, lane][None])
                log_prob, entropy = model.head.log_prob_and_entropy(parameters, action)
                log_probs.append(log_prob[0])
                entropies.append(entropy[0])
                if not item.valid[t, lane]:
                    state = torch.zeros_like(state)
        target = [float(value.detach()) for value in values]
        for t in reversed(range(len(item.valid))):
            if not item.valid[t, lane]:
                continue
            ratio = math.exp(float(log_probs[t].detach()) - float(item.log_prob[t, lane]))
            ends = item.end[t, lane] == End.TERMINATED
            ahead_v = 0.0 if ends else float(values[t + 1].detach())
            ahead_vs = 0.0 if ends else target[t + 1]
            v, reward = float(values[t].detach()), float(item.reward[t, lane])
            target[t] = v + min(config.rho_clip, ratio) * (reward + config.discount * ahead_v - v)
            target[t] += config.discount * min(config.c_clip, ratio) * (ahead_vs - ahead_v)
            advantage = min(config.pg_rho_clip, ratio) * (reward + config.discount * ahead_vs - v)
            total = total - advantage * log_probs[t] + config.value_coefficient * 0.5 * (values[t] - target[t]) ** 2
            total = total - config.entropy_coefficient * entropies[t]
    return total / int(item.valid.sum())


@pytest.mark.parametrize("core", ["none", "gru", "lstm"])
def test_the_gradient_is_that_of_a_naive_reference(core: Any) -> None:
    """Off-policy, episodes that end anywhere, a state before row 0: through time, to 1e-5 of its norm."""
    net = NetConfig(hidden=(8,), core=core, core_size=4)
    shape = with_core(layout(7, 3), net)
    item = random_fragment(shape, 5, num_ends=6)
    assert not item.valid.all() and {*item.end.flat} == {0, 1, 2}
    config = ImpalaConfig(entropy_coefficient=0.05)
    lab = Lab(shape, config, net=net)
    twin = Lab.fresh(shape, net)
    parameters = FlatParameters(twin, trainable=True)
    reference(twin, item, config).backward()
    lab.update(item)
    expected = parameters.gradient.numpy()
    assert np.linalg.norm(lab.gradient() - expected) < 1e-5 * np.linalg.norm(expected)


def test_the_gradient_of_a_minibatch_is_a_sum_over_fragments_and_lanes() -> None:
    """Two fragments in one step; the rows of both count, so it is the weighted mean of their own gradients."""
    shape = layout(4, 3)
    items = [random_fragment(shape, seed, num_ends=2 * seed) for seed in (0, 1)]
    own = []
    for item in items:
        lab = Lab(shape, PLAIN)
        lab.update(item)
        own.append(lab.gradient() * item.header.num_valid)
    lab = Lab(shape, PLAIN)
    lab.update(*items)
    rows = sum(item.header.num_valid for item in items)
    np.testing.assert_allclose(lab.gradient(), sum(own) / rows, rtol=0, atol=1e-6)


def test_normalised_advantages_by_hand() -> None:
    """0.5 and 1 become -1 and 1: the policy's gradient is -(-(½, -½) + (-½, ½)) / 2."""
    lab = Lab(layout(2), ImpalaConfig(discount=0.5, entropy_coefficient=0.0, normalise_advantages=True), model=table())
    lab.update(two_rows())
    assert lab.gradient().tolist() == pytest.approx([0.5, -0.5, -0.375], abs=1e-6)


# ── an update ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("minibatches", "epochs", "steps"), [(1, 1, 1), (3, 1, 3), (2, 4, 8), (3, 2, 6)])
def test_an_update_makes_a_step_of_each_minibatch_in_each_epoch(minibatches: int, epochs: int, steps: int) -> None:
    """However the lanes are cut."""
    shape = layout(4, 3)
    config = ImpalaConfig(minibatches=minibatches, epochs=epochs)
    outcome = Lab(shape, config).update(random_fragment(shape, 0), random_fragment(shape, 1))
    assert (outcome.committed, outcome.skipped) == (steps, 0)


def test_the_order_of_minibatches_is_drawn_from_the_shuffle_and_nothing_else() -> None:
    """The same stream gives the same bits."""
    shape = layout(4, 6)

    def trained(seed: int) -> bytes:
        lab = Lab(shape, ImpalaConfig(minibatches=6))
        lab.update(random_fragment(shape), seed=seed)
        return lab.parameters.numpy().tobytes()

    first = trained(1)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert trained(1) == first
    assert trained(2) != first


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("end", list(End)[:3])
def test_a_fragment_of_one_row_of_one_lane(normalise: bool, end: End) -> None:
    """One transition is enough to learn from, and nothing is divided by zero."""
    lab = Lab(layout(1), ImpalaConfig(normalise_advantages=normalise, minibatches=1))
    before = lab.parameters.numpy().copy()
    outcome = lab.update(random_fragment(layout(1), end=[end]))
    assert (outcome.committed, outcome.skipped) == (1, 0)
    assert all(math.isfinite(number) for number in (outcome.statistics | outcome.parts).values())
    assert (lab.parameters.numpy() != before).any()


@pytest.mark.parametrize("num_fragments", [0, 1, 2])
def test_nothing_valid_is_no_update(num_fragments: int) -> None:
    """No fragment, or fragments without a valid row: no step, and no parameter moves."""
    shape = layout(3, 2)
    lab = Lab(shape, ImpalaConfig(minibatches=2, epochs=2))
    before = lab.parameters.numpy().tobytes()
    outcome = lab.update(*[random_fragment(shape, valid=np.zeros((3, 2)))] * num_fragments)
    assert (outcome.committed, outcome.skipped, outcome.statistics) == (0, 0, {})
    assert set(outcome.parts.values()) == {0.0}
    assert lab.parameters.numpy().tobytes() == before


def test_a_minibatch_without_a_valid_row_is_no_step() -> None:
    """Lane 1 holds nothing."""
    outcome = Lab(layout(3, 2), ImpalaConfig(minibatches=2)).update(
        random_fragment(layout(3, 2), valid=[[1, 0], [1, 0], [1, 0]])
    )
    assert (outcome.committed, outcome.skipped) == (1, 0)


@pytest.mark.parametrize(
    "arrays", [{"log_prob": np.full((4, 2), math.nan)}, {"reward": np.full((4, 2), math.inf)}, {"reward": 3e38}]
)
def test_numbers_that_cannot_be_trained_on_are_skipped_and_named(arrays: dict[str, Any]) -> None:
    """No parameter moves, the report names one, nobody warns."""
    shape = layout(4, 2)
    lab = Lab(shape, ImpalaConfig(discount=1.0, epochs=2))
    before = lab.parameters.numpy().tobytes()
    if isinstance(arrays.get("reward"), float):
        arrays = {"reward": np.full((4, 2), arrays["reward"])}
    outcome = lab.update(random_fragment(shape, **arrays))
    assert (outcome.committed, outcome.skipped) == (0, 2)
    assert outcome.skipped_at.startswith("body.")
    assert lab.parameters.numpy().tobytes() == before


def test_an_action_that_was_all_but_impossible_is_bounded() -> None:
    """μ says e^-800, the ratio overflows: it weighs as ρ̄ does."""
    shape = layout(4, 2)
    lab = Lab(shape, ImpalaConfig())
    outcome = lab.update(random_fragment(shape, log_prob=np.full((4, 2), -800.0)))
    assert (outcome.committed, outcome.skipped) == (1, 0)
    assert np.isfinite(lab.parameters.numpy()).all()


class Echo(Table):
    """The value of an observation is its first number."""

    def forward(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.logits.expand(len(rows["obs"]), -1), rows["obs"][:, 0] + 0.0 * self.level


def test_explained_variance_by_hand() -> None:
    """Targets 1 and 3 (variance 1) of values 1 and 2: errors 0 and 1 (variance 1/4), 1 - 1/4."""
    lab = Lab(layout(2), PLAIN, model=ActorCritic(Echo(), make_head(discrete(2))))
    obs = [[1.0, 0.0], [2.0, 0.0], [9.0, 0.0]]
    item = fragment(layout(2), obs=obs, reward=[1.0, 3.0], log_prob=[HALF] * 2, end=[End.TERMINATED] * 2)
    assert lab.update(item).statistics["explained_variance"] == pytest.approx(0.75)


@pytest.mark.parametrize("action", [box(3), discrete(2)])
def test_actions_of_other_spaces(action: Any) -> None:
    """A continuous one of three numbers."""
    shape: FragmentLayout = layout(4, 2, action=action)
    actions = np.random.default_rng(0).standard_normal((4, 2, *action.shape)) if action.kind == "box" else 1
    actions = np.broadcast_to(actions, (4, 2, *action.shape))
    item = random_fragment(shape, action=actions, valid=[[1, 1], [1, 0], [1, 1], [1, 1]])
    outcome = Lab(shape, ImpalaConfig(minibatches=2)).update(item)
    assert (outcome.committed, outcome.skipped) == (2, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("discount", 1.1),
        ("vtrace_lambda", -0.1),
        ("rho_clip", 0.0),
        ("c_clip", math.inf),
        ("pg_rho_clip", math.nan),
        ("value_coefficient", -1.0),
        ("entropy_coefficient", math.nan),
        ("staleness_exponent", -0.5),
        ("minibatches", 0),
        ("epochs", 0),
    ],
)
def test_a_hyperparameter_out_of_range_is_refused(field: str, value: float) -> None:
    """Named by its key, with what is allowed."""
    with pytest.raises(ConfigError, match=rf"impala\.{field}; got"):
        ImpalaConfig(**{field: value})
