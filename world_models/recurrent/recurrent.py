"""What Dreamer learns a world by: a recurrent state-space model with what it reads, and heads for what it predicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.base.spec import VECTOR, Array
from surefoot.core.losses.masked import masked_mean
from surefoot.core.nn.encoders import channels_first, scaled
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.two_hot import cross_entropy, even_bins, mean_of_bins, symexp, symlog, two_hot
from surefoot.world_models.dynamics import Outcome, StepNoise
from surefoot.world_models.recurrent.rssm import RSSM, Categories, Normals

IMAGE_SIZE = 64


def layers(inputs: int, outputs: int, units: int, count: int, zero: bool = False) -> MLP:
    """An MLP of layer norms and SiLU; with `zero` its last layer begins at 0."""
    network = MLP(inputs, outputs, (units,) * count, activation="silu", layer_norm=True)
    if zero:
        with torch.no_grad():
            network.weights[-1].zero_()
            network.biases[-1].zero_()
    return network


def rows(network: MLP, values: Tensor) -> Tensor:
    """(..., out) of (..., in), as one matrix of rows: what the kernels take."""
    found: Tensor = network(values.flatten(0, -2)).unflatten(0, values.shape[:-1])
    return found


class Numbers(nn.Module):
    """A number as a distribution over bins at symexp of evenly spaced ones, which begins uniform: a mean of 0."""

    bins: Tensor

    def __init__(self, inputs: int, units: int, count: int, bins: int = 255, limit: float = 20.0) -> None:
        super().__init__()
        self.mlp = layers(inputs, bins, units, count, zero=True)
        self.register_buffer("bins", symexp(even_bins(-limit, limit, bins)).float())

    def forward(self, states: Tensor) -> Tensor:
        """(...) means for (..., S) states."""
        return mean_of_bins(rows(self.mlp, states), self.bins)

    def both(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """(..., K) logits and (...) means."""
        logits = rows(self.mlp, states)
        return logits, mean_of_bins(logits, self.bins)

    def loss(self, logits: Tensor, values: Tensor) -> Tensor:
        """(...) cross-entropy of (..., K) logits against (...) numbers, in nats."""
        return cross_entropy(logits, two_hot(values, self.bins))


class ImageDecoder(nn.Module):
    """Images of 64 x 64 from states: a linear map to 4 x 4, then four transposed convolutions of stride 2."""

    def __init__(self, inputs: int, array: Array, depth: int) -> None:
        """Channels are 8, 4, 2 and 1 times `depth`, then the image's."""
        super().__init__()
        channels, height, width = array.image_size
        if (height, width) != (IMAGE_SIZE, IMAGE_SIZE):
            raise ConfigError(
                f"images are {height} x {width}, and the decoder makes {IMAGE_SIZE} x {IMAGE_SIZE}: resize"
            )
        self.array, self.first = array, 8 * depth
        self.linear = nn.Linear(inputs, self.first * 16)
        sizes = (8 * depth, 4 * depth, 2 * depth, depth, channels)
        self.convolutions = nn.ModuleList(
            nn.ConvTranspose2d(before, after, 4, 2, 1) for before, after in itertools.pairwise(sizes)
        )

    def forward(self, states: Tensor) -> Tensor:
        """(N, C, 64, 64) images, in [0, 1] where they are right, of (N, S) states."""
        values = self.linear(states).view(-1, self.first, 4, 4)
        for layer in self.convolutions:
            values = layer(torch.nn.functional.silu(values))
        return values + 0.5

    def loss(self, states: Tensor, images: Tensor) -> Tensor:
        """(B, T) squared errors, summed over the pixels, for (B, T, S) states and (B, T, *shape) images."""
        wanted = scaled(channels_first(images.flatten(0, 1), self.array), self.array, 0.0).to(states.dtype)
        return (self(states.flatten(0, 1)) - wanted).square().flatten(1).sum(-1).view(states.shape[:2])


