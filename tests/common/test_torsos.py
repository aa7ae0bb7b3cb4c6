"""Torsos: the published networks, to the number of their parameters, and one conversion from bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.specs import ArraySpec
from common.torsos import ImpalaTorso, NatureTorso
from tests.support import box


def image(*shape: int) -> ArraySpec:
    return box(*shape, dtype="uint8", low=0.0, high=255.0)


def pixels(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_impala_torso_is_the_published_one() -> None:
    """Golden: 15 convolutions of 3 x 3; 84 > 42 > 21 > 11 pixels, so 11 * 11 * 32 = 3,872 features.

    Parameters: section of d in, o out: (9 d + 1) o + 4 (9 o + 1) o; 4 > 16 > 32 > 32: 9,872 + 41,632 + 46,240.
    """
    torso = ImpalaTorso(image(4, 84, 84), channels_last=False)
    assert sum(isinstance(module, nn.Conv2d) for module in torso.modules()) == 15
    assert torso.width == 3872
    assert count(torso) == 9_872 + 41_632 + 46_240


@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 3, 1), (9, 16, 3), (36, 50, 4), (3, 30, 30)])
def test_the_impala_torso_takes_images_of_any_size(shape: tuple[int, ...]) -> None:
    """Each pooling halves a side, rounded up: `width` is what comes out."""
    last = shape[2] <= 4
    torso = ImpalaTorso(image(*shape), channels_last=last)
    assert torso(pixels(2, *shape)).shape == (2, torso.width)


def impala_by_the_figure(torso: ImpalaTorso, x: Tensor) -> Tensor:
    """Figure 3 of the paper written down: conv, max, (ReLU, conv, ReLU, conv, +) twice; at the end ReLU."""
    for section in torso.sections:
        entry: Any = section.entry
        x = F.max_pool2d(F.conv2d(x, entry.weight, entry.bias, padding=1), kernel_size=3, stride=2, padding=1)
        blocks: Any = section.blocks
        for first, second in blocks:
            y = F.conv2d(x.clamp(min=0), first.weight, first.bias, padding=1)
            x = F.conv2d(y.clamp(min=0), second.weight, second.bias, padding=1) + x
    return x.clamp(min=0).flatten(1)


def nature_by_the_paper(torso: NatureTorso, x: Tensor) -> Tensor:
    """Three convolutions, a ReLU after each."""
    for conv, stride in ((torso.conv1, 4), (torso.conv2, 2), (torso.conv3, 1)):
        x = F.conv2d(x, conv.weight, conv.bias, stride=stride).clamp(min=0)
    return x.flatten(1)


@pytest.mark.parametrize(("channels_last", "sides"), [(True, (40, 44)), (False, (40, 44)), (False, (41, 46))])
@pytest.mark.parametrize(("kind", "paper"), [(ImpalaTorso, impala_by_the_figure), (NatureTorso, nature_by_the_paper)])
def test_a_torso_is_its_paper_whatever_the_memory_format(
    kind: Any, paper: Any, channels_last: bool, sides: tuple[int, int]
) -> None:
    """Features and every gradient, with and without gradients, are those of the plain formula on pixels over 255."""
    shape = (*sides, 3) if channels_last else (3, *sides)
    torso = kind(image(*shape), channels_last=channels_last)
    bytes_ = pixels(3, *shape)
    before = bytes_.clone()
    plain = (bytes_.permute(0, 3, 1, 2) if channels_last else bytes_).contiguous().float() / 255
    expected = paper(torso, plain)
    features = torso(bytes_)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(torso(bytes_), expected.detach(), rtol=1e-4, atol=1e-5)
    parameters = list(torso.parameters())
    ours = torch.autograd.grad(features.square().sum(), parameters)
    theirs = torch.autograd.grad(expected.square().sum(), parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert torch.equal(bytes_, before), "the bytes of a fragment are read-only"


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("kind", [ImpalaTorso, NatureTorso])
def test_a_rank_may_have_no_row(kind: Any, channels_last: bool) -> None:
    """No features, and a gradient of 0 for every parameter."""
    shape = (40, 44, 3) if channels_last else (3, 40, 44)
    torso = kind(image(*shape), channels_last=channels_last)
    features = torso(pixels(0, *shape))
    assert features.shape == (0, torso.width)
    for gradient in torch.autograd.grad(features.sum(), list(torso.parameters())):
        assert not gradient.any()
