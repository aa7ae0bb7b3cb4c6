"""The fused tower against the stack of layers that it replaces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from common.towers import Activation, Tower


def plain_twin(tower: Tower) -> nn.Sequential:
    """The same layers as modules of torch, with parameters of their own."""
    modules: list[nn.Module] = []
    for layer in tower.layers:
        assert isinstance(layer, nn.Linear)
        copy = nn.Linear(layer.in_features, layer.out_features)
        copy.load_state_dict(layer.state_dict())
        modules += [copy, nn.Tanh() if tower.activation == "tanh" else nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(8,), (16, 8), (64, 64, 32)])
@pytest.mark.parametrize("rows", [1, 7, 256])
def test_a_tower_is_its_stack_of_layers(activation: Activation, hidden: tuple[int, ...], rows: int) -> None:
    """Outputs, gradients of every parameter and of the features are those of the plain stack, to the last bits."""
    generator = torch.Generator().manual_seed(3)
    tower = Tower(5, hidden, 3, activation)
    twin = plain_twin(tower)
    features = torch.randn((rows, 5), generator=generator, requires_grad=True)
    again = features.detach().clone().requires_grad_()
    wanted = torch.randn((rows, 3), generator=generator)
    ((tower(features) - wanted) ** 2).mean().backward()
    ((twin(again) - wanted) ** 2).mean().backward()
    assert features.grad is not None and again.grad is not None
    torch.testing.assert_close(features.grad, again.grad, rtol=1e-6, atol=1e-7)
    for ours, theirs in zip(gradients(tower), gradients(twin), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    with torch.no_grad():
        torch.testing.assert_close(tower(features), twin(again), rtol=1e-6, atol=1e-6)


def test_a_pass_without_gradients_gives_the_same_bits() -> None:
    """Actors (no gradients) and the learner (gradients) compute the same outputs."""
    tower = Tower(4, (64, 64), 2, "tanh")
    features = torch.randn((33, 4), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        acting = tower(features)
    assert torch.equal(acting, tower(features).detach())


def test_a_second_backward_pass_is_refused() -> None:
    """Activations are overwritten by the first pass: the second raises instead of giving wrong gradients."""
    tower = Tower(4, (8,), 2, "tanh")
    loss = tower(torch.ones(3, 4)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass"):
        loss.backward()


def test_the_features_themselves_are_left_alone() -> None:
    """Nothing is written over the input, however often it is used."""
    tower = Tower(4, (8, 8), 2, "relu")
    features = torch.randn((3, 4), generator=torch.Generator().manual_seed(1))
    before = features.clone()
    tower(features).sum().backward()
    assert torch.equal(features, before)
