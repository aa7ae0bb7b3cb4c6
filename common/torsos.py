"""Observations to features: what each part of an observation is turned into before any layer that is shared.

    vector part ──► Encoder ─────────────► [N, width] ─┐
                                                       ├──► Features [N, sum of widths]
    image part ───► a torso of convolutions ► [N, width] ─┘

Images stay uint8 until a torso reads them: one conversion gives float32, in the memory format that is fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import ConfigError
from common.specs import ArraySpec, SpaceSpec

Observation = Mapping[str, Tensor]
TorsoKind = Literal["nature_cnn", "impala_resnet"]
Channels = Literal["auto", "first", "last"]
NATURE_MINIMUM_PIXELS = 36
IMPALA_DEPTHS = (16, 32, 32)
PIXEL = 1.0 / 255.0
BLOCK = 4  # pixels a side: the stride of the first convolution of Mnih et al.


class Encoder(nn.Module):
    """One vector part as features [N, width]: integers one-hot, everything else as float32, flattened."""

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        self.nvec = spec.nvec
        self.scale = 1.0 / 255.0 if spec.dtype == "uint8" and spec.high == (255.0,) else 1.0
        self.width = sum(spec.nvec) if spec.nvec else spec.size

    def forward(self, value: Tensor) -> Tensor:
        if self.nvec:
            columns = value.reshape(len(value), len(self.nvec)).long()
            return torch.cat([F.one_hot(columns[:, i], n) for i, n in enumerate(self.nvec)], -1).float()
        flat = value.reshape(len(value), self.width).float()
        return flat if self.scale == 1.0 else flat * self.scale


class NatureTorso(nn.Module):
    """The convolutions of Mnih et al., 2015: uint8 images of at least 36 x 36 to features [N, width]."""

    def __init__(self, spec: ArraySpec, *, channels_last: bool) -> None:
        super().__init__()
        self.channels_last = channels_last
        depth, height, width = _depth_and_sides(spec, channels_last)
        if min(height, width) < NATURE_MINIMUM_PIXELS:
            raise ConfigError(
                "image too small for nature_cnn",
                got=f"{height} x {width}",
                allowed=f"at least {NATURE_MINIMUM_PIXELS} x {NATURE_MINIMUM_PIXELS}",
                fix="use net.kind = 'impala_resnet' or 'mlp', or a network of your own (net.factory)",
            )
        self.conv1 = nn.Conv2d(depth, 32, 8, stride=4)
        self.conv2 = nn.Conv2d(32, 64, 4, stride=2)
        self.conv3 = nn.Conv2d(64, 64, 3, stride=1)
        for size, stride in ((8, 4), (4, 2), (3, 1)):
            height, width = (height - size) // stride + 1, (width - size) // stride + 1
        self.width = 64 * height * width

    def forward(self, image: Tensor) -> Tensor:
        if not self.channels_last and _folds(image):
            x = torch.relu_(_folded(self.conv1, image))
        else:
            # 256 images 84 x 84 x 4, one core: 135 ms instead of 213 with the backward pass, 48 instead of 43 without
            x = torch.relu_(self.conv1(_scaled(image, self.channels_last, fast_backward=torch.is_grad_enabled())))
        x = torch.relu_(self.conv2(x))
        return torch.relu_(self.conv3(x)).flatten(1)


class ImpalaTorso(nn.Module):
    """The residual network of Espeholt et al., 2018, figure 3, right: uint8 images of any size to features [N, width].

    Three sections of a convolution, a pooling and two residual blocks, then a ReLU; 15 convolutions of 3 x 3.
    """

    def __init__(self, spec: ArraySpec, *, channels_last: bool) -> None:
        super().__init__()
        self.channels_last = channels_last
        depth, height, width = _depth_and_sides(spec, channels_last)
        self.sections = nn.ModuleList(
            ImpalaSection(a, b) for a, b in zip((depth, *IMPALA_DEPTHS), IMPALA_DEPTHS, strict=False)
        )
        for _ in IMPALA_DEPTHS:
            height, width = (height + 1) // 2, (width + 1) // 2
        self.width = IMPALA_DEPTHS[-1] * height * width

    def forward(self, image: Tensor) -> Tensor:
        # 64 images 84 x 84 x 4, one core: 195 ms instead of 331 with the backward pass; 16 without: 19 instead of 47
        x = _scaled(image, self.channels_last, fast_backward=True)
        for section in self.sections:
            x = section(x)
        return torch.relu_(x).flatten(1)


class ImpalaSection(nn.Module):
    """Convolution, max pooling, two residual blocks: [N, depth, H, W] to [N, out, H / 2, W / 2], rounded up."""

    def __init__(self, depth: int, out: int) -> None:
        super().__init__()
        self.entry = nn.Conv2d(depth, out, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleList((nn.Conv2d(out, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1))) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.entry(x), 3, stride=2, padding=1)
        for block in self.blocks:
            first, second = cast(nn.ModuleList, block)
            x = x + second(torch.relu_(first(torch.relu(x))))
        return x


class Features(nn.Module):
    """All parts of an observation, side by side, in the order of the spec: [N, width].

    Args:
        observation: the parts.
        torso: what images go through; None flattens them like any other part.
        channels: where an image keeps its channels.
    """

    def __init__(self, observation: SpaceSpec, torso: TorsoKind | None, channels: Channels) -> None:
        super().__init__()
        self.names = [name for name, _ in observation]
        self.parts = nn.ModuleList(_part(name, spec, torso, channels) for name, spec in observation)
        self.width = sum(cast(int, part.width) for part in self.parts)

    def forward(self, observation: Observation) -> Tensor:
        encoded = [part(observation[name]) for name, part in zip(self.names, self.parts, strict=True)]
        return encoded[0] if len(encoded) == 1 else torch.cat(encoded, -1)


def fits_nature_cnn(observation: SpaceSpec, channels: Channels) -> bool:
    """Whether there is an image, and every image is large enough."""
    images = [(name, spec) for name, spec in observation if spec.is_image()]
    sides = [_depth_and_sides(spec, channels_come_last(name, spec, channels))[1:] for name, spec in images]
    return bool(images) and min(min(pair) for pair in sides) >= NATURE_MINIMUM_PIXELS


def channels_come_last(name: str, spec: ArraySpec, channels: Channels) -> bool:
    """Channels are the smallest axis; where first and last tie, the user must say."""
    if channels != "auto":
        return channels == "last"
    first, last = spec.shape[0], spec.shape[2]
    if first == last:
        raise ConfigError(
            f"image {name!r}: cannot tell where its channels are",
            got=f"shape {spec.shape}",
            allowed="first and last axis of different size",
            fix="say net.channels = 'first' or 'last'",
        )
    return last < first


def _part(name: str, spec: ArraySpec, torso: TorsoKind | None, channels: Channels) -> nn.Module:
    if torso is None or not spec.is_image():
        return Encoder(spec)
    kind = NatureTorso if torso == "nature_cnn" else ImpalaTorso
    return kind(spec, channels_last=channels_come_last(name, spec, channels))


def _depth_and_sides(spec: ArraySpec, channels_last: bool) -> tuple[int, int, int]:
    """Channels, height and width of an image."""
    if channels_last:
        height, width, depth = spec.shape
    else:
        depth, height, width = spec.shape
    return depth, height, width


def _folds(image: Tensor) -> bool:
    """Whether a first convolution of 8 x 8 pixels and stride 4 is to be `_folded`: for a backward pass on a CPU."""
    height, width = image.shape[-2:]
    whole = len(image) > 0 and height % BLOCK == 0 and width % BLOCK == 0
    return whole and torch.is_grad_enabled() and image.device.type == "cpu" and image.is_contiguous()


def _folded(conv: nn.Conv2d, image: Tensor) -> Tensor:
    """`conv`, 8 x 8 pixels with stride 4, over uint8 [N, depth, H, W]: as 2 x 2 blocks of 4 x 4 pixels with stride 1.

    The same products, added up in another order. A fast backward pass wants channels innermost: here four bytes are
    moved at once, the pixels of a row of a block, and not one. 544 images 84 x 84 x 4, one core, with the whole
    network's backward pass: 263 ms instead of 277.
    """
    num, depth, height, width = image.shape
    rows, columns = height // BLOCK, width // BLOCK
    lines = image.view(torch.int32).view(num, depth, rows, BLOCK, columns).permute(0, 2, 4, 1, 3).contiguous()
    blocks = lines.view(torch.uint8).view(num, rows, columns, depth * BLOCK**2)
    kernel = (conv.weight * PIXEL).view(-1, depth, 2, BLOCK, 2, BLOCK).permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
    pixels = blocks.to(torch.float32).permute(0, 3, 1, 2)
    return F.conv2d(pixels, kernel.contiguous(memory_format=torch.channels_last), conv.bias)


def _scaled(image: Tensor, channels_last: bool, *, fast_backward: bool) -> Tensor:
    """uint8 pixels as float32 [N, depth, height, width] in [0, 1]: one pass from the bytes, whatever their order.

    On a CPU convolutions with channels innermost in memory have by far the faster backward pass.
    """
    pixels = image.permute(0, 3, 1, 2) if channels_last else image
    innermost = fast_backward and image.device.type == "cpu"
    x = pixels.to(torch.float32, memory_format=torch.channels_last if innermost else torch.preserve_format)
    return x.mul_(PIXEL)
