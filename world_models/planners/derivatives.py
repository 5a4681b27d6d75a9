"""First and second derivatives of a world, for all rows and steps at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.core.base.errors import ConfigError
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
    found: Dynamics = dynamics if made is None else made()
    return found


def slope_of(world: Dynamics, total: Tensor, point: Tensor, create_graph: bool = False) -> Tensor:
    """Derivatives of a sum of rewards or next states of a world by the states and actions that it was asked for.

    Raises:
        ConfigError: there are none: MuJoCo's worlds, tokens, and tasks whose rewards are constant or steps.
    """
    found = None
    if total.requires_grad:
        found = torch.autograd.grad(total, point, retain_graph=True, create_graph=create_graph, allow_unused=True)[0]
    if found is None:
        raise ConfigError(
            f"{type(world).__name__} has no derivatives of rewards by actions, which ilqr and shooting follow: plan "
            "with cem, icem or mppi"
        )
    return found


def expand(world: Dynamics, states: Tensor, actions: Tensor, discount: float = 1.0) -> Expansion:
    """Derivatives at (B, H, S) states and (B, H, A) actions, of discounted rewards; 0 after an end.

    Each output is differentiated in a copy of the rows, so that two backward passes give all of it.

    Raises:
        ConfigError: a world without derivatives.
    """
    size, width = states.shape[-1], actions.shape[-1]
    both = torch.cat([states, actions], -1).detach()
    total = size + width
    with torch.enable_grad():
        point = both.expand(total, *both.shape).clone().requires_grad_()
        step = world.step(point[..., :size], point[..., size:], StepNoise())
        alive = 1 - torch.cummax(step.ended[0].to(states), 1).values
        outputs = step.states[:size].diagonal(dim1=0, dim2=-1).sum()  # copy i gives output i
        jacobian = slope_of(world, outputs, point)[:size]
        slope = slope_of(world, step.rewards.sum(), point, create_graph=True)
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
