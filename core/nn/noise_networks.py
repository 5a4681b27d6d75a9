"""Networks that predict the noise in noisy actions, for diffusion policies.

Source: Hansen-Estruch et al., "IDQL", for the residual one, as FISOR uses it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surefoot.core.base.described import DescribedInPlace
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.nn.activations import mish as mish
from surefoot.core.nn.native import kernels
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.velocity import EmbeddedVelocity


class FourierFeatures(nn.Module):
    """(B,) steps -> (B, 2 F) cosines and sines of 2 pi w t with learned frequencies w, drawn from N(0, 0.2^2)."""

    def __init__(self, frequencies: int = 32) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(0.2 * torch.randn(frequencies))

    def forward(self, steps: Tensor) -> Tensor:
        """The features."""
        angles = 2 * math.pi * steps.unsqueeze(-1) * self.frequencies
        return torch.cat([angles.cos(), angles.sin()], -1)


class NoiseNetwork(DescribedInPlace, nn.Module):
    """Predicts the noise in noisy actions; its constructor says how it is described."""

    dropped: int = 0
    """Units per row that dropout masks are for."""

    def forward(self, actions: Tensor, observations: Tensor, steps: Tensor, masks: Tensor | None = None) -> Tensor:
        """(B, A) noise in (B, A) noisy actions after (B,) or (1,) steps, seen (B, O) observations.

        Args:
            actions: noisy.
            observations: normalised.
            steps: 0 .. T - 1, as floats.
            masks: (B, `dropped`) dropout masks, already divided by the keep probability; None when acting.
        """
        raise TypeError(f"{type(self).__name__} must define forward")

    @classmethod
    def of_kind(cls, kind: str) -> type[NoiseNetwork]:
        """As `DescribedInPlace.of_kind`."""
        if kind in _HOMES:
            importlib.import_module(_HOMES[kind])
        if kind not in NETWORKS:
            raise ConfigError(f"no noise network is called {kind!r}; {nearest(kind, sorted(NETWORKS))}")
        return NETWORKS[kind]


class PlainNoise(NoiseNetwork):
    """One MLP on action, observation and Fourier features of the step: what a CPU does fast."""

    kind = "mlp"

    def __init__(
        self, observation_dim: int, action_dim: int, noise_hidden: Sequence[int] = (256, 256), frequencies: int = 32
    ) -> None:
        super().__init__()
        self.noise_hidden, self.frequencies = tuple(noise_hidden), frequencies
        self.time = FourierFeatures(frequencies)
        self.mlp = MLP(
            action_dim + observation_dim + 2 * frequencies, action_dim, noise_hidden, initialization="xavier"
        )

    def forward(self, actions: Tensor, observations: Tensor, steps: Tensor, masks: Tensor | None = None) -> Tensor:
        """As `NoiseNetwork.forward`; there is no dropout."""
        time = self.time(steps).expand(actions.shape[0], -1)
        return self.mlp(torch.cat([actions, observations, time], -1))


class ResidualNoise(NoiseNetwork):
    """Residual blocks with layer norms before two linear layers, mish between them (FISOR, IDQL).

    [action, observation, MLP(Fourier features of the step)] -> linear -> blocks -> mish -> linear; a block adds
    linear(mish(linear(LayerNorm(dropout(x))))), wider inside by a factor of four.
    """

    kind = "residual"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        width: int = 256,
        blocks: int = 3,
        frequencies: int = 32,
        time_hidden: int = 128,
    ) -> None:
        super().__init__()
        if min(width, frequencies, time_hidden) < 1 or blocks < 0:
            raise ConfigError(f"a residual network of {blocks} blocks of width {width}: needs positive widths")
        self.time = FourierFeatures(frequencies)
        self.embed = nn.ModuleList([nn.Linear(2 * frequencies, time_hidden), nn.Linear(time_hidden, time_hidden)])
        self.first = nn.Linear(action_dim + observation_dim + time_hidden, width)
        self.stack = nn.ModuleList(ResidualBlock(width) for _ in range(blocks))
        self.last = nn.Linear(width, action_dim)
        self.width, self.blocks, self.frequencies, self.time_hidden = width, blocks, frequencies, time_hidden
        self.dropped = blocks * width
        for layer in (*self.embed, self.first, self.last):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, actions: Tensor, observations: Tensor, steps: Tensor, masks: Tensor | None = None) -> Tensor:
        """As `NoiseNetwork.forward`."""
        time = self.embed[1](mish(self.embed[0](self.time(steps)))).expand(actions.shape[0], -1)
        x = self.first(torch.cat([actions, observations, time], -1))
        parts = [None] * len(self.stack) if masks is None else masks.split(self.width, -1)
        for block, mask in zip(self.stack, parts, strict=True):
            x = block(x, mask)
        return self.last(mish(x))


class ResidualBlock(nn.Module):
    """x + linear(mish(linear(LayerNorm(dropout(x)))))."""

    EPSILON: ClassVar[float] = 1e-6
    """Of the layer norm; flax's default, where torch's is 1e-5."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=self.EPSILON)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for layer in (self.up, self.down):
            lecun_normal(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, W), with (B, W) dropout masks or without dropout."""
        dropped = x if mask is None else x * mask
        return x + affine(self.down, mish(affine(self.up, self.norm(dropped))))


def affine(layer: nn.Linear, x: Tensor) -> Tensor:
    """(B, out) of a wide layer for (B, in): beside the kernels by oneDNN, a tenth faster than BLAS at these sizes."""
    slots = kernels.active()
    if slots is None or x.dtype != torch.float32 or x.dim() != 2 or not torch.backends.mkldnn.is_available():
        return layer(x)
    return _Affine.apply(slots, x, layer.weight, layer.bias)


class _Affine(torch.autograd.Function):
    """x W' + b; the gradients of W and b are written where the optimiser reads them."""

    @staticmethod
    def forward(ctx: Any, slots: kernels.Slots, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.slots, ctx.bias = slots, bias
        ctx.save_for_backward(x, weight)
        return _by_onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        _, x_wanted, weight_wanted, bias_wanted = ctx.needs_input_grad
        return (
            None,
            _by_onednn(gradient, weight.t()) if x_wanted else None,
            torch.mm(gradient.t(), x, out=ctx.slots.gradient(weight)) if weight_wanted else None,
            torch.sum(gradient, dim=0, out=ctx.slots.gradient(ctx.bias)) if bias_wanted else None,
        )


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def lecun_normal(weight: Tensor) -> None:
    """Draw (out, in) weights of variance 1 / in from a normal cut off at two standard deviations.

    Source: LeCun et al., "Efficient BackProp"; cut off, its deviation is 0.8796 of what it was (flax).
    """
    deviation = 1 / math.sqrt(weight.shape[1]) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


class EmbeddedNoise(NoiseNetwork):
    """The residual MLP of `core.nn.velocity.EmbeddedVelocity`, on the number of the step as it is (DPPO)."""

    kind = "embedded"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        noise_hidden: Sequence[int] = (512, 512, 512),
        noise_activation: str = "relu",
        time_embedding: int = 16,
        condition_hidden: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.noise_hidden, self.noise_activation = tuple(noise_hidden), noise_activation
        self.time_embedding, self.condition_hidden = time_embedding, tuple(condition_hidden)
        sizes = (observation_dim, action_dim)
        self.body = EmbeddedVelocity(*sizes, noise_hidden, noise_activation, time_embedding, condition_hidden)

    def forward(self, actions: Tensor, observations: Tensor, steps: Tensor, masks: Tensor | None = None) -> Tensor:
        """As `NoiseNetwork.forward`; there is no dropout."""
        return self.body(observations, actions, steps)


NETWORKS: dict[str, type[NoiseNetwork]] = {
    network.kind: network for network in (PlainNoise, ResidualNoise, EmbeddedNoise)
}
"""Kind of a noise network -> class."""
_HOMES = {"mlp_unet": "surefoot.core.nn.noise_unet", "unet": "surefoot.core.nn.unet"}
"""Modules of those that are defined on top of this one."""
