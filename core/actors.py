"""Policy heads: deterministic, diagonal Gaussian and tanh-Gaussian, all acting in [-1, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surefoot.core.distributions import gaussian_log_density, tanh_log_determinant
from surefoot.core.networks import MLP


class DeterministicActor(nn.Module):
    """a = tanh(MLP(s))."""

    kind = "deterministic"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialisation: str = "torch",
    ) -> None:
        super().__init__()
        self.mlp = MLP(observation_dim, action_dim, hidden, initialisation=initialisation)

    def forward(self, observations: Tensor, masks: Tensor | None = None) -> Tensor:
        """(B, A) actions in [-1, 1]."""
        return torch.tanh(self.mlp(observations, masks))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions; `noise` has no effect."""
        return self(observations)


class GaussianActor(nn.Module):
    """Normal with mean tanh(MLP(s)) and a standard deviation that does not depend on the state (IQL).

    The distribution itself is not squashed: log-densities are plain normal ones, and actions are clipped
    to [-1, 1] only when acting.
    """

    kind = "gaussian"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialisation: str = "torch",
        log_std_range: tuple[float, float] = (-5.0, 2.0),
    ) -> None:
        super().__init__()
        self.mlp = MLP(observation_dim, action_dim, hidden, initialisation=initialisation)
        self.log_std = nn.Parameter(torch.zeros(action_dim))
        self.log_std_range = log_std_range

    def forward(self, observations: Tensor, masks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean (B, A) in [-1, 1] and log standard deviation (A,)."""
        mean = torch.tanh(self.mlp(observations, masks))
        return mean, self.log_std.clamp(*self.log_std_range)

    def log_density(self, observations: Tensor, actions: Tensor, masks: Tensor | None = None) -> Tensor:
        """(B,) log-density of (B, A) actions, in nats."""
        mean, log_std = self(observations, masks)
        return gaussian_log_density(actions, mean, log_std)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) mean actions, or samples from (B, A) standard normal `noise`; clipped to [-1, 1]."""
        mean, log_std = self(observations)
        if noise is not None:
            mean = mean + log_std.exp() * noise
        return mean.clamp(-1, 1)


class TanhGaussianActor(nn.Module):
    """tanh of a normal whose mean and standard deviation depend on the state (SAC)."""

    kind = "tanh_gaussian"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (256, 256),
        initialisation: str = "torch",
        log_std_range: tuple[float, float] = (-5.0, 2.0),
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.mlp = MLP(observation_dim, 2 * action_dim, hidden, initialisation=initialisation, layer_norm=layer_norm)
        self.log_std_range = log_std_range

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before the tanh, (B, A) each."""
        mean, log_std = self.mlp(observations).chunk(2, dim=-1)
        return mean, log_std.clamp(*self.log_std_range)

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparameterised actions (..., B, A) in (-1, 1) and their log-densities (..., B) in nats.

        Args:
            observations: (B, O).
            noise: (..., B, A) standard normal: each observation gets as many actions as there are leading places.
        """
        mean, log_std = self(observations)
        unsquashed = mean + log_std.exp() * noise
        density = gaussian_log_density(unsquashed, mean, log_std) - tanh_log_determinant(unsquashed)
        return torch.tanh(unsquashed), density

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) tanh of the mean, or samples from (B, A) standard normal `noise`."""
        mean, log_std = self(observations)
        return torch.tanh(mean if noise is None else mean + log_std.exp() * noise)


Actor = DeterministicActor | GaussianActor | TanhGaussianActor
ACTORS: dict[str, type[Actor]] = {a.kind: a for a in (DeterministicActor, GaussianActor, TanhGaussianActor)}
"""Kind, as policy files name it -> class."""
