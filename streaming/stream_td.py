"""Stream TD(lambda): predicts the discounted sum of rewards of whatever acts."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
from surefoot.core.engine.agent import DatasetLike, Spec
from surefoot.core.policy.policy import Policy
from surefoot.streaming import statistics
from surefoot.streaming.network import Network
from surefoot.streaming.stream_ac import critic_gradient, td_error
from surefoot.streaming.traces import OFFICIAL, StreamConfig, TraceAgent


@dataclasses.dataclass(frozen=True)
class StreamTDConfig(StreamConfig):
    """Settings of stream TD(lambda)."""


class StreamTD(TraceAgent):
    r"""Stream TD(lambda) of Elsayed, Vasan and Mahmood, "Streaming Deep Reinforcement Learning Finally Works".

    .. math::
        \delta &= r + \gamma (1 - d)\, v(s') - v(s) \\
        z &\leftarrow \gamma\lambda z + \nabla v(s), \quad w \leftarrow w + a \delta z

    with ObGD's step a. It has no actions: `begin` and `step` give the value of the observation, in units of reward.
    """

    name = "stream_td"
    Config = StreamTDConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": OFFICIAL}
    config: StreamTDConfig
    kind = "td"

    def __init__(self, problem: Spec | DatasetLike | int, config: Any = None, **options: Any) -> None:
        """As every streaming agent; `problem` may be the width of an observation alone."""
        width = problem if isinstance(problem, int) else getattr(problem, "observation_dim", None)
        known = Spec(int(width), 0, (), ()) if width is not None else problem
        assert not isinstance(known, int)
        super().__init__(known, config, **options)

    def make_networks(self) -> dict[str, Network]:
        """A value of the observation."""
        return {"critic": self.network_of(1)}

    def improve(self, rows: Tensor) -> None:
        """One step of semi-gradient TD(lambda)."""
        delta, value = td_error(self, rows)
        self.ascend("critic", critic_gradient(self, value), delta, self.config.kappa_critic, rows)
        self.finish(delta, rows)

    def predict(self, observations: Any, stream: int = 0) -> np.ndarray:
        """(B,) values of (B, O) observations in the environment's units, in units of reward.

        The statistics are those of the moment, and don't change.
        """
        self.learn()
        mean, scale = self.observation_scale(stream)
        inputs = (torch.as_tensor(np.asarray(observations, np.float64)) - mean) / scale
        weights = self.critic_weights[stream].expand(len(inputs), -1)
        return self._in_rewards(self.networks["critic"].forward(weights, inputs.to(self.dtype)).outputs, stream)

    def _in_rewards(self, values: Tensor, stream: int | slice) -> np.ndarray:
        """(B,) values times what rewards are divided by."""
        scale = torch.ones((), dtype=torch.float64)
        if self.config.scale_rewards:
            scale = statistics.deviation(self.reward_count, self.reward_squares)[stream]
        return (values.squeeze(-1).double() * scale).numpy()

    def answer(self, acting: bool = False) -> Any:
        """Values of the present observations, (K,) or a number; `acting`: before what led to them was learned."""
        inputs = self.states
        if acting:
            inputs = torch.where(torch.from_numpy(self.later).unsqueeze(-1), self.following, self.states)
        values = self._in_rewards(self.networks["critic"].forward(self.critic_weights, inputs).outputs, slice(None))
        return values[0] if self.samples.single else values

    def policy(self, stream: int = 0) -> Policy:
        """Refused: it only predicts."""
        raise ConfigError("stream_td predicts and has no policy; use predict, or train stream_ac or stream_q")
