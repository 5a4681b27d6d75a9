"""Stream Q(lambda): epsilon-greedy choices, the best following value, traces that exploration cuts."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.engine.agent import algorithm_of, require
from surefoot.streaming.actions import of_choice
from surefoot.streaming.agent import StreamingAgent
from surefoot.streaming.behaviour import EpsilonGreedy
from surefoot.streaming.config import OFFICIAL, StreamConfig
from surefoot.streaming.kernel import TRACE_CUTS
from surefoot.streaming.traces import Traces


@dataclasses.dataclass(frozen=True)
class EpsilonConfig(StreamConfig):
    """Settings of agents that explore by random choices."""

    exploration_fraction: float = 0.05  # of the planned steps, in which the share of random choices falls
    last_epsilon: float = 0.01  # share of random choices after that
    planned_steps: int = 500_000  # T; `surefoot train` sets it to the run's steps

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        name = algorithm_of(self)
        require(self.exploration_fraction > 0, name, "exploration_fraction", self.exploration_fraction, "> 0")
        require(0 <= self.last_epsilon <= 1, name, "last_epsilon", self.last_epsilon, "in [0, 1]")
        require(self.planned_steps >= 1, name, "planned_steps", self.planned_steps, ">= 1")


@dataclasses.dataclass(frozen=True)
class StreamQConfig(EpsilonConfig):
    """Settings of stream Q(lambda)."""

    trace_cut: str = "watkins"  # watkins: before a step from an exploratory action; official: after it, one late

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        check_trace_cut(self)


def check_trace_cut(config: Any) -> None:
    """Refuse another word."""
    known = config.trace_cut in TRACE_CUTS
    require(known, algorithm_of(config), "trace_cut", config.trace_cut, "watkins or official")


class StreamQ(StreamingAgent):
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

    chooses = True
    policy_network = "critic"
    behaviour = EpsilonGreedy()
    learns_by = Traces

    def improve(self, rows: Tensor) -> None:
        """One step of Q(lambda)."""
        c, (delta, gradient) = self.config, td_error(self, rows)
        if c.trace_cut == "watkins":
            self.traces.ascend("critic", gradient, delta, c.kappa_critic, rows, kept=(~self.explored).to(self.dtype))
            self.traces.finish(delta, rows)
        else:
            self.traces.ascend("critic", gradient, delta, c.kappa_critic, rows)
            self.traces.finish(delta, rows, cut=self.explored)


def td_error(agent: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(K,) r + gamma (1 - d) max q(s', .) - q(s, a), and the (K, P) gradient of q(s, a)."""
    reward = agent.traces.reward(rows)
    best = agent.networks["critic"].forward(agent.critic_weights, agent.following).outputs.amax(-1)
    value, gradient = value_of_choice(agent)
    return reward + agent.config.discount * agent.bootstrap() * best - value, gradient


def value_of_choice(agent: Any) -> tuple[Tensor, Tensor]:
    """(K,) q(s, a) of the choice that was made, and its (K, P) gradient."""
    critic, w = agent.networks["critic"], agent.critic_weights
    values = critic.forward(w, agent.states)
    taken = torch.nn.functional.one_hot(agent.chosen, agent.spec.action_dim).to(agent.dtype)
    return of_choice(values.outputs, agent.chosen), critic.backward(w, values, taken)
