"""Action heads against closed forms in float64, at the edges where the textbook formulas fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.distributions import (
    Bernoulli,
    Categorical,
    Gaussian,
    MultiCategorical,
    SquashedGaussian,
    draw,
    make_head,
)
from common.errors import ConfigError
from common.specs import ArraySpec
from tests.support import box, discrete, multi_discrete

ASYMMETRIC = ArraySpec(kind="box", shape=(2,), dtype="float32", low=(-1.0, 0.5), high=(3.0, 1.0))
BITS = ArraySpec(kind="multi_binary", shape=(2,), dtype="int8")
TORQUE = box(1, low=-2.0, high=2.0)


def normal_log_prob(z: float, mean: float, std: float) -> float:
    """log N(z; mean, std) in float64."""
    return -0.5 * ((z - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)


def log_slope(z: float) -> float:
    """log(1 - tanh(z)²) as case C15 states it: 2 (log 2 - z - softplus(-2z)), in float64."""
    return 2.0 * (math.log(2.0) - z - float(np.logaddexp(0.0, -2.0 * z)))


# ── squashed Gaussian ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("z", [0.0, 5.0, -5.0, 10.0, -10.0, 50.0, -50.0])
@pytest.mark.parametrize("spec", [TORQUE, box(1, low=-1.0, high=3.0), box(1, low=0.25, high=0.5)])
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (10.0, 0.1), (-3.0, 2.0)])
def test_a_saturated_log_probability_is_right_and_its_gradient_finite(
    z: float, spec: ArraySpec, mean: float, std: float
) -> None:
    """C15: within 1e-4 of the closed form for every scale and bound; nothing overflows on the way back."""
    head = SquashedGaussian(spec, initial_log_std=math.log(std))
    parameters = torch.tensor([[mean]], requires_grad=True)
    log_prob, entropy = head.log_prob_and_entropy(parameters, torch.tensor([[z]]))
    scale = (spec.high[0] - spec.low[0]) / 2
    expected = normal_log_prob(z, mean, float(np.float32(std))) - log_slope(z) - math.log(scale)
    assert log_prob.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    (log_prob + entropy).sum().backward()
    assert parameters.grad is not None and torch.isfinite(parameters.grad).all()
    assert head.log_std.grad is not None and torch.isfinite(head.log_std.grad).all()


def test_the_golden_numbers_of_the_case() -> None:
    """C15, high precision: at z = 10 the slope's logarithm is -18.6137, and N(10; 10, 0.1) is 1.3836 in logarithm."""
    head = SquashedGaussian(box(1, low=-1.0, high=1.0), initial_log_std=math.log(0.1))
    log_prob, _ = head.log_prob_and_entropy(torch.tensor([[10.0]]), torch.tensor([[10.0]]))
    assert log_slope(10.0) == pytest.approx(-18.6137, abs=1e-4)
    assert log_prob.item() == pytest.approx(1.3836 + 18.6137, abs=2e-4)


@pytest.mark.parametrize("z", [10.0, 50.0, -10.0, -50.0])
def test_an_action_at_the_bound_is_the_bound_and_keeps_its_log_probability(z: float) -> None:
    """C15: float32 tanh(10) is 1: the environment gets the bound exactly; the stored z still tells 10 from 50."""
    head = SquashedGaussian(ASYMMETRIC)
    stored = np.full((1, 2), z, np.float32)
    low_or_high = ASYMMETRIC.high if z > 0 else ASYMMETRIC.low
    sent = head.to_environment(stored)
    assert sent.dtype == np.float32
    np.testing.assert_array_equal(sent, [np.float32(low_or_high)])
    log_prob, _ = head.log_prob_and_entropy(torch.zeros(1, 2), torch.from_numpy(stored))
    expected = 2 * (normal_log_prob(z, 0.0, 1.0) - log_slope(z)) - math.log(2.0) - math.log(0.25)
    assert log_prob.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("mean", [0.3, 8.0])
