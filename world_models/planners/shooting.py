"""Gradient shooting: the objective's gradient in the actions, followed from several starts."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.memory import DRAWS, Memory
from surefoot.core.base.options import option
from surefoot.world_models.dynamics import Dynamics
from surefoot.world_models.futures import Objective, score, sums_of
from surefoot.world_models.planners.base import PLAN, BasePlanner, around, counted_on, sampled, shifted
from surefoot.world_models.planners.cem import Best
from surefoot.world_models.planners.derivatives import slope_of, smooth
from surefoot.world_models.risk import cost_at_risk

BETAS, EPSILON = (0.9, 0.999), 1e-8


@dataclasses.dataclass(frozen=True)
class GradientShooting(BasePlanner):
    """Adam on the actions of several plans, projected onto the bounds; the best plan met is taken.

    The first start is the last plan, the others have noise around it. Costs of a limit are differentiated where the
    world's have a gradient; in any case they rank the plans that were met.
    """

    name: ClassVar[str] = "shooting"
    horizon: int = option(30, "steps looked ahead", range=">= 1")
    starts: int = option(8, "plans that are started from", range=">= 1")
    iterations: int = option(20, "gradient steps", range=">= 1")
    learning_rate: float = option(0.1, "Adam's learning rate, in half ranges of the action", range="> 0")
    sigma: float = option(0.5, "deviation of the starts' noise, in half ranges of the action", range="> 0")
    color: float = option(1.0, "exponent of their noise's spectrum over time", range=">= 0")
    cost_weight: float = option(10.0, "weight of the cost above a limit, in the objective that is differentiated")

    def plan(
        self,
        dynamics: Dynamics,
        states: Tensor,
        memory: Memory,
        objective: Objective = Objective(),  # noqa: B008  # it is frozen
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """As `Planner.plan`; `noise` is of `starts` candidates."""
        world, draws, mean = smooth(dynamics), memory[DRAWS], memory[PLAN].to(states.dtype)
        white = sampled(noise, draws, 0, self.starts, mean, self.color)
        actions = around(mean, self.sigma, white)
        first, second, best = torch.zeros_like(actions), torch.zeros_like(actions), Best(mean)
        for step in range(1, self.iterations + 1):
            best.see(actions, score(world, states, actions, draws, objective))
            slope = self.gradient(world, states, actions, draws, objective).nan_to_num(0, 0, 0)
            first = BETAS[0] * first + (1 - BETAS[0]) * slope
            second = BETAS[1] * second + (1 - BETAS[1]) * slope.square()
            size = (second / (1 - BETAS[1] ** step)).sqrt() + EPSILON
            actions = (actions + self.learning_rate * first / (1 - BETAS[0] ** step) / size).clamp(-1, 1)
        best.see(actions, score(world, states, actions, draws, objective))
        return best.plan, {PLAN: shifted(best.plan), DRAWS: counted_on(draws)}

    def gradient(self, world: Dynamics, states: Tensor, actions: Tensor, draws: Tensor, objective: Objective) -> Tensor:
        """(B, N, H, A) of the risk measure of the return, less `cost_weight` times the cost above its limit."""
        with torch.enable_grad():
            point = actions.detach().requires_grad_()
            returns, costs = sums_of(world, states, point, draws, objective)
            value = objective.risk.of(returns)
            if objective.cost_limit is not None and costs.requires_grad:
                above = cost_at_risk(costs, objective.risk) - objective.cost_limit
                value = value - self.cost_weight * above.clamp(min=0)
            finite = value[value.isfinite()]
            return slope_of(world, finite.sum(), point) if len(finite) else torch.zeros_like(point)
