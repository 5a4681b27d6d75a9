r"""Adjoint matching: the gradient of a value at a flow's end, carried back along a noisy path to each of its steps.

On the grid t_k = k / K, h = 1 / K, with the memoryless noise :math:`\sigma_k^2 = 2 (1 - t_k + h) / (t_k + h)`: what a
path ends at tells nothing of where it began, so that a flow fitted to these adjoints draws the tilted distribution
mu exp(beta Q) without a bias from the noise. Sources: Domingo-Enrich, Drozdzal, Karrer and Chen, "Adjoint Matching"
(ICLR 2025); Li and Levine, "Q-learning with Adjoint Matching" (2026), for the grid and the last step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from surefoot.core.losses.flow import Field, times
from surefoot.core.nn.native import kernels


def deviations(steps: int) -> tuple[float, ...]:
    """sigma_k of K steps."""
    h = 1 / steps
    return tuple(math.sqrt(2 * (1 - t + h) / (t + h)) for t in times(steps))


def memoryless_path(improved: Field, cloned: Field, noise: Sequence[Tensor]) -> list[Tensor]:
    """K + 1 places (B, D) of a path of the improved flow; its last step is the cloned flow's, without noise.

    x_{k+1} = x_k + h (2 u(x_k, t_k) - x_k / (t_k + h)) + sqrt(h) sigma_k e_k.

    Args:
        improved: u.
        cloned: v, of the last step.
        noise: K times (B, D) standard normal: where the path begins, and what its steps but the last add.
    """
    steps, path = len(noise), [noise[0]]
    h, sigma = 1 / steps, deviations(steps)
    for k, t in enumerate(times(steps)):
        x = path[-1]
        time = x.new_full((1,), t)
        if k == steps - 1:
            path.append(x + h * cloned(x, time))
        else:
            drift = 2 * improved(x, time) - x / (t + h)
            path.append(x + h * drift + math.sqrt(h) * sigma[k] * noise[k + 1])
    return path


def adjoints(
    cloned: Field, value: Callable[[Tensor], Tensor], path: Sequence[Tensor], inverse_temperature: float
) -> list[Tensor]:
    """K tensors (B, D), A_0 .. A_{K-1}, without gradient.

    A_K = -beta dQ/da at the path's end, and A_k = A_{k+1} + h J' A_{k+1} with J the Jacobian of
    2 v(x, t_k + h) - x / (t_k + h) at x_k: the flow is asked a step later than on the way forward.

    Args:
        cloned: v.
        value: (B, D) actions -> (B,) values.
        path: of `memoryless_path`.
        inverse_temperature: beta.
    """
    steps = len(path) - 1
    h, found = 1 / steps, []
    adjoint = -inverse_temperature * pulled(lambda a: value(a).unsqueeze(-1), path[-1])
    for k in reversed(range(steps)):
        later = (k + 1) / steps
        x = path[k]

        def velocity(place: Tensor, time: Tensor = x.new_full((1,), later)) -> Tensor:  # noqa: B008
            return cloned(place, time)

        back = 2 * pulled(velocity, x, adjoint) - adjoint / later
        adjoint = adjoint + h * back
        found.append(adjoint)
    return found[::-1]


def pulled(function: Callable[[Tensor], Tensor], at: Tensor, cotangent: Tensor | None = None) -> Tensor:
    """(B, D) cotangent' d function / d at, row by row and without gradient; of ones where there is no cotangent.

    By autograd where a Learner's native kernels are at work, and by `torch.func` elsewhere: it differentiates stacked
    seeds too, but not the native module's functions.
    """
    if kernels.active() is not None:
        with torch.enable_grad(), kernels.use(kernels.Slots()):  # the Learner's own are for the loss's backward
            place = at.detach().requires_grad_()
            outputs = function(place)
            given = torch.ones_like(outputs) if cotangent is None else cotangent
            return torch.autograd.grad(outputs, place, given)[0]
    found: Any = torch.func.vjp(function, at.detach())
    outputs, pull = found
    pulled_back: Tensor = pull(torch.ones_like(outputs) if cotangent is None else cotangent)[0]
    return pulled_back.detach()


def matching_loss(improved: Field, cloned: Field, path: Sequence[Tensor], adjoint: Sequence[Tensor]) -> Tensor:
    """() mean over rows of sum_k |2 (u - v)(x_k, t_k) / sigma_k + sigma_k A_k|^2; only u gets a gradient.

    At its minimum u = v - sigma^2 A / 2.
    """
    steps, total = len(path) - 1, path[0].new_zeros(len(path[0]))
    for k, (t, sigma) in enumerate(zip(times(steps), deviations(steps), strict=True)):
        x = path[k]
        time = x.new_full((1,), t)
        with torch.no_grad():
            base = cloned(x, time)
        total = total + (2 * (improved(x, time) - base) / sigma + sigma * adjoint[k]).square().sum(-1)
    return total.mean()
