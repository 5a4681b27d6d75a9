"""CEM: the cross-entropy method."""

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
from surefoot.world_models.futures import Objective, Score, score
from surefoot.world_models.planners.base import PLAN, BasePlanner, counted_on, sampled, shifted
from surefoot.world_models.planners.native import native_plan
from surefoot.world_models.risk import counted

CUT = 2.0
"""Deviations at which the truncated normal is cut."""


@dataclasses.dataclass(frozen=True)
class CEM(BasePlanner):
    """A Gaussian over plans, fitted to the best of its own samples again and again (Rubinstein, 1999)."""

    name: ClassVar[str] = "cem"
    horizon: int = option(15, "steps looked ahead", range=">= 1")
    samples: int = option(350, "candidates in each iteration", range=">= 2")
    iterations: int = option(5, "iterations of the search", range=">= 1")
    elites: float = option(0.1, "share of the candidates that the Gaussian is fitted to", range="(0, 1]")
    momentum: float = option(0.1, "share of the old Gaussian that is kept", range="[0, 1)")
    sigma: float = option(0.5, "first deviation, in half ranges of the action", range="> 0")
    sampling: str = option(
        "clipped",
        "sampling of plans: clipped, or truncated at 2 deviations, at most half the way to a bound (PETS)",
        choices=("clipped", "truncated"),
    )
    returns: str = option(
        "mean",
        "what is returned: mean, of the last elites; or best, the best candidate seen, as always under a cost limit",
        choices=("mean", "best"),
    )

    @property
    def elite_count(self) -> int:
        """How many."""
        return max(1, round(self.elites * self.samples))

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
        averaged = self.returns == "mean" and objective.cost_limit is None  # a mean of feasible plans need not be one
        found = self.natively(dynamics, states, memory, objective, noise)
        if found is not None:
            return found[0] if averaged else found[1], {PLAN: shifted(found[0]), DRAWS: counted_on(draws)}
        mean = memory[PLAN].to(states.dtype)
        deviation, best = torch.full_like(mean, self.sigma), Best(mean)
        for iteration in range(self.iterations):
            white = sampled(noise, draws, iteration * self.samples, self.samples, mean)
            actions = self.candidates(mean.unsqueeze(1), deviation.unsqueeze(1), white)
            scored = score(dynamics, states, actions, draws, objective)
            mean, deviation = fitted(mean, deviation, actions, scored, self.elite_count, self.momentum)
            best.see(actions, scored)
        chosen = mean if averaged else best.plan
        return chosen, {PLAN: shifted(mean), DRAWS: counted_on(draws)}

    def natively(
        self, dynamics: Dynamics, states: Tensor, memory: Memory, objective: Objective, noise: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """As `native_plan`."""
        settings = PlanSettings(
            (self.samples,) * self.iterations,
            self.sigma,
            self.elite_count,
            momentum=self.momentum,
            discount=objective.discount,
            cost_limit=objective.cost_limit,
            truncated=self.sampling == "truncated",
        )
        return native_plan(dynamics, states, memory, objective, noise, settings)

    def candidates(self, mean: Tensor, deviation: Tensor, white: Tensor) -> Tensor:
        """Plans in [-1, 1] from standard normal numbers."""
        if self.sampling == "clipped":
            return (mean + deviation * white).clamp(-1, 1)
        room = torch.minimum(1 - mean, 1 + mean).clamp(min=0)
        return (mean + torch.minimum(deviation, room / CUT) * truncated(white)).clamp(-1, 1)


def truncated(white: Tensor, cut: float = CUT) -> Tensor:
    """Standard normal numbers -> such of the normal distribution cut at +-`cut`, in the same order."""
    share = math.erf(cut / math.sqrt(2))
    return math.sqrt(2) * torch.erfinv(share * torch.erf(white / math.sqrt(2)))


def fitted(
    mean: Tensor, deviation: Tensor, actions: Tensor, scored: Score, elites: int, momentum: float
) -> tuple[Tensor, Tensor]:
    """(B, H, A) mean and deviation of the best of (B, N, H, A) candidates, less a share `momentum` of the step there.

    Candidates whose score is no number are no elites, and rows in which all are such stay.
    """
    chosen = scored.ranked()[:, :elites]
    some = scored.values.gather(1, chosen).isfinite().to(actions)[..., None, None]
    picked = actions.gather(1, chosen[..., None, None].expand(-1, -1, *actions.shape[2:]))
    count = some.sum(1).clamp(min=1)
    middle = (picked * some).sum(1) / count
    spread = (((picked - middle.unsqueeze(1)) ** 2 * some).sum(1) / count).sqrt()
    usable = some.any(1)
    middle = momentum * mean + (1 - momentum) * middle
    spread = momentum * deviation + (1 - momentum) * spread
    return torch.where(usable, middle, mean), torch.where(usable, spread, deviation)


class Best:
    """The best plan so far of each row, as `Score.ranked` orders them."""

    def __init__(self, plan: Tensor) -> None:
        self.plan = plan
        self.value = torch.full((len(plan),), -math.inf, dtype=plan.dtype, device=plan.device)
        self.spent = torch.full_like(self.value, math.inf)

    def see(self, actions: Tensor, scored: Score) -> None:
        """Take in (B, N, H, A) candidates."""
        top = scored.ranked()[:, :1]
        spent, value = (part.gather(1, top)[:, 0] for part in (scored.spent(), counted(scored.values)))
        better = (spent < self.spent) | ((spent == self.spent) & (value > self.value))
        found = actions.gather(1, top[..., None, None].expand(-1, 1, *actions.shape[2:]))[:, 0]
        self.plan = torch.where(better[:, None, None], found, self.plan)
        self.value, self.spent = torch.where(better, value, self.value), torch.where(better, spent, self.spent)
