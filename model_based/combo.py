"""COMBO: values are pushed down on imagined rows and up on the data's, so that no uncertainty need be estimated."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Batch, Metrics
from surefoot.core.losses.value_learning import soft_maximum
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import pairs
from surefoot.model_based.imagined_sac import ImaginedSAC, ImaginedSACConfig

PUSHED = ("mixed", "imagined")


@dataclasses.dataclass(frozen=True)
class COMBOConfig(ImaginedSACConfig):
    """Settings of COMBO; the defaults are OfflineRL-Kit's."""

    real_ratio: float = option(0.5, range="(0, 1)")
    deterministic_backup: bool = True
    hidden: tuple[int, ...] = (256, 256, 256)
    cql_weight: float = option(
        0.5, "weight of the conservative term, beta; 0.5 or 5 in the paper, by task", range=">= 0"
    )
    cql_temperature: float = option(1.0, "temperature of the soft maximum, T", range="> 0")
    sampled_actions: int = option(
        10,
        "actions that are sampled of each kind, n: uniform, the policy's, and the policy's at the next state",
        range=">= 1",
    )
    pushed_on: str = option(
        "mixed", "where values are pushed down: the states of the whole batch, or imagined ones alone", choices=PUSHED
    )


class COMBO(ImaginedSAC):
    r"""COMBO of Yu et al., "COMBO: Conservative Offline Model-Based Policy Optimization" (NeurIPS 2021).

    .. math::
        L_Q = \textstyle\sum_i E\, (Q_i(s, a) - y)^2
            + \beta\, (E_\rho\, T \log \sum_k e^{(Q_i(s, a_k) - \log\mu_k(a_k)) / T} - E_D\, Q_i(s, a))

    as in CQL: of the 3n actions n are uniform, n the policy's at s and n the policy's at s'. rho are the states of the
    batch, `mixed` as OfflineRL-Kit has it, or its imagined ones, as the paper says.
    """

    name = "combo"
    Config: ClassVar[type] = COMBOConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "halfcheetah-medium": {"rollouts": 50_000},
        "hopper-medium": {"rollouts": 50_000, "cql_weight": 5.0},
        "pointmaze": {"rollouts": 50_000, "cql_weight": 1.0},
    }
    config: COMBOConfig

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance of all critics to the targets, and the conservative term."""
        c, real = self.config, self.of_data(batch)
        target = self.targets(batch, noise)
        first = real if c.pushed_on == "imagined" else 0
        among, log_densities = self._sampled(batch, noise, first)
        count, rows = among.shape[:2]
        read = torch.cat([batch["observation_actions"], among.flatten(0, 1)])
        data, sampled = self.critic(read).split([len(target), count * rows], 1)
        corrected = sampled.unflatten(1, (count, rows)) - log_densities
        gap = soft_maximum(corrected, -2, c.cql_temperature).mean(-1) - data[:, :real].mean(-1)
        loss = ensembles.critic_loss(data, target, "sum") + c.cql_weight * gap.sum()
        return loss, {**self.value_metrics(data), "cql_gap": gap}

    def _sampled(self, batch: Batch, noise: dict[str, Tensor], first: int) -> tuple[Tensor, Tensor]:
        """Pairs (3n, R, O + A) of the batch's states from row `first` on, and what actions' log-densities were."""
        size, states = self.spec.action_dim, batch["observations"][first:]

        def several(name: str) -> Tensor:
            return noise[name][first:].unflatten(-1, (-1, size)).movedim(-2, 0)

        uniform = 2 * several("uniform_action") - 1
        own, own_density = self.actor.draw(states, several("policy_action"))
        later, later_density = self.actor.draw(batch["next_observations"][first:], several("next_policy_action"))
        flat = torch.full_like(own_density, -size * math.log(2))
        actions = torch.cat([uniform, own, later])
        return pairs(states, actions), torch.cat([flat, own_density, later_density])

    def critic_noise(self) -> dict[str, Noise]:
        """Its base's, and for the sampled actions."""
        several = self.config.sampled_actions * self.spec.action_dim
        return {
            **super().critic_noise(),
            "uniform_action": Noise("uniform", several),
            "policy_action": Noise("normal", several),
            "next_policy_action": Noise("normal", several),
        }
