"""How agents with traces act: by samples of a policy, or epsilon-greedily by action values; neither has state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.streaming.actions import epsilon_at, epsilon_greedy, sample_gaussian, sample_softmax
from surefoot.streaming.network import Layers, Network


def network(agent: Any, outputs: int) -> Network:
    """The config's network of an observation, with so many outputs."""
    c = agent.config
    return Network(agent.spec.observation_dim, outputs, agent.hidden, c.layer_norm, c.sparsity, c.min_nonzero)


class Behaviour:
    """What an agent has that draws actions in a way of its own, or none."""

    def networks(self, agent: Any) -> Mapping[str, Layers]:
        """Name -> shape: of each the agent has a buffer of weights."""
        raise TypeError(f"{type(agent).__name__} must define make_networks")

    def noise_width(self, agent: Any) -> int:
        """Random numbers for one action of one stream."""
        return 0

    def set_epsilon(self, agent: Any) -> None:
        """Set the share of random choices for the next action."""

    def choose(self, agent: Any) -> tuple[Tensor, Tensor]:
        """Actions at `following` by the present weights, and whether they were not greedy: (K, A) or (K,), (K,)."""
        raise TypeError(f"{type(agent).__name__} must define choose")


class Sampling(Behaviour):
    """Samples of the policy network `actor`."""

    def networks(self, agent: Any) -> Mapping[str, Layers]:
        """A value; and logits, or means and what the standard deviations are the softplus of."""
        outputs = agent.spec.action_dim if agent.spec.discrete else 2 * agent.spec.action_dim
        return {"critic": network(agent, 1), "actor": network(agent, outputs)}

    def noise_width(self, agent: Any) -> int:
        """A uniform number for a choice, or a normal one for each dimension."""
        return 1 if agent.spec.discrete else agent.spec.action_dim

    def choose(self, agent: Any) -> tuple[Tensor, Tensor]:
        """A sample of the policy at `following`."""
        outputs = agent.networks["actor"].forward(agent.actor_weights, agent.following).outputs
        if agent.spec.discrete:
            chosen = sample_softmax(outputs, agent.in_noise[:, 0])
        else:
            chosen = sample_gaussian(outputs, agent.in_noise)
        return chosen, torch.zeros_like(agent.explored)


class EpsilonGreedy(Behaviour):
    """Choices by an epsilon-greedy policy of action values q(s, .), which `critic` gives."""

    def networks(self, agent: Any) -> Mapping[str, Layers]:
        """One value for each choice."""
        if not agent.spec.discrete:
            raise ConfigError(
                f"{agent.name} learns discrete actions, and this problem's actions are continuous; "
                "use stream_ac, intentional_ac or avg"
            )
        return {"critic": network(agent, agent.spec.action_dim)}

    def noise_width(self, agent: Any) -> int:
        """Whether to explore, and by which choice."""
        return 2

    def set_epsilon(self, agent: Any) -> None:
        """Epsilon falls in a fraction of the planned steps."""
        c, step = agent.config, max(int(agent.acted), 1)
        agent.in_epsilon.fill_(epsilon_at(step, agent.planned_steps, c.exploration_fraction, c.last_epsilon))

    def choose(self, agent: Any) -> tuple[Tensor, Tensor]:
        """The greedy choice at `following`, or any with probability epsilon."""
        values = agent.networks["critic"].forward(agent.critic_weights, agent.following).outputs
        return epsilon_greedy(values, agent.in_noise, agent.in_epsilon)
