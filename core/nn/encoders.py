"""Encoders: images and several named arrays as one vector of features."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.scaling import scaled as scaled_picture
from surefoot.core.base.spec import MASK, Array, in_words, vectors_of
from surefoot.core.nn.image_encoders import NAMES as NAMES
from surefoot.core.nn.image_encoders import ImageEncoder, MapEncoder, encoder_class, orthogonal
from surefoot.core.nn.pictures import View
from surefoot.core.nn.pictures import as_laid_out as as_laid_out
from surefoot.core.nn.pictures import channels_first as channels_first
from surefoot.core.nn.pictures import random_shift as random_shift
from surefoot.core.nn.pictures import scaled as scaled


def resized(images: Tensor, array: Array) -> Tensor:
    """(B, *shape) uint8 images, those of another height and width scaled by the array's rule, if it has one."""
    if images.dim() != len(array.shape) + 1 or not array.scales(Array(tuple(images.shape[1:]), "uint8")):
        return images
    each = (scaled_picture(one, array.image_size[1:]) for one in images.cpu().numpy())
    return torch.from_numpy(np.stack(list(each))).to(images.device)


def by_key(observations: Any, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """The (B, *shape) tensors that a policy of these `arrays` reads, vectors as float32; further ones are left out.

    Images of another height and width are scaled where the array says by which rule.

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
        if value is not None and value.dtype == torch.uint8 and array.image:
            value = resized(value, array)
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


class Encoder(nn.Module):
    """Features of an observation of several arrays: those of each image, then those of the vectors, side by side.

    Vectors are joined. Beside images they are mapped to as many features as an image has, layer-normed and squashed,
    where the encoder of images is of a kind that does so to its own, and stay as they are where it is of another.
    Without an image they are just joined, and the encoder has no parameters. A mask of actions stands behind all
    of them as it is. How weights are drawn is the encoder of images' own; the vectors' map has orthogonal ones.
    But the bias of the vectors' map is drawn as the weights of one more input that is always 1: without it the layer
    norm would let the vectors' direction through and not their length, of one number its sign alone.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        name: str = "nature",
        features: int | None = None,
        *,
        pixels: str | None = None,
        crop: float = 1.0,
        share: bool = False,
        maps: bool = False,
    ) -> None:
        """Build and initialise from torch's global generator.

        Args:
            arrays: key -> shape and dtype, as `Spec.observations`.
            name: of the encoder of images (`core.nn.image_encoders`).
            features: F, of each image, and of all vectors together where they are mapped; None: as the kind has it.
            pixels: range of what it reads (`core.nn.pictures.RANGES`); None: the kind's own.
            crop: share of each image's height and width that is seen, in (0, 1]: the middle one, but in training.
            share: one trunk for all cameras, whose images must then have one size; what follows it is each one's own.
            maps: give the last map of each image's trunk instead, flattened, and vectors as they are.

        Raises:
            ConfigError: another name, features below 1, images that are too small, or of several sizes where a trunk is
                shared.
        """
        super().__init__()
        kind = encoder_class(name)
        features = kind.own_features if features is None else features
        if features < 1:
            raise ConfigError(f"encoder_features is {features}, must be 1 or more")
        self.arrays, self.name, self.features = dict(arrays), name, features
        self.pixels, self.crop, self.share = kind.own_pixels if pixels is None else pixels, crop, share
        self.maps = maps
        self.vectors = vectors_of(arrays)
        self.views = {key: View(array, self.pixels, crop) for key, array in arrays.items() if array.image}
        """Of each camera."""
        together = (share or kind.always_shares) and len(self.views) > 1
        width = sum(arrays[key].shape[0] for key in self.vectors)
        made: dict[str, ImageEncoder | MapEncoder] = {
            key: MapEncoder(kind, view, not together) if maps else kind(view, features, width, trunk=not together)
            for key, view in self.views.items()
        }
        self.images = nn.ModuleDict(made)
        self.trunk = kind.trunk_of(self._one_view()) if together else None
        mapped = self.views and width and kind.vectors == "mapped" and not maps
        self.linear = nn.Linear(width, features) if mapped else None
        self.norm = nn.LayerNorm(features) if mapped else None
        self.map_sizes = tuple(n for image in made.values() if isinstance(image, MapEncoder) for n in image.size)
        """Channels, height and width of each image's map, one after another; of an encoder of maps."""
        of_image = {
            key: math.prod(image.size) if isinstance(image, MapEncoder) else features for key, image in made.items()
        }
        self.width = sum(of_image.values()) + (features if mapped else width)
        self.width += arrays[MASK].shape[0] if MASK in arrays else 0
        """Of what it gives."""
        for encoder in made.values():
            encoder.initialise()
        if self.trunk is not None:
            kind.initialise_trunk(self.trunk)
        if self.linear is not None:
            orthogonal(self.linear)
            drawn = nn.init.orthogonal_(torch.empty(features, width + 1), gain=math.sqrt(2))
            with torch.no_grad():
                self.linear.weight.copy_(drawn[:, :-1])
                self.linear.bias.copy_(drawn[:, -1])

    def of_maps(self) -> Encoder:
        """Another of its settings, which gives maps; its weights are drawn anew."""
        made = (self.arrays, self.name, self.features)
        return Encoder(*made, pixels=self.pixels, crop=self.crop, share=self.share, maps=True)

    def _one_view(self) -> View:
        """That of all cameras, for a trunk that they share."""
        sizes = {key: view.shape for key, view in self.views.items()}
        first, *others = sizes.values()
        if any(size != first for size in others):
            words = ", ".join(f"{key} {size[0]} x {size[1]} x {size[2]}" for key, size in sizes.items())
            instead = "take encoder_share=false" if self.share else "take another encoder than " + self.name
            raise ConfigError(
                f"cameras that share an encoder must have images of one size, and have {words}: {instead}"
            )
        return next(iter(self.views.values()))

    def forward(self, observations: Mapping[str, Tensor]) -> Tensor:
        """(..., width) features of key -> (..., *shape): uint8 images, and vectors as they are normalised."""
        parts = []
        vector = torch.cat([observations[key] for key in self.vectors], -1) if self.vectors else None
        for key, encoder in self.images.items():
            images, places = observations[key], len(self.arrays[key].shape)
            lead = images.shape[:-places]
            beside = None if vector is None else vector.reshape(-1, vector.shape[-1])
            found = encoder(images.reshape(-1, *images.shape[-places:]), beside, self.trunk)
            parts.append(found.reshape(*lead, -1))
        if vector is not None:
            if self.linear is not None and self.norm is not None:
                vector = torch.tanh(self.norm(self.linear(vector)))
            parts.append(vector)
        if MASK in self.arrays:
            parts.append(observations[MASK])
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    def moved(
        self, observations: Mapping[str, Tensor], draws: Mapping[str, Tensor], pixels: int, following: bool = False
    ) -> dict[str, Tensor]:
        """Observations whose images are shifted and cut out, each camera's by a draw of its own.

        Args:
            observations: key -> (B, *shape).
            draws: "shift" and "crop", of those that are asked for: (B, 4 cameras) on [0, 1), for each camera two
                numbers of its present image, then two of its next one.
            pixels: largest shift.
            following: whether the draws of the next images are taken.
        """
        found = dict(observations)
        for number, (key, view) in enumerate(self.views.items()):
            first = 4 * number + (2 if following else 0)
            own = {name: value[:, first : first + 2] for name, value in draws.items()}
            found[key] = view.moved(observations[key], own.get("shift"), pixels, own.get("crop"))
        return found

    def description(self) -> dict[str, Any]:
        """Its settings as JSON values: enough, with the arrays, to build it again."""
        found: dict[str, Any] = {"encoder": self.name, "encoder_features": self.features, "pixels": self.pixels}
        if self.crop != 1:
            found["crop"] = self.crop
        if self.share:
            found["encoder_share"] = True
        if self.maps:
            found["encoder_maps"] = True
        return found

    @classmethod
    def from_description(cls, arrays: Mapping[str, Array], options: Mapping[str, Any]) -> Encoder:
        """The encoder, its weights drawn anew, that `description` describes; files of older versions say less.

        Raises:
            KeyError, ConfigError: options that are missing or out of range.
        """
        return cls(
            arrays,
            options["encoder"],
            options["encoder_features"],
            pixels=options.get("pixels"),
            crop=options.get("crop", 1.0),
            share=options.get("encoder_share", False),
            maps=options.get("encoder_maps", False),
        )


def on_vectors(
    function: Callable[[Tensor], Tensor], observations: Mapping[str, Tensor], keys: Sequence[str]
) -> dict[str, Tensor]:
    """Observations whose vectors a function has changed, joined in the order of `keys`; images are left as they are."""
    if not keys:
        return dict(observations)
    joined = function(torch.cat([observations[key] for key in keys], -1))
    parts = joined.split([observations[key].shape[-1] for key in keys], -1)
    return {**observations, **dict(zip(keys, parts, strict=True))}
