"""VDN: values of each agent whose sum is learned from what the team earns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surefoot.core.actors.greedy_actor import GreedyActor, highest
from surefoot.core.actors.masked_actors import MaskedGreedyActor
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, algorithm_of, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Teams
from surefoot.core.losses.value_learning import huber_loss, td_target
from surefoot.core.policy.policy import Policy
from surefoot.online.base.team_rows import TeamReplay, own_part, own_policy, own_width
from surefoot.online.dqn import DQN, DQNConfig


@dataclasses.dataclass(frozen=True)
class VDNConfig(DQNConfig):
    """Settings of VDN: DQN's, of joint rows; a batch has `batch_size` steps of teams."""

    hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers of an agent's values")

    def __post_init__(self) -> None:
        """Refuse options of single rows."""
        super().__post_init__()
        name = algorithm_of(self)
        for field, usual in (("n_step", 1), ("hindsight", 0), ("offline_fraction", 0)):
            require(getattr(self, field) == usual, name, field, getattr(self, field), f"{usual}: rows are joint ones")
        for field, plain in (("returns", "mean"), ("dueling", False), ("noisy", 0), ("priority", 0), ("bonus", None)):
            require(getattr(self, field) == plain, name, field, getattr(self, field), f"{plain}: it is of dqn alone")


class VDN(DQN):
    r"""VDN of Sunehag et al., "Value-Decomposition Networks For Cooperative Multi-Agent Learning" (2018).

    .. math::
        Q_{tot}(s, a) &= \textstyle\sum_i Q(o^i, i, a^i), \qquad
        y = \bar r + \gamma (1 - d)\, \hat Q_{tot}(s', a^*), \quad a^{*i} = \arg\max_b Q(o'^i, i, b) \\
        L &= E\, h(Q_{tot}(s, a) - y)

    :math:`\bar r` is the mean of the agents' rewards, d the end of the team's episode, and h DQN's. Each agent acts by
    its own values, which have one set of weights. Where an agent may choose some actions only, so does its argmax. Rows
    hold the end of their own step, so that the value behind an episode's end counts nowhere, and that behind the first
    step of the next counts. With one agent it is DQN.
    """

    name = "vdn"
    Config = VDNConfig
    teams = Teams(trains=True, ends_together=True)
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "mpe": {
            "num_envs": 8,
            "discount": 0.9,
            "learning_rate": 5e-3,
            "target_every": 200,
            "max_gradient_norm": 25.0,
            "error": "squared",
            "hidden": (64, 64),
            "epsilon_steps": 100_000,
        }
    }
    config: VDNConfig

    def build(self) -> None:
        """Values of an agent's choices, their target, and the share of random choices."""
        head = MaskedGreedyActor if self.spec.masked else GreedyActor
        inputs = self.features if self.spec.state_dim == 0 else own_width(self.spec)
        self.critic: GreedyActor = head(inputs, self.spec.action_dim, self.config.hidden)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.register_buffer("epsilon", torch.tensor(self.config.first_epsilon))
        self.bonus = None
        self.build_mixing()

    def build_mixing(self) -> None:
        """What makes one value of those of all agents: here a sum, which has no weights."""

    @property
    def trained(self) -> tuple[str, ...]:
        """Networks that the loss trains."""
        return ("critic",)

    def mix(self, values: Tensor, observations: Tensor, mixing: nn.Module | None) -> Tensor:
        """(B,) values of the team for (B, A) of its agents at (B, A, O) rows."""
        return values.sum(-1)

    @property
    def mixings(self) -> tuple[nn.Module | None, nn.Module | None]:
        """The network that mixes values, and its target."""
        return None, None

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Joint rows of the replay buffer."""
        source = TeamReplay(stores.replay)
        source.agents = self.spec.agents
        return {MAIN: source}

    def own(self, observations: Tensor) -> Tensor:
        """(..., own width) what an agent's values read of (..., O) rows."""
        return own_part(observations, self.spec)

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """As `Agent.act`, by what the agents observe."""
        return super().act(self.own(observations), noise)

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """As DQN's, likewise: each agent by itself."""
        return super().explore(self.own(observations), noise)

    def policy(self) -> Policy:
        """The policy of one agent."""
        return own_policy(self, self.actor)

    def targets(self, batch: Batch, noise: Mapping[str, Tensor] | None = None) -> Tensor:
        """(B,) what teams earned and the value of the best choices after it, by each agent's own values."""
        following = batch["next_observations"]
        values = self.target_critic(self.own(following))
        best = self.critic(self.own(following)) if self.config.double else values
        chosen = (values * highest(best)).sum(-1)
        after = self.mix(chosen, following, self.mixings[1])
        return td_target(batch["rewards"].mean(-1), batch["terminations"][..., 0], after, self.config.discount)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Huber's loss, or half the square, of the TD error of the teams' choices."""
        observations = batch["observations"]
        chosen = (self.critic(self.own(observations)) * batch["actions"]).sum(-1)
        q = self.mix(chosen, observations, self.mixings[0])
        error = q - self.targets(batch)
        loss = huber_loss(error, 1.0) if self.config.error == "huber" else 0.5 * error.square()
        return loss.mean(), {"q": q, "epsilon": self.epsilon}

    def updates(self) -> list[Update | Rule]:
        """The values, then epsilon, and now and then the target networks."""
        c = self.config
        copies = {f"target_{name}": (name, c.target_rate) for name in self.trained}
        return [
            Update(
                self.critic_loss,
                self.trained,
                Adam(c.learning_rate, epsilon=c.adam_epsilon, max_gradient_norm=c.max_gradient_norm),
            ),
            Rule(self.fall, ("epsilon",)),
            Rule(target_updates=copies, every=c.target_every),
        ]
