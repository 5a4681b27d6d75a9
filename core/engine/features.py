"""How agents learn from images and several named arrays: their losses read features, which one update learns.

A batch holds such observations as `observations/KEY` and `next_observations/KEY`. At the start of a training step the
images are shifted (`core.nn.encoders.random_shift`) and encoded, so that the losses find `observations`,
`next_observations` and `observation_actions` as they do on a problem of one vector, without a gradient to the encoder.
One update alone trains the encoder as well and encodes its observations anew, with the gradient: that of the critic,
or else of the value, or of the actor. Targets read the next observations by the same encoder; there is no copy of it
that follows slowly.

Source: Yarats, Fergus, Lazaric and Pinto, "Mastering Visual Continuous Control: Improved Data-Augmented Reinforcement
Learning" (DrQ-v2), whose critic alone trains the encoder and whose actor reads its features detached.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Agent, Batch, Loss, Metrics, Rule, Update
from surefoot.core.engine.encoder_config import READERS as READERS
from surefoot.core.engine.encoder_config import EncoderConfig as EncoderConfig
from surefoot.core.engine.encoder_config import encoder_of as encoder_of
from surefoot.core.engine.encoder_config import need_vector as need_vector
from surefoot.core.nn.encoders import Encoder

OBSERVATIONS = ("observations", "next_observations")
SHIFT = "shift"
"""Name of the noise that images are shifted by."""
CROP = "crop"
"""Name of the noise that says which part of an image is seen."""
MOVES = (SHIFT, CROP)
"""Noises that images are moved by: for each camera two numbers of its present image, then two of its next one."""
MOVED = "moved/"
"""What names of columns begin with that hold such numbers, of rows whose view is drawn once."""
ENCODED = ("~features", "~vectors")
"""Keys of columns that hold features by an encoder that is not trained (`data.frozen_features`), in their order."""
TRAINED_WITH = ("critic", "value", "actor", "velocity", "noise_network", "classifier")
"""Networks that the encoder is trained along with: the first of them that the agent trains."""


def named(batch: Mapping[str, Tensor], encoder: Encoder, name: str) -> dict[str, Tensor]:
    """Key -> tensor of the arrays that a batch holds as NAME/KEY; empty where it holds none."""
    return {key: batch[f"{name}/{key}"] for key in encoder.arrays if f"{name}/{key}" in batch}


def encoded(agent: Agent, batch: Batch, noise: Mapping[str, Tensor], twice: bool = True) -> Batch:
    """A batch with features for its named observations, its images shifted; of one vector, the batch as it is.

    Without `twice` the present observations are not encoded: the one loss that reads them does so, with a gradient.
    """
    if agent.encoder is None or agent.vision.encodes_itself:
        return batch
    found = dict(batch)
    for name in OBSERVATIONS:
        parts = [batch[f"{name}/{key}"] for key in ENCODED if f"{name}/{key}" in batch]
        if parts:
            features = torch.cat([part.to(torch.float32) for part in parts], -1)
            found[name] = features.flatten(-2) if agent.frames > 1 else features
            continue
        arrays = named(batch, agent.encoder, name)
        if not arrays:
            continue
        if moves := draws_of(batch, noise):
            following = name != "observations" and not agent.config.shift_together
            arrays = agent.encoder.moved(arrays, moves, agent.config.shift, following)
            found |= {f"{name}/{key}": value for key, value in arrays.items()}
        if twice or name != "observations":
            found[name] = features_of(agent, arrays)
    return _with_actions(found)


def draws_of(batch: Batch, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the images of a batch are moved by: of this step's noise, or as the rows of a block have it."""
    held = {name: batch[f"{MOVED}{name}"] for name in MOVES if f"{MOVED}{name}" in batch}
    return held | {name: noise[name] for name in MOVES if name in noise}


def features_of(agent: Agent, arrays: Mapping[str, Tensor]) -> Tensor:
    """(B, F) what losses read of (B, *shape) arrays; of (B, L, *shape) histories, each encoded by itself, side by
    side."""
    assert agent.encoder is not None
    found: Tensor = agent.encoder(arrays)
    return found.flatten(-2) if agent.frames > 1 else found


