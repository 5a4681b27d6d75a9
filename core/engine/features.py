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
from surefoot.core.nn.encoders import Encoder, as_laid_out, channels_first, random_shift

OBSERVATIONS = ("observations", "next_observations")
SHIFT = "shift"
"""Name of the noise that images are shifted by."""
TRAINED_WITH = ("critic", "value", "actor", "classifier")
"""Networks that the encoder is trained along with: the first of them that the agent trains."""


def named(batch: Mapping[str, Tensor], encoder: Encoder, name: str) -> dict[str, Tensor]:
    """Key -> tensor of the arrays that a batch holds as NAME/KEY; empty where it holds none."""
    return {key: batch[f"{name}/{key}"] for key in encoder.arrays if f"{name}/{key}" in batch}


def encoded(agent: Agent, batch: Batch, noise: Mapping[str, Tensor], twice: bool = True) -> Batch:
    """A batch with features for its named observations, its images shifted; of one vector, the batch as it is.

    Without `twice` the present observations are not encoded: the one loss that reads them does so, with a gradient.
    """
    if agent.encoder is None or agent.encodes_itself:
        return batch
    found = dict(batch)
    for name in OBSERVATIONS:
        arrays = named(batch, agent.encoder, name)
        if not arrays:
            continue
        if SHIFT in noise:
            uniform = noise[SHIFT][:, :2] if name == "observations" else noise[SHIFT][:, 2:]
            arrays = _shifted(arrays, agent.encoder, uniform, agent.config.shift)
            found |= {f"{name}/{key}": value for key, value in arrays.items()}
        if twice or name != "observations":
            found[name] = agent.encoder(arrays)
    return _with_actions(found)


def _shifted(arrays: dict[str, Tensor], encoder: Encoder, uniform: Tensor, pixels: int) -> dict[str, Tensor]:
    """The images moved, all of an observation by the same shift; vectors as they are."""
    moved = dict(arrays)
    for key in encoder.images:
        array = encoder.arrays[key]
        moved[key] = as_laid_out(random_shift(channels_first(arrays[key], array), uniform, pixels), array)
    return moved


def _with_actions(batch: Batch) -> Batch:
    """With `observation_actions`, as a store gives them on a problem of one vector."""
    if "observations" in batch and "actions" in batch:
        batch["observation_actions"] = torch.cat([batch["observations"], batch["actions"]], -1)
    return batch


def shifts_images(agent: Agent) -> bool:
    """Whether training moves the images that this agent observes, at random."""
    seen = agent.encoder is not None and not agent.encodes_itself and len(agent.encoder.images) > 0
    return seen and agent.config.shift > 0


def training_encoder(agent: Agent, updates: Sequence[Update | Rule]) -> list[Update | Rule]:
    """The agent's updates and rules, the encoder trained along with one of them; as they are without one.

    Raises:
        ConfigError: no update trains any of `TRAINED_WITH`.
    """
    if agent.encoder is None or agent.encodes_itself:
        return list(updates)
    found = {SHIFT: Noise("uniform", 4)} if shifts_images(agent) else {}

    def unshifted(u: Update | Rule) -> Update | Rule:
        if not isinstance(u, Update):
            return u
        return dataclasses.replace(u, loss=_without(SHIFT, u.loss), noise={**u.noise, **found})

    own = each_once(unshifted, updates)
    if not any(True for _ in agent.encoder.parameters()):
        return own
    beside = next((name for name in TRAINED_WITH if any(name in trained(u) for u in updates)), None)
    if beside is None:
        raise ConfigError(f"{agent.name} trains none of {', '.join(TRAINED_WITH)}, so nothing would train its encoder")

    def encoding(u: Update | Rule) -> Update | Rule:
        if not isinstance(u, Update) or beside not in u.trains:
            return u
        return dataclasses.replace(u, loss=_encoding(agent, u.loss), trains=(*u.trains, "encoder"))

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
    return annotates or len(updates) > 1 or "encoder" not in updates[0].trains


def trained(entry: Update | Rule) -> tuple[str, ...]:
    """Networks that an update trains; none, of a rule."""
    return entry.trains if isinstance(entry, Update) else ()


def _without(name: str, loss: Loss) -> Loss:
    @functools.wraps(loss)
    def plain(batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        return loss(batch, {key: value for key, value in noise.items() if key != name})

    return plain


def _encoding(agent: Agent, loss: Loss) -> Loss:
    """The loss on observations that are encoded with the gradient; the next ones stay as they are."""

    @functools.wraps(loss)
    def through(batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        assert agent.encoder is not None
        features = agent.encoder(named(batch, agent.encoder, "observations"))
        return loss(_with_actions({**batch, "observations": features}), noise)

    return through
