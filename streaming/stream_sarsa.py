"""Stream SARSA(lambda): epsilon-greedy choices, learned by the value of the choice that follows."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from surefoot.streaming.config import OFFICIAL
from surefoot.streaming.stream_q import EpsilonConfig, EpsilonGreedyAgent


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
        c, critic, w = self.config, self.networks["critic"], self.critic_weights
        reward = self.reward(rows)
        values = critic.forward(w, self.states)
        following = self.of_choice(critic.forward(w, self.following).outputs, self.next_chosen)
        delta = reward + c.discount * self.bootstrap() * following - self.of_choice(values.outputs, self.chosen)
        gradient = critic.backward(w, values, self.one_hot(self.chosen))
        self.ascend("critic", gradient, delta, c.kappa_critic, rows)
        self.finish(delta, rows)
