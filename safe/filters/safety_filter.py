"""Filters at run time: they pass a policy's action where it is safe, and replace it where it is not.

Three of them: least restrictive by a value function (V(f(x, u)) <= -margin, else the safest action), a control-barrier
quadratic programme on the same value, which bends the action as little as it can, and one by a learned critic.

The margin is not a matter of taste: a value that is exact in continuous time, or interpolated on a grid, is wrong by a
little for a controller that acts once a period. A double integrator that brakes passes the wall by up to U dt^2 / 8
within its last period, whatever the filter does before (`closed_forms.sampling_margin`); `margins.needed_margin`
measures the same for any model, value and fallback, interpolation included. Below it a filter keeps no promise.

Sources: Fisac et al., "A General Safety Framework for Learning-Based Control in Uncertain Robotic Systems", 2019;
Ames et al., "Control Barrier Functions: Theory and Applications", 2019; Choi et al., "Robust Control Barrier-Value
Functions for Safety-Critical Control", 2021.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from surefoot.core.base.errors import ConfigError
from surefoot.safe.filters.model import Model

Value = Callable[[Tensor], Tensor]
"""(N, S) states -> (N,) V, safe where <= 0."""
RATE = 0.2
"""Default of the barrier's rate a: b may fall by this share of itself a period."""


class Filtered(NamedTuple):
    """What a filter gives for N actions."""

    actions: Tensor
    """(N, A)."""
    changed: Tensor
    """(N,) bool: the filter replaced the policy's action."""
    short: Tensor
    """(N,) bool: no action keeps the filter's condition here, so it gave the action that violates it least."""


class SafetyFilter(Protocol):
    """A function of (N, S) states and (N, A) actions that gives `Filtered`."""

    def __call__(self, states: Tensor, actions: Tensor) -> Filtered:
        """The actions to take."""
        ...

    def promises(self, states: Tensor) -> Tensor:
        """(N,) bool: from here the constraint is kept, as long as every action passes the filter."""
        ...


