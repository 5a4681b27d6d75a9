"""What offline methods with a cost critic share: costs beside the rewards, thresholds, targets, multipliers, samples.

A cost limit is an undiscounted sum over an episode, and a cost critic estimates a discounted one. The threshold that
critics are held to is `discounted_threshold`: what the limit comes to where costs are spread evenly over the episode.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.actors.vae import VAE
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Agent, Batch, Metrics
from surefoot.core.losses.value_learning import td_target
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, prepare
from surefoot.safe.constraint.costs import checked_costs, cost_notes
from surefoot.safe.constraint.multipliers import Multiplier, discounted_threshold


class AssignedMultiplier(nn.Module):
    """A constraint's weight that a rule of `multipliers` sets at every training step, kept as parameters."""

    def __init__(self, rule: Multiplier) -> None:
        """Begin at the rule's start, whose tensors must all be single numbers."""
        super().__init__()
        self.rule = rule
        start = rule.first_state()
        self.names = tuple(start)
        self.state = nn.Parameter(torch.stack([start[name] for name in self.names]))

    def forward(self) -> Tensor:
        """() lambda >= 0."""
        return self.state[self.names.index("value")].clamp(min=0)

    def loss(self, cost: Tensor, limit: Tensor) -> Tensor:
        """() whose `Descent` at a rate of 1 is the rule's step, from the () cost now and its () limit."""
        state = {name: self.state[i].detach() for i, name in enumerate(self.names)}
        new = self.rule.step(state, cost.detach(), limit)  # type: ignore[arg-type]  # a tensor does as well as a float
        step = self.state - torch.stack([new[name] for name in self.names])
        return (self.state * step.detach()).sum()


class Dual(nn.Module):
    """A weight exp(rho) that rises while a quantity is above its bound and falls while below; |rho| <= 5."""

    LARGEST = 5.0

    def __init__(self) -> None:
        super().__init__()
        self.rho = nn.Parameter(torch.zeros(()))

    def forward(self) -> Tensor:
        """() weight > 0, without gradient."""
        return self.rho.detach().clamp(-self.LARGEST, self.LARGEST).exp()

    def loss(self, excess: Tensor) -> Tensor:
        """() whose descent raises the weight where () `excess` > 0; at its bounds it is not pushed further."""
        excess, at = excess.detach(), self.rho.detach()
        stuck = ((at >= self.LARGEST) & (excess > 0)) | ((at <= -self.LARGEST) & (excess < 0))
        return -self.rho * torch.where(stuck, 0.0, self() * excess)


@dataclasses.dataclass(frozen=True)
class ThresholdConfig(HistoryConfig):
    """The cost limit of an offline method, and how it reads the data."""

    cost_limit: float = option(25.0, "limit of an episode's undiscounted cost", range=">= 0")
    episode_steps: int | None = option(
        None, "steps of an episode, H of the threshold; null: the data's longest", range=">= 1"
    )
    discount: float = option(0.99, "discount factor", range="[0, 1)")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    reward_scale: float = option(0.1, "factor on rewards", range="> 0")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)


COSTS_TOO = ("observations", "actions", "rewards", "costs", "terminations", "next_observations")
"""What agents read that learn from costs."""


def threshold_in(dataset: Dataset, config: ThresholdConfig) -> float:
    """What the limit comes to as a discounted cost, over an episode of the config's steps or the data's longest."""
    steps = int(dataset.episode_lengths.max()) if config.episode_steps is None else config.episode_steps
    return discounted_threshold(config.cost_limit, config.discount, steps)


class ThresholdAgent(Agent):
    """An agent of an offline method that keeps costs below a threshold; its config is a `ThresholdConfig`."""

    required_columns: ClassVar[tuple[str, ...]] = COSTS_TOO
    config: ThresholdConfig
    cost_threshold: Tensor

    def build(self) -> None:
        """The discounted threshold of costs, which `prepare` sets."""
        self.register_buffer("cost_threshold", torch.tensor(self.config.cost_limit))

    def prepare(self, dataset: Dataset) -> Dataset:
        """Costs checked, actions and rewards scaled, observations normalised; sets the threshold.

        Raises:
            DataError: as `checked_costs`.
        """
        costs, c = checked_costs(dataset, self.name), self.config
        if not self.rewards_fixed:
            self.reward_scale.fill_(c.reward_scale)
        if not self.goals_fixed:
            self.cost_threshold.fill_(threshold_in(dataset, c))
        return prepare(self, dataset.replace(costs=costs), normalization=c.normalization)

    def notes(self, dataset: Dataset) -> list[str]:
        """Costs that teach nothing, and the threshold that the limit was turned into."""
        threshold, limit = threshold_in(dataset, self.config), self.config.cost_limit
        text = f"{self.name}: the cost limit of {limit:g} an episode is a discounted cost of {threshold:.4g} a state"
        return [*cost_notes(dataset, self.name), text]


