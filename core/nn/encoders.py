"""Encoders: images and several named arrays as one vector of features, and the shift that images are augmented by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import MASK, Array, in_words, vectors_of

ENCODERS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "small": ((16, 8, 4), (32, 4, 2)),
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
}
"""Name -> channels, kernel size and stride of each convolution, no padding.

Sources: Mnih et al., "Playing Atari with Deep Reinforcement Learning" (2013); "Human-level control through deep
reinforcement learning" (Nature, 2015).
"""
IMPALA = "impala"
IMPALA_CHANNELS = (16, 32, 32)
NAMES = (*ENCODERS, IMPALA)


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3 each."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, values: Tensor) -> Tensor:
        """(B, C, H, W) of the same size."""
        return values + self.second(torch.relu(self.first(torch.relu(values))))


def convolutions(name: str, channels: int) -> nn.Sequential:
    """The convolutional part: (B, channels, H, W) in about [-0.5, 0.5] to (B, C', H', W') after a ReLU.

    `impala` is three times a 3x3 convolution, a 3x3 maximum of stride 2 and two residual blocks, with 16, 32 and 32
    channels. Source: Espeholt et al., "IMPALA: Scalable Distributed Deep-RL", figure 3.

    Raises:
        ConfigError: a name that is none of `NAMES`.
    """
    if name not in NAMES:
        raise ConfigError(f"encoder is {name!r}, must be one of {', '.join(NAMES)}")
    layers: list[nn.Module] = []
    if name == IMPALA:
        for width in IMPALA_CHANNELS:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            layers += [Residual(width), Residual(width)]
            channels = width
        return nn.Sequential(*layers, nn.ReLU())
    for width, kernel, stride in ENCODERS[name]:
        layers += [nn.Conv2d(channels, width, kernel, stride), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers)


class ImageEncoder(nn.Module):
    """Convolutions, then tanh of a layer-normed linear map.

    Source of what follows the convolutions: Yarats et al., "Mastering Visual Continuous Control" (DrQ-v2).
    """

    def __init__(self, array: Array, name: str, features: int) -> None:
        super().__init__()
        self.array = array
        channels, height, width = array.image_size
        self.convolutions = convolutions(name, channels)
        try:
            with torch.no_grad():
                size = self.convolutions(torch.zeros(1, channels, height, width)).numel()
        except RuntimeError as error:
            raise ConfigError(
                f"images of {height} x {width} are too small for the {name} encoder: take larger ones, or {IMPALA}"
            ) from error
        self.linear = nn.Linear(size, features)
        self.norm = nn.LayerNorm(features)

    def forward(self, images: Tensor) -> Tensor:
        """(B, features) in [-1, 1] of (B, *shape) images."""
        values = scaled(channels_first(images, self.array), self.array)
        return torch.tanh(self.norm(self.linear(self.convolutions(values).flatten(1))))


def by_key(observations: Any, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """The (B, *shape) tensors that a policy of these `arrays` reads, vectors as float32; further ones are left out.

    Args:
        observations: key -> tensor, or the tensor of a lone array.
        arrays: key -> shape and dtype.

    Raises:
        EnvironmentMismatchError: one is missing, is no tensor, or has another shape, dtype or number of rows.
    """
    if not isinstance(observations, Mapping):
        observations = dict.fromkeys(arrays, observations)
    found: dict[str, Tensor] = {}
    for key, array in arrays.items():
        value = observations.get(key)
        if value is not None and not isinstance(value, Tensor):
            words = f"{key} is {type(value).__name__}, must be a tensor: torch.as_tensor makes it one"
            raise EnvironmentMismatchError(words)
        if value is None or tuple(value.shape[1:]) != array.shape:
            shape = "missing" if value is None else tuple(value.shape[1:])
            raise EnvironmentMismatchError(
                f"{key} is {shape}; this policy was trained on {in_words(arrays)}: act in the environment that it "
                "was trained in"
            )
        if array.dtype == "uint8" and value.dtype != torch.uint8:
            words = f"{key} is {value.dtype}, must be torch.uint8: images are whole numbers from 0 to 255"
            raise EnvironmentMismatchError(words)
        found[key] = value if array.dtype == "uint8" else value.to(torch.float32)
    rows = {key: len(value) for key, value in found.items()}
    if len(set(rows.values())) > 1:
        raise EnvironmentMismatchError(f"the arrays of one observation have {rows} rows: give as many of each")
    return found


class MapEncoder(nn.Module):
    """The convolutions alone: what the cells of an image's map say."""

    def __init__(self, array: Array, name: str) -> None:
        super().__init__()
        self.array = array
        self.convolutions = convolutions(name, array.image_size[0])
        self.size: tuple[int, int, int]
        try:
            with torch.no_grad():
                self.size = tuple(self.convolutions(torch.zeros(1, *array.image_size)).shape[1:])
        except RuntimeError as error:
            height, width = array.image_size[1:]
            raise ConfigError(
                f"images of {height} x {width} are too small for the {name} encoder: take larger ones, or {IMPALA}"
            ) from error

    def forward(self, images: Tensor) -> Tensor:
        """(B, C' H' W') of (B, *shape) images."""
        return self.convolutions(scaled(channels_first(images, self.array), self.array)).flatten(1)


class Encoder(nn.Module):
    """Features of an observation of several arrays: those of each image, then those of the vectors, side by side.

    Vectors are joined and, beside images, mapped to as many features as an image has, layer-normed and squashed like
    those. Without an image they are just joined, and the encoder has no parameters. A mask of actions stands behind all
    of them as it is. Weights are orthogonal, biases 0.
    But the bias of the vectors' map is drawn as the weights of one more input that is always 1: without it the layer
    norm would let the vectors' direction through and not their length, of one number its sign alone.
    """

    def __init__(
        self, arrays: Mapping[str, Array], name: str = "nature", features: int = 50, maps: bool = False
    ) -> None:
        """Build and initialise from torch's global generator.

        Args:
            arrays: key -> shape and dtype, as `Spec.observations`.
            name: of the convolutional part, one of `NAMES`.
            features: F, of each image and of all vectors together.
            maps: give the last map of the convolutions of each image instead, flattened, and vectors as they are.

        Raises:
            ConfigError: another name, features below 1, or images that are too small.
        """
        super().__init__()
        if features < 1:
            raise ConfigError(f"encoder_features is {features}, must be 1 or more")
        self.arrays, self.name, self.features, self.maps = dict(arrays), name, features, maps
        self.vectors = vectors_of(arrays)
        seen = {key: array for key, array in arrays.items() if array.image}
        self.images = nn.ModuleDict(
            {
                key: MapEncoder(array, name) if maps else ImageEncoder(array, name, features)
                for key, array in seen.items()
            }
        )
        self.map_sizes = tuple(n for image in self.images.values() if isinstance(image, MapEncoder) for n in image.size)
        """Channels, height and width of each image's map, one after another; of an encoder of maps."""
        width = sum(arrays[key].shape[0] for key in self.vectors)
        self.linear = nn.Linear(width, features) if seen and width and not maps else None
        self.norm = nn.LayerNorm(features) if seen and width and not maps else None
        self.width = features * (len(seen) + (self.linear is not None)) if seen else width
        if maps:
            sizes = (image.size for image in self.images.values() if isinstance(image, MapEncoder))
            self.width = width + sum(math.prod(size) for size in sizes)
        self.width += arrays[MASK].shape[0] if MASK in arrays else 0
        """Of what it gives."""
        initialise(self)
        if self.linear is not None:
            drawn = nn.init.orthogonal_(torch.empty(features, width + 1), gain=math.sqrt(2))
            with torch.no_grad():
                self.linear.weight.copy_(drawn[:, :-1])
                self.linear.bias.copy_(drawn[:, -1])

    def forward(self, observations: Mapping[str, Tensor]) -> Tensor:
        """(..., width) features of key -> (..., *shape): uint8 images, and vectors as they are normalised."""
        parts = []
        for key, encoder in self.images.items():
            images, places = observations[key], len(self.arrays[key].shape)
            lead = images.shape[:-places]
            parts.append(encoder(images.reshape(-1, *images.shape[-places:])).reshape(*lead, -1))
        if self.vectors:
            vector = torch.cat([observations[key] for key in self.vectors], -1)
            if self.linear is not None and self.norm is not None:
                vector = torch.tanh(self.norm(self.linear(vector)))
            parts.append(vector)
        if MASK in self.arrays:
            parts.append(observations[MASK])
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    def description(self) -> dict[str, Any]:
        """Its settings as JSON values: enough, with the arrays, to build it again."""
        found: dict[str, Any] = {"encoder": self.name, "encoder_features": self.features}
        return found | ({"encoder_maps": True} if self.maps else {})


def on_vectors(
    function: Callable[[Tensor], Tensor], observations: Mapping[str, Tensor], keys: Sequence[str]
) -> dict[str, Tensor]:
    """Observations whose vectors a function has changed, joined in the order of `keys`; images are left as they are."""
    if not keys:
        return dict(observations)
    joined = function(torch.cat([observations[key] for key in keys], -1))
    parts = joined.split([observations[key].shape[-1] for key in keys], -1)
    return {**observations, **dict(zip(keys, parts, strict=True))}


@torch.no_grad()
def initialise(network: nn.Module) -> None:
    """Orthogonal weights of gain sqrt 2 in all linear and convolutional layers, zero biases (Saxe et al.)."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain=math.sqrt(2))
            assert layer.bias is not None
            layer.bias.zero_()


def channels_first(images: Tensor, array: Array) -> Tensor:
    """(B, C, H, W) view of (B, *shape) images, stacked frames among the channels (see `core.base.spec.Array`)."""
    if array.channels_last:
        images = images.movedim(-1, -3)
    return images.reshape(images.shape[0], *array.image_size)


def scaled(images: Tensor, array: Array, black: float = -0.5) -> Tensor:
    """(B, C, H, W) float32 of (B, C, H, W) images in the array's range: black is `black`, and white 1 above.

    Where it is not stated (see `core.base.spec.Array`), each image by itself is taken for planes or for bytes.
    """
    values = images.to(torch.float32, copy=True)
    if array.range is None:
        planes = (values <= 1).flatten(1).all(1).view(-1, 1, 1, 1)
        return values.mul_(torch.where(planes, 1.0, 1 / 255)).add_(black)
    low, high = array.range
    return values.mul_(1 / (high - low)).add_(black - low / (high - low))


def as_laid_out(images: Tensor, array: Array) -> Tensor:
    """(B, *shape) view of (B, C, H, W) images: the inverse of `channels_first`."""
    if len(array.shape) == 2 or not array.channels_last:
        return images.reshape(images.shape[0], *array.shape)
    frames, height, width = array.shape[:-3], *array.image_size[1:]
    return images.reshape(images.shape[0], *frames, array.shape[-1], height, width).movedim(-3, -1)


def random_shift(images: Tensor, uniform: Tensor, pixels: int) -> Tensor:
    """Each image moved by up to `pixels` in both directions, its border repeated where it uncovers some.

    Args:
        images: (B, C, H, W) of any dtype.
        uniform: (B, 2) on [0, 1): how far down and right, one shift for all channels of an image.
        pixels: largest shift, at least 0.

    Returns:
        (B, C, H, W), as if `pixels` were padded on each side and a random part cut out.

    Source: Kostrikov, Yarats and Fergus, "Image Augmentation Is All You Need" (DrQ): 4 pixels of 84.
    """
    height, width = images.shape[-2:]
    offset = (uniform * (2 * pixels + 1)).long() - pixels
    rows = (torch.arange(height, device=images.device) + offset[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) + offset[:, 1:]).clamp(0, width - 1)
    places = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).flatten(1).unsqueeze(1)
    flat = images.flatten(2)
    return flat.gather(2, places.expand(flat.shape)).view_as(images)
