"""What agents of a team read of their rows: an agent's own part, its number, the team's state; and joint rows."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.core.actors.actor import Actor
from surefoot.core.engine.agent import Agent, Batch, Spec
from surefoot.core.engine.encoder_config import encoder_of
from surefoot.core.nn.normalizer import Normalizer
from surefoot.core.policy.policy import Policy
from surefoot.online.loops.replay import Replay


def own_width(spec: Spec) -> int:
    """Width of what one agent reads: its own numbers, its one-hot number in the team, and the mask of its actions."""
    return spec.vector_dim - spec.state_dim + (spec.action_dim if spec.masked else 0)


def own_part(features: Tensor, spec: Spec) -> Tensor:
    """(..., own width) of (..., F) features: all but the team's state."""
    if spec.state_dim == 0:
        return features
    width = spec.vector_dim
    return torch.cat([features[..., : width - spec.state_dim], features[..., width:]], -1)


def state_width(spec: Spec) -> int:
    """Width of the team's state; of a problem without one, what an agent observes stands for it."""
    return spec.state_dim or spec.vector_dim


def state_part(features: Tensor, spec: Spec) -> Tensor:
    """(..., state width) of (..., F) features: the team's state."""
    width = spec.vector_dim
    return features[..., width - state_width(spec) : width]


def central_width(spec: Spec) -> int:
    """Width of what a central critic reads."""
    return state_width(spec) + _number_width(spec)


def central_part(features: Tensor, spec: Spec) -> Tensor:
    """(..., central width) of (..., F) features: the team's state and the agent's one-hot number."""
    number, state = _number_width(spec), state_part(features, spec)
    if number == 0:
        return state
    own = spec.vector_dim - spec.state_dim
    return torch.cat([state, features[..., own - number : own]], -1)


def _number_width(spec: Spec) -> int:
    """Width of an agent's one-hot number beside the team's state: none where it is alone, or is in the state."""
    return spec.agents if spec.agents > 1 and spec.state_dim > 0 else 0


def own_policy(agent: Agent, head: Actor) -> Policy:
    """The deployable policy of a head that reads `own_part`: it takes what one agent observes."""
    spec, normalizer, encoder = agent.environment_spec.of_one_agent(), agent.normalizer, agent.encoder
    if agent.environment_spec.state_dim:
        width = spec.vector_dim
        normalizer = Normalizer(width, agent.normalizer.limit)
        kept = {name: getattr(agent.normalizer, name)[:width] for name in ("mean", "scale")}
        normalizer.load_state_dict(kept)
        encoder = encoder_of(spec, agent.config, agent.name)
    return Policy.of(head, normalizer, agent.action_low, agent.action_high, encoder)


class TeamReplay(Replay):
    """Joint rows: the A rows of a team in one step, every step of every team equally likely; columns are (..., A, ...).

    Rows of a team follow one another in the buffer.
    """

    agents: int = 1
    """A."""

    def of_buffer(self, uniform: Tensor) -> Tensor:
        """(S, rows) first rows of teams."""
        rows = super().of_buffer(uniform)
        return rows - rows % self.agents

    def gather(self, indices: Tensor, out: object = None) -> Batch:
        """The teams whose first rows are at `indices` (...,)."""
        return self.buffer.gather(indices.unsqueeze(-1) + torch.arange(self.agents, device=indices.device))

    workspace = None  # type: ignore[assignment]  # teams are gathered into memory of their own
