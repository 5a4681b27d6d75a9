"""A monotone mixing network: one value of several, which never falls where one of them rises."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from surefoot.core.nn.networks import MLP


class MonotoneMixing(nn.Module):
    r"""Q_tot(q, s) of QMIX, whose weights are functions of the state.

    .. math:: Q_{tot} = w_2(s)^\top \mathrm{elu}(W_1(s)\, q + b_1(s)) + b_2(s), \quad W_1, w_2 \ge 0

    W_1 and w_2 are absolute values of perceptrons, b_1 is linear and b_2 has a hidden layer of `width` units.

    Args:
        agents: A values that are mixed.
        state_dim: S.
        width: units between.
        hidden: of the perceptrons that give W_1 and w_2.
        scale: factor on their first last layers, so that the mixed value is nearly b_2 at the start.

    Source: Rashid et al., "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement Learning"
    (2018), eq. 5 and figure 2.
    """

    def __init__(self, agents: int, state_dim: int, width: int = 32, hidden: int = 128, scale: float = 1.0) -> None:
        super().__init__()
        self.agents, self.width = agents, width
        self.first = MLP(state_dim, agents * width, (hidden,), initialization="orthogonal")
        self.second = MLP(state_dim, width, (hidden,), initialization="orthogonal")
        self.first_bias = nn.Linear(state_dim, width)
        self.last_bias = MLP(state_dim, 1, (width,), initialization="orthogonal")
        with torch.no_grad():
            for network in (self.first, self.second):
                network.weights[-1].mul_(scale)

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """(...,) mixed values of (..., A) values in (..., S) states."""
        first = self.first(state).abs().unflatten(-1, (self.agents, self.width))
        hidden = torch.nn.functional.elu((values.unsqueeze(-1) * first).sum(-2) + self.first_bias(state))
        return (hidden * self.second(state).abs()).sum(-1) + self.last_bias(state).squeeze(-1)
