"""MAPPO: PPO of the agents of a team, whose critic reads the team's state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from surefoot.core.actors.actor import Evaluation, SampleAux
from surefoot.core.engine.traits import Teams
from surefoot.core.nn.networks import Value
from surefoot.core.policy.policy import Policy
from surefoot.online.base.on_policy_agent import head_gain, in_parts
from surefoot.online.base.team_rows import central_part, central_width, own_part, own_policy, own_width
from surefoot.online.ppo import PPO, PPOConfig


@dataclasses.dataclass(frozen=True)
class MAPPOConfig(PPOConfig):
    """Settings of MAPPO: PPO's."""

    num_envs: int = 16
    entropy_coefficient: float = 0.01


class MAPPO(PPO):
    r"""MAPPO of Yu et al., "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games" (2022).

    .. math::
        A_t^i = \sum_k (\gamma\lambda)^k \delta_{t+k}^i, \quad
        \delta_t^i = r_t^i + \gamma (1 - d_t) V(s_{t+1}, i) - V(s_t, i)

    The policy :math:`\pi(a | o^i, i)` reads what agent i observes, and is all that is deployed; the critic reads the
    team's state s and the agent's number. d is the end of the team's episode: an agent that left before has no
    rewards and chooses nothing that counts, and what the others still earn is not credited to it. The
    losses are PPO's. With one agent that observes the state it is PPO. The presets are JaxMARL's settings, whose
    networks are recurrent; these are not.
    """

    name = "mappo"
    Config = MAPPOConfig
    teams = Teams(trains=True, reads_state=True, ends_together=True)
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "mpe": {
            "num_envs": 16,
            "horizon": 128,
            "epochs": 4,
            "minibatches": 4,
            "hidden": (128, 128),
            "learning_rate": 2e-3,
            "entropy_coefficient": 0.01,
            "normalize_observations": False,
            "normalize_rewards": False,
        },
        "smax": {
            "num_envs": 128,
            "horizon": 128,
            "epochs": 4,
            "minibatches": 4,
            "hidden": (128, 128),
            "learning_rate": 4e-3,
            "clip": 0.05,
            "max_gradient_norm": 0.25,
            "entropy_coefficient": 0.0,
            "normalize_observations": False,
            "normalize_rewards": False,
        },
    }
    config: MAPPOConfig

    def build(self) -> None:
        """An actor of what an agent observes, and a critic of the team's state and the agent's number."""
        c, spec = self.config, self.spec
        self.actor = self.head_of(own_width(spec) if self._central else self.features)
        inputs = central_width(spec) if self._central else self.features
        self.value = Value(inputs, c.hidden, "orthogonal", activation=c.activation)
        head_gain(self.value.mlp, 1.0)

    @property
    def _central(self) -> bool:
        """Whether rows show a state that only the critic reads."""
        return self.spec.state_dim > 0

    def own(self, observations: Tensor) -> Tensor:
        """(..., own width) what the policy reads of (..., O) rows."""
        return own_part(observations, self.spec)

    def central(self, observations: Tensor) -> Tensor:
        """(..., central width) what the critic reads of (..., O) rows."""
        return central_part(observations, self.spec) if self._central else observations

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """As `Agent.act`, by what the agents observe."""
        return super().act(self.own(observations), noise)

    def sample(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, SampleAux]:
        """As `OnPolicyAgent.sample`, likewise."""
        return super().sample(self.own(observations), noise)

    def evaluate(self, batch: Mapping[str, Tensor]) -> Evaluation:
        """As `OnPolicyAgent.evaluate`, likewise."""
        return super().evaluate({**batch, "observations": self.own(batch["observations"])})

    def log_prob(self, block: Mapping[str, Tensor]) -> Tensor:
        """As `OnPolicyAgent.log_prob`, likewise."""
        return super().log_prob({**block, "observations": self.own(block["observations"])})

    def behaviour(self, observations: Tensor) -> Tensor:
        """As `OnPolicyAgent.behaviour`, likewise."""
        return super().behaviour(self.own(observations))

    def evaluate_value(self, batch: Mapping[str, Tensor]) -> Tensor:
        """(B,) values of the teams' states for the agents of (B, O) rows."""
        value: Tensor = self.value(self.central(batch["observations"]))
        return value

    def values(self, observations: Tensor) -> Tensor:
        """(T, N) the same of (T, N, O) rows of a block."""
        return in_parts(lambda part: self.value(self.central(part)), observations)

    def policy(self) -> Policy:
        """The policy of one agent, which needs no state."""
        return own_policy(self, self.leaving_actor()) if self._central else super().policy()
