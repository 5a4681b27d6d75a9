"""What agents observe of an environment's observation space: one vector, one image, or a Dict of both kinds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from surefoot.core.errors import ConfigError, EnvironmentMismatchError
from surefoot.core.spec import IMAGE, VECTOR, Array
from surefoot.core.spec import mapped as mapped

ADVICE = "wrap the environment in gymnasium.wrappers.FlattenObservation, or give images as uint8"


def arrays_of(space: gymnasium.Space[Any], name: str = "") -> dict[str, Array]:
    """Key -> shape and dtype, as `Spec.observations`.

    A one-dimensional Box is a vector, whatever its dtype; a uint8 Box of two to four dimensions is an image, or some
    stacked frames of one (`core.spec.Array` has the layouts); a Dict may hold both kinds.

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
                    f"{who}the observation {key!r} is {part}, and agents read vectors and uint8 images: {ADVICE}"
                )
            found[str(key)] = array
        return found
    array = _array(space)
    if array is None:
        raise EnvironmentMismatchError(
            f"{who}observations are {space}, and agents read vectors (a one-dimensional Box), uint8 images or a Dict "
            f"of them: {ADVICE}"
        )
    return {IMAGE if array.image else VECTOR: array}


def _array(space: gymnasium.Space[Any]) -> Array | None:
    """A Box as an array, or None where it is neither a vector nor an image."""
    if not isinstance(space, gymnasium.spaces.Box):
        return None
    shape = tuple(int(size) for size in space.shape)
    try:
        return Array(shape) if len(shape) == 1 else Array(shape, str(np.dtype(space.dtype)))
    except ConfigError:
        return None
