"""What offline methods with a cost critic share: costs beside the rewards, thresholds, targets, multipliers, samples.

A cost limit is an undiscounted sum over an episode, and a cost critic estimates a discounted one. The threshold that
critics are held to is `discounted_threshold`: what the limit comes to where costs are spread evenly over the episode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from surefoot.core import ensembles
from surefoot.core.agent import Adam, Agent, require
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare
from surefoot.safe.costs import checked_costs, cost_notes
from surefoot.safe.multipliers import Multiplier, discounted_threshold

HUGE = 1e15
ASSIGN = Adam(HUGE, betas=(0.0, 0.0), epsilon=HUGE)
"""Adam without a memory, whose epsilon is far above any gradient: the step is the gradient itself, so that the loss
`assignment(parameter, new)` moves a parameter to `new`, within rounding."""


def assignment(parameter: Tensor, new: Tensor) -> Tensor:
    """() whose gradient is parameter - new: stepped by `ASSIGN`, the parameter becomes `new`."""
    return (parameter * (parameter - new).detach()).sum()


class AssignedMultiplier(nn.Module):
    """A constraint's weight that a rule of `safe.multipliers` sets, kept as parameters: stacked and saved with them."""

    def __init__(self, rule: Multiplier) -> None:
        """Begin at the rule's start, whose tensors must all be single numbers."""
        super().__init__()
        self.rule = rule
        start = rule.start()
        self.names = tuple(start)
        self.state = nn.Parameter(torch.stack([start[name] for name in self.names]))

    def forward(self) -> Tensor:
        """() lambda >= 0."""
        return self.state[self.names.index("value")].clamp(min=0)

    def loss(self, cost: Tensor, limit: Tensor) -> Tensor:
        """() that `ASSIGN` turns into the rule's step, from the () cost now and its () limit."""
        state = {name: self.state[i].detach() for i, name in enumerate(self.names)}
        new = self.rule.step(state, cost.detach(), limit)  # type: ignore[arg-type]  # a tensor does as well as a float
        return assignment(self.state, torch.stack([new[name] for name in self.names]))


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


def check_settings(name: str, config: Any) -> None:
    """Refuse values out of range among the settings that these methods share."""
    require(0 <= config.cost_limit < float("inf"), name, "cost_limit", config.cost_limit, "a finite sum >= 0")
    require(0 <= config.discount < 1, name, "discount", config.discount, "in [0, 1)")
    require(config.reward_scale > 0, name, "reward_scale", config.reward_scale, "> 0")
    steps = config.episode_steps
    require(steps is None or steps >= 1, name, "episode_steps", steps, "at least 1, or null for the data's longest")


def prepare_with_costs(agent: Agent, dataset: Dataset) -> Dataset:
    """Costs checked, actions and rewards scaled, observations normalised; sets `agent.cost_threshold`.

    Raises:
        DataError: as `checked_costs`.
    """
    costs, config = checked_costs(dataset, agent.name), agent.config
    if not agent.rewards_fixed:
        agent.reward_scale.fill_(config.reward_scale)
        steps = int(dataset.episode_lengths.max()) if config.episode_steps is None else config.episode_steps
        threshold = discounted_threshold(config.cost_limit, config.discount, steps)
        agent.get_buffer("cost_threshold").fill_(threshold)
    return prepare(agent, dataset.replace(costs=costs), normalization=config.normalization)


def threshold_notes(agent: Agent, dataset: Dataset) -> list[str]:
    """What the user should hear: costs that teach nothing, and the threshold that the limit was turned into."""
    threshold, limit = float(agent.get_buffer("cost_threshold")), agent.config.cost_limit
    text = f"{agent.name}: the cost limit of {limit:g} an episode is a discounted cost of {threshold:.4g} a state"
    return [*cost_notes(dataset, agent.name), text]


def joined(observations: Tensor, actions: Tensor) -> Tensor:
    """(n B, O + A) pairs of (B, O) observations with (n B, A) actions, n of each observation, B by B."""
    return torch.cat([repeated(observations, len(actions) // len(observations)), actions], -1)


def repeated(observations: Tensor, count: int) -> Tensor:
    """(count B, O): the B rows, `count` times over."""
    return observations.unsqueeze(0).expand(count, -1, -1).reshape(-1, observations.shape[-1])


def rows_of(noise: Tensor, width: int) -> Tensor:
    """(n B, width) of (B, n width) random numbers, in the order of `repeated`."""
    return noise.unflatten(-1, (-1, width)).movedim(-2, 0).reshape(-1, width)


def larger(values: Tensor) -> Tensor:
    """(B,) the largest of (E, B): of cost critics, the one that fears most."""
    return -ensembles.minimum(-values)


def mixed(values: Tensor, weight: float, lowest: bool) -> Tensor:
    """(B,) `weight` of the lowest (or of the largest) of (E, B) critics and the rest of the other.

    Source: the soft clipped double Q-learning of Fujimoto et al., "Off-Policy Deep Reinforcement Learning without
    Exploration" (BCQ), eq. (13), where the lowest has the larger weight; a cost critic is careful the other way.
    """
    low, high = values.amin(0), values.amax(0)
    return weight * low + (1 - weight) * high if lowest else weight * high + (1 - weight) * low
