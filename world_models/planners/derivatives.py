"""First and second derivatives of a world, for all rows and steps at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.world_models.dynamics import Dynamics, StepNoise


class Expansion(NamedTuple):
    """A world around a path: linear dynamics, quadratic rewards."""

    states: Tensor  # (B, H, S, S) of the next state
    actions: Tensor  # (B, H, S, A)
    rx: Tensor  # (B, H, S) of the reward
    ru: Tensor  # (B, H, A)
    rxx: Tensor  # (B, H, S, S)
    ruu: Tensor  # (B, H, A, A)
    rux: Tensor  # (B, H, A, S)
    alive: Tensor  # (B, H) 1 where the step ends no episode, and none has ended


def smooth(dynamics: Dynamics) -> Dynamics:
    """The world with derivatives: its own `differentiable()` where it has one, else itself."""
    made = getattr(dynamics, "differentiable", None)
    return dynamics if made is None else made()  # type: ignore[no-any-return]


def expand(world: Dynamics, states: Tensor, actions: Tensor, discount: float = 1.0) -> Expansion:
    """Derivatives at (B, H, S) states and (B, H, A) actions, of discounted rewards; 0 after an end.

    Each output is differentiated in a copy of the rows, so that two backward passes give all of it.
    """
    size, width = states.shape[-1], actions.shape[-1]
    both = torch.cat([states, actions], -1).detach()
    total = size + width
    with torch.enable_grad():
        point = both.expand(total, *both.shape).clone().requires_grad_()
        step = world.step(point[..., :size], point[..., size:], StepNoise())
        alive = 1 - torch.cummax(step.ended[0].to(states), 1).values
        outputs = step.states[:size].diagonal(dim1=0, dim2=-1).sum()  # copy i gives output i
        jacobian = torch.autograd.grad(outputs, point, retain_graph=True)[0][:size]
        slope = torch.autograd.grad(step.rewards.sum(), point, create_graph=True, allow_unused=True)[0]
        if slope is None:
            slope = torch.zeros_like(point)
        curved = slope.diagonal(dim1=0, dim2=-1).sum()
        hessian = torch.autograd.grad(curved, point, allow_unused=True)[0] if curved.requires_grad else None
    if hessian is None:
        hessian = torch.zeros_like(point)
    before = torch.cat([torch.ones_like(alive[:, :1]), alive[:, :-1]], 1)
    scale = before * discount ** torch.arange(states.shape[1], device=states.device)
    first = (slope[0].detach() * scale.unsqueeze(-1)).nan_to_num()
    second = (hessian.movedim(0, -2) * scale[..., None, None]).nan_to_num()
    moved = jacobian.movedim(0, -2).nan_to_num()
    return Expansion(
        moved[..., :size],
        moved[..., size:],
        first[..., :size],
        first[..., size:],
        second[..., :size, :size],
        second[..., size:, size:],
        second[..., size:, :size],
        alive,
    )
