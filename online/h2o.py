"""H2O: real data and a wrong simulator; simulated rows are weighted, and values lowered where dynamics differ."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Batch, Metrics, Rule, Update
from surefoot.core.engine.sources import joined
from surefoot.core.losses.value_learning import td_target
from surefoot.core.nn import ensembles
from surefoot.data.dataset import Dataset
from surefoot.online.base.dynamics_gap import (
    SPREADS,
    clipped_gap,
    importance_weights,
    log_shares,
    spread_of,
)
from surefoot.online.base.hybrid import (
    BOTH,
    SIMULATED,
    HybridAgent,
    HybridConfig,
    Parts,
    half_of,
    hybrid_updates,
)

MOST_PENALTY = 1000.0
"""The difference of values that the penalty weighs is clipped there (t6-thu/H2O)."""


@dataclasses.dataclass(frozen=True)
class H2OConfig(HybridConfig):
    """Settings of H2O; the defaults are t6-thu/H2O's, but for `gap_spread`."""

    entropy_backup: bool = option(False, "whether the target's value counts the entropy")
    penalty_weight: float = option(0.01, "weight of the penalty, beta", range=">= 0")
    use_variant: bool = option(False, "the penalty's mean over simulated rows by share, instead of its soft maximum")
    weigh: bool = option(True, "weigh simulated rows' squared errors by the importance weight; false: all 1")
    gap_draws: int = option(10, "N: next observations that the gap is averaged over", range=">= 1")
    gap_spread: str = option(
        "data",
        "standard deviation of those draws: data, the data's; or zero_rows, the official code's, about 0.3 of it",
        choices=SPREADS,
    )


class H2O(HybridAgent):
    r"""H2O of Niu et al., "When to Trust Your Simulator" (NeurIPS 2022), as t6-thu/H2O has it.

    .. math::
        L_Q &= \textstyle\sum_i E_D (Q_i - y)^2 + E_{sim}\, w\, (Q_i - y)^2
            + \beta\, (\log \sum_{sim} \omega\, e^{Q_i(s, a)} - E_D\, Q_i(s, a)) \\
        w &= \min(1, p_D(s'|s, a) / p_{sim}(s'|s, a)), \qquad \omega = u / \textstyle\sum_{sim} u \\
        u &= \tfrac1N \textstyle\sum_k \log p_{sim}(s'_k|s, a) / p_D(s'_k|s, a), \quad s'_k \sim N(s', \sigma^2) \\
        y &= r + \gamma (1 - d) \min_i \hat Q_i(s', a'), \quad a' \sim \pi(s')

    Actor and temperature are SAC's, over both halves of the batch. Both ratios come from the discriminators of
    `online.base.dynamics_gap`, stepped first; all other losses are then taken at the same parameters.
    """

    name = "h2o"
    Config = H2OConfig
    PRESETS = {"official": {"gap_spread": "zero_rows"}}  # noqa: RUF012
    config: H2OConfig
    spread: Tensor

    def build(self) -> None:
        """SAC's networks, the discriminators, and the spread of next observations."""
        super().build()
        self.register_buffer("spread", torch.ones(self.spec.observation_dim))

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale the data's actions, and measure the spread of its observations."""
        prepared = super().prepare(dataset)
        self.spread.copy_(
            torch.from_numpy(spread_of(prepared.observations[prepared.transitions], self.config.gap_spread))
        )
        return prepared

    def critic_loss(  # type: ignore[override]  # rows of two sources, apart
        self, parts: Parts, noise: dict[str, Tensor]
    ) -> tuple[Tensor, Metrics]:
        """Squared TD errors, those of simulated rows weighted, and the penalty on values where the gap is wide."""
        batch = joined(parts)
        q, target = self.critic(batch["observation_actions"]), self.targets(batch, noise)
        gap, weight = self.gap_and_weight(parts[SIMULATED], noise["next_observation"])
        real, simulated = (q - target).square().chunk(2, -1)
        errors = real.mean(-1) + (weight * simulated).mean(-1)
        real_q, simulated_q = q.chunk(2, -1)
        penalty = gap_penalty(real_q, simulated_q, gap, self.config.use_variant)
        loss = (errors + self.config.penalty_weight * penalty).sum()
        return loss, {"q": q, "gap": clipped_gap(gap), "weight": weight, "penalty": penalty}

    def targets(self, batch: Batch, noise: dict[str, Tensor]) -> Tensor:
        """(B,) reward and value of a next action, with or without its entropy."""
        if self.config.entropy_backup:
            return super().targets(batch, noise)
        following = batch["next_observations"]
        action = self.actor.act(following, noise["next_action"])
        next_q = ensembles.minimum(self.target_critic(torch.cat([following, action], -1)))
        return td_target(batch["rewards"], batch["terminations"], next_q, self.config.discount)

    def gap_and_weight(self, simulated: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) gap estimates, not clipped, and importance weights of B simulated rows, without gradient.

        Args:
            simulated: the rows.
            noise: (2 B, N O) standard normal, of which the second half is read.
        """
        pairs, following = simulated["observation_actions"], simulated["next_observations"]
        with torch.no_grad():
            gap = self.dynamics.gap(pairs, following, noise.chunk(2)[1], self.spread)
            weight = importance_weights(self.dynamics.log_ratio(pairs, following))
        return gap, weight if self.config.weigh else torch.ones_like(weight)

    def updates(self) -> list[Update | Rule]:
        """Discriminators; then temperature, actor and critics at the same parameters; then targets."""
        drawn = Noise("normal", self.config.gap_draws * self.spec.observation_dim)
        return hybrid_updates(self, BOTH, half_of(self.batch_size, self.name), next_observation=drawn)


def gap_penalty(real_values: Tensor, simulated_values: Tensor, gap: Tensor, mean: bool = False) -> Tensor:
    """(E,) by how much values where the simulator is wrong exceed those of the data, within +- 1000.

    Args:
        real_values: (E, R).
        simulated_values: (E, B).
        gap: (B,) estimates; clipped here.
        mean: their mean by shares of the gap, instead of the soft maximum.
    """
    shares = log_shares(gap)
    high = (simulated_values * shares.exp()).sum(-1) if mean else (simulated_values + shares).logsumexp(-1)
    return (high - real_values.mean(-1)).clamp(-MOST_PENALTY, MOST_PENALTY)
