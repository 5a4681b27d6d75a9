"""MAC: values of long imagined paths, made of chunks that a clone proposes and critics choose among."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.actors.flow_actor import FlowActor, OneStepActor, best_of
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.base.options import option
from surefoot.core.base.random import Noise
from surefoot.core.engine.agent import Adam, Batch, Metrics, Update, require
from surefoot.core.engine.traits import WarmStart
from surefoot.core.losses.flow import euler
from surefoot.core.losses.returns import lambda_returns
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic, Value, pairs
from surefoot.core.nn.velocity import PlainVelocity
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import NORMALIZATIONS, REWARDS
from surefoot.model_based.base.alarm import AlarmConfig, Limits
from surefoot.model_based.base.signals import reward_excess, value_signals
from surefoot.offline import chunked
from surefoot.offline.chunked import ChunkedAgent
from surefoot.world_models.chunk_model import ChunkModel
from surefoot.world_models.dynamics import Dynamics, StepNoise


@dataclasses.dataclass(frozen=True)
class MACConfig(AlarmConfig):
    """Settings of MAC; the defaults are the authors', but for the sizes, which suit a core."""

    chunk: int = option(10, "C: actions that are decided at once, and that the model takes in one step", range=">= 1")
    execute: int | None = option(None, "actions of a chunk that are played before the next is chosen; null: all")
    rollout_length: int = option(10, "chunks of an imagined path, H", range=">= 1")
    rollouts: int = option(64, "imagined paths in a training step", range=">= 1")
    trace: float = option(1.0, "lambda of the paths' returns", range="[0, 1]")
    samples: int = option(32, "N chunks of which the best acts", range=">= 1")
    imagined_samples: int = option(8, "chunks of which the best is imagined", range=">= 1")
    flow_steps: int = option(10, "steps of the flow, K", range=">= 1")
    discount: float = option(0.999, "discount factor of a step", range="(0, 1)")
    target_rate: float = option(0.005, "rate of the value's average", range="[0, 1]")
    critics: int = option(2, "number of critics", range=">= 1")
    aggregate: str = option("mean", "aggregate of the critics, for choosing: mean or min", choices=ensembles.AGGREGATES)
    learning_rate: float = option(3e-4, "learning rate", range=">= 0")
    hidden: tuple[int, ...] = option((256, 256, 256), "widths of the hidden layers")
    normalization: str = option("observations", "normalization of observations", choices=NORMALIZATIONS)
    rewards: str = option("none", "scaling of rewards", choices=REWARDS)

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        played = self.execute
        require(played is None or 1 <= played <= self.chunk, "mac", "execute", played, f"null, or in 1 .. {self.chunk}")