class LeastRestrictive(nn.Module):
    """Every action passes whose next state has V <= -margin; else the fallback acts, the candidate of smallest next V.

    Args:
        model: says the next state.
        value: V; a `GridValue`, or a function.
        margin: eps >= 0; see `margins.needed_margin`.
        candidates: (K, A) actions of the fallback; None: the model's.
        fallback: (N, S) states -> (N, A) safe actions, instead of the candidates.
    """

    candidates: Tensor

    def __init__(
        self,
        model: Model,
        value: Value,
        margin: float,
        candidates: Tensor | None = None,
        fallback: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if not margin >= 0:
            raise ConfigError(f"the filter's margin is {margin}; it must be 0 or more")
        self.model, self.value, self.margin, self.fallback = model, value, float(margin), fallback
        self.register_buffer("candidates", model.candidates() if candidates is None else candidates.double())

    def safest(self, states: Tensor) -> Tensor:
        """(N, A) actions of the fallback."""
        if self.fallback is not None:
            return self.fallback(states)
        candidates = self.candidates.to(states)
        count, width = candidates.shape
        each = states[:, None].expand(-1, count, -1).reshape(-1, states.shape[1])
        tried = candidates[None].expand(states.shape[0], -1, -1).reshape(-1, width)
        following = self.value(self.model(each, tried)).reshape(-1, count)
        return candidates.index_select(0, following.argmin(1))

    def forward(self, states: Tensor, actions: Tensor) -> Filtered:
        """Actions are clipped to the model's bounds before they are checked."""
        actions = torch.clamp(actions, self.model.action_low.to(actions), self.model.action_high.to(actions))
        changed = ~(self.value(self.model(states, actions)) <= -self.margin)
        if torch.compiler.is_compiling():  # an exported graph works on all rows, and counts nothing
            return Filtered(torch.where(changed[:, None], self.safest(states), actions), changed, changed)
        short = torch.zeros_like(changed)
        if bool(changed.any()):
            rows = changed.nonzero().squeeze(-1)
            safest = self.safest(states[rows])
            short[rows] = ~(self.value(self.model(states[rows], safest)) <= -self.margin)
            actions = actions.index_put((rows,), safest)
        return Filtered(actions, changed, short)

    def promises(self, states: Tensor) -> Tensor:
        """Where V <= -margin."""
        return self.value(states) <= -self.margin


class BarrierQP(LeastRestrictive):
    """min |u - u_nominal|^2 such that b(f(x, u)) >= max((1 - a) b(x), 0), b = -V - margin, within the bounds of u.

    A discrete-time control barrier function. From b < 0, where a step of the fallback can have led, actions must lead
    back at once: whatever passes leaves b >= 0, as `promises` needs. The policy's action passes where it satisfies the
    condition exactly. Else b(f(x, u)) is taken as affine in u, by its secant along each action from bound to bound, and
    `project` solves the programme. Where that has no solution, or its action leaves b < 0 (a value with kinks, far from
    affine), the fallback acts; this is counted as `short` unless the fallback keeps b >= 0. a = 1 is the least
    restrictive filter, but nearer to the policy's action.

    Args:
        model: of a system that is affine in the action.
        value: V; a `GridValue`, or a function.
        margin: eps >= 0.
        rate: a in (0, 1].

    Raises:
        ConfigError: a system that is not affine in its action, or a number out of range.
    """

    def __init__(self, model: Model, value: Value, margin: float, rate: float = RATE) -> None:
        super().__init__(model, value, margin)
        if not model.system.control_affine:
            raise ConfigError(
                f"{model.system.alias} is not known to be affine in its action (`control_affine`), which the cbf "
                f"filter needs; use the reach filter"
            )
        if not 0 < rate <= 1:
            raise ConfigError(f"the barrier's rate is {rate}; it must lie in (0, 1]")
        self.rate = float(rate)

    def barrier(self, states: Tensor) -> Tensor:
        """(N,) b = -V - margin, safe where >= 0."""
        return -self.value(states) - self.margin

    def needed(self, states: Tensor) -> Tensor:
        """(N,) what b must be after a step."""
        return ((1 - self.rate) * self.barrier(states)).clamp_min(0)

    def forward(self, states: Tensor, actions: Tensor) -> Filtered:
        """Actions are clipped to the model's bounds before they are checked."""
        low, high = self.model.action_low.to(actions), self.model.action_high.to(actions)
        actions = torch.clamp(actions, low, high)
        if torch.compiler.is_compiling():
            needed = self.needed(states)
            reached = self.barrier(self.model(states, actions))
            changed = ~(reached >= needed)
            bent, short = self._bent(states, actions, reached - needed)
            return Filtered(torch.where(changed[:, None], bent, actions), changed, changed & short)
        reached, needed = self.barrier(self.model(states, actions)), self.needed(states)
        changed = ~(reached >= needed)
        short = torch.zeros_like(changed)
        if bool(changed.any()):
            rows = changed.nonzero().squeeze(-1)
            bent, short[rows] = self._bent(states[rows], actions[rows], (reached - needed)[rows])
            actions = actions.index_put((rows,), bent)
        return Filtered(actions, changed, short)

    def _bent(self, states: Tensor, actions: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
        """The programme's actions, and where even the fallback leaves b < 0; `slack` is what the nominal ones leave."""
        low, high = self.model.action_low.to(actions), self.model.action_high.to(actions)
        gains = []
        for k in range(actions.shape[1]):
            chosen = torch.arange(actions.shape[1], device=actions.device) == k
            up, down = torch.where(chosen, high, actions), torch.where(chosen, low, actions)
            rise = self.barrier(self.model(states, up)) - self.barrier(self.model(states, down))
            gains.append(rise / (high[k] - low[k]))
        gain = torch.stack(gains, -1)
        bent, feasible = project(actions, gain, slack - (gain * actions).sum(-1), low, high)
        good = feasible & (self.barrier(self.model(states, bent)) >= 0)
        safest = self.safest(states)
        action = torch.where(good[:, None], bent, safest)
        return action, ~good & ~(self.barrier(self.model(states, safest)) >= 0)


class LearnedValue(nn.Module):
    """The same rule with a learned critic for V(f(x, u)): it needs no model, and promises nothing.

    Args:
        critic: (N, O) observations and (N, A) actions -> (N,) Q_h, safe where <= 0, such as FISOR's
            `feasible_action_value`.
        candidates: (K, A) actions among which the safest is taken.
        margin: eps >= 0: an action passes where Q_h <= -eps.
    """

    candidates: Tensor

    def __init__(self, critic: Callable[[Tensor, Tensor], Tensor], candidates: Tensor, margin: float = 0.0) -> None:
        super().__init__()
        if not margin >= 0:
            raise ConfigError(f"the filter's margin is {margin}; it must be 0 or more")
        self.critic, self.margin = critic, float(margin)
        self.register_buffer("candidates", candidates)

    def forward(self, states: Tensor, actions: Tensor) -> Filtered:
        """`states` are observations here."""
        candidates = self.candidates.to(actions)
        changed = ~(self.critic(states, actions) <= -self.margin)
        values = torch.stack([self.critic(states, one.expand(states.shape[0], -1)) for one in candidates])
        least = values.min(0)
        chosen = torch.where(changed[:, None], candidates[least.indices], actions)
        return Filtered(chosen, changed, changed & ~(least.values <= -self.margin))

    def promises(self, states: Tensor) -> Tensor:
        """Nowhere: a learned value is no proof."""
        return torch.zeros(states.shape[0], dtype=torch.bool, device=states.device)


def project(nominal: Tensor, gain: Tensor, constant: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The actions in a box with gain . u + constant >= 0 nearest to nominal ones in it: a quadratic programme, exactly.

    Its solution is u(m) = clip(nominal + m gain) for the smallest multiplier m >= 0 that keeps the constraint, and
    gain . u(m) is piecewise linear in m with a bend where an action meets its bound: the bends are sorted, and m is
    interpolated between the two around the root. Where no m does, the corner that breaks it least is given.

    No package does it: one constraint and a box have this closed form, exact for all rows at once, which is exported
    with the policy; a solver of general programmes iterates to a tolerance, and can't be exported to ONNX.

    Args:
        nominal: (N, A); what lies outside of the box is clipped to it first.
        gain: (N, A).
        constant: (N,).
        low: (A,).
        high: (A,).

    Returns:
        (N, A) actions, and (N,) bool whether the constraint can be kept.
    """
    nominal = torch.clamp(nominal, low, high)
    bound = torch.where(gain > 0, high, low)
    bends = torch.where(gain != 0, (bound - nominal) / torch.where(gain != 0, gain, 1.0), 0.0)
    ordered = torch.cat((torch.zeros_like(bends[:, :1]), bends.sort(-1).values), -1)  # (N, A + 1)

    def kept(multipliers: Tensor) -> Tensor:
        """(N, K) constraint at (N, K) multipliers."""
        tried = torch.clamp(nominal[:, None] + multipliers[..., None] * gain[:, None], low, high)
        return (gain[:, None] * tried).sum(-1) + constant[:, None]

    at_bends = kept(ordered)
    feasible = at_bends[:, -1] >= 0
    after = (at_bends < 0).sum(-1, keepdim=True).clamp(max=ordered.shape[1] - 1)
    before = (after - 1).clamp_min(0)
    m0, m1 = ordered.gather(1, before), ordered.gather(1, after)
    v0, v1 = at_bends.gather(1, before), at_bends.gather(1, after)
    share = torch.where(v1 > v0, -v0 / torch.where(v1 > v0, v1 - v0, 1.0), 1.0).clamp(0, 1)
    multiplier = torch.where(at_bends[:, :1] >= 0, 0.0, m0 + share * (m1 - m0))
    corner = torch.where(gain == 0, nominal, bound)
    found = torch.clamp(nominal + multiplier * gain, low, high)
    return torch.where(feasible[:, None], found, corner), feasible
