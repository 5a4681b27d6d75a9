"""DreamerV3: a recurrent world model, and a policy and values that are learned in what it imagines."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.memory import Memory
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.base.rates import LaProp
from surefoot.core.base.spec import VECTOR
from surefoot.core.engine.agent import Batch, Metrics, Rule, Update, require
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Acting, Requires, Vision, WarmStart
from surefoot.core.losses.distributions import gaussian_entropy, gaussian_log_density
from surefoot.core.losses.masked import masked_mean, masked_quantile
from surefoot.core.losses.returns import lambda_returns
from surefoot.online.base.agents import OffPolicyAgent, OffPolicyConfig
from surefoot.online.loops.replay import ReplayWindows
from surefoot.world_models.recurrent.actor import SIZES, Behaviour, RecurrentActor, imagine
from surefoot.world_models.recurrent.recurrent import Numbers, RecurrentModel, window_of
from surefoot.world_models.recurrent.rssm import States, random_states


@dataclasses.dataclass(frozen=True)
class DreamerConfig(OffPolicyConfig, EncoderConfig):
    """Settings of DreamerV3; the defaults are the smallest published size, on fewer windows."""

    initial_steps: int = 1_000
    updates_per_step: float = option(
        0.25,
        "training steps per environment step; officially steps of the windows per step of the environment: 32 to 1,024",
    )
    encoder_features: int = 128
    shift: int = option(0, "largest shift of images, in pixels; 0: they are not shifted")
    windows: int = option(16, "windows of a training step; the run's batch_size does not count", range=">= 1")
    length: int = option(64, "steps of a window, L", range=">= 1")
    imagined: int = option(15, "steps that are imagined from each step of the windows, H", range=">= 1")
    states: str = option("categorical", "kind of the random states: categorical or gaussian")
    groups: int = option(32, "groups of categories; or dimensions of a Gaussian state")
    classes: int = option(4, "categories in a group")
    deterministic: int = option(512, "width of the recurrent state", range=">= 1")
    blocks: int = option(8, "blocks of the recurrent state, which divide it")
    recurrent_hidden: int = option(64, "width of the layers within the recurrent model", range=">= 1")
    units: int = option(64, "width of the layers of the heads", range=">= 1")
    count: int = option(3, "layers of each head", range=">= 1")
    depth: int = option(4, "channels of the last but one layer of an image's decoder", range=">= 1")
    dynamics_weight: float = option(1.0, "weight of the KL that trains the prior", range=">= 0")
    representation_weight: float = option(0.1, "weight of the KL that trains the posterior", range=">= 0")
    free_nats: float = option(1.0, "nats that each KL may have")
    discount: float = option(1 - 1 / 333, "discount factor", range="[0, 1]")
    trace: float = option(0.95, "lambda, of the returns", range="[0, 1]")
    entropy_weight: float = option(3e-4, "weight of the policy's entropy", range=">= 0")
    replay_value_weight: float = option(0.3, "weight of the values' loss along the windows", range=">= 0")
    slow_weight: float = option(1.0, "weight of the values' distance to the slow critic's", range=">= 0")
    target_rate: float = option(0.02, "rate of the slow critic's average", range="[0, 1]")
    scale_rate: float = option(0.01, "rate of the average of the returns' range", range="[0, 1]")
    learning_rate: float = option(4e-5, "learning rate", range=">= 0")
    warm_up: int = option(1_000, "training steps in which the learning rate rises from 0")
    clip: float = option(0.3, "a parameter's gradient has at most this share of the parameter's norm")
    epsilon: float = option(1e-20, "number added to LaProp's denominator", range=">= 0")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        require(self.offline_fraction == 0, "dreamer", "offline_fraction", self.offline_fraction, "0: it has no data")


class Dreamer(OffPolicyAgent):
    r"""DreamerV3 of Hafner, Pasukonis, Ba and Lillicrap, "Mastering Diverse Domains through World Models" (2023).

    A recurrent state-space model (`recurrent.rssm`) is learned along windows; from each of its states s the policy
    is followed for H imagined steps, and learns from their returns, with S the running range from the 5th to the 95th
    percentile of R:

    .. math::
        R_t &= r_{t+1} + \gamma c_{t+1} ((1 - \lambda) V(s_{t+1}) + \lambda R_{t+1}), \quad R_H = V(s_H) \\
        L_\pi &= -E \sum_t w_t [\mathrm{sg}\, \tfrac{R_t - V(s_t)}{\max(1, S)} \log \pi(a_t | s_t)
            + \eta\, \mathcal H(\pi(s_t))] \\
        L_V &= E \sum_t w_t [\mathrm{CE}(V(s_t), R_t) + \mathrm{CE}(V(s_t), \overline V(s_t))]

    w is the product of gamma and continuations up to t. Values also learn along the windows themselves, from the
    imagined returns of their states. One optimiser steps everything by the sum of all losses.

    Differences from the official code (danijar/dreamerv3): layer norms for root mean square ones outside of the
    recurrent cell; windows end where their episode does (what is behind counts nowhere), so that a window begins with
    an empty state, and no latent states are kept in the replay buffer; S begins at 0, without a correction.
    """

    name = "dreamer"
    Config: ClassVar[type] = DreamerConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "1m": {},
        "12m": {
            "deterministic": 2048, "recurrent_hidden": 256, "units": 256, "classes": 16, "depth": 16,
            "encoder_features": 512,
        },
        "tiny": {
            "deterministic": 128, "recurrent_hidden": 64, "units": 64, "count": 2, "groups": 16, "classes": 8,
            "windows": 8, "length": 32, "learning_rate": 3e-4, "warm_up": 100,
            "encoder": "small", "encoder_features": 64,
        },
    }  # fmt: skip
    requires = Requires(data="refused")
    acting = Acting(stateful=True)
    vision = Vision(encodes_itself=True)
    warm_start = WarmStart(networks=("model", "behaviour", "normalizer"))
    config: DreamerConfig
    r_range: Tensor

    def build(self) -> None:
        """World model, policy, critic and its slow copy."""
        c, arrays = self.config, self.spec.observations
        features = None if self.encoder is None else self.encoder.width
        random = random_states(c.states, c.groups, c.classes)
        widths = (c.deterministic, c.recurrent_hidden, c.units, c.count, c.depth, c.blocks)
        self.model = RecurrentModel(arrays, features, self.spec.action_dim, random, *widths)
        self.behaviour = Behaviour(self.model.state_dim, self.spec.action_dim, c.units, c.count)
        self.critic = Numbers(self.model.state_dim, c.units, c.count)
        self.slow_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.register_buffer("r_range", torch.zeros(()))

    @property
    def actor(self) -> RecurrentActor:
        """What acts: the policy on the recurrent state."""
        sizes = {name: getattr(self.config, name) for name in (*SIZES, "states")}
        return RecurrentActor(self.model.embedding, self.model.rssm, self.behaviour, sizes)

    @property
    def keys(self) -> list[str]:
        """Columns of a batch that observations are made of."""
        return [VECTOR] if self.encoder is None else [f"{VECTOR}/{key}" for key in self.encoder.arrays]

    @property
    def explore_dim(self) -> int:
        """Of a random state and an action."""
        return self.actor.noise_dim

    def explore_on(self, observations: Tensor, memory: Memory, noise: Tensor) -> tuple[Tensor, Memory]:
        """(B, A) sampled actions, and the recurrent state."""
        return self.actor.step(observations, memory, noise)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Windows of L steps; of several arrays, what each step began with is what followed the one before."""
        return {MAIN: ReplayWindows(stores.replay, self.config.length, at_first=f"{VECTOR}/")}

    def world_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, States, Metrics]:
        """Reconstruction, rewards, continuations and the two KLs along windows, and the states there."""
        c, (observed, before, first, mask) = self.config, window_of(batch, self.keys)
        read = observed[VECTOR] if self.encoder is None else self.encoder(observed)
        drawn = noise["posterior"].unflatten(-1, (c.length + 1, -1))
        states = self.model.rssm.observe(self.model.embed(read), before, first, drawn)
        picture = self.model.reconstruction(states.joint, observed, mask)
        after = states.joint[:, 1:]
        logits, _ = self.model.reward.both(after)
        reward = masked_mean(self.model.reward.loss(logits, batch["rewards"]), batch["mask"])
        odds, goes_on = self.model.continues(after), 1 - batch["terminations"]
        ends = torch.nn.functional.binary_cross_entropy_with_logits(odds, goes_on, reduction="none")
        continuation = masked_mean(ends, batch["mask"])
        dynamics, representation, kl = self.model.rssm.divergences(states, mask, c.free_nats)
        loss = picture + reward + continuation + c.dynamics_weight * dynamics + c.representation_weight * representation
        found = {"reconstruction": picture, "reward_loss": reward, "continuation_loss": continuation, "kl": kl}
        return loss, states, found

    def behaviour_loss(
        self, states: Tensor, there: Tensor, alive: Tensor, noise: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Losses of policy and values in imagination, and the returns of the states where it began.

        Args:
            states: (N, S) without gradient.
            there: (N,) 0 on padding: not in the returns' range either.
            alive: (N,) how much each of them counts: 0 on padding and where the episode has terminated.
            noise: of the update.
        """
        c = self.config
        with torch.no_grad():
            drawn = noise["imagined"].reshape(len(states), c.imagined, -1).transpose(0, 1)
            seen, actions = imagine(self.model.rssm, self.behaviour, states, drawn)
            rewards, continues = self.model.reward(seen[1:]), torch.sigmoid(self.model.continues(seen[1:]))
            values, slow = self.critic(seen), self.slow_critic(seen[:-1])
            no_limit = torch.zeros_like(rewards)
            returns = lambda_returns(rewards, values[1:], 1 - continues, no_limit, c.discount, c.trace)
            reach = torch.cat([torch.ones_like(continues[:1]), (c.discount * continues[:-1]).cumprod(0)])
            weights = reach * alive
            weights = weights / (len(weights) * alive.sum().clamp(min=1))
            spread = masked_quantile(returns, there, 0.95) - masked_quantile(returns, there, 0.05)
            advantage = (returns - values[:-1]) / self.r_range.clamp(min=1)
        flat = seen[:-1].flatten(0, 1)
        mean, std = self.behaviour(flat)
        density = gaussian_log_density(actions.flatten(0, 1), mean, std.log()).view_as(weights)
        entropy = gaussian_entropy(std.log()).view_as(weights)
        policy = -(weights * (advantage * density + c.entropy_weight * entropy)).sum()
        logits, _ = self.critic.both(flat)
        logits = logits.unflatten(0, weights.shape)
        wrong = self.critic.loss(logits, returns) + c.slow_weight * self.critic.loss(logits, slow)
        found = {"entropy": entropy, "imagined_returns": returns, "r_range": spread, "imagined_reward": rewards}
        return policy + (weights * wrong).sum(), returns[0], found

    def replay_value_loss(self, states: Tensor, batch: Batch, ahead: Tensor) -> Tensor:
        """Cross-entropy of the values along windows against returns of their rewards.

        Args:
            states: (B, L + 1, S), with their gradient.
            batch: the windows.
            ahead: (B, L + 1) imagined returns of the states, which the windows' returns are continued by.
        """
        c = self.config
        rewards, ends, mask = (batch[name].transpose(0, 1) for name in ("rewards", "terminations", "mask"))
        following = ahead[:, 1:].transpose(0, 1)
        returns = lambda_returns(rewards, following, ends, torch.zeros_like(ends), c.discount, c.trace, mask)
        logits, _ = self.critic.both(states[:, :-1])
        with torch.no_grad():
            slow = self.slow_critic(states[:, :-1])
        wrong = self.critic.loss(logits, returns.transpose(0, 1)) + c.slow_weight * self.critic.loss(logits, slow)
        return masked_mean(wrong, batch["mask"])

    def loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """All of them."""
        world, states, found = self.world_loss(batch, noise)
        mask = torch.cat([torch.ones_like(batch["mask"][:, :1]), batch["mask"]], 1)
        over = torch.cat([torch.zeros_like(mask[:, :1]), batch["terminations"]], 1)
        there, alive = mask.flatten(), (mask * (1 - over)).flatten()
        behaviour, ahead, more = self.behaviour_loss(states.joint.detach().flatten(0, 1), there, alive, noise)
        along = self.replay_value_loss(states.joint, batch, ahead.view_as(mask))
        return world + behaviour + self.config.replay_value_weight * along, {**found, **more, "replay_value": along}

    def updates(self) -> list[Update | Rule]:
        """One, of everything."""
        c, steps = self.config, self.config.length + 1
        size = self.model.noise_dim
        imagined = Noise("normal", steps * c.imagined * (size + self.spec.action_dim))
        trains = ("model", "behaviour", "critic")
        return [
            Update(
                self.loss, trains if self.encoder is None else ("encoder", *trains),
                LaProp(c.learning_rate, epsilon=c.epsilon, schedule="warm_up", warm_up=c.warm_up, clip=c.clip),
                rows=c.windows,
                target_updates={"slow_critic": ("critic", c.target_rate)},
                follows={"r_range": ("r_range", c.scale_rate)},
                noise={"posterior": Noise("normal", steps * size), "imagined": imagined},
            )
        ]  # fmt: skip
