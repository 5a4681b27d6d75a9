"""`EncoderConfig`: the settings of agents that read images and several named arrays, and the encoder they ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import FIRST, LAST, Array, Spec
from surefoot.core.nn.encoders import Encoder

READERS = "bc, act, iql, sac, dqn, ppo, dreamer and those made of them"
"""Algorithms that read images."""


AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """How an agent reads images and several arrays; of no effect where observations are one vector."""

    encoder: str = "nature"  # of images: small, nature or impala (core.encoders)
    encoder_features: int = 50  # of each image, and of all vectors beside images
    image_channels: str = "auto"  # where an image's channels lie: first, last, or auto: as stated or by the shape
    image_range: tuple[float, ...] = ()  # black and white of images, as (0, 255); (): of the environment's space
    shift: int = 4  # pixels that the images of a training step are moved by at most, at random; 0: not at all


def reads_pictures(config: type) -> bool:
    """Whether an agent with a config of this class reads images and several arrays."""
    return issubclass(config, EncoderConfig)


def encoder_of(spec: Spec, config: Any, algorithm: str) -> Encoder | None:
    """What turns a problem's observations into features, its weights drawn anew; None where they are one vector.

    Raises:
        ConfigError: the algorithm learns from one vector only, or settings are out of range.
    """
    if spec.one_vector:
        return None
    if not isinstance(config, EncoderConfig):
        need_vector(spec, algorithm)
    if config.shift < 0:
        raise ConfigError(f"{algorithm}.shift is {config.shift}, must be 0 or more")
    return Encoder(stated(spec.observations, config, algorithm), config.encoder, config.encoder_features)


def stated(arrays: Mapping[str, Array], config: EncoderConfig, algorithm: str) -> dict[str, Array]:
    """The arrays with the channels and range of images that a config states in place of the environment's.

    Raises:
        ConfigError: they are neither.
    """
    if config.image_channels not in (AUTO, FIRST, LAST):
        raise ConfigError(f"{algorithm}.image_channels is {config.image_channels!r}, must be {AUTO}, {FIRST} or {LAST}")
    if len(config.image_range) not in (0, 2):
        raise ConfigError(
            f"{algorithm}.image_range has {len(config.image_range)} numbers, must have two, black and white, or none"
        )
    changes: dict[str, Any] = {}
    if config.image_range:
        changes |= dict(zip(("low", "high"), config.image_range, strict=True))
    found = {}
    for key, array in arrays.items():
        where = {} if config.image_channels == AUTO or len(array.shape) < 3 else {"channels": config.image_channels}
        found[key] = dataclasses.replace(array, **{**changes, **where}) if array.image else array
    return found


def need_vector(spec: Spec, algorithm: str) -> None:
    """Raise a ConfigError, of an algorithm that learns from one vector, where observations are something else."""
    if not spec.one_vector:
        raise ConfigError(
            f"{algorithm} learns from one vector, and observations are {spec.described()}: train it with one of "
            f"{READERS}, or wrap the environment in gymnasium.wrappers.FlattenObservation"
        )