class VectorDecoder(nn.Module):
    """Vectors from states, in symlog units."""

    def __init__(self, inputs: int, array: Array, units: int, count: int) -> None:
        super().__init__()
        self.mlp = layers(inputs, math.prod(array.shape), units, count)

    def loss(self, states: Tensor, vectors: Tensor) -> Tensor:
        """(B, T) squared errors in symlog units, summed, for (B, T, S) states and (B, T, O) vectors."""
        return (rows(self.mlp, states) - symlog(vectors)).square().sum(-1)


class RecurrentModel(nn.Module):
    """A recurrent state-space model with embedding, decoders, rewards and continuations: `Dynamics` for planners."""

    members = 1
    knows_costs = False

    def __init__(
        self,
        arrays: Mapping[str, Array],
        features: int | None,
        action_dim: int,
        random: Categories | Normals,
        deterministic: int = 512,
        hidden: int = 64,
        units: int = 64,
        count: int = 1,
        depth: int = 4,
        blocks: int = 8,
    ) -> None:
        """Build and initialise from torch's global generator.

        Args:
            arrays: key -> shape and dtype of an observation, which the decoders make again.
            features: width of what an encoder makes of several arrays; None: observations are the one vector itself.
            action_dim: A.
            random: kind and size of the random states.
            deterministic: D, width of the deterministic state.
            hidden: width of the layers within the recurrent model.
            units: width of the layers of embedding and heads.
            count: how many.
            depth: channels of the last but one layer of an image's decoder.
            blocks: of the recurrent cell.
        """
        super().__init__()
        width = math.prod(next(iter(arrays.values())).shape)
        self.embedding = layers(width, units, units, count) if features is None else None
        self.rssm = RSSM(units if features is None else features, action_dim, deterministic, hidden, random, blocks)
        states = self.rssm.state_dim
        self.decoders = nn.ModuleDict(
            {
                key: ImageDecoder(states, array, depth) if array.image else VectorDecoder(states, array, units, count)
                for key, array in arrays.items()
            }
        )
        self.reward = Numbers(states, units, count)
        self.continuation = layers(states, 1, units, count)
        self.state_dim, self.action_dim, self.noise_dim = states, action_dim, self.rssm.noise_dim

    def embed(self, observations: Tensor) -> Tensor:
        """(..., E) of (..., O) one vector, or of an encoder's features, which are embedded already."""
        return observations if self.embedding is None else rows(self.embedding, symlog(observations))

    def continues(self, states: Tensor) -> Tensor:
        """(...) log-odds that the episode continues where it reached (..., S) states."""
        return rows(self.continuation, states).squeeze(-1)

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """As `Dynamics.step`: (..., S) states, (..., A) actions; without noise the likeliest next state."""
        following = self.rssm.imagined(states, actions, noise.normal)
        rewards = self.reward(following)
        return Outcome(following, rewards, torch.zeros_like(rewards), self.continues(following) < 0)

    def reconstruction(self, states: Tensor, observations: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """() the decoders' losses together, for (B, T, S) states and key -> (B, T, ...) observations."""
        parts = [
            masked_mean(self.decoders[key].loss(states, observations[key]), mask)  # type: ignore[operator]
            for key in observations
        ]
        return torch.stack(parts).sum()


class Window(NamedTuple):
    """What a window of L steps shows: its L + 1 observations and what led to them."""

    observed: dict[str, Tensor]
    """Key -> (B, L + 1, ...)."""
    before: Tensor
    """(B, L + 1, A) actions that led there; zeros at the first."""
    first: Tensor
    """(B, L + 1), 1 at the first observation."""
    mask: Tensor
    """(B, L + 1), 0 on padding."""


def window_of(batch: Mapping[str, Tensor], keys: Sequence[str]) -> Window:
    """Of a batch of windows (B, L, ...) within one episode each; `keys` are of its columns, `observations/` cut off."""
    actions, mask = batch["actions"], batch["mask"]
    head = torch.zeros_like(mask[:, :1])
    return Window(
        {k.removeprefix(f"{VECTOR}/"): torch.cat([batch[k][:, :1], batch[f"next_{k}"]], 1) for k in keys},
        torch.cat([torch.zeros_like(actions[:, :1]), actions], 1),
        torch.cat([head + 1, torch.zeros_like(mask)], 1),
        torch.cat([head + 1, mask], 1),
    )