def test_densities_integrate_to_one(squash: bool, mean: float) -> None:
    """Over z for the normal, over the environment's actions for the squashed one: the change of variables is right."""
    spec = box(1, low=-1.0, high=3.0)
    head = make_head(spec, squash=squash, initial_log_std=-0.7)
    z = torch.linspace(mean - 6, mean + 6, 20_001, dtype=torch.float64)
    log_prob, _ = head.log_prob_and_entropy(torch.full((len(z), 1), mean, dtype=torch.float64), z.unsqueeze(-1))
    if not squash:
        assert torch.trapezoid(log_prob.exp(), z).item() == pytest.approx(1.0, abs=1e-6)
        return
    slope = 2.0 * torch.tensor([math.exp(log_slope(float(value))) for value in z], dtype=torch.float64)
    assert torch.trapezoid(log_prob.exp() * slope, z).item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    "spec", [box(2), box(2, low=-1.0, high=math.inf), box(2, low=1.0, high=1.0)], ids=["none", "half", "no width"]
)
def test_squashing_needs_a_range_to_squash_into(spec: ArraySpec) -> None:
    """Refused with the bounds and the way out."""
    with pytest.raises(ConfigError, match=r"needs bounds.*finite bounds, low below high; use net.squash = false"):
        make_head(spec, squash=True)


# ── Gaussian ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_normal_log_probability_by_hand() -> None:
    """Two dimensions, standard deviation e^0.5; entropy 2 (0.5 + 0.5 + log √2π)."""
    head = Gaussian(box(2), initial_log_std=0.5)
    log_prob, entropy = head.log_prob_and_entropy(torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0, 1.0]]))
    std = math.exp(0.5)
    assert log_prob.item() == pytest.approx(normal_log_prob(2, 1, std) + normal_log_prob(1, -1, std), rel=1e-6)
    assert entropy.tolist() == pytest.approx([2 * (1.0 + 0.5 * math.log(2 * math.pi))])


def test_a_normal_action_is_scaled_and_clipped_at_the_border_only() -> None:
    """z = ±1 is the bound where there is one on both sides, else z is in the environment's units; stored z is whole."""
    head = Gaussian(ASYMMETRIC)
    np.testing.assert_array_equal(head.to_environment(np.array([[0.0, 0.0]], np.float32)), [[1.0, 0.75]])
    np.testing.assert_array_equal(head.to_environment(np.array([[0.5, -4.0]], np.float32)), [[2.0, 0.5]])
    half = Gaussian(box(1, low=0.0, high=math.inf))
    np.testing.assert_array_equal(half.to_environment(np.array([[7.5], [-1.0]], np.float32)), [[7.5], [0.0]])
    free = Gaussian(box(1, dtype="float64"))
    assert free.to_environment(np.array([[7.5]], np.float32)).dtype == np.float64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bounds_at_the_end_of_the_numbers_are_no_range(dtype: str) -> None:
    """Box(-max, max) is how some environments write "unbounded": z is not measured in units of 1e38."""
    largest = float(np.finfo(dtype).max)
    spec = box(1, dtype=dtype, low=-largest, high=largest)
    assert Gaussian(spec).to_environment(np.array([[0.5]], np.float32)).tolist() == [[0.5]]
    with pytest.raises(ConfigError, match="needs bounds"):
        SquashedGaussian(spec)


def test_noise_becomes_an_action_by_mean_and_deviation() -> None:
    """mean + e^log_std noise, in the shape of the space; the mode is the mean."""
    head = Gaussian(box(2, 2), initial_log_std=math.log(2.0))
    parameters = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    sampled = head.sample(parameters, torch.tensor([[0.0, 1.0, -1.0, 0.5]]))
    assert torch.allclose(sampled, torch.tensor([[[1.0, 4.0], [1.0, 5.0]]]))
    assert torch.equal(head.mode(parameters), parameters.reshape(1, 2, 2))
    assert head.noise_shape == (4,)
    assert Gaussian(box()).sample(torch.zeros(3, 1), torch.ones(3, 1)).shape == (3,)


