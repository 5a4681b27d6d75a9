"""TD-MPC2: planning in a latent space that is learned to predict itself, rewards and values."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.memory import Memory
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, require
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Acting, Requires, WarmStart
from surefoot.core.losses.distributions import gaussian_log_density
from surefoot.core.losses.value_learning import linear_quantile, td_target
from surefoot.core.nn import ensembles
from surefoot.model_based.base.alarm import AlarmConfig
from surefoot.model_based.base.signals import MET, met_signals
from surefoot.online.base.agents import OffPolicyAgent, OffPolicyConfig
from surefoot.online.loops.replay import ReplayWindows
from surefoot.world_models.known.terminations import end_notes
from surefoot.world_models.latent.elites import shifted
from surefoot.world_models.latent.latent import discount_notes, discount_of, dropped_units, step_weights
from surefoot.world_models.latent.planner import NETWORKS, LatentPlanner, networks


@dataclasses.dataclass(frozen=True)
class TDMPC2Config(OffPolicyConfig, AlarmConfig):
    """Settings of TD-MPC2; the defaults are the official ones of the 5-million-parameter agent on single tasks."""

    initial_steps: int = option(
        1_000, "environment steps with random actions; officially five episodes, if these are more"
    )
    pretrain: bool = option(
        True, "after the random steps, as many updates at once as there were; then `updates_per_step`"
    )
    episode_length: int = option(
        500, "steps of an episode, T: the discount is clip((T/5 - 1) / (T/5), 0.95, 0.995)", range=">= 1"
    )
    discount: float | None = option(
        None, "discount factor, instead of that of the episode's length; null: that", range="[0, 1]"
    )
    horizon: int = option(
        3,
        "steps of the model that are trained, and planned ahead, H",
        range=">= 1",
    )
    consistency_weight: float = option(20.0, "weight of the loss of latent predictions", range=">= 0")
    reward_weight: float = option(0.1, "weight of the loss of rewards", range=">= 0")
    value_weight: float = option(0.1, "weight of the loss of values", range=">= 0")
    termination_weight: float = option(1.0, "weight of the loss of terminations", range=">= 0")
    step_decay: float = option(
        0.5, "decay of the losses over the steps, rho: that of step t counts rho^t", range="(0, 1]"
    )
    terminates: bool = option(False, "learn terminations, for tasks that have them")
    entropy_weight: float = option(
        1e-4, "weight of the prior's entropy, beside values in units of their range", range=">= 0"
    )
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    encoder_factor: float = option(0.3, "factor on the learning rate of the encoder", range=">= 0")
    max_gradient_norm: float = option(
        20.0, "largest norm of the gradient of model and critics, and of the prior's", range="> 0"
    )
    target_rate: float = option(0.01, "rate of the critics' average", range="[0, 1]")
    scale_rate: float = option(0.01, "rate of the average of the values' range", range="[0, 1]")
    dropout: float = option(0.01, "dropout of the critics' first layer, while they train", range="[0, 1)")
    samples: int = option(512, "plans in an iteration of the search")
    prior_samples: int = option(24, "plans of them that are drawn once, from the prior")
    elites: int = option(64, "plans that the next distribution is made of")
    iterations: int | None = option(
        None, "iterations of a search; null: 6, and 8 where actions have 20 dimensions or more"
    )
    temperature: float = option(0.5, "temperature of the elites' weights")
    std_range: tuple[float, float] = option((0.05, 2.0), "range of deviations of the plans' distribution")
    encoder_hidden: tuple[int, ...] = option((256,), "widths of the encoder's hidden layers")
    latent_dim: int = option(512, "width of the latent state", range=">= 1")
    hidden: tuple[int, ...] = option((512, 512), "widths of the hidden layers")
    group: int = option(8, "numbers in a simplex of the latent state")
    critics: int = option(5, "number of critics")
    bins: int = option(101, "bins of rewards and values")
    limit: float = option(10.0, "symlog of the largest reward or value")
    log_std_range: tuple[float, float] = option(
        (-10.0, 2.0), "range of the log standard deviation of the prior", rising=True
    )

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        low, high = self.std_range
        require(0 < low <= high, "tdmpc2", "std_range", self.std_range, "two deviations above 0, the smaller one first")
        only = "0: it learns from what it meets alone"
        require(self.offline_fraction == 0, "tdmpc2", "offline_fraction", self.offline_fraction, only)

    def training_steps(self, step: int) -> int:
        """As `OffPolicyConfig.training_steps`; with `pretrain` the random steps count too, once they are over."""
        late = 0 if self.pretrain else self.initial_steps
        return 0 if step < self.initial_steps else math.floor((step - late) * self.updates_per_step + 1e-9)


class TDMPC2(OffPolicyAgent):
    r"""TD-MPC2 of Hansen, Su and Wang, "TD-MPC2: Scalable, Robust World Models for Continuous Control" (ICLR 2024).

    From windows of H steps, with z_0 = h(s_0) and z_{t+1} = d(z_t, a_t), CE against two-hot targets over bins:

    .. math::
        L &= \tfrac1H \sum_{t < H} \rho^t\, E\, [c_d \lVert z_{t+1} - \mathrm{sg}\, h(s_{t+1}) \rVert^2_{mean}
             + c_r\, \mathrm{CE}(R(z_t, a_t), r_t) + c_q\, \tfrac15 \textstyle\sum_i \mathrm{CE}(Q_i(z_t, a_t), y_t)] \\
        y_t &= r_t + \gamma (1 - d_t) \min_{i \in \{i_1, i_2\}} \overline Q_i(h(s_{t+1}), a'), \quad a' \sim \pi \\
        L_\pi &= -\tfrac{1}{H + 1} \sum_{t \le H} \rho^t\, E\, [\tfrac{1}{S}\, \tfrac12 (Q_{i_1} + Q_{i_2})(z_t, a)
             + \beta A\, \mathcal H(z_t)], \quad a \sim \pi(z_t)

    S is the running range from the 5th to the 95th percentile of the values at t = 0, at least 1. It acts by MPPI in
    the latent space (`world_models.latent.planner`), and explores by the first action's deviation in the last search.

    Paper and code differ; here is what the code (nicklashansen/tdmpc2, July 2026) does: weights 20, 0.1, 0.1 where the
    paper prints 10, 0.5, 1; the entropy is that before the tanh, times the number of action dimensions A; a layer norm
    stands before the simplicial norm of encoder and dynamics; dropout is before the first norm. Differences from the
    code: windows may be cut by an episode's end, and steps behind it do not count, where the code draws whole windows
    only; the states that the prior learns on are those of the model after its step, and S is the range of the step
    before; dropout masks of the members are made of one (`kept_units`); plans see the noise that `LatentPlanner` names.
    """

    name = "tdmpc2"
    Config: ClassVar[type] = TDMPC2Config
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "official": {},
        "small": {
            "latent_dim": 64, "hidden": (128, 128), "encoder_hidden": (128,), "critics": 3, "samples": 128,
            "prior_samples": 12, "elites": 16, "iterations": 4, "learning_rate": 1e-3,
        },
        "tiny": {
            "latent_dim": 32, "hidden": (64, 64), "encoder_hidden": (64,), "critics": 2, "samples": 64,
            "prior_samples": 8, "elites": 8, "iterations": 3, "bins": 51, "limit": 7.0, "learning_rate": 1e-3,
        },
    }  # fmt: skip
    requires = Requires(data="refused")
    acting = Acting(stateful=True, rows=64)
    warm_start = WarmStart(networks=("representation", "model", "critic", "prior", "normalizer"))
    config: TDMPC2Config
    q_range: Tensor
    lowest_reward: Tensor
    highest_reward: Tensor

    def build(self) -> None:
        """Encoder, model, critics with their targets, prior."""
        sizes = {name: getattr(self.config, name) for name in NETWORKS}
        parts = networks(self.spec.observation_dim, self.spec.action_dim, sizes)
        self.representation, self.model, self.critic, self.prior = parts
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.register_buffer("q_range", torch.ones(()))
        for name in MET:
            self.register_buffer(name, torch.zeros(()))
        self.actor  # noqa: B018  # refuses a search that is none

    @property
    def discount(self) -> float:
        """Per step."""
        return discount_of(self.config.episode_length) if self.config.discount is None else self.config.discount

    @property
    def actor(self) -> LatentPlanner:
        """What acts: a search from the last plan."""
        c = self.config
        known = 6 + 2 * (self.spec.action_dim >= 20)
        iterations = known if c.iterations is None else c.iterations
        found = {**dataclasses.asdict(c), "discount": self.discount, "iterations": iterations}
        return LatentPlanner(self.representation, self.model, self.critic, self.prior, found)

    @property
    def explore_dim(self) -> int:
        """Of a search, and of the noise that is added."""
        return self.actor.noise_dim + self.spec.action_dim

    def explore_on(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """(B, A) planned actions with noise of the search's last deviation, and the plan."""
        size = self.spec.action_dim
        found = self.actor.plan(observations, memory["plan"], noise[..., :-size])
        return (found.action + found.std * noise[..., -size:]).clamp(-1, 1), {"plan": shifted(found.mean)}

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Windows of H steps."""
        return {MAIN: ReplayWindows(stores.replay, self.config.horizon)}

    def notes(self, dataset: Any) -> list[str]:
        """Where the environment's episodes end, and how long they are, if that is not what is learned."""
        c, env_id = self.config, self.spec.environment
        return [*end_notes(env_id, c.terminates), *discount_notes(env_id, c.episode_length, c.discount)]

    def rollout(self, batch: Batch) -> Tensor:
        """(B, H + 1, V) latent states from each window's first observation by its actions."""
        states = [self.representation(batch["observations"][:, 0])]
        for time in range(self.config.horizon):
            states.append(self.model.following(states[-1], batch["actions"][:, time]))
        return torch.stack(states, 1)

    def targets(self, batch: Batch, following: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """(B, H) reward and the lower of two values of a next action."""
        action = self.prior.act(following, noise["next_action"].unflatten(-1, (self.config.horizon, -1)))
        pairs = torch.cat([following, action], -1).flatten(0, 1)
        next_q = self.target_critic.values(pairs, ensembles.subset(noise["target_subset"], 2)).amin(0)
        return td_target(batch["rewards"], batch["terminations"], next_q.view_as(batch["rewards"]), self.discount)

    def model_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Consistency, reward and value of the steps of a window, and terminations where they are learned."""
        c = self.config
        with torch.no_grad():
            following = self.representation(batch["next_observations"])
            target = self.targets(batch, following, noise)
        states, weights = self.rollout(batch), step_weights(batch["mask"], c.step_decay)
        pairs = torch.cat([states[:, :-1], batch["actions"]], -1).flatten(0, 1)
        distance = (states[:, 1:] - following).square().mean(-1)
        reward = self.model.bins.loss(self.model.reward(pairs), batch["rewards"].flatten()).view_as(distance)
        logits = self.critic(pairs, None, dropped_units(noise["keep"], c.critics, c.horizon))
        value = self.critic.bins.loss(logits, target.flatten()).mean(0).view_as(distance)
        consistency, reward, value = ((weights * part).sum() for part in (distance, reward, value))
        loss = c.consistency_weight * consistency + c.reward_weight * reward + c.value_weight * value
        found = {"consistency": consistency, "reward_loss": reward, "value_loss": value, "q_target": target}
        if c.terminates:
            found["termination_loss"] = self.model.termination_loss(states[:, 1:], batch["terminations"], batch["mask"])
            loss = loss + c.termination_weight * found["termination_loss"]
        return loss, found

    def prior_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Value, in units of its range, and entropy of the prior's own actions along the model's states."""
        c, steps = self.config, self.config.horizon + 1
        with torch.no_grad():
            states = self.rollout(batch)
        mean, log_std = self.prior(states)
        unsquashed = mean + log_std.exp() * noise["action"].unflatten(-1, (steps, -1))
        entropy = -self.spec.action_dim * gaussian_log_density(unsquashed, mean, log_std)
        pairs = torch.cat([states, torch.tanh(unsquashed)], -1).flatten(0, 1)
        chosen, masks = ensembles.subset(noise["subset"], 2), dropped_units(noise["keep"], 2, steps)
        q = self.critic.values(pairs, chosen, masks).mean(0).view_as(entropy)
        mask = torch.cat([torch.ones_like(batch["mask"][:, :1]), batch["mask"]], 1)
        loss = -(step_weights(mask, c.step_decay) * (q / self.q_range + c.entropy_weight * entropy)).sum()
        first = q[:, 0].detach()
        spread = (linear_quantile(first, 0.95) - linear_quantile(first, 0.05)).clamp(min=1)
        signals = met_signals(q, batch["rewards"], (self.lowest_reward, self.highest_reward), self.discount)
        return loss, {**signals, "entropy": entropy, "q_range": spread}

    def updates(self) -> list[Update | Rule]:
        """Model and critics, the critics' average; then the prior."""
        c, size = self.config, self.spec.action_dim
        adam = Adam(c.learning_rate, max_gradient_norm=c.max_gradient_norm)
        keep = Noise("keep", c.hidden[0], 1 - c.dropout)
        draws = {"next_action": Noise("normal", c.horizon * size), "target_subset": Noise("uniform", c.critics)}
        own = {"action": Noise("normal", (c.horizon + 1) * size), "subset": Noise("uniform", c.critics)}
        return [
            Update(
                self.model_loss, ("representation", "model", "critic"), adam, noise={**draws, "keep": keep},
                factors={"representation": c.encoder_factor},
                target_updates={"target_critic": ("critic", c.target_rate)},
            ),
            Update(
                self.prior_loss, ("prior",), dataclasses.replace(adam, epsilon=1e-5), noise={**own, "keep": keep},
                follows={"q_range": ("q_range", c.scale_rate), **{name: (name, 1.0) for name in MET}},
            ),
        ]  # fmt: skip
