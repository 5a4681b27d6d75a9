"""Diffusion over actions: the schedule, the sampler, and the policy head that draws actions and lets critics choose.

a_t = sqrt(abar_t) a + sqrt(1 - abar_t) eps for t = 0 .. T - 1, where abar_t is the product of alpha_0 .. alpha_t; t is
counted from 0, as the networks read it. Sources: Ho, Jain and Abbeel, "Denoising Diffusion Probabilistic Models"; Song
et al., "Score-Based Generative Modeling" (the VP schedule); Hansen-Estruch et al., "IDQL" (critics that choose).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor, Evaluation
from surefoot.core.base.described import Part
from surefoot.core.base.errors import ConfigError, nearest
from surefoot.core.nn.networks import Critic
from surefoot.core.nn.noise_networks import NoiseNetwork

Predict = Callable[[Tensor, int], Tensor]
"""(noisy actions (..., A), t) -> the noise in them (..., A)."""


@dataclasses.dataclass(frozen=True)
class Schedule(Part):
    """How much of an action is left after each of T steps of adding noise."""

    alphas: tuple[float, ...]
    """Of each step, in (0, 1): the share of the variance that it keeps."""

    @classmethod
    def write(cls, part: Schedule, name: str) -> dict[str, Any]:
        """As `Part.write`: its numbers, whatever the name."""
        return {"alphas": list(part.alphas)}

    @classmethod
    def read(cls, name: str, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Schedule:
        """As `Part.read`."""
        return cls(tuple(options["alphas"]))

    @classmethod
    def vp(cls, steps: int = 5, low: float = 0.1, high: float = 10.0) -> Schedule:
        """alpha_t = exp(-low / T - (high - low) (2 n - 1) / (2 T^2)), n = t + 1: T steps of the VP equation.

        Raises:
            ConfigError: no step, or rates that are not 0 < low <= high.
        """
        if steps < 1 or not 0 < low <= high:
            raise ConfigError(
                f"a diffusion of {steps} steps at rates {low} to {high}; needs 1 or more, 0 < low <= high"
            )
        growth = 0.5 * (high - low) / steps**2
        return cls(tuple(math.exp(-low / steps - growth * (2 * n - 1)) for n in range(1, steps + 1)))

    @classmethod
    def cosine(cls, steps: int = 20, offset: float = 0.008, greatest: float = 0.999) -> Schedule:
        """abar_t = f(t + 1) / f(0) with f(n) = cos^2(pi / 2 (n / T + offset) / (1 + offset)); betas are <= `greatest`.

        Source: Nichol and Dhariwal, "Improved Denoising Diffusion Probabilistic Models".

        Raises:
            ConfigError: no step, or numbers out of (0, 1).
        """
        if steps < 1 or not 0 < offset < 1 or not 0 < greatest < 1:
            raise ConfigError(f"a cosine schedule of {steps} steps with {offset} and {greatest}; needs 1, and (0, 1)")

        def left(n: int) -> float:
            return math.cos(math.pi / 2 * (n / steps + offset) / (1 + offset)) ** 2

        return cls(tuple(max(left(n + 1) / left(n), 1 - greatest) for n in range(steps)))

    @property
    def steps(self) -> int:
        """T."""
        return len(self.alphas)

    @property
    def betas(self) -> tuple[float, ...]:
        """1 - alpha of each step: the variance of the noise that it adds."""
        return tuple(1 - alpha for alpha in self.alphas)

    @property
    def products(self) -> tuple[float, ...]:
        """abar of each step."""
        return tuple(itertools.accumulate(self.alphas, lambda a, b: a * b))

    def step_of(self, uniform: Tensor) -> Tensor:
        """(B,) steps 0 .. T - 1 as floats, each as likely, from (B,) uniform numbers on [0, 1).

        Comparisons and sums only, here and in `noisy`, so that it runs on a tape, in a graph and under vmap.
        """
        return sum(((uniform >= n / self.steps).to(uniform.dtype) for n in range(1, self.steps)), 0 * uniform)

    def noisy(self, actions: Tensor, noise: Tensor, steps: Tensor) -> Tensor:
        """(B, A) actions as they are after (B,) `steps` with (B, A) standard normal `noise`."""
        sample_aux, added = 0 * steps, 0 * steps
        for step, product in enumerate(self.products):
            here = steps == step
            sample_aux = torch.where(here, math.sqrt(product), sample_aux)
            added = torch.where(here, math.sqrt(1 - product), added)
        return sample_aux.unsqueeze(-1) * actions + added.unsqueeze(-1) * noise


def ancestral(predict: Predict, noise: Tensor, schedule: Schedule, limit: float | None = 1.0) -> Tensor:
    """Actions from noise, one step of the schedule after the other.

    x <- (x - beta_t / sqrt(1 - abar_t) predict(x, t)) / sqrt(alpha_t), and while t > 0 plus sqrt(beta_t) times fresh
    noise: of variance beta_t, not of the posterior's.

    Args:
        predict: gives the noise in a noisy action.
        noise: (..., T, A) standard normal: the first action of each row, then what the steps T - 1 .. 1 add.
        schedule: of T steps.
        limit: actions are clipped to +- this after every step; None for not at all.

    Returns:
        (..., A).
    """
    x = noise[..., 0, :]
    for turn, step in enumerate(reversed(range(schedule.steps))):
        alpha, product = schedule.alphas[step], schedule.products[step]
        x = (x - (1 - alpha) / math.sqrt(1 - product) * predict(x, step)) / math.sqrt(alpha)
        if step > 0:
            x = x + math.sqrt(1 - alpha) * noise[..., turn + 1, :]
        if limit is not None:
            x = x.clamp(-limit, limit)
    return x


def implicit_steps(steps: int, taken: int) -> tuple[int, ...]:
    """The steps of a schedule that DDIM takes: every (T // taken)-th from 0 on, the noisiest first.

    Raises:
        ConfigError: more steps than there are, or none.
    """
    if not 1 <= taken <= steps:
        raise ConfigError(f"DDIM takes {taken} of {steps} steps; needs 1 to {steps}")
    return tuple(reversed(range(0, taken * (steps // taken), steps // taken)))


def implicit_coefficients(product: float, before: float, eta: float) -> tuple[float, float, float]:
    """Where a step of DDIM goes: the factors of the data and of the noise in a noisy action, and the deviation.

    The mean is to_data a + to_noise eps. With eta = 1 and neighbouring steps this is DDPM's posterior; with eta = 0 it
    has no noise.

    Args:
        product: abar of the step.
        before: abar of the step that comes next, nearer to the data; 1 of the last.
        eta: in [0, 1], share of the posterior's deviation.
    """
    deviation = eta * math.sqrt((1 - before) / (1 - product) * (1 - product / before))
    return math.sqrt(before), math.sqrt(max(1 - before - deviation**2, 0.0)), deviation


def implicit(
    predict: Predict, noise: Tensor, schedule: Schedule, taken: int, eta: float = 0.0, limit: float | None = 1.0
) -> Tensor:
    """Actions from noise by DDIM: a few of the schedule's steps, each to the mean of `implicit_coefficients`.

    Args:
        predict: gives the noise in a noisy action.
        noise: (..., 1, A) standard normal; with eta > 0 (..., taken, A): the first action, then what is added after
            each step but the last.
        schedule: that the network was trained with.
        taken: how many steps.
        eta: share of the posterior's deviation.
        limit: the data that a noisy action implies are clipped to +- this, and its noise follows from them; None for
            not at all.

    Returns:
        (..., A).

    Source: Song, Meng and Ermon, "Denoising Diffusion Implicit Models".
    """
    x, grid, products = noise[..., 0, :], implicit_steps(schedule.steps, taken), schedule.products
    for turn, step in enumerate(grid):
        product, before = products[step], products[grid[turn + 1]] if turn + 1 < taken else 1.0
        eps = predict(x, step)
        data = (x - math.sqrt(1 - product) * eps) / math.sqrt(product)
        if limit is not None:
            data = data.clamp(-limit, limit)
            eps = (x - math.sqrt(product) * data) / math.sqrt(1 - product)
        to_data, to_noise, deviation = implicit_coefficients(product, before, eta)
        x = to_data * data + to_noise * eps
        if eta > 0 and turn + 1 < taken:
            x = x + deviation * noise[..., turn + 1, :]
    return x


def denoising_loss(
    predicted: Tensor, noise: Tensor, weight: Tensor | None = None, mask: Tensor | None = None
) -> Tensor:
    """Mean over rows of the squared error of the noise, summed over an action's numbers (IDQL, FISOR).

    Args:
        predicted: (B, A).
        noise: (B, A).
        weight: (B,) of rows, without gradient.
        mask: (B, A), 0 where a number does not count.

    Returns:
        ().
    """
    errors = (predicted - noise).square()
    errors = (errors if mask is None else errors * mask).sum(-1)
    return (errors if weight is None else weight * errors).mean()


PREFERENCES = ("lowest", "feasible", "best", "highest")


class DiffusionActor(Actor):
    """Draws several actions by diffusion and takes the one that critics like best.

    Source: Zheng et al., "FISOR", for the smallest of the largest safety value; IDQL for "highest".
    """

    kind = "diffusion"
    always_samples = True
    optional = ("implicit", "reserve")
    order = ("network", "schedule", "implicit", "samples", "prefer", "reserve", "critic", "reward_critic")

    def __init__(
        self,
        network: NoiseNetwork,
        schedule: Schedule,
        action_dim: int,
        critic: Critic | None = None,
        samples: int = 1,
        prefer: str = "lowest",
        *,
        reward_critic: Critic | None = None,
        reserve: float = 0.0,
        implicit: int | None = None,
    ) -> None:
        """Take the networks as they are.

        Args:
            network: predicts noise.
            schedule: that it was trained with.
            action_dim: A.
            critic: judges the samples; None only where there is one.
            samples: N actions drawn for each observation.
            prefer: of critics that predict violations, "lowest" takes the action whose largest value is smallest;
                actions whose largest value is -`reserve` or less are feasible, and "feasible" takes the first of them,
                "best" the one with the highest value of `reward_critic`; where none is feasible, both take the lowest.
                Of critics that predict returns, "highest" takes the action whose smallest value is largest.
            reward_critic: predicts returns, for "best" alone.
            reserve: at least 0, in the units of the critic.
            implicit: draw in so many steps of DDIM, without noise but the first; None: all T steps, by DDPM.

        Raises:
            ConfigError: numbers out of range, or samples without a critic to choose among them.
        """
        super().__init__()
        if samples < 1 or (samples > 1 and critic is None):
            raise ConfigError(f"{samples} samples: needs at least 1, and a critic to choose among several")
        if prefer not in PREFERENCES:
            raise ConfigError(f"prefer is {prefer!r}; {nearest(prefer, PREFERENCES)}")
        if (prefer == "best") != (reward_critic is not None) or not reserve >= 0:
            raise ConfigError(
                f"prefer is {prefer!r} with{'' if reward_critic is not None else 'out'} a critic of rewards, and the "
                f"reserve is {reserve}: best needs that critic, the others have none, and a reserve is 0 or more"
            )
        self.network, self.schedule, self.action_dim = network, schedule, action_dim
        self.critic, self.samples, self.prefer = critic, samples, prefer
        self.reward_critic, self.reserve, self.implicit = reward_critic, reserve, implicit
        if implicit is not None:
            implicit_steps(schedule.steps, implicit)

    @property
    def noise_dim(self) -> int:
        """N T A: of each sample its first value, and what the steps before the last add; N A of DDIM."""
        return self.samples * self._draws * self.action_dim

    @property
    def _draws(self) -> int:
        return self.schedule.steps if self.implicit is None else 1

    def evaluate(self, observations: Tensor, actions: Tensor, sample_aux: Mapping[str, Tensor]) -> Evaluation:
        """Refused: an action alone has no density in closed form, only the chain of steps that led to it has one.

        Raises:
            TypeError: always; it names the head that keeps its chain.
        """
        raise TypeError(
            "a DiffusionActor has no density of its actions: act with a DenoisingActor "
            "(surefoot.core.actors.denoising_chain), which keeps the steps of its chain, and whose density is theirs"
        )

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) of (B, O) observations and (B, N T A) standard normal noise, which it can't do without."""
        if noise is None:
            raise ConfigError("a diffusion policy has no action without noise; give (B, noise_dim) normal numbers")
        drawn, seen = self.draw(observations, noise.unflatten(-1, (self.samples, self._draws, self.action_dim)))
        if self.critic is None:
            return drawn
        best = self._best(torch.cat([seen, drawn], -1))
        place = best.reshape(-1, 1, 1).expand(-1, 1, self.action_dim)
        return drawn.unflatten(0, (-1, self.samples)).gather(1, place).squeeze(1)

    def _best(self, pairs: Tensor) -> Tensor:
        """(B,) number of the sample that acts, of (B N, O + A) observations and actions."""
        assert self.critic is not None
        members = self.critic(pairs).unflatten(1, (-1, self.samples))
        if self.prefer == "highest":
            return members.amin(0).argmax(-1)
        values = members.amax(0)
        lowest = values.argmin(-1)
        if self.prefer == "lowest":
            return lowest
        feasible = values <= -self.reserve
        liking = -torch.arange(self.samples, dtype=values.dtype, device=values.device).expand_as(values)  # the first
        if self.reward_critic is not None:
            liking = self.reward_critic(pairs).amin(0).unflatten(0, (-1, self.samples))
        preferred = torch.where(feasible, liking, -torch.inf).argmax(-1)
        return torch.where(feasible.any(-1), preferred, lowest)

    def draw(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(B N, A) actions, and the (B N, O) observations that each was drawn for.

        Args:
            observations: (B, O).
            noise: (B, N, T, A), or (B, N, 1, A) of DDIM.
        """
        seen = observations.unsqueeze(1).expand(-1, self.samples, -1).flatten(0, 1)

        def predict(x: Tensor, step: int) -> Tensor:
            return self.network(x, seen, torch.full_like(x[:1, 0], step))

        if self.implicit is not None:
            return implicit(predict, noise.flatten(0, 1), self.schedule, self.implicit), seen
        return ancestral(predict, noise.flatten(0, 1), self.schedule), seen
