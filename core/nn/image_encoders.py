"""Encoders of one camera's images, by name: a trunk of convolutions, and what makes features of its map.

`ImageEncoder` is what they share and `ENCODERS` the registry. The two larger ones have modules of their own:
`core.nn.resnet` and `core.nn.vision_transformer`.
"""

from __future__ import annotations

import importlib
import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.pictures import View

NORM_EPSILON = 1e-5
"""Added to variances, as torch's norms add it."""


class ImageEncoder(nn.Module):
    """Features of one camera's images; `convolutions` is the trunk, which several cameras can share."""

    kind: ClassVar[str]
    """Its name in options and files."""
    own_features: ClassVar[int] = 50
    """F by default."""
    own_pixels: ClassVar[str] = "half"
    """Range of what it reads by default (`core.nn.pictures.RANGES`)."""
    always_shares: ClassVar[bool] = False
    """Whether cameras share one trunk, asked for or not."""
    vectors: ClassVar[Literal["mapped", "joined"]] = "mapped"
    """How vectors beside images become features: mapped to as many as an image has, or joined as they are."""
    reads_vectors: ClassVar[bool] = False
    """Whether it reads the vectors itself, too."""
    trunk_norms: ClassVar[bool] = False
    """Whether the trunk has norms of its own: then what changes in a picture is as large in its map as what stays."""
    convolutions: nn.Module | None

    def __init__(self, view: View, features: int, vectors: int, trunk: bool = True) -> None:
        """Build it, its weights as torch draws them: `initialise` draws those that it trains from.

        Args:
            view: of the camera.
            features: F.
            vectors: numbers of all vectors beside images.
            trunk: whether it has a trunk of its own, as `forward` then needs none.

        Raises:
            ConfigError: images that are too small, or sizes that it can't have.
        """
        super().__init__()
        self.view = view
        made, mapped = trunk_and_map(type(self), view)
        self.convolutions = made if trunk else None
        self.build(mapped, features, vectors)

    @classmethod
    def trunk_of(cls, view: View) -> nn.Module:
        """A new trunk for images of such a view: (B, C, H, W) to a map."""
        raise TypeError(f"{cls.__name__} must define trunk_of")

    def build(self, mapped: tuple[int, ...], features: int, vectors: int) -> None:
        """Make what follows the trunk, for its map of that shape; sizes as in the constructor."""
        raise TypeError(f"{type(self).__name__} must define build")

    def of_map(self, mapped: Tensor, vectors: Tensor | None) -> Tensor:
        """(B, F) features of the trunk's (B, ...) map, and of (B, V) vectors, of encoders that read them."""
        raise TypeError(f"{type(self).__name__} must define of_map")

    def initialise(self) -> None:
        """Draw its weights: orthogonal here, of gain sqrt 2, biases 0."""
        orthogonal(self)

    @classmethod
    def initialise_trunk(cls, trunk: nn.Module) -> None:
        """The same of a trunk that cameras share."""
        orthogonal(trunk)

    def forward(self, images: Tensor, vectors: Tensor | None = None, trunk: nn.Module | None = None) -> Tensor:
        """(B, F) features of (B, *shape) images.

        Args:
            images: uint8, or float in their range.
            vectors: (B, V), normalised; encoders that do not read them leave them alone.
            trunk: that cameras share; None: its own.
        """
        own = self.convolutions if trunk is None else trunk
        assert own is not None
        return self.of_map(own(self.view(images)), vectors)


def trunk_and_map(kind: type[ImageEncoder], view: View) -> tuple[nn.Module, tuple[int, ...]]:
    """A new trunk of an encoder, and the shape of its map of one image.

    Raises:
        ConfigError: images that are too small for it.
    """
    made = kind.trunk_of(view)
    try:
        with torch.no_grad():
            return made, tuple(made(torch.zeros(1, *view.shape)).shape[1:])
    except RuntimeError as error:
        _, height, width = view.shape
        raise ConfigError(
            f"images of {height} x {width} are too small for the {kind.kind} encoder: take larger ones, or impala"
        ) from error


