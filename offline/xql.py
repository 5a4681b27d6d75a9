"""XQL: implicit Q-learning whose values are soft maxima, found by Gumbel regression."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.heads import GaussianActor
from surefoot.core.actors.histories import HistoryConfig
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.losses.implicit_maxima import gumbel_loss
from surefoot.core.losses.value_learning import advantage_weights, huber_loss, td_target
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, Value
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, REWARDS, prepare


@dataclasses.dataclass(frozen=True)
class ImplicitConfig(HistoryConfig):
    """Settings that XQL and dual RL's f-DVL share."""

    random_actions: int = option(
        0, "uniform actions beside each of the data's, at which the value is regressed too", range=">= 0"
    )
    action_noise: float = option(
        0.0, "standard deviation of noise, clipped at 0.5, on the actions it is regressed at", range=">= 0"
    )
    value_updates: int = option(1, "steps of the value in each training step, on rows of their own", range=">= 1")
    huber: float = option(20.0, "error at which the critics' loss turns linear", range="> 0")
    temperature: float = option(
        3.0, "beta of the actor: multiplies the advantage, so it is an inverse temperature", range=">= 0"
    )
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    target_rate: float = option(0.005, "rate of the critics' average, every step", range="[0, 1]")
    learning_rate: float = option(
        3e-4, "learning rate of all three networks; the actor's falls to 0 along a cosine", range=">= 0"
    )
    actor_schedule: str = option("cosine", "schedule of the actor's learning rate: cosine or constant")
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")
    log_std_min: float = option(-5.0, "least log standard deviation of the actor", range="<= 2")
    dropout: float = option(0.0, "dropout of the actor's hidden units", range="[0, 1)")
    rewards: str = option("return_range", "scaling of rewards", choices=REWARDS)
    normalization: str = option("none", "normalization of observations", choices=NORMALIZATIONS)


@dataclasses.dataclass(frozen=True)
class XQLConfig(ImplicitConfig):
    """Settings of XQL; the defaults are the authors' one setting for Gym-MuJoCo ("consistent")."""

    gumbel_temperature: float = option(
        2.0, "temperature of the soft maximum, in units of the values; nearer 0 is nearer the maximum", range="> 0"
    )
    clip: float | None = option(7.0, "bound of (Q - V) / T; rows above have no gradient; null: no clip", range="> 0")


ANTMAZE: dict[str, Any] = {"temperature": 10.0, "rewards": "minus_one", "actor_schedule": "constant"}
KITCHEN: dict[str, Any] = {"temperature": 0.5, "rewards": "none", "dropout": 0.1}


