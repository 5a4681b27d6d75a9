"""HILP: features in which distance is time, and successor features of them, from which any reward has its policy."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update, algorithm_of
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.losses.successor_measures import reward_direction
from surefoot.core.nn import ensembles
from surefoot.core.nn.first_norm import FirstNormMLP
from surefoot.core.nn.networks import MLP, initialise
from surefoot.core.nn.two_streams import TwoStreams
from surefoot.data.goals import GoalRows, GoalShares, episodes_of, goal_shares
from surefoot.offline.gcivl import implicit_value_loss
from surefoot.offline.zero_shot import ZeroShotAgent, ZeroShotConfig

NEAREST = 1e-6
"""Least squared distance: a root has no gradient at 0."""


@dataclasses.dataclass(frozen=True)
class HILPConfig(ZeroShotConfig):
    """Settings of HILP with successor features; the defaults are the authors'."""

    expectile: float = option(0.5, "tau of the features' value loss", range="(0, 1)")
    feature_discount: float = option(0.98, "discount factor of the features' values", range="(0, 1)")
    goal_discount: float = option(0.99, "of how many steps ahead the features' goals lie", range="(0, 1)")
    feature_learning_rate: float = option(5e-4, "learning rate of the features", range="> 0")
    feature_target_rate: float = option(
        0.005, "rate of the features' average, and of the mean that is taken off them", range="(0, 1]"
    )
    hidden: tuple[int, ...] = (1024,)
    feature_hidden: tuple[int, ...] = option((512, 512), "widths of the features' hidden layers")
    value_goals: tuple[float, ...] = option(
        (0.0, 0.625, 0.375), "shares of own, later (geometric) and any observations"
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        goal_shares(name, self.value_goals, True, "value_goals")


def distance_values(states: Tensor, goals: Tensor) -> Tensor:
    """(E, B) minus the distance of (E, B, D) features of states to those of goals."""
    return -(states - goals).square().sum(-1).clamp(min=NEAREST).sqrt()


class HILP(ZeroShotAgent):
    r"""HILP of Park, Kreiman and Levine, "Foundation Policies with Hilbert Representations" (ICML 2024), with the
    successor features of Touati, Rapin and Ollivier (ICLR 2023).

    A pair of features has the values :math:`V_i(s, g) = -|\phi_i(s) - \phi_i(g)|`, learned by `implicit_value_loss`
    towards later observations; the first less its mean is :math:`\phi`. With :math:`a' \sim \pi(s', z)`:

    .. math::
        L_\psi &= \textstyle\sum_i E (\psi_i(s, a, z) \cdot z - \phi(s') \cdot z
            - \gamma (1 - d) \min_k \hat\psi_k(s', a', z) \cdot z)^2 \\
        L_\pi &= -E \min_i \psi_i(s, \pi(s, z), z) \cdot z

    Half of the tasks z are any of length :math:`\sqrt D`, half :math:`(E \phi \phi^T)^{-1} \phi` of a state of the
    data. A reward's task is the least-squares fit of it by :math:`\phi \cdot z`.
    """

    name = "hilp"
    Config: ClassVar[type] = HILPConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"official": {}}
    actor_normed: ClassVar[str] = "inputs"
    config: HILPConfig
    feature_mean: Tensor
    """(D,) running mean of the first features."""
    moment: Tensor
    """(D, D) running E phi phi^T, which begins at 1."""
    paid: Tensor
    """(D,) running E r phi, of the data's own rewards."""

    def build(self) -> None:
        """The policy, features and successor features, and their averages."""
        super().build()
        c, spec = self.config, self.spec
        self.features_of = FirstNormMLP(spec.observation_dim, c.latent, c.feature_hidden, members=2)
        pair, with_task = spec.observation_dim + spec.action_dim, spec.observation_dim + c.latent
        self.successor = TwoStreams(pair, with_task, c.latent, c.hidden, c.width, 2, self.actor_normed)
        for network in self.modules():
            if isinstance(network, MLP):
                initialise(network, "unit_orthogonal")
        self.target_features_of = copy.deepcopy(self.features_of).requires_grad_(False)
        self.target_successor = copy.deepcopy(self.successor).requires_grad_(False)
        self.register_buffer("feature_mean", torch.zeros(c.latent))
        self.register_buffer("moment", torch.eye(c.latent))
        self.register_buffer("paid", torch.zeros(c.latent))

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Rows with goals."""
        c = self.config
        value = goal_shares(self.name, c.value_goals, True, "value_goals")
        own = GoalShares(1.0, 0.0, 0.0)
        ids = episodes_of(stores)
        return {MAIN: GoalRows(stores.data, ids, value=value, actor=own, discount=c.goal_discount)}

    def phi(self, states: Tensor) -> Tensor:
        """(B, D) the first features of normalised states, less their mean."""
        return self.features_of.member(states, 0) - self.feature_mean

    def successors(self, states: Tensor, actions: Tensor, tasks: Tensor, network: nn.Module | None = None) -> Tensor:
        """(2, B) values psi z of states (B, O), actions (B, A) and tasks (B, D)."""
        first, second = torch.cat([states, actions], -1), torch.cat([states, tasks], -1)
        found: Tensor = (network or self.successor)(first, second)
        return (found * tasks).sum(-1)

    def feature_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Both features' values, towards their averages'."""
        c = self.config
        now, following, goals = batch["observations"], batch["next_observations"], batch["value_goals"]
        features = self.features_of(now)
        values = distance_values(features, self.features_of(goals))
        with torch.no_grad():
            to = self.target_features_of(goals)
            target, ahead = (distance_values(self.target_features_of(s), to) for s in (now, following))
        masks, rewards = batch["goal_masks"], batch["goal_rewards"]
        loss, _ = implicit_value_loss(values, target, ahead, rewards, masks, c.feature_discount, c.expectile)
        return loss, {"feature_value": values, "feature_mean": features[0].mean(0)}

    def directions(self, batch: Batch) -> Tensor:
        """As of the base: features of the row's next state, whitened.

        By the running moment, not by the batch's as in the authors' code: the pseudo-inverse of few rows, of features
        that are next to dependent, hangs on rounding.
        """
        return torch.linalg.solve(self.moment, self.phi(batch["next_observations"]).mT).mT

    def successor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Both successor features, by the values that they give their task."""
        following = batch["next_observations"]
        with torch.no_grad():
            tasks, phi = self.mixed_tasks(noise, batch["directions"]), self.phi(following)
            action = self.following_action(batch, tasks, noise["action"])
            ahead = ensembles.minimum(self.successors(following, action, tasks, self.target_successor))
            target = (phi * tasks).sum(-1) + self.config.discount * (1 - batch["terminations"]) * ahead
        q = self.successors(batch["observations"], batch["actions"], tasks)
        metrics = {
            "q": q,
            "moment": phi.mT @ phi / len(phi),
            "paid": reward_direction(phi, batch["rewards"]),
            "task": torch.linalg.solve(self.moment, self.paid),
        }
        return ensembles.critic_loss(q, target, "sum"), metrics

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Ascend the smaller of the two values that psi gives the policy's actions for its task."""
        tasks = self.mixed_tasks(noise, batch["directions"])
        action = self.noisy_action(batch["observations"], tasks, noise["action"])
        q = ensembles.minimum(self.successors(batch["observations"], action, tasks))
        return -q.mean(), {"q_policy": q}

    def updates(self) -> list[Update]:
        """Successor features of the features as they are, the features, the actor at the new ones, and the averages."""
        c, noise = self.config, self.task_noise()
        means = {"feature_mean": ("feature_mean", c.feature_target_rate)}
        running = {
            "moment": ("moment", c.task_rate),
            "paid": ("paid", c.task_rate),
            "actor.task": ("task", 1.0),
        }
        slow = {"target_features_of": ("features_of", c.feature_target_rate)}
        targets = {"target_successor": ("successor", c.target_rate)}
        features, psi = Adam(c.feature_learning_rate), Adam(c.learning_rate)
        return [
            Update(self.successor_loss, ("successor",), psi, noise=noise, follows=running),
            Update(self.feature_loss, ("features_of",), features, pre_step_targets=slow, follows=means),
            Update(self.actor_loss, ("actor",), self.actor_adam(), noise=noise, target_updates=targets),
        ]

    def task_from(self, states: Tensor, rewards: Tensor) -> Tensor:
        """As of the base: the least-squares fit of the rewards by the features."""
        return least_squares_task(self.phi(states), rewards)


def least_squares_task(features: Tensor, rewards: Tensor) -> Tensor:
    """(D,) z with the least (n,) |features z - rewards|^2, the shortest of several."""
    return torch.linalg.lstsq(features, rewards.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