def normed_places(mapped: Tensor) -> Tensor:
    """(B, C, H, W) maps whose channels have mean 0 and variance 1 over the places of each image."""
    centred = mapped - mapped.mean((-2, -1), keepdim=True)
    return centred * (centred.square().mean((-2, -1), keepdim=True) + NORM_EPSILON).rsqrt()


class MapEncoder(nn.Module):
    """The trunk alone: what the places of an image's map say, for networks that attend to places.

    Maps of trunks without norms are normed here, without parameters. They are mostly what all images have in common,
    such as the table: a small thing on it changes one number in forty by little, and attention, which begins as a mean
    over places, would learn from the vectors alone.
    """

    size: tuple[int, int, int]
    """Channels, height and width of the map."""

    def __init__(self, kind: type[ImageEncoder], view: View, trunk: bool = True) -> None:
        """Build it as `ImageEncoder` does.

        Raises:
            ConfigError: images that are too small, or an encoder whose trunk gives no map of channels and places.
        """
        super().__init__()
        self.kind_of, self.view = kind, view
        made, mapped = trunk_and_map(kind, view)
        if len(mapped) != len(view.shape):
            raise ConfigError(f"the {kind.kind} encoder has no map of places: take resnet18, small or another")
        if not kind.trunk_norms and mapped[1] * mapped[2] < 2:
            _, height, width = view.shape
            raise ConfigError(
                f"images of {height} x {width} leave the {kind.kind} encoder's map one place: none can be "
                "distinguished from another. Take larger images, or another encoder"
            )
        self.size = (mapped[0], mapped[1], mapped[2])
        self.convolutions = made if trunk else None

    def initialise(self) -> None:
        """As the encoder draws its trunk."""
        if self.convolutions is not None:
            self.kind_of.initialise_trunk(self.convolutions)

    def forward(self, images: Tensor, vectors: Tensor | None = None, trunk: nn.Module | None = None) -> Tensor:
        """(B, C' H' W') of (B, *shape) images; arguments as of `ImageEncoder.forward`."""
        own = self.convolutions if trunk is None else trunk
        assert own is not None
        mapped = own(self.view(images))
        return (mapped if self.kind_of.trunk_norms else normed_places(mapped)).flatten(1)


