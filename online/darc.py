"""DARC: a simulator's rewards, corrected by how likely each transition is in reality; the policy learns on those."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.agent import Adam, Metrics, Rule, Update, require
from surefoot.core.random import Noise
from surefoot.core.sources import Source, Stores, joined
from surefoot.online.dynamics_gap import DynamicsGap
from surefoot.online.hybrid import (
    BOTH,
    SIMULATED,
    HybridConfig,
    Parts,
    discriminator_loss,
    discriminator_update,
    half_of,
    hybrid_sources,
)
from surefoot.online.sac import SAC


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


class DARC(SAC):
    r"""DARC of Eysenbach et al., "Off-Dynamics Reinforcement Learning: Training for Transfer with Domain Classifiers".

    SAC on simulated transitions with the reward :math:`r + \log p_D(s'|s, a) - \log p_{sim}(s'|s, a)`. The data, which
    the paper's method gathers itself as it goes, is given; real rows train the discriminators only, or with
    `learn_from=both` the agent too, at their own rewards. Rewards are corrected from the first update on.
    """

    name = "darc"
    Config = DARCConfig
    PRESETS = {"plus": {"learn_from": "both"}}  # noqa: RUF012
    data = "required"
    wants_gap: ClassVar[bool] = True
    config: DARCConfig

    def build(self) -> None:
        """SAC's networks and the discriminators."""
        super().build()
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.dynamics = DynamicsGap(*sizes, c.discriminator_hidden, c.discriminator_bound)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Real and simulated rows."""
        return hybrid_sources(self.name, stores)

    def discriminator_loss(self, parts: Parts, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Cross-entropies of telling real from simulated rows, their inputs blurred."""
        return discriminator_loss(self.dynamics, parts, self.config.discriminator_noise * noise["blur"])

    def temperature_loss(self, parts: Parts, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:  # type: ignore[override]
        """SAC's."""
        return super().temperature_loss(joined(parts), noise)

    def actor_loss(self, parts: Parts, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:  # type: ignore[override]
        """SAC's."""
        return super().actor_loss(joined(parts), noise)

    def critic_loss(self, parts: Parts, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:  # type: ignore[override]
        """Squared TD errors at corrected rewards."""
        simulated = parts[SIMULATED]
        with torch.no_grad():
            ratio = self.dynamics.log_ratio(simulated["observation_actions"], simulated["next_observations"])
        corrected = {**simulated, "rewards": simulated["rewards"] + self.config.correction * ratio}
        loss, metrics = super().critic_loss(joined({**parts, SIMULATED: corrected}), noise)
        return loss, {**metrics, "log_ratio": ratio}

    def updates(self) -> list[Update | Rule]:
        """Discriminators; then temperature, actor and critics at the same parameters; then targets."""
        c, noise = self.config, Noise("normal", self.spec.action_dim)
        rows = half_of(self.batch_size, self.name)
        sources, rows = ((SIMULATED,), 2 * rows) if c.learn_from == "simulated" else (BOTH, rows)
        temperature, actor, critic = (
            Adam(rate) for rate in (c.temperature_learning_rate, c.actor_learning_rate, c.critic_learning_rate)
        )
        targets, learned, action = {"target_critic": ("critic", c.target_rate)}, c.learn_temperature, {"action": noise}
        weigh = [Update(self.temperature_loss, ("temperature",), temperature, sources, rows=rows, noise=action)]
        following = {"next_action": noise}
        return [
            discriminator_update(self.discriminator_loss, c, self.spec),
            *weigh[: int(learned)],
            Update(self.actor_loss, ("actor",), actor, sources, rows=rows, noise=action, together=learned),
            Update(
                self.critic_loss, ("critic",), critic, sources, rows=rows, then=targets, noise=following, together=True
            ),
        ]
