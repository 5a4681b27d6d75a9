"""The head of ACT: a chunk of actions of the mean style."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.base.errors import ConfigError
from surefoot.core.nn.act_network import ACTNetwork


class ACTActor(Actor):
    """Plans C actions by a transformer, with the style z = 0; deterministic.

    Source: Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (RSS 2023).
    """

    kind = "act"

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        chunk: int,
        maps: Sequence[int] = (),
        width: int = 512,
        heads: int = 8,
        feed_forward: int = 3200,
        style_layers: int = 4,
        layers: int = 4,
        decoder_layers: int = 1,
        latent_dim: int = 32,
    ) -> None:
        """As `ACTNetwork`, but `action_dim` is of all C actions together.

        Raises:
            ConfigError: numbers that are no C actions; what `ACTNetwork` raises.
        """
        super().__init__()
        if chunk < 1 or action_dim % chunk:
            raise ConfigError(f"{action_dim} numbers are no {chunk} actions of as many numbers each")
        self.chunk, self.maps, self.width, self.heads, self.feed_forward = (
            chunk,
            tuple(maps),
            width,
            heads,
            feed_forward,
        )
        self.style_layers, self.layers, self.decoder_layers = style_layers, layers, decoder_layers
        self.latent_dim = latent_dim
        self.network = ACTNetwork(
            observation_dim, action_dim // chunk, chunk, self.maps, width, heads, feed_forward, style_layers, layers,
            decoder_layers, latent_dim,
        )  # fmt: skip

    @property
    def noise_dim(self) -> int:
        """0: it is deterministic."""
        return 0

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, C A) actions for (B, F) what is seen."""
        latent = observations.new_zeros(observations.shape[0], self.latent_dim)
        return self.network(observations, latent).flatten(1)

    def forward(self, observations: Tensor) -> Tensor:
        """As `act`."""
        return self.act(observations)
