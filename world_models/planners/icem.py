"""iCEM: sample-efficient cross-entropy method for real-time planning."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from surefoot.core.actors.memory import DRAWS, Memory
from surefoot.core.base.options import option
from surefoot.cuda_ext.plan import PlanSettings
from surefoot.world_models.dynamics import Dynamics
from surefoot.world_models.futures import Objective, score
from surefoot.world_models.planners.base import PLAN, BasePlanner, counted_on, sampled, shifted
from surefoot.world_models.planners.cem import Best, fitted
from surefoot.world_models.planners.native import native_plan

ELITES = "elites"
"""(B, K, H, A) elites of the last plan, a step on; zeros before the first."""


@dataclasses.dataclass(frozen=True)
class ICEM(BasePlanner):
    """CEM with coloured noise, fewer candidates in later iterations, and elites that are kept (Pinneri et al., 2020).

    Candidates of an iteration are new samples and a share of the last iteration's elites, at first of the last plan's,
    a step on; at last the mean too. The best candidate seen is the plan.
    """

    name: ClassVar[str] = "icem"
    horizon: int = option(30, "steps looked ahead", range=">= 1")
    samples: int = option(128, "candidates of the first iteration", range=">= 2")
    iterations: int = option(3, "iterations of the search", range=">= 1")
    elites: float = option(0.1, "share of the first candidates that the Gaussian is fitted to", range="(0, 1]")
    kept: float = option(0.3, "share of the elites that are candidates again", range="(0, 1]")
    decay: float = option(1.25, "decay by which the candidates get fewer from iteration to iteration")
    momentum: float = option(0.1, "share of the old Gaussian that is kept", range="[0, 1)")
    sigma: float = option(0.5, "first deviation, in half ranges of the action", range="> 0")
    color: float = option(2.0, "exponent of the noise's spectrum over time", range=">= 0")

    @property
    def elite_count(self) -> int:
        """How many."""
        return max(1, round(self.elites * self.samples))

    @property
    def kept_count(self) -> int:
        """How many elites are candidates again."""
        return max(1, round(self.kept * self.elite_count))

    @property
    def populations(self) -> tuple[int, ...]:
        """New samples of each iteration: at least twice the elites."""
        return tuple(
            max(round(self.samples * self.decay**-iteration), 2 * self.elite_count)
            for iteration in range(self.iterations)
        )

    def begin(self, rows: int, action_dim: int, seed: int = 0) -> Memory:
        """As `Planner.begin`."""
        elites = torch.zeros(rows, self.kept_count, self.horizon, action_dim)
        return {**super().begin(rows, action_dim, seed), ELITES: elites}

    def plan(
        self,
        dynamics: Dynamics,
        states: Tensor,
        memory: Memory,
        objective: Objective = Objective(),  # noqa: B008  # it is frozen
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """As `Planner.plan`; `noise` is of the sum of `populations` candidates."""
        draws = memory[DRAWS]
        settings = PlanSettings(
            self.populations,
            self.sigma,
            self.elite_count,
            self.kept_count,
            momentum=self.momentum,
            discount=objective.discount,
            cost_limit=objective.cost_limit,
        )
        found = native_plan(dynamics, states, memory, objective, noise, settings, self.color, memory[ELITES])
        if found is not None:
            return found[1], {PLAN: shifted(found[0]), ELITES: shifted(found[2]), DRAWS: counted_on(draws)}
        mean, elites = memory[PLAN].to(states.dtype), memory[ELITES].to(states.dtype)
        deviation, best, first = torch.full_like(mean, self.sigma), Best(mean), 0
        for iteration, count in enumerate(self.populations):
            white = sampled(noise, draws, first, count, mean, self.color)
            fresh = (mean.unsqueeze(1) + deviation.unsqueeze(1) * white).clamp(-1, 1)
            last = iteration == self.iterations - 1
            actions = torch.cat([fresh, elites, *([mean.unsqueeze(1)] if last else [])], 1)
            scored = score(dynamics, states, actions, draws, objective)
            mean, deviation = fitted(mean, deviation, actions, scored, self.elite_count, self.momentum)
            best.see(actions, scored)
            top = scored.ranked()[:, : self.kept_count, None, None]
            elites = actions.gather(1, top.expand(-1, -1, *actions.shape[2:]))
            first += count
        return best.plan, {PLAN: shifted(mean), ELITES: shifted(elites), DRAWS: counted_on(draws)}