@dataclasses.dataclass(frozen=True)
class CostCriticConfig(ThresholdConfig):
    """What BCQ-Lagrangian, BEAR-Lagrangian and CPQ have in common; the numbers are OSRL's."""

    target_rate: float = option(0.005, "rate of the targets' average, every step", range="[0, 1]")
    sampled_actions: int = option(
        10,
        "sampled actions of each observation: in targets, BEAR's discrepancy, CPQ's search for odd ones",
        range=">= 1",
    )
    careful_costs: bool = option(True, "believe the larger of two cost critics; false: the smaller, as OSRL")
    kl_weight: float = option(0.5, "beta of the auto-encoder")
    vae_hidden: tuple[int, ...] = option((400, 400), "widths of the hidden layers")
    learning_rate: float = option(1e-3, "learning rate of all but an actor with a rate of its own", range=">= 0")


class CostCriticAgent(ThresholdAgent):
    """An agent with critics of reward and of cost, and an auto-encoder of the data's actions."""

    config: CostCriticConfig
    vae: VAE

    def build_critics(self) -> None:
        """Twin critics of reward and cost, and their targets."""
        sizes = (self.spec.observation_dim, self.spec.action_dim, self.config.hidden)
        self.critic, self.cost_critic = Critic(*sizes), Critic(*sizes)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_cost_critic = copy.deepcopy(self.cost_critic).requires_grad_(False)

    def cost_of(self, costs: Tensor) -> Tensor:
        """(B,) the maximum over (E, B) cost critics; the minimum without `careful_costs`."""
        return ensembles.maximum(costs) if self.config.careful_costs else ensembles.minimum(costs)

    def values(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) value and cost value of (B, A) actions."""
        pairs = joined(observations, actions)
        costs = self.cost_critic(pairs)
        return ensembles.minimum(self.critic(pairs)), self.cost_of(costs)

    def vae_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Reconstruction of the data's actions, and the divergence of their codes from the prior."""
        encoded, weight = noise["encoded"], self.config.kl_weight
        loss, error = self.vae.loss(batch["observations"], batch["actions"], encoded, weight)
        return loss, {"reconstruction": error}


def mixed_td_loss(agent: CostCriticAgent, batch: Batch, actions: Tensor, mixing: float) -> tuple[Tensor, Metrics]:
    """Squared TD errors of both pairs of critics, at (n B, A) next actions: the best reward's, the mean cost's."""
    c, count, following = agent.config, agent.config.sampled_actions, batch["next_observations"]
    pairs = joined(following, actions)
    next_q = mixed(agent.target_critic(pairs), mixing, lowest=True).unflatten(0, (count, -1)).amax(0)
    costs = mixed(agent.target_cost_critic(pairs), mixing, lowest=not c.careful_costs)
    next_cost = costs.unflatten(0, (count, -1)).mean(0)
    target = td_target(batch["rewards"], batch["terminations"], next_q, c.discount)
    cost_target = td_target(batch["costs"], batch["terminations"], next_cost, c.discount)
    q, cost_q = agent.critic(batch["observation_actions"]), agent.cost_critic(batch["observation_actions"])
    loss = (q - target).square().mean(-1).sum() + (cost_q - cost_target).square().mean(-1).sum()
    return loss, {"q": q, "cost_q": cost_q}


def joined(observations: Tensor, actions: Tensor) -> Tensor:
    """(n B, O + A) pairs of (B, O) observations with (n B, A) actions, n of each observation, B by B."""
    return torch.cat([repeated(observations, len(actions) // len(observations)), actions], -1)


def repeated(observations: Tensor, count: int) -> Tensor:
    """(count B, O): the B rows, `count` times over."""
    return observations.unsqueeze(0).expand(count, -1, -1).reshape(-1, observations.shape[-1])


def rows_of(noise: Tensor, width: int) -> Tensor:
    """(n B, width) of (B, n width) random numbers, in the order of `repeated`."""
    return noise.unflatten(-1, (-1, width)).movedim(-2, 0).reshape(-1, width)


def mixed(values: Tensor, weight: float, lowest: bool) -> Tensor:
    """(B,) `weight` of the lowest (or of the largest) of (E, B) critics and the rest of the other.

    Source: the soft clipped double Q-learning of Fujimoto et al., "Off-Policy Deep Reinforcement Learning without
    Exploration" (BCQ), eq. (13), where the lowest has the larger weight; a cost critic is careful the other way.
    """
    low, high = values.amin(0), values.amax(0)
    return weight * low + (1 - weight) * high if lowest else weight * high + (1 - weight) * low
