"""Stream SARSA(lambda): epsilon-greedy choices, learned by the value of the choice that follows."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.streaming.exploration import of_choice
from surefoot.streaming.stream_q import EpsilonConfig, EpsilonGreedyAgent
from surefoot.streaming.traces import OFFICIAL


@dataclasses.dataclass(frozen=True)
class StreamSARSAConfig(EpsilonConfig):
    """Settings of stream SARSA(lambda)."""


class StreamSARSA(EpsilonGreedyAgent):
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

    def improve(self, rows: Tensor) -> None:
        """One step of SARSA(lambda)."""
        c, reward = self.config, self.scaled_reward(rows)
        following = self.networks["critic"].forward(self.critic_weights, self.following).outputs
        value, gradient = self.value_of_choice()
        delta = reward + c.discount * self.bootstrap() * of_choice(following, self.next_chosen) - value
        self.ascend("critic", gradient, delta, c.kappa_critic, rows)
        self.finish(delta, rows)
