"""A family of policies distinguished by a coefficient, which a balance model picks for each state (FamO2O)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surefoot.core.actors.actor import MLPActor
from surefoot.core.actors.heads import GaussianActor, TanhGaussianActor
from surefoot.core.losses.distributions import gaussian_log_density, tanh_log_determinant
from surefoot.core.nn.networks import MLP, NORM_EPSILON, LayerNorm

EMBEDDING_WIDTH, EMBEDDING_PERIOD = 6, 10_000.0


def embedded(coefficients: Tensor) -> Tensor:
    """(B, 6) sines and cosines, by turns, of (B,) coefficients over 1, 10000^(1/3) and 10000^(2/3).

    Source: Vaswani et al., "Attention Is All You Need", section 3.5, as LeapLabTHU/FamO2O uses it.
    """
    parts = []
    for turn in range(EMBEDDING_WIDTH // 2):
        angle = coefficients / EMBEDDING_PERIOD ** (2 * turn / EMBEDDING_WIDTH)
        parts += [angle.sin(), angle.cos()]
    return torch.stack(parts, -1)


class BalanceModel(nn.Module):
    """One coefficient for each state: tanh of a network, mapped from (-1, 1) to a range."""

    def __init__(
        self,
        observation_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialization: str = "torch",
        coefficients: tuple[float, float] = (1.0, 5.0),
    ) -> None:
        super().__init__()
        self.mlp = MLP(observation_dim, 1, hidden, initialization=initialization)
        self.coefficients = coefficients

    def forward(self, observations: Tensor) -> Tensor:
        """(B,) coefficients; of a distribution, those that the mean before the tanh stands for."""
        return self.in_range(torch.tanh(self.mlp(observations).squeeze(-1)))

    def in_range(self, squashed: Tensor) -> Tensor:
        """From (-1, 1) to the range, over (0, 1)."""
        low, high = self.coefficients
        return low + (high - low) * (0.5 * (squashed + 1))


class StochasticBalanceModel(BalanceModel):
    """A distribution of one coefficient for each state: tanh of a normal, mapped from (-1, 1) to a range."""

    def __init__(
        self,
        observation_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialization: str = "torch",
        coefficients: tuple[float, float] = (1.0, 5.0),
        log_std_range: tuple[float, float] = (-10.0, 2.0),
    ) -> None:
        super().__init__(observation_dim, hidden, initialization, coefficients)
        self.log_std = nn.Parameter(torch.zeros(1))
        self.log_std_range = log_std_range

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) coefficients, reparameterised by (B, 1) standard normal noise, and log-densities of the tanh in nats."""
        mean, log_std = self.mlp(observations), self.log_std.clamp(*self.log_std_range)
        unsquashed = mean + log_std.exp() * noise
        density = gaussian_log_density(unsquashed, mean, log_std) - tanh_log_determinant(unsquashed)
        return self.in_range(torch.tanh(unsquashed.squeeze(-1))), density


class FamilyActor(MLPActor):
    """A Gaussian policy that also reads a coefficient, which a balance model picks for each state (FamO2O on IQL)."""

    kind = "family"
    members: ClassVar[type[GaussianActor | TanhGaussianActor]] = GaussianActor
    balances: ClassVar[type[BalanceModel]] = StochasticBalanceModel

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialization: str = "torch",
        log_std_range: tuple[float, float] = (-5.0, 2.0),
        coefficients: tuple[float, float] = (1.0, 5.0),
        **member: Any,
    ) -> None:
        super().__init__()
        width = observation_dim + EMBEDDING_WIDTH
        self.member = self.members(width, action_dim, hidden, initialization, log_std_range, **member)
        self.balance = self.balances(observation_dim, hidden, initialization, coefficients)
        self.log_std_range, self.coefficients = log_std_range, coefficients

    @property
    def mlp(self) -> MLP:  # type: ignore[override]
        """Of the policy, which also gives the balance model's hidden layers."""
        return self.member.mlp

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) mean actions at the picked coefficients, or samples from (B, A) noise; clipped to [-1, 1]."""
        return self.member.act(torch.cat([observations, embedded(self.balance(observations))], -1), noise)


class TanhFamilyActor(FamilyActor):
    """As `FamilyActor` with a tanh-Gaussian policy, and a balance model that draws nothing (FamO2O on CQL)."""

    kind = "tanh_family"
    outputs = 2
    members = TanhGaussianActor
    balances = BalanceModel

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialization: str = "torch",
        log_std_range: tuple[float, float] = (-5.0, 2.0),
        coefficients: tuple[float, float] = (1.0, 5.0),
        layer_norm: LayerNorm = False,
        norm_epsilon: float = NORM_EPSILON,
    ) -> None:
        own = {"layer_norm": layer_norm, "norm_epsilon": norm_epsilon}
        super().__init__(observation_dim, action_dim, hidden, initialization, log_std_range, coefficients, **own)
