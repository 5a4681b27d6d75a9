"""`Hybrid`: SAC on real data and a simulator that is wrong, with discriminators that say how wrong. Base of H2O, DARC.

Every batch is half real (the dataset's rows) and half simulated (the replay buffer's), by turns, the first row real.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from surefoot.core.agent import Adam, Batch, Metrics, Update, algorithm_of, require
from surefoot.core.errors import ConfigError
from surefoot.core.random import Noise
from surefoot.online.dynamics_gap import DynamicsGap, halves
from surefoot.online.sac import SAC, SACConfig


@dataclasses.dataclass(frozen=True)
class HybridConfig(SACConfig):
    """What hybrid agents add to SAC's settings, and where their defaults differ; those of t6-thu/H2O."""

    offline_fraction: float = 0.5  # of each batch, real rows; the method wants exactly half
    initial_steps: int = 1_000  # environment steps before the first update
    initial_actions: str = "policy"  # of those steps: uniform over the action space, or the policy's own
    critic_loss_over: str = "sum"  # the critics' losses are summed
    discriminator_rows: int = 256  # real rows, and as many simulated ones, of each of the discriminators' steps
    discriminator_noise: float = 0.1  # standard deviation added to s, a and s' while the discriminators train
    discriminator_bound: float | None = 2.0  # their outputs are this times tanh; null: not bounded
    discriminator_learning_rate: float = 3e-4
    discriminator_hidden: tuple[int, ...] = (256, 256)

    def __post_init__(self) -> None:
        """Refuse values out of range, and SAC's variants that the method has no place for."""
        super().__post_init__()
        name = algorithm_of(self)
        half = self.offline_fraction == 0.5
        require(half, name, "offline_fraction", self.offline_fraction, "0.5: real and simulated rows are set in pairs")
        require(self.critic_steps == 1, name, "critic_steps", self.critic_steps, "1")
        require(self.critic_loss_over == "sum", name, "critic_loss_over", self.critic_loss_over, "sum")
        require(self.discriminator_rows >= 1, name, "discriminator_rows", self.discriminator_rows, ">= 1")
        require(self.discriminator_noise >= 0, name, "discriminator_noise", self.discriminator_noise, ">= 0")
        bound = self.discriminator_bound
        require(bound is None or bound > 0, name, "discriminator_bound", bound, "> 0, or null for none")


class Hybrid(SAC):
    """SAC with the discriminators of `online.dynamics_gap`, stepped before everything else on rows of their own."""

    data = "required"
    wants_gap = True
    config: HybridConfig

    def build(self) -> None:
        """SAC's networks and the discriminators."""
        super().build()
        c = self.config
        sizes = (self.spec.observation_dim, self.spec.action_dim)
        self.dynamics = DynamicsGap(*sizes, c.discriminator_hidden, c.discriminator_bound)

    def discriminator_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Cross-entropies of telling real from simulated rows, their inputs blurred."""
        rows = 2 * self.config.discriminator_rows
        own = {name: value[-rows:] for name, value in batch.items()}  # the first rows are the agent's
        blur = self.config.discriminator_noise * noise["blur"][-rows:]
        size = self.spec.observation_dim + self.spec.action_dim
        pair, transition = self.dynamics.losses(
            own["observation_actions"] + blur[:, :size], own["next_observations"] + blur[:, size:]
        )
        return pair + transition, {"pair_loss": pair, "transition_loss": transition}

    def discriminator_update(self, agent_rows: int) -> Update:
        """Their step, on rows that lie behind the `agent_rows` that the other losses see.

        Raises:
            ConfigError: an odd number of rows, which real and simulated ones can't share equally.
        """
        if agent_rows % 2:
            raise ConfigError(
                f"{self.name} learns from batches that are half real and half simulated, and batch_size={agent_rows} "
                "is odd: give an even one"
            )
        c, width = self.config, 2 * self.spec.observation_dim + self.spec.action_dim
        return Update(
            self.discriminator_loss,
            ("dynamics",),
            Adam(c.discriminator_learning_rate),
            rows=agent_rows + 2 * c.discriminator_rows,
            noise={"blur": Noise("normal", width)},
        )

    def agents_updates(self, rows: int, **critic_noise: Noise) -> list[Update]:
        """Temperature, actor and critics at the same parameters, then the targets' average: the order of t6-thu/H2O.

        Args:
            rows: of each loss's batch.
            critic_noise: what the critics' loss reads beside SAC's own noise.
        """
        wanted = {"critic_loss": 2, "actor_loss": 1, "temperature_loss": 0}
        own = sorted(super().updates(), key=lambda update: wanted[update.name])
        changed: list[Update] = []
        for update in own:
            noise: dict[str, Any] = dict(update.noise)
            if update.name == "critic_loss":
                noise |= critic_noise
            changed.append(dataclasses.replace(update, rows=rows, together=bool(changed), noise=noise))
        return changed

    def simulated_ratio(self, batch: Batch) -> Tensor:
        """(B / 2,) log p_real/p_sim of the simulated rows of a batch."""
        with torch.no_grad():
            return self.dynamics.log_ratio(
                *(halves(batch[key])[1] for key in ("observation_actions", "next_observations"))
            )
