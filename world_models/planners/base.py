"""What all planners are: settings with `plan`, and a memory of the last plan, one row for each state."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from surefoot.core.errors import ConfigError
from surefoot.core.memory import DRAWS, Memory
from surefoot.core.options import check_option
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


class BasePlanner:
    """What planners have in common beside `plan`: their settings are checked, and their memory is the last plan."""

    name: ClassVar[str]
    """In messages, and on the command line."""
    horizon: int

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        check_settings(self, self.name)

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


def sampled(noise: Tensor | None, draws: Tensor, first: int, count: int, plan: Tensor, colour: float = 0.0) -> Tensor:
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
    return coloured(white, colour)


def around(plan: Tensor, sigma: float, white: Tensor) -> Tensor:
    """(B, N, H, A) plans with (B, N, H, A) noise around (B, H, A) ones, in [-1, 1]; the first is the plan itself."""
    noise = torch.cat([torch.zeros_like(white[:, :1]), white[:, 1:]], 1)
    return (plan.unsqueeze(1) + sigma * noise).clamp(-1, 1)


def check_settings(planner: object, name: str) -> None:
    """Raise ConfigError where a planner's settings are of another kind, or one that planners share is out of range."""
    for setting in dataclasses.fields(planner):  # type: ignore[arg-type]  # a dataclass
        check_option(name, setting.name, str(setting.type), getattr(planner, setting.name))
    least = {"horizon": 1, "samples": 2, "iterations": 1, "starts": 1}
    for field, low in least.items():
        value = getattr(planner, field, low)
        if value < low:
            raise ConfigError(f"{name}: {field} is {value}; it is at least {low}")
    for field in ("sigma", "temperature", "learning_rate"):
        value = getattr(planner, field, 1.0)
        if not 0 < value < math.inf:
            raise ConfigError(f"{name}: {field} is {value}; it is above 0")
    for field in ("elites", "kept"):
        value = getattr(planner, field, 0.5)
        if not 0 < value <= 1:
            raise ConfigError(f"{name}: {field} is {value}; it is a share, above 0 and at most 1")
    for field, below in (("momentum", 1.0), ("colour", math.inf)):
        value = getattr(planner, field, 0.0)
        if not 0 <= value < below:
            raise ConfigError(f"{name}: {field} is {value}; it is 0 or more" + (" and below 1" if below == 1 else ""))
