"""Stream Q(lambda): epsilon-greedy choices, the best following value, traces that exploration cuts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.traits import Requires
from surefoot.cuda_ext.stream import TRACE_CUTS
from surefoot.streaming.exploration import epsilon_at, epsilon_greedy, of_choice
from surefoot.streaming.network import Layers
from surefoot.streaming.traces import OFFICIAL, StreamConfig, TraceAgent


@dataclasses.dataclass(frozen=True)
class EpsilonConfig(StreamConfig):
    """Settings of agents that explore by random choices."""

    exploration_fraction: float = option(
        0.05, "share of the planned steps, in which the share of random choices falls", range="> 0"
    )
    last_epsilon: float = option(0.01, "share of random choices after `exploration_fraction`", range="[0, 1]")
    planned_steps: int = option(500_000, "planned steps, T; `surefoot train` sets it to the run's steps", range=">= 1")


@dataclasses.dataclass(frozen=True)
class StreamQConfig(EpsilonConfig):
    """Settings of stream Q(lambda)."""

    trace_cut: str = option(
        "watkins", "watkins: before a step from an exploratory action; official: after it, one late", choices=TRACE_CUTS
    )


class EpsilonGreedyAgent(TraceAgent):
    """Choices by an epsilon-greedy policy of action values q(s, .), which `critic` gives."""

    config: EpsilonConfig
    requires = Requires(discrete=True, continuous=False)
    policy_network = "critic"

    def make_networks(self) -> Mapping[str, Layers]:
        """One value for each choice."""
        return {"critic": self.network_of(self.spec.action_dim)}

    @property
    def explore_dim(self) -> int:
        """Whether to explore, and by which choice."""
        return 2

    def set_epsilon(self) -> None:
        """Epsilon falls in a fraction of the planned steps."""
        c, step = self.config, max(int(self.acted), 1)
        self.in_epsilon.fill_(epsilon_at(step, self.planned_steps, c.exploration_fraction, c.last_epsilon))

    def choose(self) -> tuple[Tensor, Tensor]:
        """The greedy choice at `following`, or any with probability epsilon."""
        values = self.networks["critic"].forward(self.critic_weights, self.following).outputs
        return epsilon_greedy(values, self.in_noise, self.in_epsilon)

    def value_of_choice(self) -> tuple[Tensor, Tensor]:
        """(K,) q(s, a) of the choice that was made, and its (K, P) gradient."""
        critic, w = self.networks["critic"], self.critic_weights
        values = critic.forward(w, self.states)
        taken = torch.nn.functional.one_hot(self.chosen, self.spec.action_dim).to(self.dtype)
        return of_choice(values.outputs, self.chosen), critic.backward(w, values, taken)


class StreamQ(EpsilonGreedyAgent):
    r"""Stream Q(lambda) of Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works".

    .. math::
        \delta &= r + \gamma (1 - d) \max_b q(s', b) - q(s, a) \\
        z &\leftarrow c\, \gamma\lambda z + \nabla q(s, a), \quad w \leftarrow w + \alpha \delta z

    with ObGD's step. Traces are cut where a was not greedy: by Watkins' rule (c = 0 in this step), or as the official
    code does, after the update, which is one step later.
    """

    name = "stream_q"
    Config = StreamQConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {**OFFICIAL, "trace_cut": "official"}}
    config: StreamQConfig
    kind = "q"

    def improve(self, rows: Tensor) -> None:
        """One step of Q(lambda)."""
        c, (delta, gradient) = self.config, self.td_error(rows)
        if c.trace_cut == "watkins":
            self.ascend("critic", gradient, delta, c.kappa_critic, rows, kept=(~self.explored).to(self.dtype))
            self.finish(delta, rows)
        else:
            self.ascend("critic", gradient, delta, c.kappa_critic, rows)
            self.finish(delta, rows, cut=self.explored)

    def td_error(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(K,) r + gamma (1 - d) max q(s', .) - q(s, a), and the (K, P) gradient of q(s, a)."""
        reward = self.scaled_reward(rows)
        best = self.networks["critic"].forward(self.critic_weights, self.following).outputs.amax(-1)
        value, gradient = self.value_of_choice()
        return reward + self.config.discount * self.bootstrap() * best - value, gradient
