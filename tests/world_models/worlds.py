"""Small worlds whose best plans are known."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.world_models.dynamics import Outcome, StepNoise


class Linear:
    """x' = A x + B (scale u), reward -(x' Q x + v' R v) of v = scale u and the state that the action meets."""

    noise_dim, members = 0, 1

    def __init__(self, a: Tensor, b: Tensor, q: Tensor, r: Tensor, scale: float) -> None:
        self.a, self.b, self.q, self.r, self.scale = a, b, q, r, scale
        self.state_dim, self.action_dim = b.shape

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """One step."""
        force = self.scale * actions
        spent = torch.einsum("...i,ij,...j->...", states, self.q, states)
        spent = spent + torch.einsum("...i,ij,...j->...", force, self.r, force)
        after = states @ self.a.T + force @ self.b.T
        zero = torch.zeros_like(spent)
        return Outcome(after, -spent, zero, zero.bool())


def scalar(scale: float = 4.0) -> Linear:
    """A = B = Q = R = 1: P = 1.6180340, K = 0.6180340."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return Linear(one, one, one, one, scale)


class Bandit:
    """One step: actions above 0 are risky, +3 with chance 0.8 and -5 with 0.2 (by the noise); others are safe, +1."""

    state_dim, action_dim, noise_dim, members = 1, 1, 1, 1
    threshold = -0.8416212  # a fifth of the normal distribution is below

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """One pull."""
        risky = actions[..., 0] > 0
        shape = torch.broadcast_shapes(states.shape[:-1], actions.shape[:-1])
        if noise.normal is None:
            gamble = torch.full(shape, 1.4)
        else:
            gamble = torch.where(noise.normal[..., 0] < self.threshold, -5.0, 3.0).expand(shape)
        rewards = torch.where(risky, gamble, 1.0).expand(shape)
        return Outcome(states, rewards, torch.zeros_like(rewards), torch.zeros(shape, dtype=torch.bool))


class Doubtful:
    """A step with an action above 0 gives +3 by the word of four members and -5 by that of the fifth; others +1."""

    state_dim, action_dim, noise_dim, members = 1, 1, 0, 5

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """One pull."""
        shape = torch.broadcast_shapes(states.shape[:-1], actions.shape[:-1])
        gamble = torch.full(shape, 1.4) if noise.member is None else torch.where(noise.member == 4, -5.0, 3.0)
        rewards = torch.where(actions[..., 0] > 0, gamble, 1.0).expand(shape)
        return Outcome(states, rewards, torch.zeros_like(rewards), torch.zeros(shape, dtype=torch.bool))


class Cliff:
    """x' = x + u; reward x', but no number where u is above 0.5, and less than 0 else; cost 1 where u is above 0.2."""

    state_dim, action_dim, noise_dim, members = 1, 1, 0, 1

    def step(self, states: Tensor, actions: Tensor, noise: StepNoise) -> Outcome:
        """One step."""
        after = states + actions
        push = actions[..., 0]
        rewards = torch.where(push > 0.5, torch.nan, push - 10)
        return Outcome(after, rewards, (push > 0.2).float(), torch.zeros_like(push, dtype=torch.bool))
