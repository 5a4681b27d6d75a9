"""iLQR: iterative linear-quadratic regulation with box constraints."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from surefoot.core.actors.memory import DRAWS, Memory
from surefoot.core.base.errors import ConfigError
from surefoot.core.base.options import option
from surefoot.world_models.dynamics import Dynamics, StepNoise
from surefoot.world_models.futures import Objective
from surefoot.world_models.planners.base import PLAN, BasePlanner, counted_on, shifted
from surefoot.world_models.planners.derivatives import Expansion, expand, smooth

STEPS = tuple(0.5**k for k in range(8))
"""Of the line search."""
LEAST, MOST = 1e-8, 1e8
"""Of the regularisation."""


class Gains(NamedTuple):
    """A step of each row's plan: u + alpha `open` + `closed` (x' - x)."""

    open: Tensor  # (B, H, A)
    closed: Tensor  # (B, H, A, S)


@dataclasses.dataclass(frozen=True)
class ILQR(BasePlanner):
    """Dynamics made linear and rewards quadratic around the plan; Riccati backward, the world itself forward.

    Li and Todorov (2004); box constraints by projected Newton steps, as Tassa, Mansard and Todorov (2014) have them;
    Levenberg's regularisation of the action's Hessian, and a line search over 8 steps for all rows at once. The world
    must be differentiable: learned models and native systems are. It plans with the mean outcome.
    """

    name: ClassVar[str] = "ilqr"
    horizon: int = option(50, "steps looked ahead", range=">= 1")
    iterations: int = option(10, "iterations of the search", range=">= 1")
    regularization: float = option(
        1e-6, "number added to the action's Hessian, ten times more or less as steps fail or succeed", range=">= 0"
    )

    def plan(
        self,
        dynamics: Dynamics,
        states: Tensor,
        memory: Memory,
        objective: Objective = Objective(),  # noqa: B008  # it is frozen
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Memory]:
        """As `Planner.plan`, without noise.

        Raises:
            ConfigError: an objective with several futures, risk or costs; a world without derivatives.
        """
        if not objective.plain:
            raise ConfigError(
                "ilqr plans with the mean outcome; plan for futures, risk or costs with cem, icem or mppi"
            )
        world, actions = smooth(dynamics), memory[PLAN].to(states.dtype)
        path, value = follow(world, states, actions, objective.discount)
        weight = torch.full_like(value, self.regularization)
        at, better = None, torch.ones_like(value, dtype=torch.bool)
        for _ in range(self.iterations):
            if at is None or bool(better.any()):  # where no row moved, it is what it was
                at = expand(world, path[:, :-1], actions, objective.discount)
            gains = self.backward(at, actions, weight)
            path, actions, value, better = self.line_search(world, path, actions, value, gains, objective.discount)
            weight = torch.where(better, weight / 10, weight.clamp(min=1e-6) * 10).clamp(LEAST, MOST)
        draws = memory[DRAWS]
        return actions, {PLAN: shifted(actions), DRAWS: counted_on(draws)}

    def backward(self, at: Expansion, actions: Tensor, weight: Tensor) -> Gains:
        """Riccati's recursion from the horizon to the present, of the value to be maximised."""
        rows, horizon, width = actions.shape
        size = at.states.shape[-1]
        value_1, value_2 = actions.new_zeros(rows, size), actions.new_zeros(rows, size, size)
        eye = torch.eye(width).to(actions)
        opened: list[Tensor] = []
        closed: list[Tensor] = []
        for t in reversed(range(horizon)):
            fx, fu = at.states[:, t], at.actions[:, t]
            alive = at.alive[:, t, None]
            qx = at.rx[:, t] + alive * torch.einsum("bij,bi->bj", fx, value_1)
            qu = at.ru[:, t] + alive * torch.einsum("bij,bi->bj", fu, value_1)
            back = alive[..., None] * value_2
            qxx = at.rxx[:, t] + fx.mT @ back @ fx
            quu = at.ruu[:, t] + fu.mT @ back @ fu
            qux = at.rux[:, t] + fu.mT @ back @ fx
            hessian = made_convex(-quu) + weight[:, None, None] * eye  # of the cost
            low, high = -1 - actions[:, t], 1 - actions[:, t]
            step, free = box_newton(hessian, -qu, low, high)
            gain = free.unsqueeze(-1) * torch.linalg.solve(restricted(hessian, free), free.unsqueeze(-1) * qux)
            opened.append(step)
            closed.append(gain)
            value_1 = qx + torch.einsum("baj,ba->bj", gain, qu + torch.einsum("bij,bj->bi", quu, step))
            value_1 = value_1 + torch.einsum("baj,ba->bj", qux, step)
            value_2 = qxx + gain.mT @ quu @ gain + gain.mT @ qux + qux.mT @ gain
            value_2 = 0.5 * (value_2 + value_2.mT)
        return Gains(torch.stack(opened[::-1], 1), torch.stack(closed[::-1], 1))

    def line_search(
        self, world: Dynamics, path: Tensor, actions: Tensor, value: Tensor, gains: Gains, discount: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The best of `STEPS` in the world itself where it is better than now: path, actions, value, whether."""
        steps = torch.tensor(STEPS).to(actions)[:, None, None]
        now = path[:, 0].expand(len(STEPS), *path[:, 0].shape)
        done = torch.zeros(now.shape[:-1], dtype=torch.bool, device=now.device)
        total, scale = torch.zeros(now.shape[:-1]).to(actions), 1.0
        seen, done_actions = [now], []
        for t in range(actions.shape[1]):
            feedback = torch.einsum("bas,kbs->kba", gains.closed[:, t], now - path[:, t])
            action = (actions[:, t] + steps * gains.open[:, t] + feedback).clamp(-1, 1)
            step = world.step(now, action, StepNoise())
            total = total + torch.where(done, 0, scale * step.rewards)
            now = torch.where(done.unsqueeze(-1), now, step.states)
            done, scale = done | step.ended, scale * discount
            seen.append(now)
            done_actions.append(action)
        total = torch.where(total.isfinite(), total, -math.inf)
        best = total.argmax(0)
        rows = torch.arange(len(best), device=best.device)
        better = total[best, rows] > value
        pick = better[:, None, None]
        return (
            torch.where(pick, torch.stack(seen, 2)[best, rows], path),
            torch.where(pick, torch.stack(done_actions, 2)[best, rows], actions),
            torch.where(better, total[best, rows], value),
            better,
        )


def follow(world: Dynamics, states: Tensor, actions: Tensor, discount: float) -> tuple[Tensor, Tensor]:
    """(B, H + 1, S) path and (B,) return of (B, H, A) actions; minus infinity where it is no number."""
    now, done = states, torch.zeros(len(states), dtype=torch.bool, device=states.device)
    total, path, scale = states.new_zeros(len(states)), [states], 1.0
    for t in range(actions.shape[1]):
        step = world.step(now, actions[:, t], StepNoise())
        total = total + torch.where(done, 0, scale * step.rewards)
        now = torch.where(done.unsqueeze(-1), now, step.states)
        done, scale = done | step.ended, scale * discount
        path.append(now)
    return torch.stack(path, 1), torch.where(total.isfinite(), total, -math.inf)


def made_convex(hessian: Tensor, least: float = 1e-9) -> Tensor:
    """(B, A, A) symmetric matrices with the sizes of their eigenvalues, at least `least`, for the eigenvalues."""
    values, vectors = torch.linalg.eigh(0.5 * (hessian + hessian.mT).nan_to_num())
    return vectors @ (values.abs().clamp(min=least).unsqueeze(-1) * vectors.mT)


def restricted(hessian: Tensor, free: Tensor) -> Tensor:
    """The matrix with rows and columns of dimensions that are not (B, A) `free` as those of the identity."""
    both = free.unsqueeze(-1) * free.unsqueeze(-2)
    return hessian * both + torch.diag_embed(1 - free)


def box_newton(hessian: Tensor, gradient: Tensor, low: Tensor, high: Tensor, rounds: int = 8) -> tuple[Tensor, Tensor]:
    """The x in [low, high] that minimises x' H x / 2 + g' x, and 1 where it is free, 0 where a bound holds it; (B, A).

    Projected Newton steps (Bertsekas, 1982), a fixed number of them for all rows.
    """
    x = (-torch.linalg.solve(hessian, gradient.unsqueeze(-1)).squeeze(-1)).clamp(low, high)
    free = torch.ones_like(x)
    for _ in range(rounds):
        slope = gradient + torch.einsum("bij,bj->bi", hessian, x)
        held = ((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0))
        free = 1 - held.to(x)
        move = -torch.linalg.solve(restricted(hessian, free), (free * slope).unsqueeze(-1)).squeeze(-1)
        x = (x + move).clamp(low, high)
    return x, free
