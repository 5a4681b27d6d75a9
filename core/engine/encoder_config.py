"""`EncoderConfig`: the settings of agents that read images and several named arrays, and the encoder they ask for."""

from __future__ import annotations

import dataclasses
from typing import Any

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import Spec
from surefoot.core.nn.encoders import Encoder

READERS = "bc, iql, sac, dqn, ppo, dreamer and those made of them"
"""Algorithms that read images."""


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """How an agent reads images and several arrays; of no effect where observations are one vector."""

    encoder: str = "nature"  # of images: small, nature or impala (core.encoders)
    encoder_features: int = 50  # of each image, and of all vectors beside images
    shift: int = 4  # pixels that the images of a training step are moved by at most, at random; 0: not at all


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
    return Encoder(spec.observations, config.encoder, config.encoder_features)


def need_vector(spec: Spec, algorithm: str) -> None:
    """Raise a ConfigError, of an algorithm that learns from one vector, where observations are something else."""
    if not spec.one_vector:
        raise ConfigError(
            f"{algorithm} learns from one vector, and observations are {spec.described()}: train it with one of "
            f"{READERS}, or wrap the environment in gymnasium.wrappers.FlattenObservation"
        )
