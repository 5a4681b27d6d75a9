"""A variational auto-encoder of actions given observations: what the data would do, and how odd an action is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from surefoot.core.actors.actor import OptionsActor
from surefoot.core.nn.networks import MLP

LOG_STD_RANGE = (-4.0, 15.0)
"""Of the encoder's Gaussian (BCQ)."""


class VAE(nn.Module):
    r"""Encoder :math:`q(z | s, a)`, a Gaussian, and decoder :math:`\tanh(f(s, z))`, with a standard normal prior on z.

    Source: Kingma and Welling, "Auto-Encoding Variational Bayes"; sizes and clamp of Fujimoto et al.'s BCQ.
    """

    def __init__(
        self, observation_dim: int, action_dim: int, hidden: Sequence[int] = (400, 400), latent_dim: int | None = None
    ) -> None:
        """Two networks of ReLU layers; `latent_dim` is twice the action's size where none is given."""
        super().__init__()
        self.latent_dim = 2 * action_dim if latent_dim is None else latent_dim
        self.encoder = MLP(observation_dim + action_dim, 2 * self.latent_dim, hidden)
        self.decoder = MLP(observation_dim + self.latent_dim, action_dim, hidden)

    def encode(self, observation_actions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of z, (B, Z) each, of (B, O + A) pairs."""
        mean, log_std = self.encoder(observation_actions).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def decode(self, observations: Tensor, latents: Tensor) -> Tensor:
        """(B, A) actions in (-1, 1) of (B, O) observations and (B, Z) latents."""
        return torch.tanh(self.decode_unsquashed(observations, latents))

    def decode_unsquashed(self, observations: Tensor, latents: Tensor) -> Tensor:
        """(B, A) before the tanh."""
        return self.decoder(torch.cat([observations, latents], -1))

    def divergence(self, observation_actions: Tensor) -> Tensor:
        """(B,) KL(q(z | s, a) || N(0, 1)) in nats: large where the data has nothing like (s, a)."""
        return _divergence(*self.encode(observation_actions)).sum(-1)

    def loss(self, observations: Tensor, actions: Tensor, noise: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """() squared error of the reconstruction and `weight` times the divergence, both averaged over all numbers.

        Args:
            observations: (B, O).
            actions: (B, A) in [-1, 1].
            noise: (B, Z) standard normal.
            weight: of the divergence.

        Returns:
            The loss and the squared error alone.
        """
        mean, log_std = self.encode(torch.cat([observations, actions], -1))
        error = (self.decode(observations, mean + log_std.exp() * noise) - actions).square().mean()
        return error + weight * _divergence(mean, log_std).mean(), error


def _divergence(mean: Tensor, log_std: Tensor) -> Tensor:
    """KL of N(mean, exp(log_std)^2) from N(0, 1), elementwise."""
    return 0.5 * (mean.square() + (2 * log_std).exp() - 1) - log_std


class Perturbation(nn.Module):
    """A small change of an action: a + phi tanh(f(s, a)), kept in [-1, 1] (BCQ)."""

    def __init__(self, observation_dim: int, action_dim: int, hidden: Sequence[int], size: float) -> None:
        """`size` is phi, in units of actions in [-1, 1]; hidden layers are tanh's."""
        super().__init__()
        self.mlp = MLP(observation_dim + action_dim, action_dim, hidden, activation="tanh")
        self.size = size

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """(B, A) changed actions."""
        change = self.size * torch.tanh(self.mlp(torch.cat([observations, actions], -1)))
        return (actions + change).clamp(-1, 1)


class PerturbedActor(OptionsActor):
    """What the decoder gives for a latent, perturbed: the policy of BCQ.

    Without noise the latent is 0, the prior's mode; a sample's latent is standard normal, clamped to +-`latent_limit`.
    """

    kind = "perturbed"

    def __init__(self, decoder: MLP, perturbation: Perturbation, latent_limit: float) -> None:
        super().__init__()
        self.decoder, self.perturbation, self.latent_limit = decoder, perturbation, latent_limit
        self.action_dim = int(decoder.biases[-1].shape[-1])
        self.latent_dim = int(decoder.weights[0].shape[-1] - (perturbation.mlp.weights[0].shape[-1] - self.action_dim))
        self.options = {
            "decoder_hidden": decoder.hidden,
            "perturbation_hidden": perturbation.mlp.hidden,
            "perturbation": perturbation.size,
            "latent_dim": self.latent_dim,
            "latent_limit": latent_limit,
        }

    @property
    def noise_dim(self) -> int:
        """Z: the latent's size."""
        return self.latent_dim

    @classmethod
    def built(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `OptionsActor.built`."""
        decoder = MLP(observation_dim + options["latent_dim"], action_dim, options["decoder_hidden"])
        size = options["perturbation"]
        perturbation = Perturbation(observation_dim, action_dim, options["perturbation_hidden"], size)
        return cls(decoder, perturbation, options["latent_limit"])

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions of the prior's mode, or of (B, Z) standard normal noise."""
        if noise is None:
            noise = observations.new_zeros((observations.shape[0], self.latent_dim))
        latents = noise.clamp(-self.latent_limit, self.latent_limit)
        decoded = torch.tanh(self.decoder(torch.cat([observations, latents], -1)))
        return self.perturbation(observations, decoded)
