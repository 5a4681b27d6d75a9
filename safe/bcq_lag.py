"""BCQ-Lagrangian: small changes of actions that a model of the data draws, rewarded and held to a cost limit."""

from __future__ import annotations

import copy
import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core import ensembles
from surefoot.core.agent import Adam, Agent, Batch, Metrics, Update, require
from surefoot.core.networks import Critic
from surefoot.core.random import Noise
from surefoot.core.vae import VAE, Perturbation, PerturbedActor
from surefoot.core.value_learning import td_target
from surefoot.data.dataset import Dataset
from surefoot.safe.cost_critics import (
    ASSIGN,
    AssignedMultiplier,
    check_settings,
    joined,
    larger,
    mixed,
    prepare_with_costs,
    repeated,
    rows_of,
    threshold_notes,
)
from surefoot.safe.multipliers import pid


@dataclasses.dataclass(frozen=True)
class BCQLagConfig:
    """Settings of BCQ-Lagrangian; the numbers are OSRL's."""

    cost_limit: float = 25.0  # of an episode's undiscounted cost
    episode_steps: int | None = None  # H of the threshold; None: the data's longest episode
    discount: float = 0.99
    target_rate: float = 0.005
    perturbation: float = 0.05  # phi: how far an action may be moved
    latent_limit: float = 0.5  # latents that actions are decoded from are clamped to this
    kl_weight: float = 0.5  # beta of the auto-encoder
    sampled_actions: int = 10  # of each next observation, in the targets
    mixing: float = 0.75  # weight of the careful one of two critics in the targets
    careful_costs: bool = True  # of two cost critics, believe the larger; False: the smaller, as OSRL
    gains: tuple[float, float, float] = (0.1, 0.003, 0.001)  # of the multiplier's PID, over critic values
    learning_rate: float = 1e-3
    hidden: tuple[int, ...] = (256, 256)
    vae_hidden: tuple[int, ...] = (400, 400)
    reward_scale: float = 0.1
    normalization: str = "observations"  # none, observations or stacked

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_settings("bcq_lag", self)
        require(0 <= self.perturbation <= 1, "bcq_lag", "perturbation", self.perturbation, "in [0, 1]")
        require(0 <= self.mixing <= 1, "bcq_lag", "mixing", self.mixing, "in [0, 1]")
        require(self.sampled_actions >= 1, "bcq_lag", "sampled_actions", self.sampled_actions, "at least 1")
        require(self.latent_limit > 0, "bcq_lag", "latent_limit", self.latent_limit, "> 0")


