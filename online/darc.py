"""DARC: SAC in a wrong simulator, whose rewards are corrected by the log-ratio of real to simulated dynamics."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Metrics, Rule, Update
from surefoot.core.engine.sources import joined
from surefoot.online.base.hybrid import (
    BOTH,
    SIMULATED,
    HybridAgent,
    HybridConfig,
    Parts,
    half_of,
    hybrid_updates,
)


@dataclasses.dataclass(frozen=True)
class DARCConfig(HybridConfig):
    """Settings of DARC; the discriminators are H2O's, so that both can be compared."""

    correction: float = option(
        1.0, "weight of the log-ratio that is added to a simulated reward, in units of reward", range=">= 0"
    )
    learn_from: str = option(
        "simulated",
        "rows that actor and critics see: simulated, or both (DARC+ of H2O's authors)",
        choices=("simulated", "both"),
    )


class DARC(HybridAgent):
    r"""DARC of Eysenbach et al., "Off-Dynamics Reinforcement Learning: Training for Transfer with Domain Classifiers".

    SAC on simulated transitions with the reward :math:`r + \log p_D(s'|s, a) - \log p_{sim}(s'|s, a)`. The data, which
    the paper's method gathers itself as it goes, is given; real rows train the discriminators only, or with
    `learn_from=both` the agent too, at their own rewards. Rewards are corrected from the first update on.
    """

    name = "darc"
    Config = DARCConfig
    PRESETS = {"plus": {"learn_from": "both"}}  # noqa: RUF012
    config: DARCConfig

    def critic_loss(  # type: ignore[override]  # rows of two sources, apart
        self, parts: Parts, noise: dict[str, Tensor]
    ) -> tuple[Tensor, Metrics]:
        """Squared TD errors at corrected rewards."""
        simulated = parts[SIMULATED]
        with torch.no_grad():
            ratio = self.dynamics.log_ratio(simulated["observation_actions"], simulated["next_observations"])
        corrected = {**simulated, "rewards": simulated["rewards"] + self.config.correction * ratio}
        loss, metrics = super().critic_loss(joined({**parts, SIMULATED: corrected}), noise)
        return loss, {**metrics, "log_ratio": ratio}

    def updates(self) -> list[Update | Rule]:
        """Discriminators; then temperature, actor and critics at the same parameters; then targets."""
        rows = half_of(self.batch_size, self.name)
        both = self.config.learn_from == "both"
        return hybrid_updates(self, BOTH, rows) if both else hybrid_updates(self, (SIMULATED,), 2 * rows)
