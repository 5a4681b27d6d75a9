"""Pictures as arrays and as what a network reads: layouts, ranges, crops and random shifts."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Array

RANGES = ("half", "unit", "imagenet")
"""Maps of black .. white that encoders read: to -0.5 .. 0.5, to 0 .. 1, to ImageNet's mean 0 and deviation 1."""
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of red, green and blue in 0 .. 1."""


def channels_first(images: Tensor, array: Array) -> Tensor:
    """(B, C, H, W) view of (B, *shape) images, stacked frames among the channels (see `core.base.spec.Array`).

    Height and width are the images' own: parts that were cut out of larger ones are laid out as those.
    """
    if array.channels_last:
        images = images.movedim(-1, -3)
    return images.reshape(images.shape[0], array.image_size[0], *images.shape[-2:])


def as_laid_out(images: Tensor, array: Array) -> Tensor:
    """(B, *shape) view of (B, C, H, W) images: the inverse of `channels_first`."""
    height, width = images.shape[-2:]
    if len(array.shape) == 2:
        return images.reshape(images.shape[0], height, width)
    if not array.channels_last:
        return images.reshape(images.shape[0], *array.shape[:-2], height, width)
    return images.reshape(images.shape[0], *array.shape[:-3], array.shape[-1], height, width).movedim(-3, -1)


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


def in_range(images: Tensor, array: Array, pixels: str) -> Tensor:
    """(B, C, H, W) float32 of (B, C, H, W) images, as the range `pixels` of `RANGES` says."""
    if pixels == "half":
        return scaled(images, array)
    values = scaled(images, array, 0.0)
    if pixels == "unit":
        return values
    mean, deviation = (
        values.new_tensor(numbers).repeat(values.shape[1] // 3).view(-1, 1, 1)
        for numbers in (IMAGENET_MEAN, IMAGENET_DEVIATION)
    )
    return (values - mean) / deviation


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
    return _cut_out(images, rows, columns)


def random_crop(images: Tensor, uniform: Tensor, size: tuple[int, int]) -> Tensor:
    """A part of each image, every place equally likely, the last row and column included.

    Args:
        images: (B, C, H, W) of any dtype.
        uniform: (B, 2) on [0, 1): how far down and right, one place for all channels of an image.
        size: height and width (h, w) of the part, at most those of the images.

    Returns:
        (B, C, h, w); the offset is floor(u (H - h + 1)), as of the width.
    """
    spare = [whole - part for whole, part in zip(images.shape[-2:], size, strict=True)]
    first = [(uniform[:, axis : axis + 1] * (spare[axis] + 1)).long() for axis in (0, 1)]
    rows, columns = (
        torch.arange(part, device=images.device) + offset for part, offset in zip(size, first, strict=True)
    )
    return _cut_out(images, rows, columns)


def centre_crop(images: Tensor, size: tuple[int, int]) -> Tensor:
    """The (..., h, w) part in the middle of (..., H, W) images, at offset (H - h) // 2; images of that size as they
    are."""
    (height, width), (down, right) = size, ((whole - part) // 2 for whole, part in zip(images.shape[-2:], size))
    return images[..., down : down + height, right : right + width]


def _cut_out(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, C, h, w) pixels of (B, C, H, W) images at (B, h) rows and (B, w) columns."""
    places = (rows.unsqueeze(2) * images.shape[-1] + columns.unsqueeze(1)).flatten(1).unsqueeze(1)
    flat = images.flatten(2)
    found = flat.gather(2, places.expand(*flat.shape[:2], -1))
    return found.unflatten(2, (rows.shape[1], columns.shape[1]))


@dataclasses.dataclass(frozen=True)
class View:
    """How a camera's images become what a network reads: which part of them, and in which range."""

    array: Array
    pixels: str = "half"
    """Of `RANGES`."""
    crop: float = 1.0
    """Share of height and of width that is seen, in (0, 1]."""

    def __post_init__(self) -> None:
        """Refuse another range, a share that leaves nothing, and ImageNet's range of images without three colors."""
        if self.pixels not in RANGES:
            raise ConfigError(f"pixels is {self.pixels!r}, must be one of {', '.join(RANGES)}")
        if not 0 < self.crop <= 1 or min(self.size) < 1:
            raise ConfigError(f"crop is {self.crop}, must be above 0 and at most 1: the share of an image that is seen")
        if self.pixels == "imagenet" and self.array.image_size[0] % 3:
            raise ConfigError(
                f"pixels=imagenet is a range of red, green and blue, and images have {self.array.image_size[0]} "
                "channels: take pixels=unit or half"
            )

    @property
    def size(self) -> tuple[int, int]:
        """(h, w) of what is seen, rounded to whole pixels."""
        _, height, width = self.array.image_size
        return round(self.crop * height), round(self.crop * width)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, h, w) of what is seen."""
        return (self.array.image_size[0], *self.size)

    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, h, w) float32 of (B, *shape) images, their middle; those that are cut out already are taken whole."""
        return in_range(centre_crop(channels_first(images, self.array), self.size), self.array, self.pixels)

    def moved(self, images: Tensor, shift: Tensor | None, pixels: int, crop: Tensor | None) -> Tensor:
        """What training sees of (B, *shape) images: shifted by up to `pixels`, a random part in place of the middle.

        Args:
            images: laid out as the array says; frames of a history may lie in further dimensions behind the first.
            shift: (B, 2) on [0, 1), of `random_shift`; None: not shifted.
            pixels: largest shift.
            crop: (B, 2) on [0, 1), of `random_crop`; None: not cut.
        """
        places = len(self.array.shape)
        lead = images.shape[:-places]
        frames = channels_first(images.reshape(-1, *images.shape[-places:]), self.array)
        together = frames.reshape(lead[0], -1, *frames.shape[-2:])  # all frames of a history are moved alike
        if shift is not None:
            together = random_shift(together, shift, pixels)
        if crop is not None:
            together = random_crop(together, crop, self.size)
        frames = together.reshape(-1, frames.shape[1], *together.shape[-2:])
        found = as_laid_out(frames, self.array)
        return found.reshape(*lead, *found.shape[1:])
