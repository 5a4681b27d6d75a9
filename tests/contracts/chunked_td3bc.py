"""TD3+BC on chunks of five actions: windows of the data, critics of whole chunks, and a policy that plays its queue.

Source: Fujimoto and Gu, "A Minimalist Approach to Offline RL"; chunks with their own discount as in Li, Zhou and
Levine, "Reinforcement Learning with Action Chunking" (Q-chunking, 2025).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.actors.heads import DeterministicActor
from surefoot.core.actors.memory_actors import ChunkActor
from surefoot.core.engine.agent import Adam, Agent, Batch, Metrics, Update
from surefoot.core.engine.sources import MAIN, Source, Stores
from surefoot.core.nn import ensembles
from surefoot.core.nn.networks import Critic
from surefoot.data.dataset import Dataset
from surefoot.data.prepare import prepare
from surefoot.data.samplers import Windows
from surefoot.data.sources import WindowSource
from surefoot.data.store import segment_ids


@dataclasses.dataclass(frozen=True)
class ChunkedConfig:
    """Settings."""

    chunk: int = 5  # C
    discount: float = 0.9
    target_rate: float = 0.01
    clone_weight: float = 1.0
    learning_rate: float = 1e-3
    hidden: tuple[int, ...] = (64, 64)


class ChunkedTD3BC(Agent):
    """Q(s, a_1 ... a_C) <- sum of g^k r_k + g^C (1 - d) Q'(s_C, pi'(s_C)); pi maximises Q and clones the data."""

    name = "test_chunked_td3bc"
    Config = ChunkedConfig
    required_columns = ("observations", "actions", "rewards", "terminations", "next_observations")
    config: ChunkedConfig

    def build(self) -> None:
        """Critics of chunks, an actor of chunks, and targets of both."""
        c, size, width = self.config, self.spec.action_dim, self.spec.observation_dim
        self.critic = Critic(width, c.chunk * size, c.hidden, 2)
        self.actor: ChunkActor = ChunkActor(DeterministicActor(width, c.chunk * size, c.hidden), c.chunk, size)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)

    def prepare(self, dataset: Dataset) -> Dataset:
        """Actions in [-1, 1]."""
        return prepare(self, dataset)

    def sources(self, stores: Stores) -> Mapping[str, Source]:
        """Windows of C steps that begin anywhere and are cut at an episode's end."""
        windows = Windows(self.config.chunk, "right")
        return {MAIN: WindowSource(stores.data, segment_ids(stores.dataset, stores.data.keys), windows)}

    def annotate(self, batch: Batch) -> Batch:
        """The chunk, padded by its last action; its discounted reward; where it led, and what of that counts."""
        mask, lengths = batch["mask"], batch["mask"].sum(-1)
        powers = self.config.discount ** torch.arange(mask.shape[-1], dtype=mask.dtype)
        last = batch["terminations"][..., -1]  # padding repeats the last real step
        return {
            **batch,
            "state": batch["observations"][..., 0, :],
            "chunk": batch["actions"].flatten(-2),
            "reward": (batch["rewards"] * mask * powers).sum(-1),
            "following": batch["next_observations"][..., -1, :],
            "reach": self.config.discount**lengths * (1 - last),
        }

    def critic_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Squared error of both critics."""
        following = self.target_actor.inner(batch["following"])
        next_q = ensembles.minimum(self.target_critic(torch.cat([batch["following"], following], -1)))
        target = batch["reward"] + batch["reach"] * next_q
        q = self.critic(torch.cat([batch["state"], batch["chunk"]], -1))
        return ensembles.critic_loss(q, target, "sum"), {"q": q}

    def actor_loss(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Minus the scaled value of the policy's chunk, and its distance from the data's, padding left out."""
        chunk = self.actor.inner(batch["state"])
        q = self.critic.first(torch.cat([batch["state"], chunk], -1))
        wrong = (chunk - batch["chunk"]).square().unflatten(-1, (self.config.chunk, -1)).mean(-1)
        clone = (wrong * batch["mask"]).sum() / batch["mask"].sum()
        return -q.mean() / q.detach().abs().mean() + self.config.clone_weight * clone, {"clone": clone}

    def updates(self) -> list[Update]:
        """Critics, then the actor, then both averages."""
        c = self.config
        targets = {"target_critic": ("critic", c.target_rate), "target_actor": ("actor", c.target_rate)}
        return [
            Update(self.critic_loss, ("critic",), Adam(c.learning_rate)),
            Update(self.actor_loss, ("actor",), Adam(c.learning_rate), target_updates=targets),
        ]
