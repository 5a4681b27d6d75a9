"""MPPI: model predictive path integral control."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.memory import DRAWS, Memory
from surefoot.core.base.options import option
from surefoot.cuda_ext.plan import PlanSettings
from surefoot.world_models.dynamics import Dynamics
from surefoot.world_models.futures import Objective, score
from surefoot.world_models.planners.base import PLAN, BasePlanner, around, counted_on, sampled, shifted
from surefoot.world_models.planners.native import native_plan


@dataclasses.dataclass(frozen=True)
class MPPI(BasePlanner):
    r"""Candidates around the last plan, averaged by how good they are (Williams et al., 2017; no control cost).

    .. math:: u \leftarrow \sum_i w_i u_i, \quad w_i \propto e^{(G_i - \max_j G_j) / \lambda}

    u_i = clip(u + sigma z_i, -1, 1); the first candidate is u itself.
    """

    name: ClassVar[str] = "mppi"
    horizon: int = option(50, "steps looked ahead", range=">= 1")
    samples: int = option(1024, "candidates in each iteration", range=">= 2")
    iterations: int = option(1, "iterations of the search", range=">= 1")
    sigma: float = option(0.5, "deviation of the noise, in half ranges of the action", range="> 0")
    temperature: float = option(0.5, "temperature of the weights, lambda, in units of return", range="> 0")
    color: float = option(1.0, "exponent of the noise's spectrum over time: 0 white, 2 a random walk's", range=">= 0")

    def plan(
        self,
        dynamics: Dynamics,
        states: Tensor,
        memory: Memory,
        objective: Objective = Objective(),  # noqa: B008  # it is frozen
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """As `Planner.plan`; `noise` is of iterations * samples candidates."""
        draws = memory[DRAWS]
        settings = PlanSettings(
            (self.samples,) * self.iterations,
            self.sigma,
            temperature=self.temperature,
            discount=objective.discount,
            cost_limit=objective.cost_limit,
        )
        found = native_plan(dynamics, states, memory, objective, noise, settings, self.color)
        if found is not None:
            return found[0], {PLAN: shifted(found[0]), DRAWS: counted_on(draws)}
        mean = memory[PLAN].to(states.dtype)
        for iteration in range(self.iterations):
            white = sampled(noise, draws, iteration * self.samples, self.samples, mean, self.color)
            actions = around(mean, self.sigma, white)
            mean = self.average(mean, actions, score(dynamics, states, actions, draws, objective).fitness())
        return mean, {PLAN: shifted(mean), DRAWS: counted_on(draws)}

    def average(self, mean: Tensor, actions: Tensor, fitness: Tensor) -> Tensor:
        """(B, H, A) weighted average of (B, N, H, A) candidates; the old mean of rows in which none is a number."""
        best = fitness.amax(1, keepdim=True)
        usable = best > -math.inf
        weights = torch.softmax(torch.where(usable, fitness, 0) / self.temperature, 1)
        return torch.where(usable.unsqueeze(-1), torch.einsum("bn,bnha->bha", weights, actions), mean)
