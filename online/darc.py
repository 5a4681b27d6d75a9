"""DARC: a simulator's rewards, corrected by how likely each transition is in reality; the policy learns on those."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from surefoot.core import ensembles
from surefoot.core.agent import Batch, Metrics, Update, require
from surefoot.online.dynamics_gap import halves
from surefoot.online.hybrid import Hybrid, HybridConfig


@dataclasses.dataclass(frozen=True)
class DARCConfig(HybridConfig):
    """Settings of DARC; the discriminators are H2O's, so that both can be compared."""

    correction: float = 1.0  # of the log-ratio that is added to a simulated reward, in units of reward
    learn_from: str = "simulated"  # rows that actor and critics see: simulated, or both (DARC+ of H2O's authors)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        require(self.correction >= 0, "darc", "correction", self.correction, ">= 0")
        known = self.learn_from in ("simulated", "both")
        require(known, "darc", "learn_from", self.learn_from, "simulated or both")


class DARC(Hybrid):
    r"""DARC of Eysenbach et al., "Off-Dynamics Reinforcement Learning: Training for Transfer with Domain Classifiers".

    SAC on simulated transitions with the reward :math:`r + \log p_D(s'|s, a) - \log p_{sim}(s'|s, a)`. The data, which
    the paper's method gathers itself as it goes, is given; real rows train the discriminators only, or with
    `learn_from=both` the agent too, at their own rewards. Rewards are corrected from the first update on.
    """

    name = "darc"
    Config = DARCConfig
    PRESETS = {"plus": {"learn_from": "both"}}  # noqa: RUF012
    config: DARCConfig

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared TD errors at corrected rewards."""
        ratio = self.simulated_ratio(batch)
        real, simulated = halves(batch["rewards"])
        corrected = simulated + self.config.correction * ratio
        rewards = torch.stack([real, corrected], -1).flatten(-2)
        own = self._agents_rows({**batch, "rewards": rewards})
        target = self.targets(own, self._agents_rows(noise))
        q = self.critic(own["observation_actions"])
        loss = ensembles.critic_loss(q, target, self.config.critic_loss_over)
        return loss, {"q": q, "log_ratio": ratio}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """SAC's, on the rows that the agent learns from."""
        return super().actor_loss(self._agents_rows(batch), self._agents_rows(noise))

    def temperature_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """SAC's, on the rows that the agent learns from."""
        return super().temperature_loss(self._agents_rows(batch), self._agents_rows(noise))

    def _agents_rows(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """All, or the simulated half."""
        if self.config.learn_from == "both":
            return rows
        return {name: halves(value)[1] for name, value in rows.items()}

    def updates(self) -> list[Update]:
        """Discriminators; then temperature, actor and critics on `batch_size` rows that the agent learns from."""
        rows = self.batch_size if self.config.learn_from == "both" else 2 * self.batch_size
        return [self.discriminator_update(rows), *self.agents_updates(rows)]