# ── choices ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_categorical_by_hand() -> None:
    """Probabilities 1/4 and 3/4."""
    logits = torch.tensor([[0.0, math.log(3.0)]] * 2)
    log_prob, entropy = Categorical(2).log_prob_and_entropy(logits, torch.tensor([0, 1]))
    assert log_prob.tolist() == pytest.approx([math.log(0.25), math.log(0.75)])
    assert entropy.tolist() == pytest.approx([0.25 * math.log(4) + 0.75 * math.log(4 / 3)] * 2)
    assert Categorical(2).mode(logits).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("uniform", "choice"), [(0.0, 0), (0.2499, 0), (0.2501, 1), (0.7499, 1), (0.7501, 2), (1 - 2**-24, 2)]
)
def test_a_uniform_number_chooses_by_the_cumulative_distribution(uniform: float, choice: int) -> None:
    """Probabilities 1/4, 1/2, 1/4."""
    logits = torch.tensor([[0.0, math.log(2.0), 0.0]])
    assert Categorical(3).sample(logits, torch.tensor([uniform])).tolist() == [choice]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([0.0, 1.0, -3.0, -1e4, 1e4, -3e38]), min_size=1, max_size=400),
    st.sampled_from([0.0, 2**-24, 0.5, 1 - 2**-24]),
)
def test_a_choice_of_probability_zero_is_never_drawn(logits: list[float], uniform: float) -> None:
    """Not even by the largest uniform number after the rounded cumulative sum has stopped short of 1."""
    parameters = torch.tensor([logits])
    choice = Categorical(len(logits)).sample(parameters, torch.tensor([uniform]))
    assert torch.log_softmax(parameters, -1).exp()[0, choice].item() > 0.0


def test_a_cumulative_sum_short_of_one_does_not_reach_an_impossible_choice() -> None:
    """999 equal choices add up to 0.99999976 in float32; the last choice has probability 0."""
    logits = torch.cat([torch.zeros(1, 999), torch.full((1, 1), -1e4)], -1)
    assert Categorical(1000).sample(logits, torch.tensor([1 - 2**-24])).item() < 999


@pytest.mark.parametrize("logits", [[1e30, -1e30], [3e38, -3e38], [0.0, -1e38]])
def test_extreme_logits_keep_everything_finite(logits: list[float]) -> None:
    """A certain choice has log-probability 0 and entropy 0; gradients are finite."""
    parameters = torch.tensor([logits], requires_grad=True)
    log_prob, entropy = Categorical(2).log_prob_and_entropy(parameters, torch.tensor([0]))
    assert (log_prob.item(), entropy.item()) == (0.0, 0.0)
    (log_prob + entropy).sum().backward()
    assert parameters.grad is not None and torch.isfinite(parameters.grad).all()


def test_several_choices_are_the_sum_of_single_ones() -> None:
    """MultiDiscrete is a product of categoricals over consecutive logits."""
    head = MultiCategorical((2,), (2, 3))
    logits = torch.tensor([[0.1, 0.7, -0.3, 0.2, 0.9]])
    log_prob, entropy = head.log_prob_and_entropy(logits, torch.tensor([[1, 2]]))
    first = Categorical(2).log_prob_and_entropy(logits[:, :2], torch.tensor([1]))
    second = Categorical(3).log_prob_and_entropy(logits[:, 2:], torch.tensor([2]))
    assert (log_prob.item(), entropy.item()) == pytest.approx([float(first[i] + second[i]) for i in (0, 1)])
    assert head.mode(logits).tolist() == [[1, 2]]
    assert head.sample(logits, torch.tensor([[0.0, 0.999]])).tolist() == [[0, 2]]
    assert (head.num_parameters, head.noise_shape) == (5, (2,))


def test_bits_by_hand() -> None:
    """Probabilities 3/4 and 1/2 of a one."""
    head = Bernoulli((2,))
    logits = torch.tensor([[math.log(3.0), 0.0]])
    log_prob, entropy = head.log_prob_and_entropy(logits, torch.tensor([[1, 0]], dtype=torch.int8))
    assert log_prob.item() == pytest.approx(math.log(0.75) + math.log(0.5))
    assert entropy.item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3) + math.log(2))
    drawn = head.sample(logits, torch.tensor([[0.7499, 0.5]]))
    assert (drawn.tolist(), drawn.dtype, head.mode(logits).tolist()) == ([[1, 0]], torch.int8, [[1, 0]])


@pytest.mark.parametrize("magnitude", [200.0, 1e38])
def test_certain_bits_keep_everything_finite(magnitude: float) -> None:
    """Neither the logarithm of the impossible bit nor the entropy becomes NaN."""
    logits = torch.tensor([[magnitude, -magnitude]], requires_grad=True)
    log_prob, entropy = Bernoulli((2,)).log_prob_and_entropy(logits, torch.tensor([[1, 0]], dtype=torch.int8))
    assert (log_prob.item(), entropy.item()) == (0.0, 0.0)
    (log_prob + entropy).sum().backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()


# ── all heads ────────────────────────────────────────────────────────────────────────────────────────────────────

