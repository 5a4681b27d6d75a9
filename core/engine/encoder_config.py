"""`EncoderConfig`: the settings of agents that read images and several named arrays, and the encoder they ask for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import Options, option
from surefoot.core.base.spec import FIRST, LAST, Array, Spec
from surefoot.core.nn.encoders import Encoder
from surefoot.core.nn.image_encoders import FOLDED
from surefoot.core.nn.weights import load_encoder

READERS = "bc, act, flow_bc, diffusion_bc, fql, iql, sac, dqn, ppo, dreamer and those made of them"
"""Algorithms that read images."""


AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class EncoderConfig(Options):
    """How an agent reads images and several arrays; of no effect where observations are one vector."""

    encoder: str = option(
        "nature", "network that reads images: small, nature, impala, impala_small, d4pg, drq, resnet18 or vit"
    )
    encoder_features: int | None = option(
        None, "features of each image, and of all vectors beside images where they are mapped; null: the encoder's own"
    )
    encoder_weights: str = option(
        "", "file that encoder=resnet18 starts from: .safetensors or .pth, with torchvision's names"
    )
    encoder_trains: bool = option(
        True, "train the encoder; false: it stays as encoder_weights or init= gave it, and images are not moved"
    )
    encoder_share: bool = option(
        False, "one trunk for all cameras, which are of one size; what follows it is each camera's own"
    )
    pixels: str = option(
        "auto",
        "numbers that black .. white become: half (-.5 .. .5), unit (0 .. 1), imagenet, or auto: the encoder's own",
    )
    crop: float = option(
        1.0, "share of height and width that is seen: at random in training, else the middle; 1: all", range="(0, 1]"
    )
    image_channels: str = option(
        "auto",
        "where an image's channels lie: first, last, or auto: as stated or by the shape",
        choices=(AUTO, FIRST, LAST),
    )
    image_range: tuple[float, ...] = option(
        (), "black and white of images, as (0, 255); (): of the environment's space"
    )
    shift: int = option(
        4, "pixels that the images of a training step are moved by at most, at random; 0: not at all", range=">= 0"
    )
    shift_together: bool = option(False, "move and cut the next images as the present ones, not by a draw of their own")


FOLLOWED = ("encoder", "encoder_features", "encoder_share", "pixels", "crop", "image_channels", "image_range")
"""Options that say what an encoder is: those of a run that another starts from are taken over."""


def followed(kind: type, config: Mapping[str, Any], source: Any) -> dict[str, Any]:
    """Options of `FOLLOWED` as a source's config has them, where `config`, of class `kind`, has their defaults.

    Args:
        kind: class of the config.
        config: option -> value, of those that are given.
        source: config of the agent that is started from.
    """
    if not (issubclass(kind, EncoderConfig) and isinstance(source, EncoderConfig)):
        return {}
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    theirs = without_file(vars(source))  # the run's own tensors have the weights
    return {name: theirs[name] for name in FOLLOWED if config.get(name, defaults[name]) == defaults[name]}


def without_file(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config whose encoder is the one that `encoder_weights` gives, but for its weights: the file is not read."""
    return {**config, "encoder": FOLDED, "encoder_weights": ""} if config.get("encoder_weights") else dict(config)


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
    weights = config.encoder_weights
    if weights and config.encoder not in ("resnet18", FOLDED):
        raise ConfigError(
            f"{algorithm}.encoder_weights is {weights!r}, and encoder {config.encoder}: weights of a file are those of "
            "encoder=resnet18"
        )
    encoder = Encoder(
        stated(spec.observations, config, algorithm),
        FOLDED if weights else config.encoder,
        config.encoder_features,
        pixels=None if config.pixels == AUTO else config.pixels,
        crop=config.crop,
        share=config.encoder_share,
    )
    if weights:
        load_encoder(encoder, weights)
    return encoder


def stated(arrays: Mapping[str, Array], config: EncoderConfig, algorithm: str) -> dict[str, Array]:
    """The arrays with the channels and range of images that a config states in place of the environment's.

    Raises:
        ConfigError: they are neither.
    """
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
