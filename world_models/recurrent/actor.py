"""`RecurrentActor`: the policy head of Dreamer, whose memory is the state of its recurrent model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from surefoot.core.actors.actor import OptionsActor
from surefoot.core.actors.memory import Memory
from surefoot.core.nn.networks import MLP
from surefoot.core.nn.two_hot import symlog
from surefoot.world_models.recurrent.recurrent import layers
from surefoot.world_models.recurrent.rssm import RSSM, random_states

LEAST, MOST = 0.1, 1.0
"""Of the deviation of an action."""
SIZES = ("deterministic", "recurrent_hidden", "units", "count", "groups", "classes", "blocks")
"""Options of the networks that describe a head, beside the kind of its random states."""


class Behaviour(nn.Module):
    """A normal over actions, of mean tanh and a deviation in [0.1, 1], that is not squashed: what acts clips it."""

    def __init__(self, inputs: int, action_dim: int, units: int, count: int) -> None:
        super().__init__()
        self.mlp: MLP = layers(inputs, 2 * action_dim, units, count)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation, (N, A) each, for (N, S) states."""
        mean, free = self.mlp(states).chunk(2, -1)
        return torch.tanh(mean), (MOST - LEAST) * torch.sigmoid(free + 2) + LEAST


def imagine(rssm: RSSM, behaviour: Behaviour, starts: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """(H + 1, N, S) states and (H, N, A) actions of a policy that is followed in the model.

    Args:
        rssm: the model.
        behaviour: the policy.
        starts: (N, S) states where it begins.
        noise: (H, N, n + A) standard normal numbers, of a random state and of an action.
    """
    states, actions, size = [starts], [], rssm.action_dim
    for drawn in noise:
        mean, std = behaviour(states[-1])
        actions.append(mean + std * drawn[:, -size:])
        states.append(rssm.imagined(states[-1], actions[-1].clamp(-1, 1), drawn[:, :-size]))
    return torch.stack(states), torch.stack(actions)


class RecurrentActor(OptionsActor):
    """Takes each observation into the recurrent state and acts by it; without noise by likeliest states and means."""

    kind = "recurrent"

    def __init__(self, embedding: MLP | None, rssm: RSSM, behaviour: Behaviour, options: Mapping[str, Any]) -> None:
        """Act by these networks; `options` are `SIZES` and `states`, the kind of the random ones."""
        super().__init__()
        self.embedding, self.rssm, self.behaviour = embedding, rssm, behaviour
        self.options = {name: options[name] for name in (*SIZES, "states")} | {"embeds": embedding is not None}

    @property
    def noise_dim(self) -> int:
        """Of the random state and of the action."""
        return self.rssm.noise_dim + self.rssm.action_dim

    def begin(self, rows: int) -> Memory:
        """Zeros: no state, and no action before."""
        some = self.rssm.cell.entry.weight
        return {
            "state": some.new_zeros(rows, self.rssm.state_dim),
            "last_action": some.new_zeros(rows, self.rssm.action_dim),
        }

    def step(self, observations: Tensor, memory: Memory, noise: Tensor | None = None) -> tuple[Tensor, Memory]:
        """As `Actor.step`."""
        embedded = observations if self.embedding is None else self.embedding(symlog(observations))
        own = None if noise is None else noise[..., : self.rssm.noise_dim]
        state, _ = self.rssm.observed(memory["state"], memory["last_action"], embedded, own)
        mean, std = self.behaviour(state)
        action = mean if noise is None else mean + std * noise[..., self.rssm.noise_dim :]
        action = action.clamp(-1, 1)
        return action, {**memory, "state": state, "last_action": action}

    def executed(self, memory: Memory, actions: Tensor) -> Memory:
        """The memory with the actions that were carried out."""
        return {**memory, "last_action": actions}

    def act(self, observations: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, A) actions at the first step of an episode."""
        return self.step(observations, self.begin(len(observations)), noise)[0]

    @classmethod
    def built(cls, observation_dim: int, action_dim: int, options: Mapping[str, Any]) -> Self:
        """As `OptionsActor.built`."""
        o = options
        embedding = layers(observation_dim, o["units"], o["units"], o["count"]) if o["embeds"] else None
        random = random_states(o["states"], o["groups"], o["classes"])
        width = o["units"] if o["embeds"] else observation_dim
        rssm = RSSM(width, action_dim, o["deterministic"], o["recurrent_hidden"], random, o["blocks"])
        return cls(embedding, rssm, Behaviour(rssm.state_dim, action_dim, o["units"], o["count"]), o)
