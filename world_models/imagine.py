"""Rollouts of a policy in a world, thousands of rows at once: fixed shapes, and a mask of the rows still under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from surefoot.core.base.random import Noise
from surefoot.world_models.dynamics import Dynamics, Outcome, StepNoise

Act = Callable[[Tensor, Tensor], Tensor]
"""(B, S) states and (B, A) standard normal numbers -> (B, A) actions in [-1, 1]."""
Judge = Callable[[Tensor, Tensor, Outcome], Outcome]
"""(B, S) states, (B, A) actions and what the world made of them -> what is to be learned from: penalised, cut off."""

NOISE = "imagined"
MEMBER = "imagined_member"


class Rollouts(NamedTuple):
    """L steps of B rollouts."""

    states: Tensor
    """(L, B, S)."""
    actions: Tensor
    """(L, B, A)."""
    rewards: Tensor
    """(L, B)."""
    costs: Tensor
    """(L, B)."""
    terminations: Tensor
    """(L, B) 0 or 1."""
    next_states: Tensor
    """(L, B, S)."""
    valid: Tensor
    """(L, B) bool: the rollout had not ended before this step, and the world gave finite numbers."""

    def rows(self) -> dict[str, Tensor]:
        """Transitions as (L B, ...) columns under a dataset's names, with `valid`: what `data.sources.Added` takes."""
        named = dict(zip(COLUMNS, self, strict=True))
        return {name: value.flatten(0, 1) for name, value in named.items()}


COLUMNS = ("observations", "actions", "rewards", "costs", "terminations", "next_observations", "valid")
"""What a dataset calls the fields of `Rollouts`."""


def rollout_noise(world: Dynamics, length: int) -> dict[str, Noise]:
    """What `imagine` reads of the random numbers of a rule, for rollouts of at most `length` steps."""
    found = {NOISE: Noise("normal", length * (world.action_dim + world.noise_dim))}
    return found | ({MEMBER: Noise("uniform", length)} if world.members > 1 else {})


@torch.no_grad()
def imagine(
    world: Dynamics,
    act: Act,
    states: Tensor,
    noise: dict[str, Tensor],
    length: int,
    judge: Judge | None = None,
    rows_at_once: int = 4096,
) -> Rollouts:
    """Follow a policy in a world for `length` steps from each of B states.

    A rollout whose episode ends is not stepped from its end: it stays where it was, and its further steps are not
    valid. A step whose outcome is not finite is not valid either, and ends its rollout.

    Args:
        world: learned or exact; of several members one of the elites is drawn for each row and step (TS1).
        act: the policy.
        states: (B, S) in the world's units.
        noise: as `rollout_noise` says, (B, ...); of longer rollouts the first numbers are read.
        length: L >= 1.
        judge: changes outcomes before they are kept, such as by a penalty on rewards.
        rows_at_once: rollouts that are stepped together, which bounds the memory of a model's activations.
    """
    normal = noise[NOISE].unflatten(-1, (-1, world.action_dim + world.noise_dim))
    members = noise.get(MEMBER)
    parts = []
    for first in range(0, len(states), rows_at_once):
        rows = slice(first, first + rows_at_once)
        chosen = None if members is None else members[rows]
        parts.append(_some(world, act, states[rows], normal[rows], chosen, length, judge))
    return Rollouts(*(torch.cat(column, 1) for column in zip(*parts, strict=True)))


def drawn_members(world: Dynamics, uniform: Tensor) -> Tensor:
    """(B,) members of a world for (B,) uniform numbers in [0, 1): each of those that it asks, its elites, as likely."""
    of_elites = getattr(world, "draw_elites", None)
    if of_elites is not None:
        member: Tensor = of_elites(uniform)
        return member
    return (uniform * world.members).long().clamp(max=world.members - 1)


def _some(
    world: Dynamics,
    act: Act,
    states: Tensor,
    normal: Tensor,
    members: Tensor | None,
    length: int,
    judge: Judge | None,
) -> Rollouts:
    alive = torch.ones(len(states), dtype=torch.bool, device=states.device)
    steps = []
    for step in range(length):
        to_act, to_step = normal[:, step].split([world.action_dim, world.noise_dim], -1)
        actions = act(states, to_act)
        member = None if members is None else drawn_members(world, members[:, step])
        outcome = world.step(states, actions, StepNoise(member, to_step))
        outcome = outcome if judge is None else judge(states, actions, outcome)
        finite = outcome.states.isfinite().all(-1) & outcome.rewards.isfinite()
        valid = alive & finite
        following = torch.where(valid.unsqueeze(-1), outcome.states, states)
        ended = outcome.ended.to(states.dtype)
        steps.append((states, actions, outcome.rewards, outcome.costs, ended, following, valid))
        alive = valid & ~outcome.ended
        states = torch.where(alive.unsqueeze(-1), following, states)
    return Rollouts(*(torch.stack(column) for column in zip(*steps, strict=True)))
