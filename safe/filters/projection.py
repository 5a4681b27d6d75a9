"""The projection of actions on a half-space in a box: the quadratic programme of a barrier filter, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor


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
