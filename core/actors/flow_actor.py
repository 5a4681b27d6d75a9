"""Policy heads that draw actions by a flow, in several steps or in one, and let critics choose among several.

Sources: Park, Li and Levine, "Flow Q-Learning" (the one-step policy; IFQL's best of N); Li, Zhou and Levine,
"Reinforcement Learning with Action Chunking" (best of N over chunks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor, MLPActor
from surefoot.core.base.errors import ConfigError
from surefoot.core.losses.flow import euler, times
from surefoot.core.nn.ensembles import aggregate as aggregate_of
from surefoot.core.nn.networks import MLP, Critic, LayerNorm
from surefoot.core.nn.velocity import VelocityNetwork


def best_of(candidates: Tensor, values: Tensor) -> Tensor:
    """(B, D) of (B, N, D) candidates the one of the highest of (B, N) values; of equal ones the first."""
    place = values.argmax(-1).reshape(-1, 1, 1).expand(-1, 1, candidates.shape[-1])
    return candidates.gather(1, place).squeeze(1)


class FlowActor(Actor):
    """Follows a flow from noise to an action in K steps; a critic, if there is one, chooses the best of N.

    Actions are clipped to [-1, 1] after the last step. Of N candidates of each row, every row has its own: batches of
    any size are right. There is no density; `core.actors.chains` has heads that have one.
    """

    kind = "flow"
    always_samples = True
    optional = ("clip_each", "aggregate", "deviations")

    def __init__(
        self,
        network: VelocityNetwork,
        action_dim: int,
        steps: int = 10,
        *,
        samples: int = 1,
        clip_each: bool = False,
        aggregate: str = "mean",
        critic: Critic | None = None,
        deviations: float = 0.0,
    ) -> None:
        """Take the parts as they are.

        Args:
            network: velocity.
            action_dim: D, of a chunk all its numbers.
            steps: K.
            samples: N, drawn for each observation.
            clip_each: clip to [-1, 1] after each step, not only after the last one (ReinFlow).
            aggregate: what counts of the critics, as in `core.nn.ensembles.aggregate`.
            critic: chooses among them; needed where there are several.
            deviations: as in `core.nn.ensembles.aggregate`.

        Raises:
            ConfigError: no step or sample, several samples without a critic, or another aggregate.
        """
        super().__init__()
        times(steps)
        if samples < 1 or (samples > 1 and critic is None):
            raise ConfigError(f"{samples} samples: needs at least 1, and a critic to choose among several")
        aggregate_of(torch.zeros(2, 1), aggregate, deviations)
        self.network, self.action_dim, self.steps, self.samples = network, action_dim, steps, samples
        self.critic, self.aggregate, self.deviations, self.clip_each = critic, aggregate, deviations, clip_each

    @property
    def noise_dim(self) -> int:
        """N D: where each sample begins."""
        return self.samples * self.action_dim

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, D) of (B, O) observations and (B, N D) standard normal noise, which it can't do without."""
        if noise is None:
            raise ConfigError("a flow policy has no action without noise; give (B, noise_dim) normal numbers")
        if self.samples == 1:
            return self.flow(observations, noise)
        candidates, pairs = self.candidates(observations, noise)
        assert self.critic is not None
        values = aggregate_of(self.critic(pairs), self.aggregate, self.deviations)
        return best_of(candidates, values.unflatten(0, (-1, self.samples)))

    def candidates(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, D) actions of (B, N D) noise, and (B N, O + D) what a critic reads of them."""
        seen = observations.unsqueeze(1).expand(-1, self.samples, -1).flatten(0, 1)
        drawn = self.flow(seen, noise.unflatten(-1, (self.samples, self.action_dim)).flatten(0, 1))
        return drawn.unflatten(0, (-1, self.samples)), torch.cat([seen, drawn], -1)

    def flow(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, D) where the flow carries (B, D) noise, clipped to [-1, 1]."""
        return euler(self.field(observations), noise, self.steps, 1.0, self.clip_each)

    def field(self, observations: Tensor) -> Any:
        """The velocity at (B, O) observations, as a function of place and time; whoever guides a flow wraps it."""
        return field(self.network, observations, self.steps)

    def leaves_out(self, name: str) -> bool:
        """As `Described.leaves_out`; what counts of the critics is written where there are some."""
        if name == "aggregate" or (name == "deviations" and self.critic is None):
            return self.critic is None
        return super().leaves_out(name)


def field(network: VelocityNetwork, observations: Tensor, steps: int) -> Any:
    """The velocity at (B, O) observations as a function of place and time; of sized networks over steps of 1 / K."""

    def velocity(x: Tensor, time: Tensor) -> Tensor:
        size = torch.full_like(time, 1 / steps) if network.sized else None
        return network(observations, x, time, size)

    return velocity


class OneStepActor(MLPActor):
    """mu(s, z): an MLP that makes an action of noise in one step, trained to end where a flow ends (FQL's student).

    Calling it gives what the network gives, which the distillation sees; `act` clips it to [-1, 1].
    """

    kind = "one_step"
    always_samples = True

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int] = (512, 512, 512, 512),
        initialization: str = "xavier",
        activation: str = "gelu_tanh",
        layer_norm: LayerNorm = False,
        norm_epsilon: float | None = None,
    ) -> None:
        super().__init__()
        self.mlp = MLP(
            observation_dim + action_dim,
            action_dim,
            hidden,
            initialization=initialization,
            activation=activation,
            layer_norm=layer_norm,
            norm_epsilon=norm_epsilon,
        )

    def forward(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, D) of (B, O) observations and (B, D) standard normal noise, not clipped."""
        return self.mlp(torch.cat([observations, noise], -1))

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, D) of (B, O) observations and (B, D) standard normal noise, which it can't do without."""
        if noise is None:
            raise ConfigError("a one-step flow policy has no action without noise; give (B, noise_dim) normal numbers")
        return self(observations, noise).clamp(-1, 1)
