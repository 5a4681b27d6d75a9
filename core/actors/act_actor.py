"""The head of ACT: a chunk of actions of the mean style."""

from __future__ import annotations

from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.nn.act_network import ACTNetwork


class ACTActor(Actor):
    """Plans C actions by a transformer, with the style z = 0; deterministic.

    Source: Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (RSS 2023).
    """

    kind = "act"

    def __init__(self, network: ACTNetwork) -> None:
        """Take the network as it is."""
        super().__init__()
        self.network = network

    @property
    def noise_dim(self) -> int:
        """0: it is deterministic."""
        return 0

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, C A) actions for (B, F) what is seen."""
        latent = observations.new_zeros(observations.shape[0], self.network.latent_dim)
        return self.network(observations, latent).flatten(1)

    def forward(self, observations: Tensor) -> Tensor:
        """As `act`."""
        return self.act(observations)
