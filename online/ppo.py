"""PPO: several epochs on each block, with a clipped ratio."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, require
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.traits import Requires, Teams
from surefoot.core.losses.masked import normalise, reduce
from surefoot.core.losses.policy_gradient import clip_surrogate, log_ratio, ratio_metrics
from surefoot.core.losses.value_learning import value_loss
from surefoot.core.nn.networks import Value
from surefoot.online.base.on_policy_agent import OnPolicyAgent, head_gain, in_parts
from surefoot.online.base.on_policy_config import EpochsConfig
from surefoot.online.bonuses.attach import bonus_entries, bonus_of
from surefoot.online.bonuses.bonus import Bonus
from surefoot.online.bonuses.config import BonusConfig

SCOPES = ("minibatch", "block", "none")
SCHEDULES = ("linear", "constant", "adaptive")
PENDULUM = {
    "num_envs": 4,
    "horizon": 1024,
    "epochs": 10,
    "minibatches": 64,
    "discount": 0.9,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "value_clip": None,
    "value_coefficient": 1.0,
    "normalize_observations": False,
    "normalize_rewards": False,
}
"""RL Baselines3 Zoo's settings of Pendulum-v1, but for the exploration."""


@dataclasses.dataclass(frozen=True)
class PPOConfig(EpochsConfig, EncoderConfig, BonusConfig):
    """Settings of PPO; the defaults are CleanRL's for continuous actions."""

    clip: float = option(0.2, "the ratio is held within 1 - clip and 1 + clip", range="> 0")
    value_clip: float | None = option(
        0.2, "bound of the change of a value within a block, in scaled rewards; null: none", range="> 0"
    )
    value_coefficient: float = option(0.5, "weight of half the squared error of the value", range=">= 0")
    entropy_coefficient: float = option(0.0, "weight of the policy's entropy")
    advantage_scope: str = option(
        "minibatch", "rows that advantages are normalized over: minibatch, block or none", choices=SCOPES
    )
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    schedule: str = option(
        "linear",
        "schedule of the learning rate: linear, to 0 over the run; constant; adaptive, by each minibatch's divergence",
        choices=SCHEDULES,
    )
    target_kl: float | None = option(
        None, "adaptive: the divergence wanted; otherwise the one that ends a block's epochs", range="> 0"
    )
    epsilon: float = option(1e-5, "number added to Adam's denominator", range=">= 0")
    max_gradient_norm: float = option(
        0.5, "largest norm of the gradient; a longer one is scaled down to it", range="> 0"
    )
    separate_norms: bool = option(False, "shorten the gradients of actor and critic each by itself")
    shift: int = option(0, "largest shift of images, in pixels, drawn once a block: what acted saw them unmoved")
    bonus_discount: float = option(0.99, "discount factor of the bonus", range="[0, 1]")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        adapts = self.schedule == "adaptive" and self.target_kl is None
        require(not adapts, "ppo", "target_kl", self.target_kl, "a number, such as 0.01, with schedule=adaptive")


