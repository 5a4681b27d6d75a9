"""Networks that are a convolutional U over a chunk's actions in the order of time: of velocities, and of noise.

Source: Chi et al., "Diffusion Policy" (the observation scales and shifts each block: FiLM), after Janner et al.,
"Planning with Diffusion for Flexible Behavior Synthesis".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.activations import mish
from surefoot.core.nn.noise_networks import NETWORKS, NoiseNetwork
from surefoot.core.nn.velocity import VELOCITIES, Sinusoids, VelocityNetwork

KERNEL, GROUPS = 5, 8
"""Of the convolutions, and of the group norms behind them."""


class ConvolutionBlock(nn.Module):
    """mish(group norm(convolution(x))): (B, in, C) -> (B, out, C)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(inputs, outputs, KERNEL, padding=KERNEL // 2)
        self.norm = nn.GroupNorm(GROUPS, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        return mish(self.norm(self.convolution(x)))


class ConditionedBlock(nn.Module):
    """Two convolution blocks with a skip; between them channels are scaled and shifted by what is known."""

    def __init__(self, inputs: int, outputs: int, known: int) -> None:
        super().__init__()
        self.one, self.two = ConvolutionBlock(inputs, outputs), ConvolutionBlock(outputs, outputs)
        self.modulation = nn.Linear(known, 2 * outputs)
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        """(B, out, C) of (B, in, C) and (B, known)."""
        scale, shift = self.modulation(mish(known)).unsqueeze(-1).chunk(2, 1)
        inner = self.two(scale * self.one(x) + shift)
        return inner + (x if self.skip is None else self.skip(x))


class UNetVelocity(VelocityNetwork):
    """Convolutions over the C actions of a chunk, at several lengths; time and observation modulate every block.

    Each width but the last halves the length on the way down, and doubles it on the way up, where what went down at
    that length comes beside it.
    """

    kind = "unet"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        chunk: int = 16,
        unet_width: int = 40,
        unet_factors: Sequence[int] = (1, 2),
        time_embedding: int = 16,
    ) -> None:
        """Build it.

        Args:
            observation_dim: O.
            action_dim: D, all numbers of the chunk.
            chunk: C actions, a multiple of 2^(lengths - 1); D is a multiple of it.
            unet_width: channels at full length, a multiple of 8.
            unet_factors: of the width, at each length.
            time_embedding: width of the embedded time.

        Raises:
            ConfigError: sizes that do not divide.
        """
        super().__init__()
        halvings = 2 ** (len(unet_factors) - 1)
        if chunk < 1 or action_dim % chunk or chunk % halvings:
            raise ConfigError(
                f"{action_dim} numbers in chunks of {chunk}, halved {len(unet_factors) - 1} times: needs a chunk that "
                f"is a multiple of {halvings} and a divisor of {action_dim}"
            )
        if not unet_factors or min(unet_factors) < 1 or unet_width % GROUPS or unet_width < 1:
            raise ConfigError(f"widths of {unet_width} times {list(unet_factors)}: needs a multiple of {GROUPS}")
        if unet_width // GROUPS * (chunk // halvings) < 2:
            raise ConfigError(
                f"a width of {unet_width} and a chunk of {chunk} leave {GROUPS} norms of 1 number; needs 2"
            )
        self.chunk, self.unet_width, self.unet_factors = chunk, unet_width, tuple(unet_factors)
        self.time_embedding, self.time_width, self.condition_width = time_embedding, time_embedding, observation_dim
        self.single = action_dim // chunk
        self.sinusoids = Sinusoids(time_embedding)
        self.embed = nn.ModuleList(
            [nn.Linear(time_embedding, 4 * time_embedding), nn.Linear(4 * time_embedding, time_embedding)]
        )
        known = time_embedding + observation_dim
        widths = [unet_width * factor for factor in unet_factors]
        steps = list(pairwise([self.single, *widths]))
        self.down = nn.ModuleList(
            nn.ModuleList([ConditionedBlock(a, b, known), ConditionedBlock(b, b, known)]) for a, b in steps
        )
        self.shorter = nn.ModuleList(nn.Conv1d(w, w, 3, 2, 1) for w in widths[:-1])
        last = widths[-1]
        self.middle = nn.ModuleList(ConditionedBlock(last, last, known) for _ in range(2))
        self.up = nn.ModuleList(
            nn.ModuleList([ConditionedBlock(2 * b, a, known), ConditionedBlock(a, a, known)])
            for a, b in reversed(list(pairwise(widths)))
        )
        self.longer = nn.ModuleList(nn.ConvTranspose1d(w, w, 4, 2, 1) for w in reversed(widths[:-1]))
        self.end = ConvolutionBlock(widths[0], widths[0])
        self.last = nn.Conv1d(widths[0], self.single, 1)

    def time_features(self, time: Tensor) -> Tensor:
        """As `VelocityNetwork.time_features`."""
        return self.embed[1](mish(self.embed[0](self.sinusoids(time))))

    def forward(self, observations: Tensor, x: Tensor, time: Tensor, size: Tensor | None = None) -> Tensor:
        """As `VelocityNetwork.forward`."""
        known = torch.cat([self.time_features(time).expand(x.shape[0], -1), observations], -1)
        value = x.unflatten(-1, (self.chunk, self.single)).transpose(1, 2)
        beside: list[Tensor] = []
        for level, (one, two) in enumerate(self.down):  # type: ignore[misc]
            value = two(one(value, known), known)  # type: ignore[has-type]
            beside.append(value)
            if level < len(self.shorter):
                value = self.shorter[level](value)
        for block in self.middle:
            value = block(value, known)
        for (one, two), longer in zip(self.up, self.longer, strict=True):  # type: ignore[misc]
            value = two(one(torch.cat([value, beside.pop()], 1), known), known)  # type: ignore[has-type]
            value = longer(value)
        return self.last(self.end(value)).transpose(1, 2).flatten(1)


VELOCITIES[UNetVelocity.kind] = UNetVelocity


class ChunkUNetNoise(NoiseNetwork):
    """The same network, of the number of the step in place of the time (Diffusion Policy's U-net)."""

    kind = "unet"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        chunk: int = 16,
        unet_width: int = 40,
        unet_factors: Sequence[int] = (1, 2),
        time_embedding: int = 16,
    ) -> None:
        """Build it; arguments and errors as of `UNetVelocity`."""
        super().__init__()
        self.chunk, self.unet_width, self.unet_factors = chunk, unet_width, tuple(unet_factors)
        self.time_embedding = time_embedding
        self.body = UNetVelocity(observation_dim, action_dim, chunk, unet_width, unet_factors, time_embedding)

    def forward(self, actions: Tensor, observations: Tensor, steps: Tensor, masks: Tensor | None = None) -> Tensor:
        """As `NoiseNetwork.forward`; there is no dropout."""
        return self.body(observations, actions, steps)


NETWORKS[ChunkUNetNoise.kind] = ChunkUNetNoise
