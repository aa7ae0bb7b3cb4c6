"""Adam on a flat vector: the published formula, its limits, and a state that goes on bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from common.errors import CheckpointError, ConfigError
from common.parameters import FlatParameters
from learner.optimiser import Optimiser, OptimiserConfig
from learner.schedules import Schedule


def made(**config: Any) -> tuple[FlatParameters, Optimiser]:
    """Three parameters at 1, 2, 3 and their optimiser."""
    model = nn.ParameterDict({"w": nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))})
    parameters = FlatParameters(model, trainable=True)
    return parameters, Optimiser(OptimiserConfig(**config), parameters)


def adam(gradients: list[list[float]], rate: float, beta1: float, beta2: float, epsilon: float) -> NDArray[np.float64]:
    """Algorithm 1 of Kingma & Ba, in float64."""
    w, m, v = np.array([1.0, 2.0, 3.0]), np.zeros(3), np.zeros(3)
    for t, gradient in enumerate(np.array(gradients), start=1):
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        w = w - rate * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
    return w


GRADIENTS = [[1.0, -2.0, 0.0], [0.5, 0.5, 1e-3], [-1.0, 0.0, 1e3]]


def test_steps_follow_the_paper() -> None:
    """Three steps against the algorithm in float64; a gradient of zero moves nothing."""
    parameters, optimiser = made(learning_rate=0.1, beta1=0.8, beta2=0.9, epsilon=1e-4)
    for gradient in GRADIENTS:
        parameters.gradient.copy_(torch.tensor(gradient))
        optimiser.step()
    np.testing.assert_allclose(parameters.numpy(), adam(GRADIENTS, 0.1, 0.8, 0.9, 1e-4), rtol=1e-5)


def test_the_step_size_follows_the_schedule() -> None:
    """Set per update: half way down a line, the step is half as long."""
    parameters, optimiser = made(learning_rate=0.2, epsilon=1e-8, schedule=Schedule(kind="linear"))
    assert optimiser.set_update(5, 10) == pytest.approx(0.1)
    parameters.gradient.fill_(1.0)
    optimiser.step()
    assert parameters.numpy().tolist() == pytest.approx([0.9, 1.9, 2.9], abs=1e-6)


@pytest.mark.parametrize("steps_before", [0, 1, 3])
def test_a_state_goes_on_bit_for_bit(steps_before: int) -> None:
    """C45: also from before the first step, when there are no moments yet."""
    parameters, optimiser = made()
    for gradient in GRADIENTS[:steps_before]:
        parameters.gradient.copy_(torch.tensor(gradient))
        optimiser.step()
    other_parameters, other = made()
    other_parameters.load(parameters.numpy())
    other.load(optimiser.arrays())
    for gradient in GRADIENTS:
        for vector, method in ((parameters, optimiser), (other_parameters, other)):
            vector.gradient.copy_(torch.tensor(gradient))
            method.step()
    assert parameters.numpy().tobytes() == other_parameters.numpy().tobytes()
    assert {k: a.tobytes() for k, a in optimiser.arrays().items()} == {
        k: a.tobytes() for k, a in other.arrays().items()
    }


def test_a_state_aliases_nothing() -> None:
    """Neither what was taken nor what was given changes with further steps."""
    parameters, optimiser = made()
    parameters.gradient.fill_(1.0)
    optimiser.step()
    taken = optimiser.arrays()
    before = {name: array.copy() for name, array in taken.items()}
    for _ in range(2):
        optimiser.step()
        assert all(np.array_equal(taken[name], before[name]) for name in before)
        optimiser.load(taken)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("adam_first", np.zeros(2, np.float32), r"adam_first; got float32\(2,\); allowed: float32\(3,\)"),
        ("adam_second", np.zeros(3, np.float64), r"adam_second; got float64\(3,\)"),
        ("adam_steps", np.zeros(2, np.float32), r"adam_steps; got float32\(2,\); allowed: float32\(1,\)"),
        ("adam_second", None, "adam_second; got nothing"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(name: str, array: NDArray[Any] | None, words: str) -> None:
    """Named, and refused before the first array is taken over."""
    parameters, optimiser = made()
    parameters.gradient.fill_(1.0)
    optimiser.step()
    before = {key: value.tobytes() for key, value in optimiser.arrays().items()}
    arrays = {key: np.full_like(value, 5.0) for key, value in optimiser.arrays().items()} | {name: array}
    with pytest.raises(CheckpointError, match=words):
        optimiser.load({key: value for key, value in arrays.items() if value is not None})
    assert {key: value.tobytes() for key, value in optimiser.arrays().items()} == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0.0),
        ("learning_rate", math.inf),
        ("learning_rate", math.nan),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("epsilon", 0.0),
        ("max_gradient_norm", -1.0),
        ("max_gradient_norm", math.nan),
    ],
)
def test_a_hyperparameter_out_of_range_is_refused(field: str, value: float) -> None:
    """Named by its key, with what is allowed."""
    with pytest.raises(ConfigError, match=f"optimiser.{field}; got"):
        OptimiserConfig(**{field: value})
