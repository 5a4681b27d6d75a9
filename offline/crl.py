"""CRL: contrastive reinforcement learning, whose critic tells the goals that an action leads to from others."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, Update
from surefoot.core.losses.extraction import ddpg_bc_loss
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import MLP
from surefoot.offline.goal_conditioned import GoalAgent, GoalConfig, beside


@dataclasses.dataclass(frozen=True)
class CRLConfig(GoalConfig):
    """Settings of CRL; the strength of cloning is the task's (docs/goals.md has OGBench's)."""

    cloning: float = option(
        0.1,
        "weight of cloning, alpha, in nats: .03 point mazes, .1 ant mazes and humanoids, 3 cube, scene and puzzle",
        range=">= 0",
    )
    latent: int = option(512, "width of phi and psi, D", range=">= 1")


def contrastive_loss(logits: Tensor) -> Tensor:
    """() binary cross-entropy of (E, B, B) logits, in which row j's own goal is column j; mean over all entries."""
    own = torch.eye(logits.shape[-1], dtype=logits.dtype, device=logits.device).expand_as(logits)
    return nn.functional.binary_cross_entropy_with_logits(logits, own)


class ContrastiveCritic(nn.Module):
    r"""A pair of :math:`f_i(s, a, g) = \phi_i(s, a) \cdot \psi_i(g) / \sqrt D`."""

    def __init__(self, inputs: int, goals: int, hidden: tuple[int, ...], latent: int, **settings: Any) -> None:
        super().__init__()
        self.phi = MLP(inputs, latent, hidden, members=2, **settings)
        self.psi = MLP(goals, latent, hidden, members=2, **settings)
        self.scale = 1 / math.sqrt(latent)

    def logits(self, pairs: Tensor, goals: Tensor) -> Tensor:
        """(2, B, B) of every pair with every goal."""
        return self.phi(pairs) @ self.psi(goals).transpose(-1, -2) * self.scale

    def forward(self, pairs: Tensor, goals: Tensor) -> Tensor:
        """(2, B) of each pair with its own goal."""
        return (self.phi(pairs) * self.psi(goals)).sum(-1) * self.scale


class CRL(GoalAgent):
    r"""CRL of Eysenbach et al., "Contrastive Learning as Goal-Conditioned Reinforcement Learning" (NeurIPS 2022), with
    OGBench's critic and actor.

    The critic classifies which goals of the batch came later in which row's episode, by geometric steps ahead; its best
    value is :math:`\log (p(g | s, a) / p(g)) - \log (B - 1)`, so that it depends on the batch's size. The actor ascends
    the smaller of the pair and clones.
    """

    name = "crl"
    Config: ClassVar[type] = CRLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "point": {"cloning": 0.03},
        "ant": {"cloning": 0.1},
        "humanoid": {"cloning": 0.1, "discount": 0.995},
        "manipulation": {"cloning": 3.0},
    }
    required_columns = ("observations", "actions")
    config: CRLConfig
    negative = False

    def build(self) -> None:
        """The policy and the pair of critics."""
        super().build()
        c, spec = self.config, self.spec
        inputs = spec.observation_dim + spec.action_dim
        self.critic = ContrastiveCritic(inputs, self.goal_dim, c.hidden, c.latent, **self.settings_of_values())

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Each row's goal against those of all others."""
        logits = self.critic.logits(beside(batch["observations"], batch["actions"]), batch["value_goals"])
        own = logits.diagonal(dim1=-2, dim2=-1)
        return contrastive_loss(logits), {"logit_own": own, "logit_others": logits}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Ascend the smaller critic at the mean action, clipped, and clone."""
        pairs = beside(batch["observations"], batch["actor_goals"])
        mean = self.actor.inner.act(pairs)
        q = ensembles.minimum(self.critic(beside(batch["observations"], mean), batch["actor_goals"]))
        density = self.actor.log_density(pairs, batch["actions"])
        return ddpg_bc_loss(q, density, self.config.cloning), {"q_policy": q, "log_density": density}

    def updates(self) -> list[Update]:
        """Critics and actor at the same parameters."""
        return [
            Update(self.critic_loss, ("critic",), self.adam()),
            Update(self.actor_loss, ("actor",), self.adam(), simultaneous=True),
        ]
