"""What agents observe of an environment's observation space: one vector, one image, or a Dict of both kinds."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np

from surefoot.core.base.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.base.spec import IMAGE, PIXELS, VECTOR, Array
from surefoot.core.base.spec import mapped as mapped

ADVICE = "wrap the environment in gymnasium.wrappers.FlattenObservation, or give images as uint8"
PICTURE_ADVICE = (
    "give pictures as uint8, or as real numbers with finite bounds, of shape (H, W) or (H, W, C), as by "
    "gymnasium.wrappers.TransformObservation, and not flattened; a Dict may hold them beside vectors"
)
FLATTENED = 129
"""Numbers from 0 to 255 in a vector that are taken for a flattened picture: one more than the memory of an Atari."""


def arrays_of(space: gymnasium.Space[Any], name: str = "") -> dict[str, Array]:
    """Key -> shape and dtype, as `Spec.observations`.

    A one-dimensional Box is a vector, whatever its dtype; what `is_image` describes is an image, or some stacked
    frames of one (`core.base.spec.Array` has the layouts), whose black and white are the lowest and highest bound of
    the Box: planes of zeros and ones have the bounds 0 and 1. A Dict may hold both kinds.

    Args:
        space: of one environment.
        name: of the environment, for messages.

    Raises:
        EnvironmentMismatchError: another space.
    """
    who = f"{name}: " if name else ""
    if isinstance(space, gymnasium.spaces.Dict):
        found = {}
        for key, part in space.items():
            array = _array(part)
            if array is None:
                raise EnvironmentMismatchError(
                    f"{who}the observation {key!r} is {part}, and agents read vectors and uint8 images: {_advice(part)}"
                )
            found[str(key)] = array
        return found
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
        bytes_ = int(((space.low == 0) & (space.high == 255)).sum())
        if bytes_ >= FLATTENED:
            raise EnvironmentMismatchError(
                f"{who}{bytes_:,} of the {space.shape[0]:,} numbers of an observation go from 0 to 255, as those of a "
                f"flattened picture, which a network for vectors does not see: {PICTURE_ADVICE}"
            )
    array = _array(space)
    if array is None:
        raise EnvironmentMismatchError(
            f"{who}observations are {space}, and agents read vectors (a one-dimensional Box), uint8 images or a Dict "
            f"of them: {_advice(space)}"
        )
    return {IMAGE if array.image else VECTOR: array}


def _advice(space: gymnasium.Space[Any]) -> str:
    """What to do about a space: pictures of real numbers are not to be flattened."""
    shape = space.shape or ()
    picture = isinstance(space, gymnasium.spaces.Box) and len(shape) > 1 and sum(size >= PIXELS for size in shape) >= 2
    return PICTURE_ADVICE if picture else ADVICE


def is_image(space: gymnasium.Space[Any]) -> bool:
    """Whether a space is one of images: a Box of two to four dimensions and whole bytes or truth values, or of real
    numbers with finite bounds and at least two sizes of `PIXELS` or more; smaller ones are matrices of numbers."""
    if not isinstance(space, gymnasium.spaces.Box) or not 2 <= len(space.shape) <= 4:
        return False
    if space.dtype in (np.uint8, np.bool_):
        return True
    large = sum(size >= PIXELS for size in space.shape) >= 2
    return large and space.dtype.kind == "f" and bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())


@dataclasses.dataclass
class FlatVectors:
    """What a Dict of observations becomes: its vectors one vector, where it has no image; else as it is."""

    given: gymnasium.spaces.Dict
    space: gymnasium.spaces.Dict
    key: str | None
    """Of the one vector; None: nothing is joined."""

    def __call__(self, observations: Any) -> dict[str, Any]:
        """The observations likewise."""
        if self.key is None:
            return dict(observations)
        return {self.key: gymnasium.spaces.flatten(self.given, observations)}


def flat_vectors(space: gymnasium.spaces.Dict, key: str) -> FlatVectors:
    """How a Dict's vectors are joined, in the alphabetical order of their keys, under a `key` of their own.

    A lone vector keeps its key and numbers. A Dict with an image stays as it is.
    """
    parts = space.spaces
    if any(is_image(part) for part in parts.values()) or (len(parts) == 1 and _array(next(iter(parts.values())))):
        return FlatVectors(space, space, None)
    ordered = gymnasium.spaces.Dict([(name, parts[name]) for name in sorted(parts)])
    joined = gymnasium.spaces.flatten_space(ordered)
    return FlatVectors(ordered, gymnasium.spaces.Dict({key: joined}), key)


def _array(space: gymnasium.Space[Any]) -> Array | None:
    """A Box as an array, or None where it is neither a vector nor an image."""
    if isinstance(space, gymnasium.spaces.MultiBinary) and len(space.shape) == 1:
        return Array((int(space.shape[0]),))
    if not isinstance(space, gymnasium.spaces.Box):
        return None
    shape = tuple(int(size) for size in space.shape)
    try:
        if len(shape) == 1:
            return Array(shape)
        if not is_image(space):
            return None
        low, high = float(space.low.min()), float(space.high.max())
        return Array(shape, "float32" if space.dtype.kind == "f" else "uint8", low=low, high=high)
    except ConfigError:
        return None
