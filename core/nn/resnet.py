"""ResNet-18 for policies: group norms in place of batch norms, and the places of what it sees as features.

Sources: He et al., "Deep Residual Learning for Image Recognition"; Wu and He, "Group Normalization"; Chi et al.,
"Diffusion Policy" (both changes); Levine et al., "End-to-End Training of Deep Visuomotor Policies" (spatial softmax).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.image_encoders import ENCODERS, ImageEncoder
from surefoot.core.nn.pictures import View

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and stride of each stage, two blocks each."""
CHANNELS_A_GROUP = 16
Norm = Callable[[int], nn.Module]
"""Makes what stands behind a convolution of so many channels."""


def group_norm(channels: int) -> nn.Module:
    """A group norm, a group for each sixteen channels."""
    return nn.GroupNorm(channels // CHANNELS_A_GROUP, channels)


class Block(nn.Module):
    """Two 3x3 convolutions with norms and a skip, which a 1x1 convolution fits where sizes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), norm(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), norm(outputs)
        fits = stride == 1 and inputs == outputs
        skip = (
            nn.Sequential() if fits else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
        )
        self.downsample = skip

    def forward(self, values: Tensor) -> Tensor:
        """(B, outputs, H', W') of (B, inputs, H, W)."""
        inner = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(values)))))
        return torch.relu(inner + self.downsample(values))


class ResNetTrunk(nn.Module):
    """ResNet-18 without its mean over places and its last layer; parts have the names that weight files have."""

    def __init__(self, channels: int, norm: Norm = group_norm) -> None:
        super().__init__()
        width = STAGES[0][0]
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False), norm(width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        for number, (outputs, stride) in enumerate(STAGES, start=1):
            stage = nn.Sequential(Block(width, outputs, stride, norm), Block(outputs, outputs, 1, norm))
            self.add_module(f"layer{number}", stage)
            width = outputs

    def forward(self, images: Tensor) -> Tensor:
        """(B, 512, H / 32, W / 32) of (B, C, H, W), sizes rounded up."""
        values = self.maxpool(torch.relu(self.bn1(self.conv1(images))))
        for number in range(1, len(STAGES) + 1):
            values = self.get_submodule(f"layer{number}")(values)
        return values


def spatial_softmax(maps: Tensor) -> Tensor:
    """(B, 2 K) expected places (x1, y1, x2, y2, ...) of (B, K, H, W) maps, each a softmax over its places.

    x goes from -1 at the left to 1 at the right, y from -1 at the top to 1 at the bottom.
    """
    height, width = maps.shape[-2:]
    weights = maps.flatten(2).softmax(-1).unflatten(2, (height, width))
    x, y = (torch.linspace(-1, 1, size, device=maps.device, dtype=maps.dtype) for size in (width, height))
    return torch.stack([weights.sum(2) @ x, weights.sum(3) @ y], -1).flatten(1)


class ResNet18(ImageEncoder):
    """The trunk, a 1x1 convolution to F / 2 maps, their expected places, a linear layer and a ReLU."""

    kind = "resnet18"
    own_features = 64
    own_pixels = "unit"
    vectors = "joined"
    trunk_norms = True

    @classmethod
    def trunk_of(cls, view: View) -> nn.Module:
        """As `ImageEncoder.trunk_of`."""
        return ResNetTrunk(view.shape[0])

    def build(self, mapped: tuple[int, ...], features: int, vectors: int) -> None:
        """As `ImageEncoder.build`."""
        if features % 2:
            raise ConfigError(
                f"encoder_features is {features}, must be even for the {self.kind} encoder: x and y of each place"
            )
        if min(mapped[1:]) < 2:
            raise ConfigError(
                f"images of {self.view.size[0]} x {self.view.size[1]} leave the {self.kind} encoder's map one place: "
                "none can be distinguished from another. Take larger images, or another encoder"
            )
        self.maps = nn.Conv2d(mapped[0], features // 2, 1)
        self.linear = nn.Linear(features, features)

    def of_map(self, mapped: Tensor, vectors: Tensor | None) -> Tensor:
        """As `ImageEncoder.of_map`."""
        return torch.relu(self.linear(spatial_softmax(self.maps(mapped))))

    def initialise(self) -> None:
        """Convolutions of the trunk as He et al. draw them; the rest stays as torch has drawn it."""
        if self.convolutions is not None:
            self.initialise_trunk(self.convolutions)

    @classmethod
    @torch.no_grad()
    def initialise_trunk(cls, trunk: nn.Module) -> None:
        """Normal with variance 2 / (outputs k^2)."""
        for layer in trunk.modules():
            if isinstance(layer, nn.Conv2d):
                fan = layer.out_channels * math.prod(layer.kernel_size)
                layer.weight.normal_(0, math.sqrt(2 / fan))


class Folded(nn.Module):
    """A batch norm with statistics that stay: scale x + shift, of each channel."""

    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(channels, 1, 1))
        self.register_buffer("shift", torch.zeros(channels, 1, 1))

    def forward(self, values: Tensor) -> Tensor:
        """(B, C, H, W) of the same size."""
        return values * self.scale + self.shift


class FoldedResNet18(ResNet18):
    """ResNet-18 as weight files have it (`core.nn.weights`): batch norms folded, ImageNet's range of colors."""

    kind = "resnet18_folded"
    own_pixels = "imagenet"

    @classmethod
    def trunk_of(cls, view: View) -> nn.Module:
        """As `ImageEncoder.trunk_of`."""
        return ResNetTrunk(view.shape[0], Folded)


for _kind in (ResNet18, FoldedResNet18):
    ENCODERS[_kind.kind] = _kind
