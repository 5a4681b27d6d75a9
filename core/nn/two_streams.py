"""A network that prepares two inputs by a network each before a third reads both."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surefoot.core.nn.networks import MLP


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
    ) -> None:
        """Build and initialise from torch's global generator.

        Args:
            first: width of x.
            second: width of y.
            outputs: width of the output.
            hidden: widths of the hidden layers, of each of the three networks.
            width: of each prepared input.
            members: E, or None for a single last network.
        """
        super().__init__()
        self.first, self.second = MLP(first, width, hidden), MLP(second, width, hidden)
        self.last = MLP(2 * width, outputs, hidden, members=members)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """(B, out) for (B, first) and (B, second); with members (E, B, out)."""
        return self.last(torch.cat([torch.relu(self.first(first)), torch.relu(self.second(second))], -1))
