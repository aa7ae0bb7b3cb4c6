"""One flat vector that is the model: views in both directions, for values and for gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from common.parameters import FlatParameters


def small_model() -> nn.Sequential:
    """Weights 1, 2 and 3, 4; biases 5, 6."""
    model = nn.Sequential(nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        model[0].bias.copy_(torch.tensor([5.0, 6.0]))
    return model


def test_the_vector_is_the_parameters_in_the_models_order() -> None:
    """As `named_parameters` lists them, each in C order; the manifest says so."""
    flat = FlatParameters(small_model(), trainable=True)
    assert flat.numpy().tolist() == [1, 2, 3, 4, 5, 6]
    assert [(e.name, e.shape, e.offset) for e in flat.manifest.entries] == [
        ("0.weight", (2, 2), 0),
        ("0.bias", (2,), 4),
    ]
    assert flat.num_elements == 6


def test_loading_changes_the_models_output() -> None:
    """The model's tensors are views: there is no second copy to forget."""
    model = small_model()
    flat = FlatParameters(model, trainable=False)
    flat.load(np.array([1, 0, 0, 1, 10, 20], np.float32))
    assert model(torch.tensor([[2.0, 3.0]])).tolist() == [[12.0, 23.0]]


def test_a_backward_pass_fills_the_flat_gradient() -> None:
    """By hand: d(sum of outputs) for input (2, 3); a second pass adds, and zeroing the vector zeroes them all."""
    model = small_model()
    flat = FlatParameters(model, trainable=True)
    for times in (1.0, 2.0):
        model(torch.tensor([[2.0, 3.0]])).sum().backward()
        assert flat.gradient.tolist() == [2 * times, 3 * times, 2 * times, 3 * times, times, times]
    flat.gradient.zero_()
    assert model[0].weight.grad is not None and model[0].weight.grad.abs().sum().item() == 0.0
    assert flat.vector.grad is flat.gradient


def test_an_actors_copy_needs_no_gradient() -> None:
    """Not trainable: no gradient storage and no graph."""
    model = small_model()
    flat = FlatParameters(model, trainable=False)
    assert flat.gradient.numel() == 0
    assert not model(torch.ones(1, 2)).requires_grad


def test_what_its_maker_froze_stays_frozen() -> None:
    """A frozen parameter travels with the others but gets no gradient."""
    model = small_model()
    model[0].bias.requires_grad_(False)
    flat = FlatParameters(model, trainable=True)
    model(torch.tensor([[2.0, 3.0]])).sum().backward()
    assert flat.gradient.tolist() == [2, 3, 2, 3, 0, 0]


@pytest.mark.parametrize("bad", [np.zeros(5, np.float32), np.zeros(6, np.float64), np.zeros((1, 6), np.float32)])
def test_a_vector_that_does_not_fit_is_refused(bad: np.ndarray) -> None:
    """Never broadcast or cast, and the parameters stay as they were."""
    flat = FlatParameters(small_model(), trainable=False)
    with pytest.raises(ValueError, match=r"allowed float32\(6,\)"):
        flat.load(bad)
    assert flat.numpy().tolist() == [1, 2, 3, 4, 5, 6]


def test_what_was_loaded_is_not_kept_hold_of() -> None:
    """Changing the array afterwards changes no parameter; a read-only array is taken too."""
    flat = FlatParameters(small_model(), trainable=False)
    values = np.arange(6, dtype=np.float32)
    flat.load(values)
    values[:] = 99
    assert flat.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    values.flags.writeable = False
    flat.load(values)
    assert flat.numpy().tolist() == [99] * 6


@pytest.mark.parametrize(("at", "name"), [(0, "0.weight"), (3, "0.weight"), (4, "0.bias"), (5, "0.bias")])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_the_parameter_of_a_non_finite_element_is_named(at: int, name: str, value: float) -> None:
    """The first one in the vector's order; "" where all are finite."""
    flat = FlatParameters(small_model(), trainable=True)
    gradient = torch.zeros(6)
    assert flat.first_non_finite(gradient) == ""
    gradient[at:] = value
    assert flat.first_non_finite(gradient) == name


def test_the_parts_are_the_models_parameters_in_the_order_of_the_manifest() -> None:
    """The very objects, so that what watches them watches the model."""
    model = small_model()
    flat = FlatParameters(model, trainable=True)
    assert [part is own for part, own in zip(flat.parts, (model[0].weight, model[0].bias), strict=True)] == [True] * 2


def test_a_tail_travels_behind_the_gradient_and_belongs_to_no_parameter() -> None:
    """One storage: backward fills the first six, whoever writes into the tail changes no gradient."""
    model = small_model()
    flat = FlatParameters(model, trainable=True)
    flat.reserve_tail(3)
    flat.gradient_and_tail[6:] = 7.0
    model(torch.tensor([[2.0, 3.0]])).sum().backward()
    assert flat.gradient_and_tail.tolist() == [2, 3, 2, 3, 1, 1, 7, 7, 7]
    assert flat.gradient.tolist() == [2, 3, 2, 3, 1, 1]
    assert flat.gradient.data_ptr() == flat.gradient_and_tail.data_ptr()
    assert flat.vector.grad is flat.gradient


def test_a_new_tail_begins_a_new_gradient_of_zero() -> None:
    """Nothing of the one before is left, and the parameters are as they were."""
    model = small_model()
    flat = FlatParameters(model, trainable=True)
    model(torch.tensor([[2.0, 3.0]])).sum().backward()
    flat.reserve_tail(2)
    assert flat.gradient_and_tail.tolist() == [0.0] * 8
    flat.reserve_tail(0)
    assert flat.gradient_and_tail.tolist() == [0.0] * 6
    assert model[0].bias.grad is not None and model[0].bias.grad.data_ptr() == flat.gradient[4:].data_ptr()
    assert flat.numpy().tolist() == [1, 2, 3, 4, 5, 6]
