"""Residual multilayer perceptrons: what the policies and critics of DPPO and ReinFlow are made of.

Source: Ren et al., "Diffusion Policy Policy Optimization", whose networks ReinFlow took over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.activations import ACTIVATIONS
from surefoot.core.nn.native import kernels, native


class ResidualMLP(nn.Module):
    """linear -> blocks x + linear(act(linear(act(x)))) -> linear, all of one width, without an activation at the end.

    Weights are drawn as torch draws those of `nn.Linear`.
    """

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (512, 512, 512), activation: str = "relu"):
        """Build it.

        Args:
            inputs: width of the input.
            outputs: width of the output.
            hidden: the one width, an odd number of times: the first layer's, and two for each block.
            activation: a name in `ACTIVATIONS`.
        """
        super().__init__()
        if len(hidden) % 2 == 0 or len(set(hidden)) != 1 or min(hidden) < 1:
            raise ConfigError(f"hidden is {list(hidden)}; a residual network has one width, an odd number of times")
        if activation not in ACTIVATIONS:
            raise ConfigError(f"activation is {activation!r}, must be one of {', '.join(ACTIVATIONS)}")
        self.hidden, self.activation, width = tuple(hidden), activation, hidden[0]
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in hidden[1:])
        self.last = nn.Linear(width, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., out) of (..., in)."""
        act = ACTIVATIONS[self.activation]
        x = affine(self.first, inputs)
        layers: list[Any] = list(self.blocks)
        for one, two in zip(layers[::2], layers[1::2], strict=True):
            x = x + self._block(one, two, act(x))
        return affine(self.last, x)

    def _block(self, one: nn.Linear, two: nn.Linear, x: Tensor) -> Tensor:
        slots = kernels.active()
        if slots is not None and self.activation in native.HIDDEN and x.dim() == 2 and x.dtype == torch.float32:
            return kernels.mlp(slots, x, [one.weight, two.weight], [one.bias, two.bias], self.activation)
        return affine(two, ACTIVATIONS[self.activation](affine(one, x)))


def affine(layer: nn.Linear, x: Tensor) -> Tensor:
    """(..., out) of a layer for (..., in): by the native module where kernels are in use."""
    slots = kernels.active()
    if slots is None or x.dim() != 2 or x.dtype != torch.float32:
        return layer(x)
    return kernels.mlp(slots, x, [layer.weight], [layer.bias])


class ResidualValue(nn.Module):
    """State values of a residual network: the critic of DPPO and ReinFlow."""

    def __init__(self, observation_dim: int, hidden: Sequence[int] = (256, 256, 256), activation: str = "mish"):
        super().__init__()
        self.network = ResidualMLP(observation_dim, 1, hidden, activation)

    def forward(self, observations: Tensor) -> Tensor:
        """(B,) values of (B, observation dim)."""
        return self.network(observations).squeeze(-1)