class BCQLag(Agent):
    r"""BCQ (Fujimoto, Meger and Precup, 2019) with a cost critic and a multiplier, as OSRL combines them.

    .. math::
        a_k &= \xi_{\hat\phi}(s', D(s', z_k)), \quad k \le n \\
        y &= r + \gamma (1 - d) \max_k [.75 \min_i \hat Q_i(s', a_k) + .25 \max_i \hat Q_i(s', a_k)] \\
        y_c &= c + \gamma (1 - d) \tfrac1n \textstyle\sum_k [.75 \max_i \hat Q^c_i(s', a_k) + .25 \min_i ...] \\
        L_\xi &= E [-\min_i Q_i(s, a) + \lambda (\max_i Q^c_i(s, a) - q_{thr})], \quad a = \xi_\phi(s, D(s, z))

    where lambda is a PID over E Q^c - q_thr, stepped once a training step. Slips of OSRL that are not here: its cost
    backup goes on after a termination and takes the dearest of the n actions, which no policy chooses (here the mean
    over the policy's own draws); its cost target trusts the lower critic most; time-outs end its returns. Two critics
    of each kind, where OSRL has two pairs.
    """

    name = "bcq_lag"
    Config: ClassVar[type] = BCQLagConfig
    PRESETS = {"osrl": {}, "small": {"sampled_actions": 4, "vae_hidden": (256, 256)}}  # noqa: RUF012
    reads: ClassVar[tuple[str, ...]] = (
        "observations", "actions", "rewards", "costs", "terminations", "next_observations"
    )  # fmt: skip
    inherits: ClassVar[tuple[str, ...]] = ("vae", "perturbation", "normalizer")
    config: BCQLagConfig
    cost_threshold: Tensor

    def build(self) -> None:
        """Auto-encoder, perturbation, critics of reward and cost with their targets, multiplier."""
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.vae = VAE(*sizes, c.vae_hidden)
        self.perturbation = Perturbation(*sizes, c.hidden, c.perturbation)
        self.critic, self.cost_critic = Critic(*sizes, c.hidden), Critic(*sizes, c.hidden)
        self.target_perturbation = copy.deepcopy(self.perturbation).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_cost_critic = copy.deepcopy(self.cost_critic).requires_grad_(False)
        self.multiplier = AssignedMultiplier(pid("osrl", c.gains))
        self.register_buffer("cost_threshold", torch.tensor(c.cost_limit))

    @property
    def actor(self) -> PerturbedActor:  # type: ignore[override]
        """The decoder and the perturbation as one head."""
        return PerturbedActor(self.vae.decoder, self.perturbation, self.config.latent_limit)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Costs beside scaled rewards, normalised observations, and the threshold of the cost critic."""
        return prepare_with_costs(self, dataset)

    def notes(self, dataset: Dataset) -> list[str]:
        """What the costs can't teach, and the threshold."""
        return threshold_notes(self, dataset)

    def vae_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Reconstruction of the data's actions, and the divergence of their codes from the prior."""
        encoded, weight = noise["encoded"], self.config.kl_weight
        loss, error = self.vae.loss(batch["observations"], batch["actions"], encoded, weight)
        return loss, {"reconstruction": error}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD errors of both pairs of critics, at n drawn next actions."""
        c, count = self.config, self.config.sampled_actions
        following = batch["next_observations"]
        actions = self._drawn(following, noise["next_latent"], self.target_perturbation)
        pairs = joined(following, actions)
        next_q = mixed(self.target_critic(pairs), c.mixing, lowest=True).unflatten(0, (count, -1)).amax(0)
        dear = mixed(self.target_cost_critic(pairs), c.mixing, lowest=not c.careful_costs)
        next_cost = dear.unflatten(0, (count, -1)).mean(0)
        target = td_target(batch["rewards"], batch["terminations"], next_q, c.discount)
        cost_target = td_target(batch["costs"], batch["terminations"], next_cost, c.discount)
        q, cost_q = self.critic(batch["observation_actions"]), self.cost_critic(batch["observation_actions"])
        loss = (q - target).square().mean(-1).sum() + (cost_q - cost_target).square().mean(-1).sum()
        return loss, {"q": q, "cost_q": cost_q}

    def multiplier_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """The PID's step, from the mean cost value of the policy's actions."""
        _, cost_q = self._values(batch["observations"], noise["latent"])
        return self.multiplier.loss(cost_q.mean(), self.cost_threshold), {"policy_cost_q": cost_q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Value of the perturbed actions, and their cost value above the threshold, weighted."""
        q, cost_q = self._values(batch["observations"], noise["latent"])
        weight = self.multiplier()
        return -q.mean() + weight * (cost_q.mean() - self.cost_threshold), {"multiplier": weight}

    def _values(self, observations: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) value and cost value of the policy's actions."""
        pairs = joined(observations, self._drawn(observations, latents, self.perturbation))
        costs = self.cost_critic(pairs)
        believed = larger(costs) if self.config.careful_costs else ensembles.minimum(costs)
        return ensembles.minimum(self.critic(pairs)), believed

    def _drawn(self, observations: Tensor, latents: Tensor, perturbation: Perturbation) -> Tensor:
        """(n B, A) actions from (B, n Z) standard normal latents."""
        latents = rows_of(latents, self.vae.latent_dim).clamp(-self.config.latent_limit, self.config.latent_limit)
        observations = repeated(observations, len(latents) // len(observations))
        return perturbation(observations, self.vae.decode(observations, latents))  # type: ignore[no-any-return]

    def updates(self) -> list[Update]:
        """Auto-encoder, critics, multiplier, perturbation, one after the other."""
        c, width = self.config, self.vae.latent_dim
        adam = Adam(c.learning_rate)
        latent = {"latent": Noise("normal", width)}
        targets = {
            "target_critic": ("critic", c.target_rate),
            "target_cost_critic": ("cost_critic", c.target_rate),
        }
        several = {"next_latent": Noise("normal", c.sampled_actions * width)}
        moved = {"target_perturbation": ("perturbation", c.target_rate)}
        return [
            Update(self.vae_loss, ("vae",), adam, noise={"encoded": Noise("normal", width)}),
            Update(self.critic_loss, ("critic", "cost_critic"), adam, then=targets, noise=several),
            Update(self.multiplier_loss, ("multiplier",), ASSIGN, noise=latent),
            Update(self.actor_loss, ("perturbation",), adam, then=moved, noise=latent),
        ]