class XQL(Agent):
    r"""XQL of Garg, Hejna, Geist and Ermon, "Extreme Q-Learning: MaxEnt RL without Entropy" (ICLR 2023).

    .. math::
        L_V &= E\, [e^z - z - 1]\, e^{-m}, \quad z = \min((\min_i \hat Q_i(s, a) - V(s)) / T,\, c),
            \quad m = \max(\max z, -1) \\
        L_Q &= E \textstyle\sum_i h_{20}(r + \gamma (1 - d) V(s') - Q_i(s, a)) \\
        L_\pi &= -E \min(e^{\beta (\min_i \hat Q_i(s, a) - V(s))}, 100) \log \pi(a | s)

    V is T log E exp(Q / T) over the data's actions; the clip c biases it low, and the factor exp(-m) is the authors'
    stabiliser. h is Huber's loss. As in their code the value is stepped first and actor and critics see the new one,
    and of all networks only the value has layer norms. Where theirs differs: several steps of the value there see the
    same rows. With random actions theirs adds noise to the data's actions alone, here to all. Presets by task have
    the T and c of their scripts, of which many also train with batches of 1024 (`batch_size=1024`).
    """

    name = "xql"
    Config: ClassVar[type] = XQLConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "official": {},
        "antmaze": {**ANTMAZE, "gumbel_temperature": 0.6},
        "kitchen": {**KITCHEN, "gumbel_temperature": 5.0},
        "halfcheetah-medium": {"gumbel_temperature": 1.0, "action_noise": 0.1},
        "halfcheetah": {"gumbel_temperature": 1.0, "clip": 5.0},
        "hopper-medium": {"gumbel_temperature": 5.0},
        "hopper-medium-expert": {"gumbel_temperature": 2.0, "random_actions": 1},
        "walker2d-medium": {"gumbel_temperature": 10.0},
        "walker2d-medium-replay": {"gumbel_temperature": 5.0, "clip": 5.0},
        "walker2d-medium-expert": {"gumbel_temperature": 2.0, "clip": 5.0},
        "antmaze-umaze": {**ANTMAZE, "gumbel_temperature": 2.0},
        "antmaze-umaze-diverse": {**ANTMAZE, "gumbel_temperature": 5.0, "random_actions": 1},
        "antmaze-medium-play": {**ANTMAZE, "gumbel_temperature": 0.8, "clip": 5.0},
        "antmaze-medium-diverse": {**ANTMAZE, "gumbel_temperature": 0.6, "value_updates": 4},
        "antmaze-large-play": {**ANTMAZE, "gumbel_temperature": 0.6, "clip": 5.0},
        "antmaze-large-diverse": {**ANTMAZE, "gumbel_temperature": 0.55, "clip": 5.0},
        "kitchen-complete": {**KITCHEN, "gumbel_temperature": 2.0},
        "kitchen-mixed": {**KITCHEN, "gumbel_temperature": 8.0},
    }
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    config: Any

    def build(self) -> None:
        """Value with layer norms, twin critics with targets, actor."""
        c, sizes = self.config, (self.spec.observation_dim, self.spec.action_dim)
        self.value = Value(sizes[0], c.hidden, "orthogonal", layer_norm=True, norm_epsilon=1e-6)
        self.critic = Critic(*sizes, c.hidden, 2, "orthogonal")
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor: GaussianActor = GaussianActor(*sizes, c.hidden, "orthogonal", (c.log_std_min, 2.0))

    def prepare(self, dataset: Dataset) -> Dataset:
        """Scale actions and rewards, normalise observations."""
        return prepare(self, dataset, normalization=self.config.normalization, rewards=self.config.rewards)

    def annotate(self, batch: Batch) -> Batch:
        """Add min Q of the target critics at the data's actions."""
        return {**batch, "target_q": ensembles.minimum(self.target_critic(batch["observation_actions"]))}

    def implicit(self, advantage: Tensor) -> Tensor:
        """Loss per row whose minimum over V is a soft maximum of Q, for (..., B) Q - V."""
        return gumbel_loss(advantage, self.config.gumbel_temperature, self.config.clip)

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Regression of V(s) on the target critics' minimum, at the data's actions and, where asked, others."""
        c, seen = self.config, batch["observations"]
        value = self.value(seen)
        if c.random_actions or c.action_noise:
            pairs, repeats = self._regressed_at(batch, noise)
            target, value = ensembles.minimum(self.target_critic(pairs)), value.repeat(repeats)
        else:
            target = batch["target_q"]
        advantage = target - value
        return self.implicit(advantage).mean(), {"value": value, "advantage": advantage}

    def _regressed_at(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, int]:
        """Pairs ((1 + random_actions) B, O + A), the data's first, and how often each observation is among them."""
        c, actions = self.config, [batch["actions"]]
        if c.random_actions:
            uniform = 2 * noise["uniform_action"] - 1
            actions += list(uniform.unflatten(-1, (c.random_actions, -1)).unbind(-2))
        chosen = torch.cat(actions)
        if c.action_noise:
            moved = (c.action_noise * noise["action_noise"]).clamp(-0.5, 0.5)
            chosen = (chosen + moved.unflatten(-1, (len(actions), -1)).transpose(0, 1).flatten(0, 1)).clamp(-1, 1)
        return torch.cat([batch["observations"].repeat(len(actions), 1), chosen], -1), len(actions)

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Negative log-density of the data's actions, weighted by exp(advantage)."""
        advantage = batch["target_q"] - self.value(batch["observations"])
        weight = advantage_weights(advantage, self.config.temperature)
        density = self.actor.log_density(batch["observations"], batch["actions"], masks=noise.get("dropout"))
        return -(weight * density).mean(), {"weight": weight}

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Huber's loss of both critics against V(s')."""
        following = self.value(batch["next_observations"])
        target = td_target(batch["rewards"], batch["terminations"], following, self.config.discount)
        q = self.critic(batch["observation_actions"])
        bound = self.config.huber
        return bound * huber_loss(q - target, bound).mean(-1).sum(), {"q": q}

    def updates(self) -> list[Update]:
        """Value, actor, critics, each seeing what those before it made."""
        c, size = self.config, self.spec.action_dim
        adam, actor_adam = Adam(c.learning_rate), Adam(c.learning_rate, schedule=c.actor_schedule)
        keep = {"dropout": Noise("keep", sum(c.hidden), 1 - c.dropout)} if c.dropout > 0 else {}
        others = {"uniform_action": Noise("uniform", c.random_actions * size)} if c.random_actions else {}
        if c.action_noise:
            others["action_noise"] = Noise("normal", (1 + c.random_actions) * size)
        targets = {"target_critic": ("critic", c.target_rate)}
        return [
            Update(self.value_loss, ("value",), adam, repeat=c.value_updates, noise=others),
            Update(self.actor_loss, ("actor",), actor_adam, noise=keep),
            Update(self.critic_loss, ("critic",), adam, target_updates=targets),
        ]
