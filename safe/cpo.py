"""CPO: the best step within a trust region and a linearised constraint, in closed form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from surefoot.core.base.options import option
from surefoot.core.engine.agent import Batch, Metrics, Rule, Update, require
from surefoot.core.engine.traits import Requires
from surefoot.online.base.natural_gradient import Surface, conjugate_gradient, fisher_product
from surefoot.online.trpo import TRPO, TRPOConfig
from surefoot.safe.constraint.constrained import (
    ConstraintConfig,
    add_cost_critic,
    cost_advantages,
    cost_update,
    nan_keeps,
)

NO_GRADIENT = 1e-6
"""Squared norm of the cost's gradient below which the constraint says nothing."""


@dataclasses.dataclass(frozen=True)
class CPOConfig(ConstraintConfig, TRPOConfig):
    """Settings of CPO: TRPO's, for blocks of whole episodes, and the constraint's."""

    cost_gae_lambda: float = option(0.95, "lambda of the generalised cost advantages", range="[0, 1]")
    num_envs: int = 8
    horizon: int | None = 1024
    minibatches: int = 64
    conjugate_steps: int = 15
    backtracks: int = option(20, "times that the step is shortened, at most")
    decay: float = option(0.8, "decay of the step in the line search", range="(0, 1)")

    def __post_init__(self) -> None:
        """Refuse options that don't go together."""
        super().__post_init__()
        gains = "left alone: its search takes any gain"
        require(self.accept_ratio == TRPOConfig.accept_ratio, "cpo", "accept_ratio", self.accept_ratio, gains)