@torch.no_grad()
def orthogonal(network: nn.Module) -> None:
    """Orthogonal weights of gain sqrt 2 in all linear and convolutional layers, zero biases (Saxe et al.)."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain=math.sqrt(2))
            assert layer.bias is not None
            layer.bias.zero_()


class Squashed(ImageEncoder):
    """Convolutions, then tanh of a layer-normed linear map.

    Source of what follows the convolutions: Yarats et al., "Mastering Visual Continuous Control" (DrQ-v2).
    """

    layers: ClassVar[tuple[tuple[int, int, int], ...]]
    """Channels, kernel size and stride of each convolution, no padding."""

    @classmethod
    def trunk_of(cls, view: View) -> nn.Module:
        """As `ImageEncoder.trunk_of`: convolutions with a ReLU each."""
        found: list[nn.Module] = []
        channels = view.shape[0]
        for width, kernel, stride in cls.layers:
            found += [nn.Conv2d(channels, width, kernel, stride), nn.ReLU()]
            channels = width
        return nn.Sequential(*found)

    def build(self, mapped: tuple[int, ...], features: int, vectors: int) -> None:
        """As `ImageEncoder.build`."""
        self.linear = nn.Linear(math.prod(mapped), features)
        self.norm = nn.LayerNorm(features)

    def of_map(self, mapped: Tensor, vectors: Tensor | None) -> Tensor:
        """As `ImageEncoder.of_map`: features are in [-1, 1]."""
        return torch.tanh(self.norm(self.linear(mapped.flatten(1))))


class Small(Squashed):
    """Mnih et al., "Playing Atari with Deep Reinforcement Learning" (2013)."""

    kind = "small"
    layers = ((16, 8, 4), (32, 4, 2))


class Nature(Squashed):
    """Mnih et al., "Human-level control through deep reinforcement learning" (Nature, 2015)."""

    kind = "nature"
    layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


class D4PG(Squashed):
    """Hoffman et al., "Acme", whose D4PG from pixels Ball et al. take for RLPD."""

    kind = "d4pg"
    own_pixels = "unit"
    layers = ((32, 3, 2), (64, 3, 2), (128, 3, 2), (256, 3, 2))


class DrQ(Squashed):
    """Yarats et al., "Mastering Visual Continuous Control" (DrQ-v2)."""

    kind = "drq"
    layers = ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1))


IMPALA_CHANNELS = (16, 32, 32)


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3 each."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, values: Tensor) -> Tensor:
        """(B, C, H, W) of the same size."""
        return values + self.second(torch.relu(self.first(torch.relu(values))))


def impala_stacks(channels: int, blocks: int) -> nn.Sequential:
    """Three times a 3x3 convolution, a 3x3 maximum of stride 2 and residual blocks, then a ReLU.

    Source: Espeholt et al., "IMPALA: Scalable Distributed Deep-RL", figure 3, which has two blocks each.
    """
    layers: list[nn.Module] = []
    for width in IMPALA_CHANNELS:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        layers += [Residual(width) for _ in range(blocks)]
        channels = width
    return nn.Sequential(*layers, nn.ReLU())


class Impala(Squashed):
    """Espeholt et al., "IMPALA": two residual blocks in each of three stacks."""

    kind = "impala"

    @classmethod
    def trunk_of(cls, view: View) -> nn.Module:
        """As `ImageEncoder.trunk_of`."""
        return impala_stacks(view.shape[0], 2)


class ImpalaSmall(ImageEncoder):
    """One residual block in each stack, then a linear layer and GELU in its tanh form, without a layer norm.

    Source: Park et al., "OGBench" (visual tasks).
    """

    kind = "impala_small"
    own_features = 512
    own_pixels = "unit"

    @classmethod
    def trunk_of(cls, view: View) -> nn.Module:
        """As `ImageEncoder.trunk_of`."""
        return impala_stacks(view.shape[0], 1)

    def build(self, mapped: tuple[int, ...], features: int, vectors: int) -> None:
        """As `ImageEncoder.build`."""
        self.linear = nn.Linear(math.prod(mapped), features)

    def of_map(self, mapped: Tensor, vectors: Tensor | None) -> Tensor:
        """As `ImageEncoder.of_map`."""
        return nn.functional.gelu(self.linear(mapped.flatten(1)), approximate="tanh")


ENCODERS: dict[str, type[ImageEncoder]] = {
    encoder.kind: encoder for encoder in (Small, Nature, Impala, ImpalaSmall, D4PG, DrQ)
}
"""Name -> class, of those here and those whose modules have been imported."""
FOLDED = "resnet18_folded"
"""What `resnet18` is called with batch norms of a weight file folded into it."""
_HOMES = {
    "resnet18": "surefoot.core.nn.resnet",
    FOLDED: "surefoot.core.nn.resnet",
    "vit": "surefoot.core.nn.vision_transformer",
}
NAMES = (*ENCODERS, *_HOMES)
"""Of the encoders that come with the library."""


def encoder_class(name: str) -> type[ImageEncoder]:
    """The encoder of a name.

    Raises:
        ConfigError: nothing has that name.
    """
    if name in _HOMES:
        importlib.import_module(_HOMES[name])
    if name not in ENCODERS:
        raise ConfigError(f"encoder is {name!r}, must be one of {', '.join(sorted({*NAMES, *ENCODERS}, key=_place))}")
    return ENCODERS[name]


def _place(name: str) -> tuple[int, str]:
    """Ours in their order, then others by name."""
    return (NAMES.index(name) if name in NAMES else len(NAMES), name)
