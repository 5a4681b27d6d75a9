"""A network that prepares two inputs by a network each before a third reads both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.first_norm import FirstNormMLP
from surefoot.core.nn.networks import MLP

Normed = Literal["none", "inputs", "last"]
"""Which of the three networks have layer norm and tanh in their first hidden layer: none, those that prepare the two
inputs, or the one that reads both."""
NORMED = ("none", "inputs", "last")


class TwoStreams(nn.Module):
    """MLP([relu(MLP(x)), relu(MLP(y))]); with `members`, E last networks on the same two prepared inputs.

    Source: the networks of Touati, Rapin and Ollivier, "Does Zero-Shot Reinforcement Learning Exist?" (ICLR 2023),
    which prepare (s, a) and (s, z) apart.
    """

    def __init__(
        self,
        first: int,
        second: int,
        outputs: int,
        hidden: Sequence[int] = (1024, 1024),
        width: int = 512,
        members: int | None = None,
        normed: str = "none",
    ) -> None:
        """Build and initialise from torch's global generator.

        Args:
            first: width of x.
            second: width of y.
            outputs: width of the output.
            hidden: widths of the hidden layers, of each of the three networks.
            width: of each prepared input.
            members: E, or None for a single last network.
            normed: one of `Normed`.

        Raises:
            ConfigError: another `normed`.
        """
        super().__init__()
        if normed not in NORMED:
            raise ConfigError(f"normed is {normed!r}, must be one of {', '.join(NORMED)}")
        prepares, reads = (FirstNormMLP if normed == part else MLP for part in ("inputs", "last"))
        self.first, self.second = prepares(first, width, hidden), prepares(second, width, hidden)
        self.last = reads(2 * width, outputs, hidden, members=members)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """(B, out) for (B, first) and (B, second); with members (E, B, out)."""
        found: Tensor = self.last(torch.cat([torch.relu(self.first(first)), torch.relu(self.second(second))], -1))
        return found
