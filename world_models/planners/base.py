"""What all planners are: settings with `plan`, and a memory of the last plan, one row for each state."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from surefoot.core.actors.memory import DRAWS, Memory
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import Options
from surefoot.cuda_ext.twin import environment_seeds
from surefoot.world_models.draws import candidate_normals, coloured
from surefoot.world_models.dynamics import Dynamics
from surefoot.world_models.futures import Objective

PLAN = "plan"
"""(B, H, A) where the next plan begins: the last one, a step on."""


class Planner(Protocol):
    """Chooses actions by looking ahead in a world, for all rows of a batch at once.

    A frozen dataclass of settings. Rows don't see each other: a batch of B plans equals B plans of one row with the
    same memory or noise. Actions are in [-1, 1].
    """

    name: ClassVar[str]
    """In messages, and on the command line."""

    @property
    def horizon(self) -> int:
        """H: steps that are looked ahead."""
        ...

    def begin(self, rows: int, action_dim: int, seed: int = 0) -> Memory:
        """The memory of `rows` rows that have not planned yet, which draw their noise from `seed`."""
        ...

    def plan(
        self,
        dynamics: Dynamics,
        states: Tensor,
        memory: Memory,
        objective: Objective = ...,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """(B, H, A) actions for (B, S) states, and the memory for the next step.

        Args:
            dynamics: the world.
            states: the present.
            memory: of these rows, as `begin` or the last `plan` gave it; not changed.
            objective: what a plan is to be good at.
            noise: (B, draws, H, A) standard normal numbers instead of those that the memory's seeds and counts give.
        """
        ...


class BasePlanner(Options):
    """What planners have in common beside `plan`: their settings are checked, and their memory is the last plan."""

    name: ClassVar[str]
    """In messages, and on the command line."""
    horizon: int

    def begin(self, rows: int, action_dim: int, seed: int = 0) -> Memory:
        """As `Planner.begin`: a plan of zeros, and a seed with no draws so far for each row."""
        seeds = environment_seeds(seed, rows)
        plan = torch.zeros(rows, self.horizon, action_dim)
        return {PLAN: plan, DRAWS: torch.stack([seeds, torch.zeros_like(seeds)], 1)}


def shifted(plan: Tensor) -> Tensor:
    """(..., H, A) a step on, its last action twice."""
    return torch.cat([plan[..., 1:, :], plan[..., -1:, :]], -2)


def counted_on(draws: Tensor) -> Tensor:
    """(B, 2) seeds and counts after one more plan."""
    return draws + torch.arange(2, device=draws.device)


def sampled(noise: Tensor | None, draws: Tensor, first: int, count: int, plan: Tensor, color: float = 0.0) -> Tensor:
    """(B, count, H, A) coloured noise of candidates number `first` on, given or drawn, in the plan's dtype."""
    horizon, width = plan.shape[-2:]
    if noise is None:
        white = candidate_normals(draws, first, count, horizon, width, plan.dtype)
    else:
        white = noise[:, first : first + count].to(plan)
        if white.shape[1:] != (count, horizon, width):
            raise ConfigError(
                f"noise has shape {tuple(noise.shape)}; candidates {first} to {first + count - 1} of this plan need "
                f"(rows, {first + count}, {horizon}, {width})"
            )
    return coloured(white, color)


def around(plan: Tensor, sigma: float, white: Tensor) -> Tensor:
    """(B, N, H, A) plans with (B, N, H, A) noise around (B, H, A) ones, in [-1, 1]; the first is the plan itself."""
    noise = torch.cat([torch.zeros_like(white[:, :1]), white[:, 1:]], 1)
    return (plan.unsqueeze(1) + sigma * noise).clamp(-1, 1)