class PPO(OnPolicyAgent):
    r"""PPO of Schulman et al., "Proximal Policy Optimization Algorithms" (2017).

    .. math::
        \rho &= \pi(a|s) / \pi_k(a|s) \\
        L &= E \max(-A \rho, -A\,\mathrm{clip}(\rho, 1 \pm \epsilon)) - c_e H(\pi)
        + \tfrac{c_v}{2} E \max((V - R)^2, (V_k + \mathrm{clip}(V - V_k, \pm \epsilon_v) - R)^2)

    A is the generalised advantage at the policy :math:`\pi_k` that acted, and R = A + V_k. Details as in Huang et al.,
    "The 37 Implementation Details of PPO"; the preset `robots` is that of Rudin et al. (rsl_rl), whose rate follows
    the divergence instead of a schedule. The preset `cleanrl` clips normalised observations at 10, and raw ones, with
    `normalize_observations=false`, not at all. Under the preset `zoo-cartpole` the clip range stays at 0.2, where RL
    Baselines3 Zoo's falls linearly to 0 over the run.

    With a `bonus` there is a second value, of the bonus alone, which does not end with an episode: what follows the
    last step is the next episode's first observation, as in random network distillation (Burda et al., 2019). The
    advantages are A plus `bonus_weight` times its own; the paper's weights, 2 and 1, are 0.5.
    """

    name = "ppo"
    teams = Teams(trains=True)
    Config = PPOConfig
    corrects_staleness = True
    row_separable = True
    requires = Requires(masks=True)
    PRESETS = {  # noqa: RUF012
        "cleanrl": {"observation_limit": 10.0},
        "zoo-cartpole": {
            "num_envs": 8,
            "horizon": 32,
            "epochs": 20,
            "minibatches": 1,
            "discount": 0.98,
            "gae_lambda": 0.8,
            "learning_rate": 1e-3,
            "value_clip": None,
            "value_coefficient": 1.0,
            "normalize_observations": False,
            "normalize_rewards": False,
        },
        "zoo-pendulum": PENDULUM,
        "zoo-pendulum-gsde": {
            **PENDULUM,
            "exploration": "state_dependent",
            "hold_steps": 4,
            "initial_log_std": -math.log(2),  # 0 in units of its action, whose half-width is 2
        },
        "robots": {
            "num_envs": 4096,
            "horizon": 24,
            "epochs": 5,
            "minibatches": 4,
            "hidden": (256, 128, 64),
            "learning_rate": 1e-3,
            "schedule": "adaptive",
            "target_kl": 0.01,
            "entropy_coefficient": 0.01,
            "value_coefficient": 2.0,
            "advantage_scope": "block",
            "max_gradient_norm": 1.0,
            "separate_norms": True,
            "normalize_rewards": False,
        },
    }
    config: PPOConfig

    @classmethod
    def lacks(cls, option: str) -> str | None:
        """As `Agent.lacks`; a memory is another algorithm's."""
        if option in ("memory", "memory_width", "critic_memory", "sequence"):
            return "it reads the present observation alone; train recurrent_ppo, which remembers"
        return super().lacks(option)

    def build(self) -> None:
        """Actor and critic; with a bonus, that and a critic of it."""
        super().build()
        self.bonus: Bonus | None = bonus_of(self)
        if self.bonus is not None:
            c = self.config
            self.bonus_value = Value(self.features, c.hidden, "orthogonal", activation=c.activation)
            head_gain(self.bonus_value.mlp, 1.0)

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Advantages, returns, and what the policy that acted gave."""
        columns = self.advantages(block)
        if getattr(self, "bonus", None) is not None:
            columns |= self.bonus_columns(block)
            columns["advantages"] = columns["advantages"] + self.config.bonus_weight * columns.pop("bonus_advantages")
        if self.config.advantage_scope == "block":
            columns["advantages"] = normalise(columns["advantages"], block.get("mask"))
        columns["behaviour_log_prob"] = self.behaviour_log_prob(block)
        if self.config.schedule == "adaptive":
            columns["behaviour"] = self.block_behaviour(block)
        return self.acted(block) | columns

    def bonus_columns(self, block: Mapping[str, Tensor]) -> Batch:
        """Columns of a block for the bonus: its advantages and returns, which no end of an episode cuts short."""
        assert self.bonus is not None
        c, following = self.config, block["next_observations"]
        earned = self.bonus.reward(dict(block), self.bonus.measured(dict(block)))
        ends = (block["terminations"].bool() | block["truncations"].bool())[:-1].unsqueeze(-1)
        after = torch.where(ends, block["observations"][1:], following[:-1])
        values, later = (
            in_parts(self.bonus_value, o) for o in (block["observations"], torch.cat([after, following[-1:]]))
        )
        endless = {name: torch.zeros_like(block["rewards"]) for name in ("terminations", "truncations")}
        found = self.generalised({**block, **endless}, earned, values, later, c.bonus_discount, c.gae_lambda)
        return {"bonus_advantages": found[0], "bonus_returns": found[1], "next_observations": following}

    def bonus_value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the bonus's value, weighted."""
        value = self.bonus_value(batch["observations"])
        terms = 0.5 * (value - batch["bonus_returns"]).square()
        return self.config.value_coefficient * reduce(terms, batch.get("mask")), {"bonus_value": value}

    def prepare_full_batch(self, batch: Batch) -> Batch:
        """Advantages are normalised over all of a minibatch."""
        if self.config.advantage_scope != "minibatch":
            return batch
        advantages = normalise(batch["advantages"], batch.get("mask"))
        return {**batch, "advantages": advantages, "normalised": advantages}

    def policy_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Clipped surrogate, less the entropy bonus."""
        c, mask = self.config, batch.get("mask")
        log_prob, entropies, outputs = self.evaluate(batch)
        advantages = batch["advantages"]
        if c.advantage_scope == "minibatch" and "normalised" not in batch:
            advantages = normalise(advantages, mask)
        log_ratios = log_ratio(log_prob, batch["behaviour_log_prob"], mask)
        terms, clipped = clip_surrogate(log_ratios, advantages, c.clip, mask=mask)
        entropy = reduce(entropies, mask)
        metrics = {**ratio_metrics(log_ratios, clipped, mask), "entropy": entropy}
        if c.schedule == "adaptive":
            head: Any = self.distribution
            divergence = head.divergence(head.from_rows(batch["behaviour"]), outputs)
            metrics["kl"] = reduce(divergence, mask)
        loss = reduce(terms, mask)
        if c.entropy_coefficient != 0:
            loss = loss - c.entropy_coefficient * entropy
        return loss, metrics

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Clipped squared error of the value, weighted."""
        c, mask = self.config, batch.get("mask")
        value = self.evaluate_value(batch)
        terms = value_loss(value, batch["returns"], batch["values"], c.value_clip, mask)
        return c.value_coefficient * reduce(terms, mask), {"value": value}

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Both, for one step of actor and critic under one gradient norm."""
        policy, metrics = self.policy_loss(batch, noise)
        critic, others = self.critic_loss(batch, noise)
        return policy + critic, {**metrics, **others, "policy_loss": policy, "critic_loss": critic}

    def updates(self) -> list[Update | Rule]:
        """One step on the joint loss; or two at the same parameters, each with its own gradient norm."""
        c = self.config
        adam = Adam(c.learning_rate, epsilon=c.epsilon, schedule=c.schedule, max_gradient_norm=c.max_gradient_norm)
        own: list[Update | Rule] = [Update(self.loss, ("actor", "value"), adam)]
        if c.separate_norms:
            own = [
                Update(self.policy_loss, ("actor",), adam),
                Update(self.critic_loss, ("value",), adam, simultaneous=True),
            ]
        if getattr(self, "bonus", None) is not None:
            own.append(Update(self.bonus_value_loss, ("bonus_value",), adam))
        return [*bonus_entries(self, on_block=True), *own]
