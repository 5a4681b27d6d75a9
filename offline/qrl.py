"""QRL: quasimetric reinforcement learning, which learns how many steps apart states are."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, Update, algorithm_of, require
from surefoot.core.losses.extraction import ddpg_bc_loss
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.quasimetric import IntervalQuasimetric
from surefoot.offline.goal_conditioned import GoalAgent, GoalConfig, beside

FAR, WIDTH = 500.0, 100.0
"""Distances beyond the first hardly count, over a width of the second: 100 softplus(5 - d / 100)."""


@dataclasses.dataclass(frozen=True)
class QRLConfig(GoalConfig):
    """Settings of QRL; the strength of cloning is the task's (docs/goals.md has OGBench's)."""

    cloning: float = option(
        0.003,
        "weight of cloning, alpha, in nats: .0003 point mazes, .003 ant mazes, .001 humanoids, .3 cube, scene, puzzle",
        range=">= 0",
    )
    latent: int = option(512, "width of phi, D")
    group: int = option(8, "coordinates of the quasimetric that are one group", range=">= 1")
    slack: float = option(0.05, "bound of the squared error of a step's distance, epsilon", range=">= 0")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        name = algorithm_of(self)
        require(
            self.latent >= self.group and self.latent % self.group == 0,
            name,
            "latent",
            self.latent,
            f"a multiple of group={self.group}",
        )
        whole = not self.goal_columns
        require(whole, name, "goal_columns", self.goal_columns, "left out: distances are between whole observations")


def spread_loss(distances: Tensor) -> Tensor:
    """(...,) 100 softplus(5 - d / 100) of distances to any goals: small where they are far."""
    return WIDTH * nn.functional.softplus((FAR - distances) / WIDTH)


class StateDistance(nn.Module):
    """phi, the quasimetric on it, and what an action does to phi."""

    def __init__(self, states: int, actions: int, config: QRLConfig, **settings: Any) -> None:
        super().__init__()
        self.phi = MLP(states, config.latent, config.hidden, **settings)
        self.dynamics = MLP(config.latent + actions, config.latent, config.hidden, **settings)
        self.metric = IntervalQuasimetric(config.latent, config.group)
        self.log_multiplier = nn.Parameter(torch.zeros(()))

    def after(self, embedded: Tensor, actions: Tensor) -> Tensor:
        """(B, D) phi after (B, A) actions."""
        return embedded + self.dynamics(beside(embedded, actions))


class QRL(GoalAgent):
    r"""QRL of Wang, Torralba, Isola and Zhang, "Optimal Goal-Reaching RL via Quasimetric Learning" (ICML 2023), with
    OGBench's settings and actor.

    States are pushed apart as far as a step's distance of 1 allows: with :math:`d_- = E\, 100\,\mathrm{softplus}(5 -
    d(s, g)/100)` over any goals and :math:`d_+ = E\,\mathrm{relu}(d(s, s') - 1)^2`,

    .. math:: L = d_- + \bar\lambda d_+ + \lambda (\epsilon - \bar d_+)

    whose last term raises the multiplier :math:`\lambda = e^l` while the limit is broken. :math:`T(\phi, a)`, what an
    action adds to :math:`\phi`, is trained to come near :math:`\phi(s')` in both directions. The actor ascends
    :math:`-d(\phi(s) + T(\phi(s), a), \phi(g))` and clones.
    """

    name = "qrl"
    Config: ClassVar[type] = QRLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "point": {"cloning": 0.0003},
        "ant": {"cloning": 0.003},
        "humanoid": {"cloning": 0.001, "discount": 0.995},
        "manipulation": {"cloning": 0.3},
    }
    config: QRLConfig

    @property
    def value_goals(self) -> tuple[float, ...]:
        """Any observation."""
        return (0.0, 0.0, 1.0)

    def build(self) -> None:
        """The policy and the distance."""
        super().build()
        sizes = (self.spec.observation_dim, self.spec.action_dim)
        self.distance = StateDistance(*sizes, self.config, **self.settings_of_values())

    def distance_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Distances, their multiplier and what actions do to phi, in one sum."""
        net = self.distance
        now, following, goals = (net.phi(batch[key]) for key in ("observations", "next_observations", "value_goals"))
        to_goal, step = net.metric(now, goals), net.metric(now, following)
        apart, excess = spread_loss(to_goal).mean(), torch.relu(step - 1).square().mean()
        multiplier = net.log_multiplier.exp()
        value = apart + multiplier.detach() * excess + multiplier * (self.config.slack - excess.detach())
        guess = net.after(now, batch["actions"])
        dynamics = (net.metric(following, guess) + net.metric(guess, following)).mean() / 2
        reported = {"distance": to_goal, "step_distance": step, "multiplier": multiplier, "dynamics_loss": dynamics}
        return value + dynamics, reported

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Come nearer the goal by the mean action, clipped, and clone."""
        net, pairs = self.distance, beside(batch["observations"], batch["actor_goals"])
        after = net.after(net.phi(batch["observations"]), self.actor.inner.act(pairs))
        q = -net.metric(after, net.phi(batch["actor_goals"]))
        density = self.actor.log_density(pairs, batch["actions"])
        return ddpg_bc_loss(q, density, self.config.cloning), {"q_policy": q, "log_density": density}

    def updates(self) -> list[Update]:
        """Distance and actor at the same parameters."""
        return [
            Update(self.distance_loss, ("distance",), self.adam()),
            Update(self.actor_loss, ("actor",), self.adam(), simultaneous=True),
        ]