HEADS: list[tuple[ArraySpec, dict[str, Any]]] = [
    (discrete(3, start=-1), {}),
    (discrete(1, start=2), {}),
    (multi_discrete(2, 3, start=(5, -1)), {}),
    (BITS, {}),
    (box(2, 3), {}),
    (box(), {}),
    (ASYMMETRIC, {}),
    (ASYMMETRIC, {"squash": True}),
]


@pytest.mark.parametrize(("spec", "options"), HEADS)
def test_a_stored_action_replays_to_the_same_log_probability(spec: ArraySpec, options: dict[str, Any]) -> None:
    """C03, C15: stored as the fragment stores it and read back, the log-probability has the same bits."""
    head = make_head(spec, **options)
    rng = np.random.default_rng(0)
    parameters = torch.from_numpy(5.0 * rng.standard_normal((64, head.num_parameters), dtype=np.float32))
    draw = rng.random if head.noise == "uniform" else rng.standard_normal
    noise = torch.from_numpy(draw((64, *head.noise_shape), dtype=np.float32))
    with torch.no_grad():
        action = head.sample(parameters, noise)
        acted, _ = head.log_prob_and_entropy(parameters, action)
    assert action.shape == (64, *spec.shape) == head.mode(parameters).shape
    stored = action.numpy().astype("float32" if spec.kind == "box" else spec.dtype)
    learned, entropy = head.log_prob_and_entropy(parameters, torch.from_numpy(stored))
    assert acted.numpy().tobytes() == learned.detach().numpy().tobytes()
    assert learned.shape == entropy.shape == (64,)
    assert torch.isfinite(learned).all() and torch.isfinite(entropy).all()


@pytest.mark.parametrize(("spec", "options"), HEADS)
def test_drawing_is_sampling_and_its_log_probability(spec: ArraySpec, options: dict[str, Any]) -> None:
    """`draw` is `sample` and `log_prob_and_entropy` bit for bit, whatever it saves."""
    head: Any = make_head(spec, **options)
    generator = torch.Generator().manual_seed(5)
    parameters = 3 * torch.randn((64, head.num_parameters), generator=generator)
    make = torch.rand if head.noise == "uniform" else torch.randn
    noise = make((64, *head.noise_shape), generator=generator)
    action, log_prob = draw(head, parameters, noise)
    assert torch.equal(action, head.sample(parameters, noise))
    assert torch.equal(log_prob, head.log_prob_and_entropy(parameters, action)[0])


@pytest.mark.parametrize(("spec", "options"), HEADS)
def test_what_the_environment_gets_lies_in_its_space(spec: ArraySpec, options: dict[str, Any]) -> None:
    """C03: the adapter adds the start; the result passes the spec's own check and, for a Box, its bounds."""
    head = make_head(spec, **options)
    rng = np.random.default_rng(1)
    parameters = torch.from_numpy(3.0 * rng.standard_normal((32, head.num_parameters), dtype=np.float32))
    draw = rng.random if head.noise == "uniform" else rng.standard_normal
    with torch.no_grad():
        action = head.sample(parameters, torch.from_numpy(draw((32, *head.noise_shape), dtype=np.float32))).numpy()
    sent = head.to_environment(action)
    if spec.nvec:
        np.testing.assert_array_equal(spec.check_batch(sent + spec.start_array(), 32), action)
        return
    spec.check_batch(sent, 32)
    if spec.kind == "box":
        assert (sent >= spec.low_array()).all() and (sent <= spec.high_array()).all()


def test_each_space_has_its_head() -> None:
    """An integer Box has none: rounding would hide the action that was really taken."""
    kinds = [type(make_head(spec, **options)).__name__ for spec, options in HEADS]
    assert kinds == [
        "Categorical",
        "Categorical",
        "MultiCategorical",
        "Bernoulli",
        "Gaussian",
        "Gaussian",
        "Gaussian",
        "SquashedGaussian",
    ]
    with pytest.raises(ConfigError, match="got int64; allowed: a floating Box"):
        make_head(box(2, dtype="int64"))


def test_sampled_frequencies_are_the_probabilities() -> None:
    """Ten thousand evenly spaced uniforms give each choice its share to within one in ten thousand."""
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0])
    uniform = (torch.arange(10_000, dtype=torch.float32) + 0.5) / 10_000
    counts: Tensor = torch.bincount(Categorical(4).sample(logits.expand(10_000, 4), uniform), minlength=4)
    assert torch.allclose(counts / 10_000, logits.softmax(-1), atol=1.01e-4)
