"""IQL over histories, in a representation in which those lie together that earn and lead to the same."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from surefoot.core.actors.heads import GaussianActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.actors.memory_actors import HistoryActor
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.losses.value_learning import advantage_weights, expectile_loss, td_target
from surefoot.core.nn.networks import MLP, Critic, Value, pairs
from surefoot.core.policy.policy import Policy
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, REWARDS, prepare


@dataclasses.dataclass(frozen=True)
class BisimIQLConfig(HistoryConfig):
    """Settings of IQL with a bisimulation loss."""

    history: int = option(4, "last observations that the representation reads; 1: the present one alone")
    latent: int = option(32, "width of the representation", range=">= 1")
    bisimulation: float = option(0.5, "lambda: weight of its loss beside the critics'; 0: none", range=">= 0")
    expectile: float = option(
        0.7, "tau of the value loss; nearer 1 is nearer the best action in the data", range="(0, 1)"
    )
    temperature: float = option(3.0, "beta: multiplies the advantage, so it is an inverse temperature", range=">= 0")
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the averages of critics and representation, every step", range="[0, 1]")
    learning_rate: float = option(3e-4, "learning rate of all networks; falls to 0 along a cosine", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers of each network")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)
    rewards: str = option("none", "scaling of rewards", choices=REWARDS)


class BisimIQL(Agent):
    r"""IQL that reads :math:`z = \phi(h)`, h the last L observations, with a bisimulation loss on :math:`\phi`.

    .. math::
        J(\phi) &= E \big( \lVert z_i - z_j \rVert - (1 - \gamma) |r_i - r_j| / \rho
            - \gamma\, W_2(\hat P(\bar z_i, a_i), \hat P(\bar z_j, a_j)) \big)^2, \quad
            W_2^2 = \lVert \mu_i - \mu_j \rVert^2 + \lVert \sigma_i - \sigma_j \rVert^2 \\
        L_{Q, \phi} &= E \textstyle\sum_i (r + \gamma (1 - d) V(\bar z') - Q_i(z, a))^2 / \rho^2 + \lambda J(\phi) \\
        L_{\pi, \phi} &= -E \min(e^{\beta (\min_i \hat Q_i(\bar z, a) - V(\bar z))}, 100) \log \pi(a | z) \\
        L_{\hat P} &= -E \log \hat P(\bar z' | \bar z, a), \quad \hat P = N(\mu, \mathrm{diag}\, \sigma^2)

    A bar is of the slow average of :math:`\phi`, and :math:`\rho` the standard deviation of the data's rewards;
    :math:`L_V` is IQL's, at :math:`\bar z`. Row j is another of the batch. Values over raw histories can't be
    stitched, for two episodes hardly ever share one; a representation in which histories coincide that earn and lead
    to the same restores it (Hong, Dragan and Levine, "Offline RL with Observation Histories: Analyzing and Improving
    Sample Complexity", 2023). The loss is that of Zhang, McAllister, Calandra, Gal and Levine, "Learning Invariant
    Representations for Reinforcement Learning without Reconstruction" (ICLR 2021), with Euclidean distances, and with
    rewards weighed by 1 - gamma and in units of their deviation. As they are, distances grow up to the largest
    difference of rewards over 1 - gamma, and the representation with them, until nothing learns from it any more (on
    such growth: Kemertas and Aumentado-Armstrong, "Towards Robust Bisimulation Metric Learning", NeurIPS 2021). So
    neither distances nor what :math:`\lambda` weighs depend on the scale of rewards. Encoder, coefficients and where
    gradients go are choices made here: those of Hong et al. are not known to us. The actor's goes to :math:`\phi` as
    well, for what tells returns apart does not tell the data's actions apart; targets are of the average, without
    which they move by each step of :math:`\phi`; and all rates fall together, or :math:`\phi` would move on under an
    actor that does not follow any more.
    """

    name = "bisim_iql"
    Config: ClassVar[type] = BisimIQLConfig
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    config: BisimIQLConfig
    actor: GaussianActor
    reward_deviation: Tensor

    def build(self) -> None:
        """Representation with its average, its dynamics, value, twin critics with targets, actor."""
        c, size = self.config, self.spec.action_dim
        self.representation = MLP(self.spec.observation_dim, c.latent, c.hidden)
        self.target_representation = copy.deepcopy(self.representation).requires_grad_(False)
        self.dynamics = MLP(c.latent + size, 2 * c.latent, c.hidden)
        self.value = Value(c.latent, c.hidden)
        self.critic = Critic(c.latent, size, c.hidden, 2)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor = GaussianActor(c.latent, size, c.hidden)
        self.register_buffer("reward_deviation", torch.ones(()))

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions and rewards, normalise observations, put the last L of them side by side; find rho."""
        ready = prepare(self, dataset, normalization=self.config.normalization, rewards=self.config.rewards)
        if not self.rewards_fixed:
            deviation = float(ready.rewards[ready.transitions].std(dtype=np.float64))
            self.reward_deviation.fill_(deviation if deviation > 0 else 1.0)  # rewards all alike tell nothing apart
        return ready

    def encoded(self, histories: Tensor) -> Tensor:
        """(B, latent) representation of (B, L O) histories, oldest observation first; not negative."""
        return torch.relu(self.representation(histories))

    def annotate(self, batch: Batch) -> Batch:
        """Add what losses read without a gradient: z and z' of the slow average, and min Q of the targets."""
        latents, following = (
            torch.relu(self.target_representation(batch[name])) for name in ("observations", "next_observations")
        )
        return {
            **batch,
            "latents": latents,
            "next_latents": following,
            "target_q": self.target_critic(pairs(latents, batch["actions"])).amin(0),
        }

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Expectile regression of V(z) on the target critics' minimum."""
        value = self.value(batch["latents"])
        return expectile_loss(batch["target_q"] - value, self.config.expectile).mean(), {"value": value}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Negative log-density of the data's actions, weighted by exp(advantage), with the gradient to phi."""
        advantage = batch["target_q"] - self.value(batch["latents"])
        weight = advantage_weights(advantage, self.config.temperature)
        density = self.actor.log_density(self.encoded(batch["observations"]), batch["actions"])
        return -(weight * density).mean(), {"weight": weight}

    def predicted(self, latents: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """(B, latent) mean and log deviation of the next representation."""
        mean, log_deviation = self.dynamics(pairs(latents, actions)).chunk(2, -1)
        return mean, log_deviation.clamp(-5, 2)

    def dynamics_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Negative log-density of the next representation, without its constant; a terminal step's counts as well."""
        mean, log_deviation = self.predicted(batch["latents"], batch["actions"])
        error = (batch["next_latents"] - mean) * (-log_deviation).exp()
        return (0.5 * error.square() + log_deviation).sum(-1).mean(), {"latent_error": error}

    def bisimulation_loss(self, latents: Tensor, batch: Batch) -> Tensor:
        """() J: how far distances of (B, latent) representations are from those of rewards and of what follows."""
        mean, log_deviation = self.predicted(batch["latents"], batch["actions"])
        both = torch.cat([mean, log_deviation.exp()], -1)
        reward, following = (x - x.roll(1, 0) for x in (batch["rewards"], both))
        discount = self.config.discount
        wanted = (1 - discount) * reward.abs() / self.reward_deviation + discount * following.norm(dim=-1)
        return ((latents - latents.roll(1, 0)).norm(dim=-1) - wanted).square().mean()

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD error of both critics against V(z'), in units of rho, and J, both with the gradient to phi."""
        latents = self.encoded(batch["observations"])
        next_value = self.value(batch["next_latents"])
        target = td_target(batch["rewards"], batch["terminations"], next_value, self.config.discount)
        q = self.critic(pairs(latents, batch["actions"]))
        distance = self.bisimulation_loss(latents, batch)
        error = (q - target) / self.reward_deviation
        loss = error.square().mean(-1).sum() + self.config.bisimulation * distance
        return loss, {"q": q, "bisimulation": distance}

    def updates(self) -> list[Update]:
        """Value, actor and representation, its dynamics, then critics and representation."""
        c = self.config
        adam = Adam(c.learning_rate, schedule="cosine")
        targets = {f"target_{name}": (name, c.target_rate) for name in ("critic", "representation")}
        return [
            Update(self.value_loss, ("value",), adam),
            Update(self.actor_loss, ("actor", "representation"), adam),
            Update(self.dynamics_loss, ("dynamics",), adam),
            Update(self.critic_loss, ("critic", "representation"), adam, target_updates=targets),
        ]

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions in [-1, 1] for (B, L O) normalised histories; mean ones without `noise`."""
        return self.actor.act(self.encoded(observations), noise)

    def policy(self) -> Policy:
        """Representation and actor as one plain network, which remembers the history."""
        c = self.config
        sizes, hidden = (self.spec.observation_dim, self.spec.action_dim), (*c.hidden, c.latent, *c.hidden)
        head: Any = GaussianActor(*sizes, hidden)
        with torch.no_grad():
            head.log_std.copy_(self.actor.log_std)
            for part in ("weights", "biases"):
                own = [*getattr(self.representation, part), *getattr(self.actor.mlp, part)]
                for target, value in zip(getattr(head.mlp, part), own, strict=True):
                    target.copy_(value)
        if c.history > 1:
            head = HistoryActor(head, self.environment_spec.observation_dim, c.history)
        return Policy.of(head, self.normalizer, self.action_low, self.action_high)
