r"""Recurrent state-space models: what happened in a deterministic state, what is uncertain in a random one.

.. math::
    h_t = f(h_{t-1}, z_{t-1}, a_{t-1}), \quad z_t \sim q(z_t | h_t, o_t), \quad \hat z_t \sim p(\hat z_t | h_t)

Random states are groups of categories (DreamerV2 and V3), with 1 % of a uniform distribution mixed in and
straight-through gradients, or normal (PlaNet). Random numbers are handed in, standard normal ones for both.

Sources: Hafner et al., "Learning Latent Dynamics for Planning from Pixels" (PlaNet); Hafner, Pasukonis, Ba and
Lillicrap, "Mastering Diverse Domains through World Models" (DreamerV3).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.distributions import kl_categorical, kl_gaussian
from surefoot.core.losses.masked import masked_mean
from surefoot.core.nn.networks import MLP
from surefoot.world_models.recurrent.block_gru import BlockGRU


class Categories(nn.Module):
    """G groups of K categories, one-hot; logits of a mixture with the uniform distribution."""

    def __init__(self, groups: int, classes: int, uniform: float = 0.01) -> None:
        """Mix `uniform` of the uniform distribution in, so that no probability is 0 and no KL infinite."""
        super().__init__()
        self.groups, self.classes, self.uniform = groups, classes, uniform
        self.size = self.outputs = groups * classes
        self.noise_dim = groups

    def logits(self, outputs: Tensor) -> Tensor:
        """(..., G, K) log-probabilities of (..., G K) outputs of a network."""
        plain = outputs.unflatten(-1, (self.groups, self.classes)).softmax(-1)
        return ((1 - self.uniform) * plain + self.uniform / self.classes).log()

    def sample(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """(..., G K) one-hot samples, with the probabilities' gradients; the likeliest ones without noise.

        Args:
            outputs: (..., G K) of a network.
            noise: (..., G) standard normal: a category is where its uniform number lies among the cumulated
                probabilities.
        """
        probabilities = self.logits(outputs).exp()
        found = probabilities.detach()
        if noise is None:
            likeliest = found.amax(-1, keepdim=True)
            before = (found == likeliest).cumsum(-1)
            hot = ((found == likeliest) & (before == 1)).to(found.dtype)
        else:
            upto = found.cumsum(-1)
            place = torch.special.ndtr(noise).clamp(1e-6, 1 - 1e-6).unsqueeze(-1) * upto[..., -1:]
            hot = (upto > place).to(found.dtype)
            hot = hot - torch.cat([torch.zeros_like(hot[..., :1]), hot[..., :-1]], -1)
        return (hot + probabilities - found).flatten(-2)

    def divergence(self, outputs: Tensor, others: Tensor) -> Tensor:
        """(...) KL(outputs || others) in nats, over all groups."""
        return kl_categorical(self.logits(outputs), self.logits(others)).sum(-1)


class Normals(nn.Module):
    """A normal of S independent dimensions, of a deviation of at least 0.1."""

    def __init__(self, size: int, least: float = 0.1) -> None:
        super().__init__()
        self.size = self.noise_dim = size
        self.outputs, self.least = 2 * size, least

    def parameters_of(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation, (..., S) each, of (..., 2 S) outputs of a network."""
        mean, free = outputs.chunk(2, -1)
        return mean, nn.functional.softplus(free) + self.least

    def sample(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """(..., S) reparameterised samples by (..., S) standard normal noise, or means."""
        mean, std = self.parameters_of(outputs)
        return mean if noise is None else mean + std * noise

    def divergence(self, outputs: Tensor, others: Tensor) -> Tensor:
        """(...) KL(outputs || others) in nats."""
        mean, std = self.parameters_of(outputs)
        other_mean, other_std = self.parameters_of(others)
        return kl_gaussian(mean, std.log(), other_mean, other_std.log())


class States(NamedTuple):
    """What `RSSM.observe` finds, for each step of a window."""

    joint: Tensor
    """(B, T, D + Z) deterministic and random state side by side: what heads read."""
    posterior: Tensor
    """(B, T, P) outputs that parameterise q."""
    prior: Tensor
    """(B, T, P) outputs that parameterise p."""


class RSSM(nn.Module):
    """The recurrent cell, prior and posterior; states are (..., D + Z), deterministic and random side by side."""

    def __init__(
        self,
        embedding_dim: int,
        action_dim: int,
        deterministic: int = 512,
        hidden: int = 64,
        random: Categories | Normals | None = None,
        blocks: int = 8,
    ) -> None:
        """Build and initialise from torch's global generator.

        Args:
            embedding_dim: E, width of an encoded observation.
            action_dim: A.
            deterministic: D.
            hidden: width of the layers between.
            random: kind and size of the random states; None: 32 groups of 4 categories, the smallest published size.
            blocks: of the recurrent cell, which divide D.
        """
        super().__init__()
        self.random = Categories(32, 4) if random is None else random
        self.deterministic, self.action_dim = deterministic, action_dim
        self.cell = BlockGRU(self.random.size + action_dim, deterministic, hidden, blocks)
        outputs = self.random.outputs
        self.prior = MLP(deterministic, outputs, (hidden,), activation="silu", layer_norm=True)
        self.posterior = MLP(deterministic + embedding_dim, outputs, (hidden,), activation="silu", layer_norm=True)

    @property
    def state_dim(self) -> int:
        """D + Z."""
        return self.deterministic + self.random.size

    @property
    def noise_dim(self) -> int:
        """Standard normal numbers of one random state."""
        return self.random.noise_dim

    def deterministic_after(self, states: Tensor, actions: Tensor) -> Tensor:
        """(B, D) after (B, D + Z) states and (B, A) actions in [-1, 1]."""
        before, z = states.split([self.deterministic, self.random.size], -1)
        after: Tensor = self.cell(before, torch.cat([z, actions], -1))
        return after

    def imagined(self, states: Tensor, actions: Tensor, noise: Tensor | None) -> Tensor:
        """(..., D + Z) the next states by the prior, for (..., D + Z) states, (..., A) actions, (..., n) noise."""
        lead = actions.shape[:-1]
        states = states.expand(*lead, states.shape[-1]).reshape(-1, states.shape[-1])
        after = self.deterministic_after(states, actions.reshape(-1, self.action_dim))
        drawn = None if noise is None else noise.expand(*lead, noise.shape[-1]).reshape(-1, noise.shape[-1])
        z = self.random.sample(self.prior(after), drawn)
        return torch.cat([after, z], -1).unflatten(0, lead)

    def observed(
        self, states: Tensor, actions: Tensor, embedded: Tensor, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(B, D + Z) the states once (B, E) encoded observations are seen, and (B, P) outputs of the posterior.

        Args:
            states: (B, D + Z) before; zeros at the first step of an episode.
            actions: (B, A) that led here, in [-1, 1]; zeros at the first step.
            embedded: the present observations.
            noise: (B, n) standard normal; None: the likeliest random state.
        """
        after = self.deterministic_after(states, actions)
        outputs = self.posterior(torch.cat([after, embedded], -1))
        return torch.cat([after, self.random.sample(outputs, noise)], -1), outputs

    def observe(self, embedded: Tensor, actions: Tensor, first: Tensor, noise: Tensor | None) -> States:
        """The states along windows.

        Args:
            embedded: (B, T, E) encoded observations.
            actions: (B, T, A) in [-1, 1] that led to each of them.
            first: (B, T), 1 where an observation is the first of its episode: what came before is forgotten there.
            noise: (B, T, n) standard normal.
        """
        state = embedded.new_zeros((len(embedded), self.state_dim))
        goes_on = (1 - first).unsqueeze(-1)
        joint, posterior = [], []
        for time in range(embedded.shape[1]):
            drawn = None if noise is None else noise[:, time]
            here = goes_on[:, time]
            state, outputs = self.observed(state * here, actions[:, time] * here, embedded[:, time], drawn)
            joint.append(state)
            posterior.append(outputs)
        found = torch.stack(joint, 1)
        prior = self.prior(found[..., : self.deterministic].flatten(0, 1)).unflatten(0, found.shape[:2])
        return States(found, torch.stack(posterior, 1), prior)

    def divergences(
        self, states: States, mask: Tensor | None = None, free: float = 1.0
    ) -> tuple[Tensor, Tensor, Tensor]:
        r"""Balanced: :math:`\max(f, KL(sg(q) || p))`, :math:`\max(f, KL(q || sg(p)))`, and KL(q || p) as it is.

        Args:
            states: of `observe`.
            mask: (B, T), 0 on padding.
            free: f in nats, below which nothing is gained.

        Returns:
            Three means over the steps that the mask keeps.
        """
        dynamics = self.random.divergence(states.posterior.detach(), states.prior)
        representation = self.random.divergence(states.posterior, states.prior.detach())
        parts = (dynamics.clamp(min=free), representation.clamp(min=free), dynamics.detach())
        first, second, plain = (masked_mean(part, mask) for part in parts)
        return first, second, plain


def random_states(kind: str, groups: int, classes: int) -> Categories | Normals:
    """Of a kind by its name: `groups` groups of `classes` categories, or a normal of `groups` dimensions.

    Raises:
        ConfigError: another kind, or sizes below 1 (2 for categories).
    """
    if kind not in ("categorical", "gaussian") or groups < 1 or classes < 2:
        raise ConfigError(
            f"states are {kind!r} with {groups} groups of {classes}: take categorical or gaussian, at least 1 group, "
            "and at least 2 categories in each"
        )
    return Categories(groups, classes) if kind == "categorical" else Normals(groups)
