r"""Policy heads that draw an action in K noisy steps, whose chain of places has an exact density.

.. math::
    x_{k+1} = \mu_k(x_k, s) + \sigma_k(x_k, s) \, z_k, \quad z_k \sim N(0, I), \quad
    \log p(x_0, \dots, x_K | s) = \log p(x_0) + \sum_k \log N(x_{k+1}; \mu_k, \sigma_k^2)

x_0 is noise, x_K the action, or a chunk of actions one after the other. Heads differ in one function, `transition`,
which both sampling and density call, on the same grid k / K: then the ratio of two equal policies is 1. A density of
the chain serves policy gradients as well as one of the action would: the environment sees no more than the action.

Which density it is where numbers are clipped: a mean is clipped before anything is drawn around it, so that a number
whose mean lies outside [-1, 1] gives the network no gradient. A draw z, and the last place, are clipped after drawing;
the chain keeps the places as clipped, and their density is that of the normal numbers before clipping, at these places.
That is the density of no process, but the same function for the old policy and the new, and exact without the two
clips (`noise_limit=None`, `clip_last=False`).

`core.actors.flow_chains` has the heads along a flow, `core.actors.denoising_chain` the one along a diffusion.

Sources: Ren et al., "Diffusion Policy Policy Optimization"; Zhang et al., "ReinFlow".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor, Evaluation, SampleAux
from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.distributions import LOG_SQRT_2PI
from surefoot.core.losses.flow import times

CHAIN = "chain"
"""Name of the places in what a head keeps: (B, K + 1, D)."""


class ChainParts(NamedTuple):
    """What a chain's density and entropy are made of: `Evaluation.outputs` of a chain."""

    log_densities: Tensor
    """(B, K) of each step, in nats, summed over the D numbers."""
    entropies: Tensor
    """(B, K) of each step's normal distribution, in nats."""
    start: Tensor
    """(B,) log-density of the first place; 0 where it has none."""
    start_entropy: Tensor
    """(B,) of the first place; 0 where it has no density."""

    def deviation(self, size: int) -> Tensor:
        """() geometric mean of the deviations of steps of `size` numbers, from their entropies, without gradient."""
        of_one = 0.5 * math.log(2 * math.pi * math.e)  # entropy of a normal distribution of deviation 1, in nats
        return (self.entropies.detach().mean() / size - of_one).exp()


class ChainActor(Actor):
    """What heads with a chain share: a subclass says where it begins, and one `transition`."""

    always_samples = True
    starts_normal: bool = True
    """Whether the first place is standard normal; else its density is left out, for the old and new policy alike."""
    action_dim: int
    steps: int
    """K: transitions that the chain keeps."""
    noise_limit: float | None
    clip_last: bool

    def __init__(self, action_dim: int, steps: int, noise_limit: float | None, clip_last: bool) -> None:
        """Keep the sizes.

        Args:
            action_dim: D, of a chunk all its numbers.
            steps: K.
            noise_limit: draws are clipped to this many deviations; None for not at all.
            clip_last: whether the chain's last place is clipped to [-1, 1] too, and not only the action.
        """
        super().__init__()
        times(steps)
        if noise_limit is not None and not noise_limit > 0:
            raise ConfigError(f"noise_limit is {noise_limit}, must be positive, or None")
        self.action_dim, self.steps, self.noise_limit, self.clip_last = action_dim, steps, noise_limit, clip_last

    def transition(self, observations: Tensor, x: Tensor, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """Mean (B, D) and log standard deviation, (B, D) or of a shape that broadcasts, of the next place.

        Args:
            observations: (B, O), normalised.
            x: (B, D) places after `step` steps.
            step: 0 .. K - 1, or (B,) float ones, of each row its own.
        """
        raise TypeError(f"{type(self).__name__} must define transition")

    @property
    def start_dim(self) -> int:
        """Standard normal numbers per row that `start` reads."""
        return self.action_dim

    def start(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, D) first place of the chain, from (B, `start_dim`) standard normal numbers: these themselves."""
        return noise

    def deployed(self) -> Actor:
        """The head that policy files hold: what acts, without what only explores. Its networks are this one's."""
        return self

    @property
    def noise_dim(self) -> int:
        """D: of what acts, where it begins."""
        return self.action_dim

    @property
    def held_dim(self) -> int:
        """What `sample` reads: the start's numbers, then D for each step."""
        return self.start_dim + self.steps * self.action_dim

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """As `sample`, without the chain."""
        return self.sample(observations, noise)[0]

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, SampleAux]:
        """(B, D) actions of (B, `held_dim`) noise, in [-1, 1], and the places of the chain that led to them."""
        draws = noise[:, self.start_dim :].unflatten(-1, (self.steps, self.action_dim))
        if self.noise_limit is not None:
            draws = draws.clamp(-self.noise_limit, self.noise_limit)
        places = [self.start(observations, noise[:, : self.start_dim])]
        for step in range(self.steps):
            mean, log_std = self.transition(observations, places[-1], step)
            places.append(mean + log_std.exp() * draws[:, step])
        action = places[-1].clamp(-1, 1)
        if self.clip_last:
            places[-1] = action
        return action, {CHAIN: torch.stack(places, 1)}

    def numbers(self, observations: Tensor, x: Tensor, following: Tensor, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """(B, D) log-density of each number of the next place, and the entropy of its distribution, in nats.

        Args:
            observations: (B, O), normalised.
            x: (B, D) places.
            following: (B, D) the places after them.
            step: as in `transition`; single steps of chains may be shuffled.
        """
        mean, log_std = self.transition(observations, x, step)
        log_std = log_std.expand(mean.shape)
        log_density = -0.5 * ((following - mean) * torch.exp(-log_std)).square() - log_std - LOG_SQRT_2PI
        return log_density, log_std + (LOG_SQRT_2PI + 0.5)

    def evaluate(self, observations: Tensor, actions: Tensor, sample_aux: Mapping[str, Tensor]) -> Evaluation:
        """Density and entropy of the (B, K + 1, D) chain in `kept` at (B, O) observations; `outputs` has their parts.

        Both are sums over the first place and all steps; whoever wants means divides by (K + 1) D. All steps go
        through the network at once. The `actions` say nothing that the chain does not.
        """
        chain, count = sample_aux[CHAIN], self.steps
        seen = observations.unsqueeze(1).expand(-1, count, -1).flatten(0, 1)
        steps = torch.arange(count, dtype=chain.dtype, device=chain.device).repeat(len(chain))
        found = self.numbers(seen, chain[:, :-1].flatten(0, 1), chain[:, 1:].flatten(0, 1), steps)
        log_densities, entropies = (one.sum(-1).unflatten(0, (-1, count)) for one in found)
        first = chain[:, 0]
        start, start_entropy = 0 * first.sum(-1), 0 * first.sum(-1)
        if self.starts_normal:
            start = -(0.5 * first.square() + LOG_SQRT_2PI).sum(-1)
            start_entropy = start_entropy + self.action_dim * (LOG_SQRT_2PI + 0.5)
        parts = ChainParts(log_densities, entropies, start, start_entropy)
        return Evaluation(start + log_densities.sum(-1), start_entropy + entropies.sum(-1), parts)


def at(table: Sequence[float], step: int | Tensor, like: Tensor) -> Tensor:
    """A table's number of a step, () as `like`, or (B, 1) of (B,) float steps.

    Comparisons and choices only, so that it runs on a tape, in a graph and under vmap.
    """
    if isinstance(step, int):
        return like.new_full((), table[step])
    found = 0 * step
    for place, value in enumerate(table):
        found = torch.where(step == place, value, found)
    return found.unsqueeze(-1)
