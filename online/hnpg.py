"""HNPG: the natural gradient on blocks and data; its critic learns from both."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update
from surefoot.core.engine.traits import Requires, WarmStart
from surefoot.core.losses.masked import normalise, reduce
from surefoot.core.losses.value_learning import gae, mc_return, td_target
from surefoot.core.nn.networks import Value, pairs
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare
from surefoot.online.base.on_policy_agent import head_gain, in_parts
from surefoot.online.trpo import TRPO, TRPOConfig


@dataclasses.dataclass(frozen=True)
class HNPGConfig(TRPOConfig):
    """Settings of HNPG; max_kl, damping, conjugate_steps and backtracks are the authors', as TRPO has them."""

    gae_lambda: float = 0.97
    value_actions: int = option(10, "K: actions that a state's value is the mean of", range=">= 1")
    data_weight: float = option(
        1.0, "weight of the squared errors on the data, beside those on the returns", range=">= 0"
    )
    data_states: bool = option(True, "the policy is stepped on the data's states too")
    target_rate: float = option(
        0.05, "rate of the critic's average, which the data's targets are made of, after each step", range="(0, 1]"
    )
    critic_hidden: tuple[int, ...] = option((64, 64), "widths of the hidden layers")


class HNPG(TRPO):
    r"""HNPG of Zhou, Sekhari, Song and Sun, "Offline Data Enhanced On-Policy Policy Gradient with Provable Guarantees".

    .. math::
        L_Q &= E_{block}\, (Q(s, a) - G)^2 + w\, E_D\, (Q(s, a) - r - \gamma (1 - d)\, \hat Q(s', a'))^2,
        \quad a' \sim \pi(s') \\
        V(s) &= \tfrac1K \textstyle\sum_k Q(s, a_k), \quad a_k \sim \pi(s)

    G is the block's discounted return, which bootstraps from V where the block or an episode is cut. The critic is
    fitted first. Then TRPO's step is taken on the block, with generalised advantages by the new V, and on as many of
    the data's states, with actions drawn anew and the advantage Q - V, all standardised together.

    YifeiZhou02/HNPG has a finite horizon with a policy and a critic for each step, fitted backwards, and no discount.
    This is the stationary form for environments without one: one network each, targets from an average of the critic
    in place of the next step's critic, one Adam that is not started anew for each block. Critics see actions clipped
    to the bounds, as environments do. The authors scale their networks' last layers by 0.1; so is the critic's here,
    whose rate is TRPO's and not their 3e-4.
    """

    name = "hnpg"
    Config = HNPGConfig
    requires = Requires(data="required", discrete=False)
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    warm_start = WarmStart(networks=("actor", "normalizer"))
    config: HNPGConfig

    def build(self) -> None:
        """The actor, and a critic of states and actions with its average."""
        self.build_actor()
        c, width = self.config, self.spec.observation_dim + self.spec.action_dim
        self.critic = Value(width, c.critic_hidden, "orthogonal", activation=c.activation)
        head_gain(self.critic.mlp, 0.1)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale the data's actions; the loop maps its observations and rewards as it does those of a block."""
        scaled = prepare(self, dataset)
        return scaled.replace(
            observations=dataset.observations, next_observations=dataset.next_observations, rewards=dataset.rewards
        )

    def column_noise(self) -> Mapping[str, Noise]:
        """Of the actions that values are means over, and of those at the data's states."""
        size = self.spec.action_dim
        several = Noise("normal", self.config.value_actions * size)
        of_block = {"value_action": several, "next_value_action": several}
        return of_block | {"data_value_action": several, "data_action": Noise("normal", size)}

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Returns, advantages and what the policy that acted gives, of the block and at the data's states."""
        c, mask, kept = self.config, block.get("mask"), ("observations", "actions", "mask")
        values = self.expected(block["observations"], block["value_action"])
        following = self._following(block, values)
        ends = (block["terminations"], block["truncations"])
        rewards = block["rewards"]
        columns = {name: block[name] for name in kept if name in block}
        columns["returns"] = mc_return(rewards, *ends, c.discount, following, mask)
        columns["advantages"] = gae(rewards, values, following, *ends, c.discount, c.gae_lambda, mask)[0]
        columns["behaviour"] = self.behaviour(block["observations"])
        columns |= {f"data_{key}": block[f"data_{key}"] for key in self.required_columns}
        return columns | self._at_data(block)

    def _at_data(self, block: Mapping[str, Tensor]) -> Batch:
        """Actions of the policy at the data's states, by how much they are better than its mean, and its outputs."""
        observations, size = block["data_observations"], self.spec.observation_dim
        both = torch.cat([observations, block["data_action"]], -1)
        actions = in_parts(lambda rows: self.actor.act(rows[:, :size], rows[:, size:]), both)
        values = self.expected(observations, block["data_value_action"])
        better = in_parts(self.critic, self._pairs(observations, actions)) - values
        behaviour = self.behaviour(observations)
        return {"resampled_actions": actions, "resampled_advantages": better, "resampled_behaviour": behaviour}

    def expected(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(T, N) values of (T, N, O) observations: means of Q over K actions drawn by (T, N, K A) standard normals."""
        size = self.spec.observation_dim

        def of_rows(rows: Tensor) -> Tensor:
            seen, drawn = rows[:, :size], rows[:, size:].unflatten(-1, (self.config.value_actions, -1))
            actions = self.actor.act(seen, drawn.movedim(1, 0))
            several = self._pairs(seen, actions)
            return self.critic(several.flatten(0, 1)).unflatten(0, several.shape[:2]).mean(0)

        return in_parts(of_rows, torch.cat([observations, noise], -1))

    def _following(self, block: Mapping[str, Tensor], values: Tensor) -> Tensor:
        """(T, N) V(s'): where the episode continues the next step's own estimate, so that its noise cancels in sums."""
        own = self.expected(block["next_observations"], block["next_value_action"])
        ended = (block["terminations"] != 0) | (block["truncations"] != 0)
        return torch.cat([torch.where(ended[:-1], own[:-1], values[1:]), own[-1:]])

    def _pairs(self, observations: Tensor, actions: Tensor) -> Tensor:
        return pairs(observations, actions.clamp(-1, 1))

    def step_by_new_values(self, block: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """The policy's step on columns that the critic as it is now gives."""
        return self.policy_step({name: column.flatten(0, 1) for name, column in self.columns(block).items()}, noise)

    def policy_step(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """TRPO's, from the block's rows and, where wanted, the data's states."""
        names = ("observations", "actions", "advantages", "behaviour")
        rows = {name: batch[name] for name in (*names, "mask") if name in batch}
        if self.config.data_states:
            added = {name: batch[f"resampled_{name}"] for name in names[1:]}
            added["observations"] = batch["data_observations"]
            if "mask" in batch:
                added["mask"] = torch.ones_like(batch["mask"])
            rows = {name: torch.cat([value, added[name]]) for name, value in rows.items()}
        rows["advantages"] = normalise(rows["advantages"], rows.get("mask"))
        return super().policy_step(rows, noise)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared errors: of the block's returns, and of what the data's transitions lead to."""
        c, mask, following = self.config, batch.get("mask"), batch["data_next_observations"]
        action = self.actor.act(following, noise["next_action"])
        next_q = self.target_critic(self._pairs(following, action))
        target = td_target(batch["data_rewards"], batch["data_terminations"], next_q, c.discount)
        q = self.critic(self._pairs(batch["observations"], batch["actions"]))
        data_q = self.critic(self._pairs(batch["data_observations"], batch["data_actions"]))
        met = reduce((q - batch["returns"]).square(), mask)
        backed_up = (data_q - target).square().mean()
        return met + c.data_weight * backed_up, {"return_error": met, "data_error": backed_up, "q": q}

    def updates(self) -> list[Update | Rule]:
        """The critic, then the actor."""
        c = self.config
        targets = {"target_critic": ("critic", c.target_rate)}
        noise = {"next_action": Noise("normal", self.spec.action_dim)}
        return [
            Update(self.critic_loss, ("critic",), Adam(c.learning_rate), target_updates=targets, noise=noise),
            Rule(self.step_by_new_values, ("actor",), on="block", source="block"),
        ]
