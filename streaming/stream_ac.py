"""Stream AC(lambda): an actor and a critic with traces, for continuous actions and for choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.traits import Requires
from surefoot.streaming import exploration
from surefoot.streaming.network import Layers, Pass
from surefoot.streaming.traces import OFFICIAL, StreamConfig, TraceAgent


@dataclasses.dataclass(frozen=True)
class StreamACConfig(StreamConfig):
    """Settings of stream AC(lambda)."""

    kappa_actor: float = option(
        3.0, "a step moves the policy network by at most 1 / kappa, in the L1 norm", range="> 0"
    )
    entropy: float = option(0.01, "tau: weight of the policy's entropy", range=">= 0")


class StreamAC(TraceAgent):
    r"""Stream AC(lambda) of Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works".

    .. math::
        \delta &= r + \gamma (1 - d)\, v(s') - v(s) \\
        z_\pi &\leftarrow \gamma\lambda z_\pi + \nabla [\log\pi(a|s) + \tau\, \mathrm{sign}(\delta) H(\pi(\cdot|s))] \\
        z_v &\leftarrow \gamma\lambda z_v + \nabla v(s) \\
        w_\pi &\leftarrow w_\pi + a_\pi \delta z_\pi, \quad w_v \leftarrow w_v + a_v \delta z_v

    with ObGD's steps. Continuous actions are normal with standard deviation softplus; a is the sample as it was drawn,
    and only what acts clips it. Choices have softmax probabilities.
    """

    name = "stream_ac"
    Config = StreamACConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": OFFICIAL}
    config: StreamACConfig
    requires = Requires(discrete=True)
    kind = "ac"

    actor_weights: Tensor

    def make_networks(self) -> Mapping[str, Layers]:
        """A value; and logits, or means and what the standard deviations are the softplus of."""
        outputs = self.spec.action_dim if self.spec.discrete else 2 * self.spec.action_dim
        return {"critic": self.network_of(1), "actor": self.network_of(outputs)}

    @property
    def explore_dim(self) -> int:
        """A uniform number for a choice, or a normal one for each dimension."""
        return 1 if self.spec.discrete else self.spec.action_dim

    def choose(self) -> tuple[Tensor, Tensor]:
        """A sample of the policy at `following`."""
        outputs = self.networks["actor"].forward(self.actor_weights, self.following).outputs
        if self.spec.discrete:
            chosen = exploration.sample_softmax(outputs, self.in_noise[:, 0])
        else:
            chosen = exploration.sample_gaussian(outputs, self.in_noise)
        return chosen, torch.zeros_like(self.explored)

    def improve(self, rows: Tensor) -> None:
        """One step of AC(lambda): both networks by the same TD error."""
        delta, value = td_error(self, rows)
        self.ascend("actor", actor_gradient(self, delta.sign()), delta, self.config.kappa_actor, rows)
        self.ascend("critic", critic_gradient(self, value), delta, self.config.kappa_critic, rows)
        self.finish(delta, rows)


def td_error(agent: TraceAgent, rows: Tensor) -> tuple[Tensor, Pass]:
    """(K,) r + gamma (1 - d) v(s') - v(s), and the pass that gave v(s)."""
    c, critic, w = agent.config, agent.networks["critic"], agent.critic_weights
    reward = agent.scaled_reward(rows)
    value = critic.forward(w, agent.states)
    following = critic.forward(w, agent.following).outputs
    return reward + c.discount * agent.bootstrap() * following.squeeze(-1) - value.outputs.squeeze(-1), value


def actor_gradient(agent: StreamAC, sign: Tensor) -> Tensor:
    """(K, P) gradient of log pi(a|s) + tau sign H(pi(.|s)); (K,) `sign` of the TD error."""
    actor, w = agent.networks["actor"], agent.actor_weights
    policy = actor.forward(w, agent.states)
    derivative = exploration.softmax_gradient if agent.spec.discrete else exploration.gaussian_gradient
    return actor.backward(w, policy, derivative(policy.outputs, agent.chosen, agent.config.entropy * sign))


def critic_gradient(agent: TraceAgent, value: Pass) -> Tensor:
    """(K, P) gradient of v(s)."""
    return agent.networks["critic"].backward(agent.critic_weights, value, torch.ones_like(value.outputs))
