"""The recurrent cell of DreamerV3: a gated recurrent unit whose large matrices are block-diagonal."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError

EPSILON = 1e-4
"""What root mean square norms add to the mean square."""


class BlockLinear(nn.Module):
    """K linear maps side by side, each of its own part of the input: a block-diagonal matrix, with biases."""

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        """Initialise as `torch.nn.Linear` does, from torch's global generator.

        Args:
            inputs: of one block.
            outputs: of one block.
            blocks: K.
        """
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(blocks, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(blocks, outputs).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, K, out) of (B, K, in)."""
        return (inputs.transpose(0, 1) @ self.weight).transpose(0, 1) + self.bias


class BlockGRU(nn.Module):
    r"""A gated recurrent unit in K blocks of the deterministic state h, which meet in an embedding alone:

    .. math::
        x &= \mathrm{silu}(\mathrm{norm}(W [h, z, a])), \quad y_k = \mathrm{silu}(\mathrm{norm}(U_k [h_k, x])) \\
        (r_k, c_k, u_k) &= V_k y_k, \quad
        h'_k = \sigma(u_k - 1) \tanh(\sigma(r_k) c_k) + (1 - \sigma(u_k - 1)) h_k

    With K blocks the maps of h cost a K-th of dense ones, so that h can be wide. Norms are root mean square ones, the
    second over all of y. Source: Hafner et al., "Mastering Diverse Domains through World Models", 2023.
    """

    def __init__(self, inputs: int, deterministic: int, hidden: int, blocks: int) -> None:
        """Build and initialise from torch's global generator.

        Args:
            inputs: width of random state and action together.
            deterministic: D, a multiple of `blocks`.
            hidden: width of x.
            blocks: K.

        Raises:
            ConfigError: blocks that don't divide D.
        """
        super().__init__()
        if blocks < 1 or deterministic % blocks:
            raise ConfigError(
                f"a deterministic state of {deterministic} has no {blocks} blocks of equal width: take blocks that "
                "divide it, such as 1"
            )
        self.blocks, width = blocks, deterministic // blocks
        self.entry = nn.Linear(deterministic + inputs, hidden)
        self.entry_norm = nn.RMSNorm(hidden, eps=EPSILON)
        self.mix = BlockLinear(width + hidden, width, blocks)
        self.mix_norm = nn.RMSNorm(deterministic, eps=EPSILON)
        self.gates = BlockLinear(width, 3 * width, blocks)

    def forward(self, before: Tensor, inputs: Tensor) -> Tensor:
        """(B, D) after (B, D) deterministic states and (B, Z + A) random states and actions."""
        silu = torch.nn.functional.silu
        entered = silu(self.entry_norm(self.entry(torch.cat([before, inputs], -1))))
        parts = before.unflatten(-1, (self.blocks, -1))
        everywhere = entered.unsqueeze(-2).expand(-1, self.blocks, -1)
        mixed = silu(self.mix_norm(self.mix(torch.cat([parts, everywhere], -1)).flatten(-2)))
        reset, new, update = self.gates(mixed.view_as(parts)).chunk(3, -1)
        keep = torch.sigmoid(update - 1)
        return (keep * torch.tanh(torch.sigmoid(reset) * new) + (1 - keep) * parts).flatten(-2)
