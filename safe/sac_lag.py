"""SAC-Lag: SAC with critics of cost, and a multiplier that follows the cost of fresh episodes."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update
from surefoot.core.losses.value_learning import td_target
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic
from surefoot.data.dataset import Dataset
from surefoot.online.base.agents import CounterfactualConfig
from surefoot.online.sac import SAC, SoftConfig
from surefoot.safe.constraint.constrained import MultiplierConfig, multiplier_rule
from surefoot.safe.constraint.costs import checked_costs, cost_notes
from surefoot.safe.constraint.multipliers import HeldMultiplier


@dataclasses.dataclass(frozen=True)
class SACLagConfig(MultiplierConfig, SoftConfig, CounterfactualConfig):
    """Settings of SAC-Lag: SAC's and the multiplier's, whose rate is chosen for 300 episodes (see `SACLag`)."""

    cost_window: int = 5
    multiplier_rate: float = 0.1
    cost_critics: int = option(
        1, "number of cost critics, the largest of which is what an action is taken to cost", range=">= 1"
    )
    initial_steps: int = 10_000


class SACLag(SAC):
    r"""SAC-Lagrangian of Ray, Achiam and Amodei, "Benchmarking Safe Exploration in Deep Reinforcement Learning".

    .. math::
        y_c &= c + \gamma_c (1 - d)\, \max_i \hat Q_{c,i}(s', a'), \quad a' \sim \pi(s') \\
        L_\pi &= E\, [\alpha \log\pi(a|s) - \min_i Q_i(s, a) + \lambda \max_i Q_{c,i}(s, a)] / (1 + \lambda)

    Beside SAC's losses. lambda moves after each step in which an episode ended, by the mean cost of the last
    `cost_window` episodes of the policy itself; what cost critics believe of old transitions works poorly (FSRL).
    OmniSafe's rate, 1e-5 an update after 200,000 steps, can't move lambda in a run of 3e5 steps (100 updates: 0.001);
    the rate here is 0.1 an episode, at most 30 in 300 episodes. The cost's discount and the reward's are apart.
    """

    name = "sac_lag"
    Config = SACLagConfig
    PRESETS = {}  # noqa: RUF012
    required_columns = (*SAC.required_columns, "costs")
    config: SACLagConfig

    def build(self) -> None:
        """SAC's networks, cost critics with their targets, and the multiplier."""
        super().build()
        c, sizes = self.config, (self.features, self.decision_dim)
        self.cost_critic = Critic(*sizes, c.hidden, c.cost_critics)
        self.target_cost_critic = copy.deepcopy(self.cost_critic).requires_grad_(False)
        self.multiplier = HeldMultiplier(c.rule)
        self.cost_window = c.cost_window

    def prepare(self, dataset: Dataset) -> Dataset:
        """As SAC's, with costs: of demonstrations, say, that stay in every batch.

        Raises:
            DataError: as `checked_costs`.
        """
        return super().prepare(dataset.replace(costs=checked_costs(dataset, self.name)))

    def notes(self, dataset: Dataset) -> list[str]:
        """What costs that are the same everywhere make impossible."""
        return [*super().notes(dataset), *cost_notes(dataset, self.name)]

    def cost_critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance of the cost critics to the cost of one next action; entropy costs nothing."""
        c, following = self.config, batch["next_observations"]
        action, _ = self.actor.draw(following, noise["next_action"])
        next_q = ensembles.maximum(self.target_cost_critic(torch.cat([following, action], -1)))
        target = td_target(batch["costs"], batch["terminations"], next_q, c.cost_discount)
        q = self.cost_critic(batch["observation_actions"])
        return ensembles.critic_loss(q, target, c.critic_loss_over), {"cost_q": q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """SAC's and the weighted cost of the policy's own actions, over 1 + lambda."""
        observations = batch["observations"]
        action, log_density = self.actor.draw(observations, noise["action"])
        pairs = torch.cat([observations, action], -1)
        value, weight = ensembles.minimum(self.critic(pairs)), self.multiplier()
        terms = self.temperature() * log_density - value + weight * ensembles.maximum(self.cost_critic(pairs))
        return (terms / (1 + weight)).mean(), {"entropy": -log_density}

    def updates(self) -> list[Update | Rule]:
        """SAC's, with the cost critics' step after the critics', and the multiplier."""
        c = self.config
        critic, *others = super().updates()
        cost = Update(
            self.cost_critic_loss,
            ("cost_critic",),
            Adam(c.critic_learning_rate),
            target_updates={"target_cost_critic": ("cost_critic", c.target_rate)},
            noise={"next_action": critic.noise["next_action"]},
        )
        return [multiplier_rule(self), critic, cost, *others]
