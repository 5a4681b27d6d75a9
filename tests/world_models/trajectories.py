"""Futures of plans with all that happens in them, which planners sum up without keeping it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.world_models.dynamics import Dynamics, StepNoise
from surefoot.world_models.futures import Objective, future_noise


class Futures(NamedTuple):
    """Trajectories of F futures; states after an end are those of the end."""

    states: Tensor
    """(F, ..., H + 1, S), the present first."""
    rewards: Tensor
    """(F, ..., H), 0 after an end."""
    costs: Tensor
    """(F, ..., H), 0 after an end."""
    ended: Tensor
    """(F, ..., H) bool: has ended at this step or before."""


def sample_futures(dynamics: Dynamics, states: Tensor, actions: Tensor, draws: Tensor, objective: Objective) -> Futures:
    """F futures of (B, S) states under (B, H, A) actions in [-1, 1], or of N candidates each under (B, N, H, A).

    Args:
        dynamics: the world.
        states: (B, S) the present.
        actions: plans.
        draws: (B, 2) int64 seeds in [0, 2^32) and counts: equal ones give equal futures, whatever is beside them.
        objective: the number of futures, and their spread.

    Returns:
        Trajectories with leading dimensions (F, B) or (F, B, N).
    """
    several = actions.dim() == 4
    horizon = actions.shape[-2]
    shape = (objective.futures, *actions.shape[:-2])
    now = states.unsqueeze(1) if several else states
    now = now.expand(*shape, states.shape[-1])
    done = torch.zeros(shape, dtype=torch.bool, device=states.device)
    path, rewards, costs, ends = [now], [], [], []
    for t in range(horizon):
        noise = future_noise(dynamics, objective, draws, t, states.dtype)
        if several:  # all candidates share them
            noise = StepNoise(*(None if part is None else part.unsqueeze(2) for part in (noise.member, noise.normal)))
        step = dynamics.step(now, actions[..., t, :].expand(*shape, actions.shape[-1]), noise)
        now = torch.where(done.unsqueeze(-1), now, step.states)
        path.append(now)
        rewards.append(torch.where(done, 0, step.rewards))
        costs.append(torch.where(done, 0, step.costs))
        done = done | step.ended
        ends.append(done)
    return Futures(torch.stack(path, -2), *(torch.stack(part, -1) for part in (rewards, costs, ends)))
