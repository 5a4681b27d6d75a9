"""PPO on a policy that makes its action in K noisy steps, and keeps the chain: what a head of any kind looks like.

Source: Zhang et al., "ReinFlow: Fine-tuning Flow Matching Policy with Online Reinforcement Learning" (2025): a velocity
network, and noise in each step, so that the chain has a density.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from surefoot.core.actors.actor import Actor, Evaluation, SampleAux
from surefoot.core.losses.distributions import gaussian_log_density
from surefoot.core.nn.networks import MLP
from surefoot.online.ppo import PPO, PPOConfig


class ChainActor(Actor):
    """x_0 normal; x_{k+1} = x_k + v(x_k, s, k / K) / K + sigma z_k; the action is x_K, and the chain is kept."""

    kind = "test_chain"

    def __init__(self, observation_dim: int, action_dim: int, steps: int = 4, width: int = 32, sigma: float = 0.3):
        super().__init__()
        self.action_dim, self.steps, self.width, self.sigma = action_dim, steps, width, sigma
        self.mlp = MLP(observation_dim + action_dim + 1, action_dim, (width, width), activation="tanh")
        self.log_sigma = nn.Parameter(torch.full((action_dim,), math.log(sigma)))

    @property
    def noise_dim(self) -> int:
        return self.action_dim * (1 + self.steps)

    def description(self) -> dict[str, Any]:
        return {"steps": self.steps, "width": self.width, "sigma": self.sigma}

    @classmethod
    def from_description(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        return cls(observation_dim, action_dim, *(options[name] for name in ("steps", "width", "sigma")))

    def mean(self, observations: Tensor, x: Tensor, step: int) -> Tensor:
        """Of the next place in the chain: the one function that samples and judges."""
        time = torch.full_like(x[:, :1], step / self.steps)
        return x + self.mlp(torch.cat([observations, x, time], -1)) / self.steps

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, SampleAux]:
        first, *draws = noise.split(self.action_dim, -1)
        chain = [first]
        for step, draw in enumerate(draws):
            chain.append(self.mean(observations, chain[-1], step) + self.log_sigma.exp() * draw)
        return chain[-1], {"chain": torch.stack(chain, 1)}

    def evaluate(self, observations: Tensor, actions: Tensor, kept: Mapping[str, Tensor]) -> Evaluation:
        places = kept["chain"].unbind(1)
        means = [self.mean(observations, x, step) for step, x in enumerate(places[:-1])]
        densities = [gaussian_log_density(x, mean, self.log_sigma) for x, mean in zip(places[1:], means, strict=True)]
        entropy = self.steps * (self.log_sigma + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return Evaluation(torch.stack(densities).sum(0), entropy.expand(len(observations)))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is not None:
            return self.sample(observations, noise)[0]
        x = observations.new_zeros(len(observations), self.action_dim)
        for step in range(self.steps):
            x = self.mean(observations, x, step)
        return x


@dataclasses.dataclass(frozen=True)
class ChainPPOConfig(PPOConfig):
    """PPO's, and the length of the chain."""

    steps: int = 4  # K


class ChainPPO(PPO):
    """PPO; nothing but the head differs."""

    name = "test_chain_ppo"
    Config = ChainPPOConfig
    PRESETS = {}  # noqa: RUF012
    config: ChainPPOConfig

    def build_actor(self) -> None:
        """The chain."""
        sizes = (self.spec.observation_dim, self.spec.action_dim)
        self.actor = ChainActor(*sizes, self.config.steps)  # type: ignore[assignment]
