"""Stream SARSA(lambda): epsilon-greedy choices, learned by the value of the choice that follows."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.streaming.actions import of_choice
from surefoot.streaming.agent import StreamingAgent
from surefoot.streaming.behaviour import EpsilonGreedy
from surefoot.streaming.config import OFFICIAL
from surefoot.streaming.stream_q import EpsilonConfig, value_of_choice
from surefoot.streaming.traces import Traces


@dataclasses.dataclass(frozen=True)
class StreamSARSAConfig(EpsilonConfig):
    """Settings of stream SARSA(lambda)."""


class StreamSARSA(StreamingAgent):
    r"""Stream SARSA(lambda) of Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works".

    .. math::
        \delta &= r + \gamma (1 - d)\, q(s', a') - q(s, a) \\
        z &\leftarrow \gamma\lambda z + \nabla q(s, a), \quad w \leftarrow w + \alpha \delta z

    a' is drawn before the update and then taken, except at an episode's end: the next episode draws its own.
    """

    name = "stream_sarsa"
    Config = StreamSARSAConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": OFFICIAL}
    config: StreamSARSAConfig
    kind = "sarsa"
    act_before = True
    chooses = True
    policy_network = "critic"
    behaviour = EpsilonGreedy()
    learns_by = Traces

    def improve(self, rows: Tensor) -> None:
        """One step of SARSA(lambda)."""
        c, reward = self.config, self.traces.reward(rows)
        following = self.networks["critic"].forward(self.critic_weights, self.following).outputs
        value, gradient = value_of_choice(self)
        delta = reward + c.discount * self.bootstrap() * of_choice(following, self.next_chosen) - value
        self.traces.ascend("critic", gradient, delta, c.kappa_critic, rows)
        self.traces.finish(delta, rows)