class CPO(TRPO):
    r"""CPO of Achiam, Held, Tamar and Abbeel, "Constrained Policy Optimization" (2017).

    .. math:: \max_x g^T x \quad \text{with} \quad c + b^T x \le 0, \quad \tfrac12 x^T F x \le \delta

    with the gradients g and b of the surrogates of return and cost, solved by `cpo_step`, then shortened until the
    surrogates and the divergence agree.

    Two slips of the published code are avoided. It mixes scales: b is a mean over steps, and c = J - d a sum over an
    episode; here c is divided by the mean length of the episodes. And with ascent g it has r = +g'F^-1 b, which turns
    the step of cases 1 and 2 away from the constraint it is meant to keep; here r = -g'F^-1 b (a test fails on the
    other).
    """

    name = "cpo"
    Config = CPOConfig
    requires = Requires(costs=True)
    config: CPOConfig
    episode_cost: Tensor
    episode_length: Tensor

    def build(self) -> None:
        """TRPO's networks, the cost critic, and what the last episodes cost and took."""
        super().build()
        add_cost_critic(self)
        self.register_buffer("episode_cost", torch.tensor(0.0))
        self.register_buffer("episode_length", torch.tensor(1.0))

    def keep_costs(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """What the last episodes cost, for the policy's step; until the first has ended there is no cost."""
        kept = {"episode_cost": (self.episode_cost, batch["cost"])}
        kept["episode_length"] = (self.episode_length, batch["length"])
        return {name: nan_keeps(old, new) for name, (old, new) in kept.items()}, {}

    def columns(self, block: Mapping[str, Tensor]) -> Batch:
        """TRPO's, and advantages and returns of costs."""
        columns = super().columns(block)
        columns["cost_advantages"], columns["cost_returns"] = cost_advantages(self, block)
        return columns

    def policy_step(self, batch: Batch, noise: dict[str, Tensor]) -> tuple[dict[str, Tensor], Metrics]:
        """The actor's new parameters by their full names, from all rows of a block; the old ones where none is good."""
        c, surface = self.config, Surface(self.actor, batch)
        rewards, costs = batch["advantages"], batch["cost_advantages"]
        with torch.enable_grad():
            leaf = surface.start.clone().requires_grad_()
            g = torch.autograd.grad(self.gain(surface, leaf, rewards), leaf)[0]
            b = torch.autograd.grad(surface.surrogate(leaf, costs), leaf)[0]
        fisher = fisher_product(surface.divergence, surface.start, c.damping)
        decisions = self.episode_length / self.chunk  # what b is a mean over
        over = (self.episode_cost - c.cost_limit) / decisions
        with torch.no_grad():
            v, p = (conjugate_gradient(fisher, of, c.conjugate_steps) for of in (g, b))
            step, case = cpo_step(g, b, v, p, float(over), c.max_kl)
            found, metrics = self._search(surface, rewards, costs, step, case, float(over))
        return surface.named(found), {**metrics, "cpo_case": torch.tensor(float(case))}

    def _search(
        self, surface: Surface, rewards: Tensor, costs: Tensor, step: Tensor, case: int, over: float
    ) -> tuple[Tensor, Metrics]:
        """The longest part of the step that keeps the divergence, does not raise the cost beyond what is free, and
        gains, where gaining is asked for."""
        c, start = self.config, surface.start
        gain_before, cost_before = self.gain(surface, start, rewards), surface.surrogate(start, costs)
        nothing = torch.zeros_like(gain_before)
        for turn in range(c.backtracks):
            tried = start + c.decay**turn * step
            gain = self.gain(surface, tried, rewards) - gain_before
            cost = surface.surrogate(tried, costs) - cost_before
            far = surface.divergence(tried)
            finite = torch.isfinite(gain) & torch.isfinite(cost) & torch.isfinite(far)
            gains = (gain >= 0) | (case <= 1)
            if bool(finite & gains & (cost <= max(-over, 0.0)) & (far <= c.max_kl)):
                share = torch.full_like(nothing, c.decay**turn)
                return tried, {"policy_gain": gain, "policy_cost": cost, "kl": far, "step_share": share}
        return start, {"policy_gain": nothing, "policy_cost": nothing, "kl": nothing, "step_share": nothing}

    def updates(self) -> list[Update | Rule]:
        """The actor on the whole block, then both critics."""
        costs = Rule(self.keep_costs, ("episode_cost", "episode_length"), on="episodes")
        policy, critic = super().updates()
        return [costs, policy, critic, cost_update(self, critic)]


def cpo_step(g: Tensor, b: Tensor, v: Tensor, p: Tensor, over: float, delta: float) -> tuple[Tensor, int]:
    r"""The solution x of max g'x with c + b'x <= 0 and x'Hx / 2 <= delta, and which case it was.

    Args:
        g: (P,) gradient to climb.
        b: (P,) gradient of the cost.
        v: (P,) H^-1 g.
        p: (P,) H^-1 b.
        over: c, how far the constraint is broken; <= 0 where it holds.
        delta: > 0.

    Returns:
        x, and the case: 4 the cost has no gradient and holds, or 3 it holds in the whole trust region: both a plain
        natural step; 2 it holds at the start; 1 it can be fixed; 0 it can't, so the cost is lowered as far as the
        trust region goes.

    Source: Achiam et al., section 6 and theorem 2, with q = g'v, r = -g'p, s = b'p; the dual over l and nu has
    x = (v - nu p) / l, nu = (l c - r) / s.
    """
    q, r, s = (float(torch.dot(x, y)) for x, y in ((g, v), (-g, p), (b, p)))
    if over < 0 and float(torch.dot(b, b)) <= NO_GRADIENT:
        return _natural(v, q, delta), 4
    room = 2 * delta - over**2 / s if s > 0 else -math.inf  # B
    if over < 0 and room < 0:
        return _natural(v, q, delta), 3
    if room < 0:
        return -math.sqrt(2 * delta / s) * p if s > 0 else torch.zeros_like(p), 0
    case = 2 if over < 0 else 1
    if q <= 0:  # nothing to gain
        return -(max(over, 0.0) / s) * p, case
    left = max(q - r * r / s, 0.0)  # A: what remains of g beside b
    length, active = _best_length(q, r, s, over, delta, left, room)
    if not active:
        return v / length, case
    along = (v + (r / s) * p) / length if length > 0 else torch.zeros_like(v)
    return along - (over / s) * p, case


def _best_length(
    q: float, r: float, s: float, over: float, delta: float, left: float, room: float
) -> tuple[float, bool]:
    """l of the dual and whether the constraint binds there (nu > 0)."""
    if over == 0:
        binding, free = ((0.0, math.inf), None) if r < 0 else (None, (0.0, math.inf))
    elif over < 0:
        binding, free = (0.0, r / over), (max(r / over, 0.0), math.inf)
    else:
        binding, free = (max(r / over, 0.0), math.inf), (0.0, r / over)
    found = [(-math.inf, 0.0, False)]
    if free is not None and free[1] >= free[0]:
        length = min(max(math.sqrt(q / (2 * delta)), free[0]), free[1])
        if length > 0:
            found.append((-(q / length + 2 * delta * length) / 2, length, False))
    if binding is not None and binding[1] >= binding[0]:
        along_cost = left <= 1e-14 * q  # then the step to the constraint is all there is
        wanted = 0.0 if along_cost else math.sqrt(left / room) if room > 0 else math.inf
        length = min(max(wanted, binding[0]), binding[1])
        spent = left / length if length > 0 else 0.0
        found.append((-(spent + (room * length if room > 0 else 0.0)) / 2 - r * over / s, length, True))
    _, length, active = max(found)
    return length, active


def _natural(v: Tensor, q: float, delta: float) -> Tensor:
    return math.sqrt(2 * delta / q) * v if q > 0 else torch.zeros_like(v)
