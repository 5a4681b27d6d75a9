"""DQN: values of a few choices from a replay buffer, and the parts of Rainbow as options."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.greedy_actor import ChoiceValues, GreedyActor, highest, of_choice
from surefoot.core.actors.masked_actors import MaskedGreedyActor, masked
from surefoot.core.actors.value_heads import CategoricalHead, QuantileHead, ValueHead
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update, require
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.engine.traits import Requires, Teams, WarmStart
from surefoot.online.base.agents import NStepConfig, OffPolicyAgent, rows_of_steps
from surefoot.online.bonuses.attach import bonus_entries, bonus_of, counting, with_bonus
from surefoot.online.bonuses.config import BonusConfig
from surefoot.online.bonuses.value_bonus import NEXT
from surefoot.online.loops.prioritised import Priorities, PrioritisedReplay

ERRORS = ("huber", "squared")
RETURNS = ("mean", "categorical", "quantile")


@dataclasses.dataclass(frozen=True)
class DQNConfig(NStepConfig, EncoderConfig, BonusConfig):
    """Settings of DQN; the defaults suit small control problems, and `cleanrl` and `zoo-cartpole` are theirs.

    `rainbow` is for images and batches of 32 rows. Its numbers are of frames in the paper, four of which are a step.
    """

    replay_capacity: int = 100_000
    initial_steps: int = 1_000
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    double: bool = option(True, "the online network picks the next action that the target network values")
    dueling: bool = option(False, "values as one of the state plus one of each choice, less the mean of these")
    returns: str = option(
        "mean",
        "what is learned of returns: their mean, or a distribution, categorical (C51) or of quantiles (QR-DQN)",
        choices=RETURNS,
    )
    atoms: int = option(51, "numbers that a distribution of returns has for each choice", range=">= 1")
    value_range: tuple[float, float] = option(
        (-10.0, 10.0), "lowest and highest discounted return, for returns=categorical"
    )
    noisy: float = option(
        0.0,
        "deviation that noisy weights start with, which explore in place of epsilon: 0.5 is usual, 0 is none",
        range=">= 0",
    )
    priority: float = option(
        0.0, "exponent of prioritised replay: 0.6 is usual, 0.5 with n_step or distributions, 0 uniform", range="[0, 1]"
    )
    priority_correction: float = option(
        0.4, "exponent of the importance weights of prioritised replay at first; it rises to 1", range="[0, 1]"
    )
    priority_steps: int = option(100_000, "training steps over which `priority_correction` rises to 1", range=">= 1")
    error: str = option("huber", "loss of the TD error: huber (its gradient is cut at 1) or squared", choices=ERRORS)
    first_epsilon: float = option(1.0, "share of random choices when learning begins", range="[0, 1]")
    last_epsilon: float = option(0.05, "share of random choices after `epsilon_steps`", range="[0, 1]")
    epsilon_steps: int = option(
        10_000,
        "environment steps over which the share of random choices falls, or rises, from `initial_steps` on",
        range=">= 1",
    )
    target_rate: float = option(1.0, "rate of the target network's moves; 1 copies", range="(0, 1]")
    target_every: int = option(250, "training steps between moves of the target network", range=">= 1")
    learning_rate: float = option(5e-4, "learning rate", range=">= 0")
    adam_epsilon: float = option(1e-8, "Adam's epsilon", range="> 0")
    max_gradient_norm: float | None = option(
        10.0, "largest norm of the gradient, which is scaled down to it; null: as it is", range="> 0"
    )
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        categorical = self.returns == "categorical"
        low, high = self.value_range
        require(not categorical or low < high, "dqn", "value_range", self.value_range, "a lower and a higher number")
        require(not categorical or self.atoms > 1, "dqn", "atoms", self.atoms, ">= 2 with returns=categorical")
        if self.priority > 0:
            require(self.offline_fraction == 0, "dqn", "offline_fraction", self.offline_fraction, "0 with priority")
            require(self.hindsight == 0, "dqn", "hindsight", self.hindsight, "0 with priority")
            between = self.num_envs + math.ceil(1 / self.updates_per_step)
            least = f">= {between} with priority: the rows between two training steps"
            require(self.replay_capacity >= between, "dqn", "replay_capacity", self.replay_capacity, least)


class DQN(OffPolicyAgent):
    r"""DQN of Mnih et al., "Human-level control through deep reinforcement learning" (2015), of discrete actions.

    .. math::
        y &= \textstyle\sum_{k < n} \gamma^k r_{t+k} + \gamma^n (1 - d)\, \hat Q(s_{t+n}, a^*),
        \quad a^* = \arg\max_a Q(s_{t+n}, a) \\
        L &= E\, h(Q(s_t, a_t) - y), \quad h(x) = \tfrac12 x^2 \text{ for } |x| < 1, \text{ else } |x| - \tfrac12

    The choice of a* by the online network is double DQN (van Hasselt, Guez and Silver, 2016); with `double=False` the
    target network's maximum is taken, as in the first paper, which clips the error as h does. The returns of n steps
    are not corrected for the choices that the present policy would not make, as in Rainbow (Hessel et al., 2018); a
    window that a time limit or the newest step cuts short bootstraps from where it ends. With probability epsilon a
    choice is uniformly random. The deployed policy is greedy. The limit of the gradient's norm is
    stable-baselines3's. In `zoo-cartpole`, which is for batches of 64 rows, the target network moves every 128 training
    steps: stable-baselines3 counts ten steps of the environment, and does not move it during the 128 that follow 256.

    The other parts of Rainbow are options: `dueling` (`ValueHead`); `returns`, whose loss is the cross-entropy
    (`CategoricalHead`) or the quantile loss (`QuantileHead`) of the distribution in place of h, and which double DQN's
    choice reads the mean of; `priority` (`PrioritisedReplay`), with the importance weights w in the loss; and `noisy`
    (`NoisyMLP`), whose three networks, of Q, of the choice and of the target, draw their weights once for each batch,
    and anew for each step of each environment. Rainbow's priorities are divergences from the target, as here of
    `categorical`; of others they are errors of the mean.
    """

    name = "dqn"
    teams = Teams(trains=True)
    Config: ClassVar[type] = DQNConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "cleanrl": {
            "replay_capacity": 10_000,
            "initial_steps": 10_000,
            "updates_per_step": 0.1,
            "epsilon_steps": 250_000,
            "double": False,
            "error": "squared",
            "target_every": 50,
            "learning_rate": 2.5e-4,
            "max_gradient_norm": None,
            "hidden": (120, 84),
        },
        "zoo-cartpole": {
            "updates_per_step": 0.5,
            "epsilon_steps": 8_000,
            "last_epsilon": 0.04,
            "double": False,
            "target_every": 128,
            "learning_rate": 2.3e-3,
        },
        "rainbow": {
            "replay_capacity": 1_000_000,
            "initial_steps": 20_000,
            "updates_per_step": 0.25,
            "n_step": 3,
            "dueling": True,
            "returns": "categorical",
            "noisy": 0.5,
            "priority": 0.5,
            "priority_steps": 12_500_000,
            "target_every": 2_000,
            "learning_rate": 6.25e-5,
            "adam_epsilon": 1.5e-4,
            "max_gradient_norm": None,
            "hidden": (512,),
        },
    }
    requires = Requires(discrete=True, continuous=False, masks=True)
    warm_start = WarmStart(networks=("critic", "normalizer"), counters=("epsilon",))
    config: DQNConfig
    epsilon: Tensor

    def build(self) -> None:
        """Values of all choices, their target, and the share of random choices."""
        self.critic: ChoiceValues = self._head()
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.register_buffer("epsilon", torch.tensor(self.config.first_epsilon))
        self.bonus = bonus_of(self)

    def annotate(self, batch: Batch) -> Batch:
        """Rows of several steps as one; rewards with the bonus, or what a bonus of choices reads beside."""
        rows = rows_of_steps(self, batch)
        if self.bonus is not None and self.bonus.by_choice:
            return {**rows, NEXT: highest(self.critic(rows["next_observations"]))}
        return with_bonus(self, rows)

    def _head(self) -> ChoiceValues:
        """The network that the options ask for."""
        c, sizes = self.config, (self.features, self.spec.action_dim, self.config.hidden)
        parts: dict[str, Any] = {"dueling": c.dueling, "noisy": c.noisy, "masked": self.spec.masked}
        if c.returns == "categorical":
            return CategoricalHead(*sizes, **parts, atoms=c.atoms, value_range=c.value_range)
        if c.returns == "quantile":
            return QuantileHead(*sizes, **parts, quantiles=c.atoms)
        if c.dueling or c.noisy > 0:
            return ValueHead(*sizes, **parts)
        return (MaskedGreedyActor if self.spec.masked else GreedyActor)(*sizes)

    @property
    def actor(self) -> ChoiceValues:
        """The greedy policy."""
        return self.critic

    @property
    def explore_dim(self) -> int:
        """For a random choice, and for whether it is taken; or for noisy weights."""
        return self.critic.weight_noise_dim or self.spec.action_dim + 1

    def _replay(self, stores: Stores, rows: Source) -> Source:
        """As of any off-policy agent, or drawn by priority, with visits where a bonus is of them."""
        found, c = super()._replay(stores, rows), self.config
        if c.priority > 0:
            priorities = Priorities(c.priority, c.priority_correction, c.priority_steps)
            found = PrioritisedReplay(found, priorities, c.replay_capacity // c.num_envs * c.num_envs)  # type: ignore[arg-type]
        return counting(self, stores, found)

    def first_actions(self, uniform: Tensor) -> Tensor:
        """(..., A) one-hot choices, each equally likely."""
        return highest(uniform)

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, A) one-hot choices: the best one by noisy weights, or with probability epsilon any."""
        drawn = noise if self.config.noisy > 0 else None
        values = self.critic.values(self.critic.estimates(observations, drawn), observations)
        if self.bonus is not None and self.bonus.by_choice:
            values = values + self.config.bonus_weight * self.bonus.of_choices(observations)
        if self.config.noisy > 0:
            return highest(values)
        random = torch.special.ndtr(noise[..., -1:]) < self.epsilon
        any_choice = highest(self.among(noise[..., :-1], observations))
        return torch.where(random, any_choice, highest(values))

    def among(self, numbers: Tensor, observations: Tensor) -> Tensor:
        """(B, A) random numbers whose highest is an allowed choice at (B, O) observations."""
        return masked(numbers, observations) if self.spec.masked else numbers

    def targets(self, batch: Batch, noise: Mapping[str, Tensor] | None = None) -> Tensor:
        """(B, N) what outputs should have been: what n steps earned, and what the best choice after them gives."""
        drawn, following = noise or {}, batch["next_observations"]
        outputs = self.target_critic.estimates(following, drawn.get("target_weights"))
        judge, judged = self.target_critic, outputs
        if self.config.double:
            judge, judged = self.critic, self.critic.estimates(following, drawn.get("choice_weights"))
        best = highest(judge.values(judged, following))
        reach = batch["reach"] if "reach" in batch else self.config.discount * (1 - batch["terminations"])
        return self.target_critic.target(of_choice(outputs, best), batch["rewards"], reach).detach()

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Mean loss of the choices that were made, weighted where rows were drawn by priority."""
        observations, actions = batch["observations"], batch["actions"]
        outputs = self.critic.estimates(observations, noise.get("weights"))
        loss, error = self.critic.losses(of_choice(outputs, actions), self.targets(batch, noise), self.config.error)
        loss = loss * batch["weights"] if "weights" in batch else loss
        q = (self.critic.values(outputs, observations) * actions).sum(-1)
        return loss.mean(), {"q": q, "error": error} | ({} if self.config.noisy > 0 else {"epsilon": self.epsilon})

    def fall(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """Epsilon, one training step further on its straight line from the first to the last."""
        c = self.config
        ends = sorted((c.first_epsilon, c.last_epsilon))
        each = (c.first_epsilon - c.last_epsilon) / (c.epsilon_steps * c.updates_per_step)
        return {"epsilon": (self.epsilon - each).clamp(*ends)}, {}

    def updates(self) -> list[Update | Rule]:
        """The values, then epsilon, and now and then the target network."""
        c = self.config
        adam = Adam(c.learning_rate, epsilon=c.adam_epsilon, max_gradient_norm=c.max_gradient_norm)
        weights = Noise("normal", self.critic.weight_noise_dim, whole_batch=True)
        names = ("weights", "target_weights", *(("choice_weights",) if c.double else ())) if c.noisy > 0 else ()
        writes = {MAIN: "error"} if c.priority > 0 else {}
        return [
            *bonus_entries(self),
            Update(self.critic_loss, ("critic",), adam, noise=dict.fromkeys(names, weights), writes=writes),
            *([] if c.noisy > 0 else [Rule(self.fall, ("epsilon",))]),
            Rule(target_updates={"target_critic": ("critic", c.target_rate)}, every=c.target_every),
        ]
