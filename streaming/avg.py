"""AVG: a reparameterised actor and one critic, learned from each transition as it comes; no traces."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.core.actors.heads import MLPActor, TanhGaussianActor
from surefoot.core.base.options import option
from surefoot.core.losses.distributions import gaussian_log_density, tanh_log_determinant
from surefoot.streaming import statistics
from surefoot.streaming.agent import StreamingAgent
from surefoot.streaming.network import SLOPE, Layers
from surefoot.streaming.streams import StreamsConfig

LOG_STD_RANGE = (-20.0, 2.0)


@dataclasses.dataclass(frozen=True)
class AVGConfig(StreamsConfig):
    """Settings of AVG; the defaults are those published for Hopper and Walker2d. It needs tuning for each suite."""

    hidden: tuple[int, ...] | None = (256, 256)
    actor_learning_rate: float = option(1.1e-5, "learning rate of the actor", range="> 0")
    critic_learning_rate: float = option(7.7e-5, "learning rate of the critics", range="> 0")
    temperature: float = option(0.3, "weight of the entropy", range=">= 0")
    beta2: float = option(
        0.999, "decay of the second moments of Adam, whose first moment is not averaged", range="[0, 1)"
    )
    epsilon: float = option(1e-8, "number added to Adam's denominator", range="> 0")


@dataclasses.dataclass(frozen=True)
class UnitNetwork(Layers):
    """An MLP with LeakyReLU whose last layer reads features of norm 1; orthogonal weights and zero biases at first."""

    def initial(self, source: np.random.Generator) -> np.ndarray:
        """(P,) float64 first parameters. Source of the rule: Saxe, McClelland and Ganguli (2014), gain 1."""
        parts = []
        for after, before in self.shapes:
            q, r = np.linalg.qr(source.standard_normal((max(after, before), min(after, before))))
            q = q * np.sign(np.diag(r))
            parts += [(q if after >= before else q.T).ravel(), np.zeros(after)]
        return np.concatenate(parts)

    def outputs_of(self, flat: Tensor, inputs: Tensor) -> Tensor:
        """(K, out) for (K, P) parameters and (K, in) inputs; differentiable."""
        *hidden, (weight, bias) = self.layers(flat)
        value = inputs.unsqueeze(-1)
        for w, b in hidden:
            value = nn.functional.leaky_relu(torch.baddbmm(b.unsqueeze(-1), w, value), SLOPE)
        norm = value.norm(dim=1, keepdim=True)
        # No gradient where there are no features (a first observation is normalised to 0): the slope of x / |x| there
        # would fill Adam's second moment for tens of thousands of steps.
        value = torch.where(norm > 1e-12, value / norm.clamp(min=1e-12), 0.0)
        return torch.baddbmm(bias.unsqueeze(-1), weight, value).squeeze(-1)


class AVG(StreamingAgent):
    r"""AVG of Vasan et al., "Deep Policy Gradient Methods Without Batch Updates, Target Networks, or Replay Buffers".

    .. math::
        \delta &= (r + \gamma (1 - d) (Q(s', a') - \alpha \log\pi(a'|s')) - Q(s, a)) / \sigma, \quad a' \sim \pi(s') \\
        L_\pi &= \alpha \log\pi(a_\theta|s) - Q(s, a_\theta), \quad L_Q = \delta^2 \\
        \sigma^2 &= \mathrm{Var}(r_t) + \mathrm{Var}(\gamma_t)\, E[G^2]

    with a reparameterised by the noise it was drawn with, the actor stepped first, and Adam without a first moment.
    r_t is the reward with its entropy, G its sum over an episode (not discounted), and gamma_t is 0 at an episode's
    end; sigma is 1 as long as no episode has ended and it is small. Actions are tanh of a normal, features of norm 1.
    """

    name = "avg"
    Config = AVGConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "hopper": {},
        "halfcheetah": {"actor_learning_rate": 6.3e-3, "critic_learning_rate": 8.7e-3, "temperature": 0.07},
        "dog": {"actor_learning_rate": 6e-6, "critic_learning_rate": 8e-5, "temperature": 0.009, "discount": 0.95},
    }
    config: AVGConfig

    actor_weights: Tensor
    actor_second: Tensor
    critic_second: Tensor
    scale_count: Tensor
    scale_mean: Tensor
    scale_squares: Tensor
    episode_return: Tensor
    returns: Tensor
    returns_squares: Tensor
    networks: Mapping[str, UnitNetwork]

    def make_networks(self) -> Mapping[str, Layers]:
        """Q(s, a); mean and log standard deviation of the action before its tanh."""
        size, width = self.spec.observation_dim, self.spec.action_dim
        return {
            "critic": UnitNetwork(size + width, 1, self.hidden),
            "actor": UnitNetwork(size, 2 * width, self.hidden),
        }

    def add_buffers(self) -> None:
        """Those of all agents, Adam's second moments, and what the TD error is scaled by."""
        super().add_buffers()
        k = len(self.seeds)
        for name, network in self.networks.items():
            self.add_buffer(f"{name}_second", torch.zeros(k, network.size, dtype=self.dtype))
        self.add_buffer("scale_count", torch.zeros(k, dtype=torch.float64))
        for name in ("scale_mean", "scale_squares"):  # of r_t and gamma_t
            self.add_buffer(name, torch.zeros(k, 2, dtype=torch.float64))
        for name in ("episode_return", "returns", "returns_squares"):  # G so far; how many there were; sum of G^2
            self.add_buffer(name, torch.zeros(k, dtype=torch.float64))

    @property
    def explore_dim(self) -> int:
        """A numbers for the action, and A for a' of the target."""
        return 2 * self.spec.action_dim

    def choose(self) -> tuple[Tensor, Tensor]:
        """A sample at `following`, before its tanh."""
        mean, log_std = self._heads(self.actor_weights, self.following)
        noise = self.in_noise[:, : self.spec.action_dim]
        return mean + log_std.exp() * noise, torch.zeros_like(self.explored)

    def squashed(self, chosen: np.ndarray) -> np.ndarray:
        """tanh of the samples."""
        squashed: np.ndarray = np.tanh(chosen)
        return squashed

    def _heads(self, flat: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.networks["actor"].outputs_of(flat, states).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def _q(self, flat: Tensor, states: Tensor, unsquashed: Tensor) -> Tensor:
        return self.networks["critic"].outputs_of(flat, torch.cat([states, torch.tanh(unsquashed)], -1)).squeeze(-1)

    def actor_loss(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """(K,) alpha log pi(a) - Q(s, a) of the action that was taken, as a function of the actor; and log pi(a)."""
        mean, log_std = self._heads(flat, self.states)
        noise = ((self.chosen - mean) / log_std.exp()).detach()
        unsquashed = mean + log_std.exp() * noise
        density = gaussian_log_density(unsquashed, mean, log_std) - tanh_log_determinant(unsquashed)
        return self.config.temperature * density - self._q(self.critic_weights, self.states, unsquashed), density

    @torch.no_grad()
    def target(self) -> Tensor:
        """(K,) r + gamma (1 - d) (Q(s', a') - alpha log pi(a'|s')), a' a sample of its own."""
        c = self.config
        mean, log_std = self._heads(self.actor_weights, self.following)
        unsquashed = mean + log_std.exp() * self.in_noise[:, self.spec.action_dim :]
        density = gaussian_log_density(unsquashed, mean, log_std) - tanh_log_determinant(unsquashed)
        value = self._q(self.critic_weights, self.following, unsquashed) - c.temperature * density
        return self.in_rewards.to(self.dtype) + c.discount * self.bootstrap() * value

    @torch.enable_grad()
    def improve(self, rows: Tensor) -> None:
        """One step of the actor, then one of the critic."""
        c = self.config
        actor, critic = (w.detach().clone().requires_grad_() for w in (self.actor_weights, self.critic_weights))
        target = self.target()
        loss, density = self.actor_loss(actor)
        (actor_gradient,) = torch.autograd.grad(loss.sum(), actor)
        sigma = self._sigma(self.in_rewards - c.temperature * density.detach().double(), rows)
        delta = (target - self._q(critic, self.states, self.chosen)) / sigma.to(self.dtype)
        (critic_gradient,) = torch.autograd.grad(delta.square().sum(), critic)
        self._descend("actor", actor_gradient, c.actor_learning_rate, rows)
        self._descend("critic", critic_gradient, c.critic_learning_rate, rows)
        self.count_learned(delta.detach(), rows)

    def _descend(self, name: str, gradient: Tensor, rate: float, rows: Tensor) -> None:
        """Adam with beta1 = 0: w <- w - rate g / (sqrt(v / (1 - beta2^n)) + epsilon)."""
        c, weights = self.config, getattr(self, f"{name}_weights")
        second = c.beta2 * getattr(self, f"{name}_second") + (1 - c.beta2) * gradient.square()
        correction = (1 - c.beta2 ** (self.learned + 1).double()).to(self.dtype).unsqueeze(-1)
        self.put(f"{name}_second", second, rows)
        self.put(f"{name}_weights", weights - rate * gradient / ((second / correction).sqrt() + c.epsilon), rows)

    def _sigma(self, reward: Tensor, rows: Tensor) -> Tensor:
        """(K,) what TD errors are divided by, after this step's (K,) reward with its entropy has entered."""
        ended = self.done & rows
        pair = torch.stack([reward, torch.where(self.done, 0.0, self.config.discount)], -1)
        count, mean, squares = statistics.welford(self.scale_count, self.scale_mean, self.scale_squares, pair)
        total = self.episode_return + reward
        for name, value in (("scale_count", count), ("scale_mean", mean), ("scale_squares", squares)):
            self.put(name, value, rows)
        self.put("returns", self.returns + 1, ended)
        self.put("returns_squares", self.returns_squares + total.square(), ended)
        self.put("episode_return", torch.where(self.done, 0.0, total), rows)
        variance = squares / (count - 1).clamp(min=1).unsqueeze(-1)
        square = variance[:, 0] + variance[:, 1] * self.returns_squares / self.returns.clamp(min=1)
        unknown = (self.returns == 0) & (square <= 0.01)
        return torch.where(unknown, 1.0, square.clamp(min=1e-4).sqrt())

    def forget(self, rows: Tensor) -> None:
        """The episode's return so far to 0."""
        self.episode_return[rows] = 0

    def _actor(self, stream: int) -> MLPActor:
        sizes = (self.spec.observation_dim, self.spec.action_dim, self.hidden)
        options: dict[str, Any] = {"activation": "leaky_relu", "unit_features": True}
        return self.fill(TanhGaussianActor(*sizes, log_std_range=LOG_STD_RANGE, **options), stream)
