"""DQN: values of a few choices from a replay buffer, epsilon-greedy, with double estimates and n-step returns."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.greedy_actor import GreedyActor, highest
from surefoot.core.actors.masked_actors import MaskedGreedyActor, masked
from surefoot.core.base.options import option
from surefoot.core.engine.agent import Adam, Batch, Metrics, Rule, Update
from surefoot.core.engine.encoder_config import EncoderConfig
from surefoot.core.losses.value_learning import huber_loss
from surefoot.online.base.agents import NStepConfig, OffPolicyAgent, bootstrapped, rows_of_steps

ERRORS = ("huber", "squared")


@dataclasses.dataclass(frozen=True)
class DQNConfig(NStepConfig, EncoderConfig):
    """Settings of DQN; the defaults suit small control problems, and `cleanrl` and `zoo-cartpole` are theirs."""

    replay_capacity: int = 100_000
    initial_steps: int = 1_000
    discount: float = option(0.99, "discount factor", range="[0, 1]")
    double: bool = option(True, "the online network picks the next action that the target network values")
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
    max_gradient_norm: float | None = option(
        10.0, "largest norm of the gradient, which is scaled down to it; null: as it is", range="> 0"
    )
    hidden: tuple[int, ...] = option((256, 256), "widths of the hidden layers")


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
    choice is uniformly random. The policy that leaves is greedy. Replay is uniform. The limit of the gradient's norm is
    stable-baselines3's. In `zoo-cartpole`, which is for batches of 64 rows, the target network moves every 128 training
    steps: stable-baselines3 counts ten steps of the environment, and does not move it during the 128 that follow 256.
    """

    name = "dqn"
    takes_teams = True
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
    }
    chooses = only_chooses = True
    obeys_masks = True
    inherits: ClassVar[tuple[str, ...]] = ("critic", "normalizer")
    counts: ClassVar[tuple[str, ...]] = ("epsilon",)
    config: DQNConfig
    annotate = rows_of_steps
    epsilon: Tensor

    def build(self) -> None:
        """Values of all choices, their target, and the share of random choices."""
        head = MaskedGreedyActor if self.spec.masked else GreedyActor
        values = head(self.features, self.spec.action_dim, self.config.hidden)
        self.critic: GreedyActor = values
        self.target_critic = copy.deepcopy(values).requires_grad_(False)
        self.register_buffer("epsilon", torch.tensor(self.config.first_epsilon))

    @property
    def actor(self) -> GreedyActor:
        """The greedy policy."""
        return self.critic

    @property
    def explore_dim(self) -> int:
        """For a random choice, and for whether it is taken."""
        return self.spec.action_dim + 1

    def first_actions(self, uniform: Tensor) -> Tensor:
        """(..., A) one-hot choices, each equally likely."""
        return highest(uniform)

    def explore(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, A) one-hot choices: the best one, or with probability epsilon any."""
        random = torch.special.ndtr(noise[..., -1:]) < self.epsilon
        any_choice = highest(self.among(noise[..., :-1], observations))
        return torch.where(random, any_choice, highest(self.critic(observations)))

    def among(self, numbers: Tensor, observations: Tensor) -> Tensor:
        """(B, A) random numbers whose highest is an allowed choice at (B, O) observations."""
        return masked(numbers, observations) if self.spec.masked else numbers

    def targets(self, batch: Batch) -> Tensor:
        """(B,) what n steps earned and the value of the best choice after them."""
        following = batch["next_observations"]
        values = self.target_critic(following)
        best = self.critic(following) if self.config.double else values
        return bootstrapped(batch, (values * highest(best)).sum(-1), self.config.discount)

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Huber's loss, or half the square, of the TD error of the choices that were made."""
        q = (self.critic(batch["observations"]) * batch["actions"]).sum(-1)
        error = q - self.targets(batch)
        loss = huber_loss(error, 1.0) if self.config.error == "huber" else 0.5 * error.square()
        return loss.mean(), {"q": q, "epsilon": self.epsilon}

    def fall(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """Epsilon, one training step further on its straight line from the first to the last."""
        c = self.config
        ends = sorted((c.first_epsilon, c.last_epsilon))
        each = (c.first_epsilon - c.last_epsilon) / (c.epsilon_steps * c.updates_per_step)
        return {"epsilon": (self.epsilon - each).clamp(*ends)}, {}

    def updates(self) -> list[Update | Rule]:
        """The values, then epsilon, and now and then the target network."""
        c = self.config
        return [
            Update(self.critic_loss, ("critic",), Adam(c.learning_rate, max_gradient_norm=c.max_gradient_norm)),
            Rule(self.fall, ("epsilon",)),
            Rule(then={"target_critic": ("critic", c.target_rate)}, every=c.target_every),
        ]
