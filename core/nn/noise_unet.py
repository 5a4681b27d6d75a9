"""A U of fully connected blocks that predicts the noise in a single action.

Sources: Chi et al., "Diffusion Policy", whose U goes over time, for blocks and conditioning (FiLM); Zhou et al., "Free
from Bellman Completeness" (MBRCSL, 2024), for this one without time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.noise_networks import NETWORKS, NoiseNetwork, affine, mish
from surefoot.core.nn.velocity import Sinusoids


class LinearBlock(nn.Module):
    """mish(layer norm(linear(x))): (B, in) -> (B, out)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(inputs, outputs), nn.LayerNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        return mish(self.norm(affine(self.linear, x)))


class ModulatedBlock(nn.Module):
    """Two blocks with a skip; between them features are scaled and shifted, linearly in what is known."""

    def __init__(self, inputs: int, outputs: int, known: int) -> None:
        super().__init__()
        self.one, self.two = LinearBlock(inputs, outputs), LinearBlock(outputs, outputs)
        self.modulation = nn.Linear(known, 2 * outputs)
        self.skip = nn.Linear(inputs, outputs) if inputs != outputs else None

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        """(B, out) of (B, in) and (B, known)."""
        scale, shift = affine(self.modulation, known).chunk(2, -1)
        inner = self.two(scale * self.one(x) + shift)
        return inner + (x if self.skip is None else affine(self.skip, x))


class UNetNoise(NoiseNetwork):
    """Blocks of growing width and back, each given the step and the observation.

    Two blocks a width on the way down, two in the middle, two a width on the way up beside what went down at that
    width; what went down at the first width is not used again, as in the source.
    """

    kind = "mlp_unet"

    def __init__(self, observation_dim: int, action_dim: int, unet_widths: Sequence[int] = (256, 512, 1024)) -> None:
        """Build it.

        Args:
            observation_dim: O.
            action_dim: A.
            unet_widths: of the way down; the first, an even number, is that of the embedded step too.

        Raises:
            ConfigError: no width, or one that is too small.
        """
        super().__init__()
        if not unet_widths or min(unet_widths) < 4:
            raise ConfigError(f"unet_widths are {list(unet_widths)}; one or more are needed, each at least 4")
        self.unet_widths = widths = tuple(unet_widths)
        first, last = widths[0], widths[-1]
        known = first + observation_dim
        self.sinusoids = Sinusoids(first)
        self.embed = nn.ModuleList([nn.Linear(first, 4 * first), nn.Linear(4 * first, first)])
        steps = list(pairwise((action_dim, *widths)))
        self.down = nn.ModuleList(self._pair(a, b, known) for a, b in steps)
        self.middle = self._pair(last, last, known)
        self.up = nn.ModuleList(self._pair(2 * b, a, known) for a, b in reversed(list(pairwise(widths))))
        self.end, self.last = LinearBlock(first, first), nn.Linear(first, action_dim)

    @staticmethod
    def _pair(inputs: int, outputs: int, known: int) -> nn.ModuleList:
        return nn.ModuleList([ModulatedBlock(inputs, outputs, known), ModulatedBlock(outputs, outputs, known)])

    def forward(self, actions: Tensor, observations: Tensor, steps: Tensor, masks: Tensor | None = None) -> Tensor:
        """As `NoiseNetwork.forward`; there is no dropout."""
        time = self.embed[1](mish(self.embed[0](self.sinusoids(steps))))
        known = torch.cat([time.expand(actions.shape[0], -1), observations], -1)
        value, beside = actions, []
        for pair in self.down:
            value = _through(pair, value, known)
            beside.append(value)
        value = _through(self.middle, value, known)
        for pair in self.up:
            value = _through(pair, torch.cat([value, beside.pop()], -1), known)
        return self.last(self.end(value))


def _through(pair: nn.Module, value: Tensor, known: Tensor) -> Tensor:
    for block in pair.children():
        value = block(value, known)
    return value


NETWORKS[UNetNoise.kind] = UNetNoise
