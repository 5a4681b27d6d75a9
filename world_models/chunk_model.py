"""`ChunkModel`: where a whole chunk of actions leads, in one call, so that errors add up over fewer of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from surefoot.core.engine.agent import Batch, Metrics
from surefoot.core.nn.networks import MLP
from surefoot.world_models.dynamics import Dynamics, Outcome, StepNoise


class ChunkModel(nn.Module, Dynamics):
    r"""A deterministic world whose actions are chunks of C actions, with three networks of state and chunk.

    .. math::
        s_{t+C} = s_t + f(s_t, a_{t:t+C}), \quad R = g(s_t, a_{t:t+C}), \quad d = [h(s_t, a_{t:t+C}) > 0]

    R is the discounted sum of the chunk's rewards up to a termination in it, and d whether there is one. States are in
    the units in which the rows are, best each of deviation 1. Source: Park, Park, Lee and Levine, "Scalable Offline
    Model-Based RL with Action Chunks" (ICLR 2026); each network is one of Flow Q-Learning's.
    """

    noise_dim = 0
    members = 1
    knows_costs = False

    def __init__(self, state_dim: int, action_dim: int, hidden: Sequence[int] = (256, 256, 256)) -> None:
        """Build the networks.

        Args:
            state_dim: S.
            action_dim: C A, all numbers of a chunk in the order of time.
            hidden: widths of each network.
        """
        super().__init__()
        self.state_dim, self.action_dim = state_dim, action_dim
        self.motion, self.reward, self.ending = (
            MLP(state_dim + action_dim, outputs, hidden, initialization="xavier",
                activation="gelu_tanh", layer_norm="after")
            for outputs in (state_dim, 1, 1)
        )  # fmt: skip

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """As `Dynamics.step`: (..., S) states after the (..., C A) chunks."""
        pairs = torch.cat([states, actions], -1)
        rows = pairs.flatten(0, -2)
        moved, reward, odds = (net(rows).unflatten(0, pairs.shape[:-1]) for net in self.networks)
        reward = reward.squeeze(-1)
        return Outcome(states + moved, reward, torch.zeros_like(reward), odds.squeeze(-1) > 0)

    @property
    def networks(self) -> tuple[MLP, MLP, MLP]:
        """Of the change of the state, the reward, and the odds of the end."""
        return self.motion, self.reward, self.ending

    def loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Squared errors of change and reward, and the cross-entropy of the end; each network has its own.

        Args:
            batch: rows of `core.actors.chunks.decisions`; those that a time limit cut short do not count.
        """
        pairs, weight = batch["observation_actions"], batch["valid"]
        moved, reward, odds = (network(pairs) for network in self.networks)
        motion = (moved - (batch["next_observations"] - batch["observations"])).square().mean(-1)
        earned = (reward.squeeze(-1) - batch["rewards"]).square()
        ended = (batch["reach"] == 0).to(odds.dtype)  # a discount of 0 would end every row
        ending = nn.functional.softplus(odds.squeeze(-1)) - ended * odds.squeeze(-1)
        motion, earned, ending = ((weight * term).mean() for term in (motion, earned, ending))
        return motion + earned + ending, {"motion_error": motion, "reward_error": earned, "ending_loss": ending}