def _with_actions(batch: Batch) -> Batch:
    """With `observation_actions`, as a store gives them on a problem of one vector."""
    if "observations" in batch and "actions" in batch and batch["observations"].dim() == batch["actions"].dim():
        batch["observation_actions"] = torch.cat([batch["observations"], batch["actions"]], -1)
    return batch


def move_noise(agent: Agent) -> dict[str, Noise]:
    """What training moves the images of a row by that this agent observes; empty where it does not move them.

    Features of an encoder that stays as it is are those of whole images.
    """
    if agent.encoder is None or agent.vision.encodes_itself or not agent.encoder.views or not agent.encoder_learns:
        return {}
    asked = {SHIFT: agent.config.shift > 0, CROP: agent.config.crop < 1}
    return {name: Noise("uniform", 4 * len(agent.encoder.views)) for name in MOVES if asked[name]}


def encodes_once(agent: Agent) -> bool:
    """Whether features are the same in all training steps: of images, by an encoder that is not trained."""
    seen = agent.encoder is not None and bool(agent.encoder.views)
    return seen and not agent.encoder_learns and not agent.vision.encodes_itself


def training_encoder(agent: Agent, updates: Sequence[Update | Rule]) -> list[Update | Rule]:
    """The agent's updates and rules, the encoder trained along with one of them; as they are without one.

    Raises:
        ConfigError: no update trains any of `TRAINED_WITH`.
    """
    if agent.encoder is None or agent.vision.encodes_itself:
        return list(updates)
    found = {} if agent.vision.fixed_views else move_noise(agent)

    def unshifted(u: Update | Rule) -> Update | Rule:
        if not isinstance(u, Update):
            return u
        return dataclasses.replace(u, loss=_without(MOVES, u.loss), noise={**u.noise, **found})

    own = each_once(unshifted, updates)
    if not agent.encoder_learns:
        return own
    beside = next(
        (name for name in agent.vision.encoder_with or TRAINED_WITH if any(name in trained(u) for u in updates)), None
    )
    if beside is None:
        raise ConfigError(f"{agent.name} trains none of {', '.join(TRAINED_WITH)}, so nothing would train its encoder")

    def encoding(u: Update | Rule) -> Update | Rule:
        if not isinstance(u, Update) or beside not in u.trains:
            return u
        then = dict(u.target_updates)
        if agent.average_of is not None and agent.average_of in then:  # what acts reads features of the same age
            then["average_encoder"] = ("encoder", then[agent.average_of][1])
        return dataclasses.replace(u, loss=_encoding(agent, u.loss), trains=(*u.trains, "encoder"), target_updates=then)

    return each_once(encoding, own)


def each_once(
    change: Callable[[Update | Rule], Update | Rule], entries: Sequence[Update | Rule]
) -> list[Update | Rule]:
    """`change` of each entry of an order; one that stands there twice stands there twice again, as one."""
    before: list[Update | Rule] = []
    after: list[Update | Rule] = []
    for entry in entries:
        if entry not in before:
            before.append(entry)
            after.append(change(entry))
    return [after[before.index(entry)] for entry in entries]


def encodes_twice(updates: Sequence[Update], annotates: bool) -> bool:
    """Whether features of the present observations are read beside the loss that makes them with a gradient."""
    return annotates or len(updates) != 1 or "encoder" not in updates[0].trains


def trained(entry: Update | Rule) -> tuple[str, ...]:
    """Networks that an update trains; none, of a rule."""
    return entry.trains if isinstance(entry, Update) else ()


def _without(names: Sequence[str], loss: Loss) -> Loss:
    @functools.wraps(loss)
    def plain(batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        return loss(batch, {key: value for key, value in noise.items() if key not in names})

    return plain


def _encoding(agent: Agent, loss: Loss) -> Loss:
    """The loss on observations that are encoded with the gradient; the next ones stay as they are."""

    @functools.wraps(loss)
    def through(batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        assert agent.encoder is not None
        features = features_of(agent, named(batch, agent.encoder, "observations"))
        return loss(_with_actions({**batch, "observations": features}), noise)

    return through
