"""What tests of diffusion share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from surefoot.core.actors.diffusion import (
    DiffusionActor,
    Schedule,
)
from surefoot.core.nn.networks import Critic
from surefoot.core.nn.noise_networks import (
    NoiseNetwork,
    PlainNoise,
    ResidualNoise,
)

VP = Schedule.vp()
ROWS = 200_000


def exact(mean: float, deviation: float) -> Callable[[Tensor, int], Tensor]:
    """The noise that there is on average in a noisy value of N(mean, deviation^2) data."""

    def predict(x: Tensor, step: int) -> Tensor:
        product = VP.products[step]
        variance = product * deviation**2 + 1 - product
        return math.sqrt(1 - product) * (x - math.sqrt(product) * mean) / variance

    return predict


def actor(kind: str, samples: int = 4, prefer: str = "lowest") -> DiffusionActor:
    """Of 3 observations and 2 actions."""
    critic = Critic(3, 2, (8, 8), 2)
    with torch.no_grad():
        for weight in critic.mlp.weights:
            weight.mul_(3)  # values that differ clearly between samples
    network: NoiseNetwork = PlainNoise(3, 2, (16,), 4)
    if kind == "residual":
        network = ResidualNoise(3, 2, 8, 2, 4, 6)
    return DiffusionActor(network, VP, 2, critic, samples, prefer)