class MAC(ChunkedAgent):
    r"""Park, Park, Lee and Levine, "Scalable Offline Model-Based RL with Action Chunks" (ICLR 2026).

    A flow F clones chunks c of C actions, a student mu does in one step what F does in K, and a model takes a state and
    a chunk to the state behind it (`world_models.ChunkModel`). Of N chunks that the clone proposes the critics choose,
    which keeps the policy within what the data do. With its imagined paths s_0, c_0, s_1, ... from states of the data:

    .. math::
        \pi(s) &= \arg\max_{c_n} \overline Q(s, c_n), \quad c_n = \mu(s, z_n) \\
        L_\mu &= E\, |\mu(s, z) - F(s, z)|^2 \\
        L_V &= E \textstyle\sum_{h < H} (V(s_h) - G_h)^2 / H, \quad
        G_h = R_h + \gamma^C (1 - d_h) ((1 - \lambda) \hat V(s_{h+1}) + \lambda G_{h+1}), \quad
        G_H = \hat V(s_H) \\
        L_Q &= E\, (R + \gamma^C (1 - d) \hat V(s') - Q_i(s, c))^2

    So critics bootstrap from values that reach H C steps ahead, with C-th as many calls of a model as single steps
    would need. What acts chooses among chunks of the flow itself. Rows that a termination ends within the chunk count,
    without a bootstrap; those that a time limit cuts do not (`core.actors.chunks`).
    """

    name = "mac"
    Config: ClassVar[type] = MACConfig
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "official": {"hidden": (1024, 1024, 1024, 1024), "rollouts": 1024, "normalization": "none"},
    }
    required_columns: ClassVar[tuple[str, ...]] = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "next_observations",
    )
    warm_start = WarmStart(networks=("velocity", "normalizer"))
    config: MACConfig
    limits: Tensor

    def build(self) -> None:
        """Flow and student, model, critics of chunks, value and its average."""
        c, size, width = self.config, self.decision_dim, self.spec.observation_dim
        self.velocity = PlainVelocity(width, size, c.hidden)
        self.student = OneStepActor(width, size, c.hidden)
        self.chunk_model = ChunkModel(width, size, c.hidden)
        self.critic = Critic(width, size, c.hidden, c.critics, "xavier", "after", activation="gelu_tanh")
        self.value = Value(width, c.hidden, "xavier", "after", "gelu_tanh")
        self.target_value = copy.deepcopy(self.value).requires_grad_(False)
        self.register_buffer("limits", torch.zeros(5))  # lowest and highest value, best; lowest and highest reward

    @property
    def actor(self) -> Actor:
        """What acts: the best of N chunks of the flow, from a queue."""
        c, size = self.config, self.decision_dim
        head = FlowActor(
            self.velocity, size, c.flow_steps, samples=c.samples, critic=self.critic, aggregate=c.aggregate
        )
        return head if c.chunk == 1 else ChunkActor(head, c.chunk, self.spec.action_dim, c.execute)

    def world(self) -> Dynamics:
        """Where paths are imagined."""
        return self.chunk_model

    def prepare(self, dataset: Dataset) -> Dataset:
        """As Q-chunking's; notes what the data's rewards allow values to be, for the alarm."""
        ready = super().prepare(dataset)
        if not self.goals_fixed:
            starts = ready.episode_starts
            rewards = (float(ready.rewards.min()), float(ready.rewards.max()))
            ended = ready.terminations[starts[1:] - 1]
            found = Limits.of(ready.rewards, starts, ended, self.config.discount, rewards)
            self.limits.copy_(torch.tensor([found.low, found.high, found.best, *rewards]))
        return ready

    def flow_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Flow matching on the data's chunks; what is behind an episode's end does not count."""
        return chunked.cloning_loss(self.velocity, batch, noise), {}

    def student_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared distance to where the flow takes the same noise."""
        seen, z = batch["observations"], noise["student"]
        with torch.no_grad():
            flowed = euler(lambda x, time: self.velocity(seen, x, time), z, self.config.flow_steps, limit=1.0)
        return (self.student(seen, z) - flowed).square().mean(), {}

    def model_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Of the chunk model."""
        return self.chunk_model.loss(batch)

    def chosen(self, observations: Tensor, noise: Tensor) -> Tensor:
        """(B, C A) the best of N chunks of the student, from (B, N C A) noise."""
        count = self.config.imagined_samples
        seen = observations.unsqueeze(1).expand(-1, count, -1).flatten(0, 1)
        chunks = self.student.act(seen, noise.unflatten(-1, (count, -1)).flatten(0, 1))
        values = ensembles.aggregate(self.critic(pairs(seen, chunks)), self.config.aggregate)
        return best_of(chunks.unflatten(0, (-1, count)), values.unflatten(0, (-1, count)))

    @torch.no_grad()
    def imagine(self, observations: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Paths of the policy from (B, O) states: (H, B, O) states, (H, B) rewards, returns, and whether it continues.

        Args:
            observations: where they begin.
            noise: (B, H N C A) standard normal.
        """
        c, world = self.config, self.world()
        alive, state = torch.ones_like(observations[:, 0]), observations
        steps = []
        for drawn in noise.unflatten(-1, (c.rollout_length, -1)).unbind(1):
            found = world.step(state, self.chosen(state, drawn), StepNoise())
            ended = found.ended.to(alive.dtype)
            steps.append((state, found.rewards, self.target_value(found.states), ended, alive))
            alive, state = alive * (1 - ended), found.states
        states, rewards, values, ends, there = (torch.stack(column) for column in zip(*steps, strict=True))
        none = torch.zeros_like(ends)
        returns = lambda_returns(rewards, values, ends, none, c.discount**c.chunk, c.trace, there)
        return states, rewards, returns, there

    def value_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the value along imagined paths."""
        c = self.config
        states, rewards, returns, there = self.imagine(batch["observations"], noise["imagined"])
        value = self.value(states.flatten(0, 1)).view_as(returns)
        loss = (there * (value - returns).square()).sum() / there.sum()
        least, most = self.limits[3:] * ((1 - c.discount**c.chunk) / (1 - c.discount))  # of a chunk; some end in it
        lowest, highest = torch.minimum(least, self.limits[3]), torch.maximum(most, self.limits[4])
        reward = (there * rewards).sum() / there.sum()
        metrics = value_signals(value.flatten().unsqueeze(0), self.limits, c.discount, torch.zeros_like(reward), 1)
        metrics["imagined_reward"] = reward
        metrics["reward_excess"] = reward_excess(reward, lowest, highest)
        return loss, metrics

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of the critics at the data's chunks, against the value behind them."""
        target = batch["rewards"] + batch["reach"] * self.target_value(batch["next_observations"])
        found = self.critic(batch["observation_actions"])
        return ensembles.critic_loss(found, target, "mean", batch["valid"]), {"chunk_q": found}

    def updates(self) -> list[Update]:
        """Clone, model and critics at the same parameters; then the value, on paths of its own."""
        c, adam = self.config, Adam(self.config.learning_rate)
        size = self.decision_dim
        paths = {"imagined": Noise("normal", c.rollout_length * c.imagined_samples * size)}
        average = {"target_value": ("value", c.target_rate)}
        return [
            Update(self.flow_loss, ("velocity",), adam, noise=chunked.cloning_noise(size)),
            Update(self.student_loss, ("student",), adam, noise={"student": Noise("normal", size)}, simultaneous=True),
            Update(self.model_loss, ("chunk_model",), adam, simultaneous=True),
            Update(self.critic_loss, ("critic",), adam, simultaneous=True),
            Update(self.value_loss, ("value",), adam, rows=c.rollouts, noise=paths, target_updates=average),
        ]
