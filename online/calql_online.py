"""Cal-QL fine-tuning: the same losses on the dataset and the replay buffer, calibrated by each episode's own return."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.core.losses.value_learning import mc_return
from surefoot.offline.calql import CalQL, CalQLConfig
from surefoot.online.base.agents import OffPolicyAgent, OffPolicyConfig


@dataclasses.dataclass(frozen=True)
class CalQLOnlineConfig(OffPolicyConfig, CalQLConfig):
    """Settings of Cal-QL fine-tuning: Cal-QL's, and half of each batch from the dataset."""

    initial_steps: int = option(5_000, "environment steps before the first update: at least one whole episode")
    initial_actions: str = "policy"
    offline_fraction: float = 0.5


class CalQLOnline(CalQL, OffPolicyAgent):
    r"""Cal-QL of Nakamoto et al. (NeurIPS 2023), online: the same losses on the dataset and the replay buffer.

    The value that bounds the conservative term from below is the return-to-go of the transition's own episode,

    .. math:: V_{mc}(s_t) = r_t + \gamma (1 - d_t) V_{mc}(s_{t+1}),

    which is known when the episode is over. Until then its transitions are stored and not learned from, so the first
    update has to wait for the first end. As in offline data the sum stops where an episode is cut, and an episode of
    nothing but `failure_reward` is worth failing forever.

    nakamotoo/Cal-QL gathers whole episodes and then takes as many updates as they have steps; here updates continue at
    `updates_per_step`, on the episodes that are over. `init=` a `calql` run gives all networks.
    """

    name = "calql_online"
    Config = CalQLOnlineConfig
    requires = Requires(data="required")
    warm_start = WarmStart(
        networks=("actor", "normalizer", "critic", "target_critic", "temperature"), moments=("calql", "calql_online")
    )
    config: CalQLOnlineConfig

    def returns_to_go(self, rewards: Tensor, terminations: Tensor) -> Tensor:
        """(L,) the discounted rewards from each step of an episode to its end."""
        c = self.config
        if c.failure_reward is not None and bool((rewards == c.failure_reward).all()):
            return torch.full_like(rewards, c.failure_reward / (1 - c.discount))
        found = mc_return(rewards.double(), terminations.double(), torch.zeros_like(terminations), c.discount)
        return found.to(rewards.dtype)
